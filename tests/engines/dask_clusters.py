"""How do tests start a cluster of Dask whose scheduler is a process of its own, and stop it?

Importing Dask tells ``copyreg`` about every exception class that there is (tblib does). Other tests in this process
must not notice, so the entries are taken away at once; :func:`exceptions_as_dask_has_them` puts them back for a while.
"""

from __future__ import annotations

import copyreg
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers import REPOSITORY

__all__ = ["Cluster", "cluster", "exceptions_as_dask_has_them"]

pytest.importorskip("distributed")
tblib = pytest.importorskip("tblib.pickling_support")

_OF_TBLIB = {
    cls: copyreg.dispatch_table.pop(cls)
    for cls, reducer in list(copyreg.dispatch_table.items())
    if getattr(reducer, "func", reducer) in (tblib.pickle_exception, tblib.pickle_traceback)
}

_BOTH = ("--host", "127.0.0.1", "--no-dashboard")


class Cluster:
    """A scheduler and workers on loopback.

    Attributes:
        file: the scheduler file, for ``Client(scheduler_file=...)``.
    """

    def __init__(self, folder: Path) -> None:
        self.file = str(folder / "scheduler.json")
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def start_scheduler(self, *arguments: str) -> None:
        self._start("dask_scheduler", "--port", "0", "--scheduler-file", self.file, *arguments)

    def start_worker(self, *arguments: str) -> None:
        where = ("--scheduler-file", self.file, "--local-directory", str(self._folder))
        self._start("dask_worker", "--no-nanny", "--nthreads", "1", *where, *arguments)

    def stop(self) -> None:
        for process in self._processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()

    def _start(self, command: str, *arguments: str) -> None:
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        settings = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "False"}
        with open(self._folder / f"{command}-{len(self._processes)}.log", "wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", f"distributed.cli.{command}", *_BOTH, *arguments],
                    cwd=self._folder,
                    env={**os.environ, **settings},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )


@contextmanager
def exceptions_as_dask_has_them() -> Iterator[None]:
    """For the length of a ``with`` statement ``copyreg`` is as Dask has left it; what is added to it meanwhile goes."""
    before = dict(copyreg.dispatch_table)
    copyreg.dispatch_table.update(_OF_TBLIB)
    try:
        yield
    finally:
        copyreg.dispatch_table.clear()
        copyreg.dispatch_table.update(before)


@contextmanager
def cluster(*arguments: str, workers: int = 2, scheduler: Sequence[str] = ()) -> Iterator[Cluster]:
    """A cluster for the length of a ``with`` statement.

    Args:
        arguments: for the scheduler and for each worker.
        workers: how many.
        scheduler: more arguments for the scheduler.
    """
    with tempfile.TemporaryDirectory(prefix="safepickle-dask-", ignore_cleanup_errors=True) as folder:
        made = Cluster(Path(folder))
        try:
            made.start_scheduler(*arguments, *scheduler)
            for _ in range(workers):
                made.start_worker(*arguments)
            yield made
        finally:
            made.stop()
