"""How do tests and benchmarks start a cluster of Dask whose scheduler is a process of its own, and stop it?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.helpers import REPOSITORY

__all__ = ["Cluster", "cluster"]

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
