"""``python -m safepickle.engines``: which engines are here, and what does installing into them change?

    python -m safepickle.engines               the engines and their versions; imports none of them
    python -m safepickle.engines ray joblib    installs into these, in this process, and lists what has been changed

The proof that they carry what they should is ``python -m benchmarks.engines``, in the source tree.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import sys
from importlib import import_module

import safepickle

from ..commands.tables import print_table
from . import MODULES, NEEDS

__all__ = ["main"]



def main(arguments: list[str] | None = None) -> int:
    """Print a table. Exit status 1 if an engine that was named is not here."""
    parser = argparse.ArgumentParser(prog="python -m safepickle.engines", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=", ".join(MODULES))
    named = parser.parse_args(arguments).engines
    if unknown := [name for name in named if name not in MODULES]:
        parser.error(f"no such engine: {', '.join(unknown)}; there are {', '.join(MODULES)}")
    if named:
        return _print_changes(named)
    rows = [(name, _version(name), f'safepickle.install("{name}")', MODULES[name]) for name in MODULES]
    print_table("engines", ("engine", "version", "line to add", "adapter"), rows)
    return 0


def _version(engine: str) -> str:
    """The version of an engine's library, ``"not here"`` without."""
    top = NEEDS[engine].partition(".")[0]
    if top in sys.stdlib_module_names:
        return "Python's"
    if importlib.util.find_spec(top) is None:
        return "not here"
    try:
        return importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        return "?"


def _print_changes(engines: list[str]) -> int:
    absent = [engine for engine in engines if _version(engine) == "not here"]
    if absent:
        print(f"not here: {', '.join(absent)}", file=sys.stderr)
        return 1
    for engine in engines:
        import_module(NEEDS[engine])
    with safepickle.installed(*engines) as made:
        mine = [(change.engine, change.where) for change in made.changes if change.engine in engines]
        tables = len(made.changes) - len(mine)
        print_table("changed", ("for", "what"), [*mine, ("all", f"{tables} entries in tables of copyreg and copy")])
    return 0


if __name__ == "__main__":
    sys.exit(main())
