"""The process of one cell: ``python -m benchmarks.engines.cell ENTRY PAYLOAD without|with``.

It writes what it finds to the file that the environment names (see :mod:`benchmarks.engines.trips`), and ends without
waiting for what the engine may have left running.
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module

from . import trips

__all__ = ["main"]


def main(entry: str, make_payload: str, how: str) -> None:
    try:
        found = import_module(f"benchmarks.engines.{entry}").carry(make_payload, how == "with")
    except Exception as error:
        traceback.print_exc()
        trips.note(failed=trips.first_line(error))
        raise
    trips.note(**found)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
        status = 0
    except BaseException:
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
