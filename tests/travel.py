"""How do tests send an object from one script to another?

Most of what is said about things by value is about ``__main__``: a script or a notebook defines something, and a
process that has never seen that script loads it. So a test is two scripts, for two interpreters.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

from .helpers import StrPath, run_python

__all__ = ["PROTOCOLS", "travel"]

PROTOCOLS = (2, 4, 5)


def travel(
    define: str,
    there: str,
    tmp_path: Path,
    *,
    home: str = "",
    pythonpath: Iterable[StrPath] = (),
    pythonpath_there: Iterable[StrPath] | None = None,
    timeout: float = 60,
) -> str:
    """Send what a script calls ``obj`` to another script, in protocols 2, 4 and 5.

    Args:
        define: the first script; it must give ``obj`` a value.
        there: the second script, which finds ``obj`` as plain ``pickle.loads`` has restored it; run for each protocol.
        tmp_path: a folder for the pickles.
        home: run at the end of the first script, which has its own ``obj`` and what came back as ``back``.
        pythonpath: folders to import from, in both processes.
        pythonpath_there: the same for the second process, if it is another list.
        timeout: seconds for each process.

    Returns:
        What the second script printed.
    """
    pythonpath = list(pythonpath)
    write = f"""
import safepickle
for protocol in {PROTOCOLS}:
    data = safepickle.dumps(obj, protocol)
    with open(f"{tmp_path}/{{protocol}}.pkl", "wb") as file:
        file.write(data)
back = safepickle.loads(data)
"""
    run_python(textwrap.dedent(define) + write + textwrap.dedent(home), timeout=timeout, pythonpath=pythonpath)
    read = f"""
import pickle
for protocol in {PROTOCOLS}:
    with open(f"{tmp_path}/{{protocol}}.pkl", "rb") as file:
        obj = pickle.loads(file.read())
"""
    path = pythonpath if pythonpath_there is None else pythonpath_there
    return run_python(read + textwrap.indent(textwrap.dedent(there), "    "), timeout=timeout, pythonpath=path)
