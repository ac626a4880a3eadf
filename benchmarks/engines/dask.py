"""Dask: a task's argument and a result, with a scheduler and a worker that are processes of their own."""

from __future__ import annotations

from itertools import count
from typing import Any

import distributed

import safepickle.engines.dask
from tests.engines.dask_clusters import cluster

from .trips import make, trip, use

__all__ = ["ENGINE", "NEEDS", "carry"]

ENGINE = "Dask"
NEEDS = ("distributed", "torch", "triton")


def carry(make_payload: str, installed: bool) -> dict[str, Any]:
    with cluster(workers=1) as made, distributed.Client(scheduler_file=made.file, timeout=30) as client:
        client.wait_for_workers(1, timeout=30)
        if installed:
            safepickle.engines.dask.install_on(client)

        number = count()  # keys of random digits would be in the messages

        def there(payload: Any) -> str:
            return str(client.submit(use, payload, key=f"there-{next(number)}").result())

        def back(name: str) -> Any:
            return client.submit(make, name, key=f"back-{next(number)}").result()

        return trip(make_payload, there, back, _size)


def _size(payload: Any) -> int:
    """What a task with the payload sends, but for the task's own bytes."""
    frames: list[Any] = []
    data = distributed.protocol.pickle.dumps(payload, buffer_callback=frames.append)
    return len(data) + sum(memoryview(frame).nbytes for frame in frames)
