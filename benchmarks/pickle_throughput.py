"""How fast are `safepickle.dumps` and `loads`, how large are the pickles, and what memory do they need?

Against pickle, cloudpickle, dill and, for tensors, `torch.save`. The limit for a large tensor is what the standard
library takes for an array of NumPy with the same bytes.

    python -m benchmarks pickle_throughput [--device cuda] [--quick]
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import pickle_work
from benchmarks.common import Row, Settings, at_most, in_fresh_process, measured

__all__ = ["DISTRIBUTIONS", "QUESTION", "measure"]

QUESTION = "How fast are `safepickle.dumps` and `loads`, how large are the pickles, and what memory do they need?"
DISTRIBUTIONS = ("torch", "numpy", "cloudpickle", "dill")

ONE_TENSOR = 64_000_000
OUT_OF_BAND = (64_000, 1_000_000, 64_000_000)
IN_MEMORY = ("5,000 dataclasses (int, list, dict)", "2,000 JSON-like records")
STATE = 256_000_000


def measure(settings: Settings) -> Iterator[Row]:
    """Each workload in a process of its own. On a GPU: the rows about tensors."""
    if settings.device == "cpu":
        yield from _objects(settings)
    if importlib.util.find_spec("torch") is not None:
        yield from _tensors(settings)


def _fresh(settings: Settings, function: Callable[..., Any], **arguments: Any) -> Iterator[Row]:
    yield from map(Row.from_json, measured(function, {**arguments, "quick": settings.quick}, settings))


def _objects(settings: Settings) -> Iterator[Row]:
    quick = settings.quick
    for task in pickle_work.TASKS:
        yield from _fresh(settings, pickle_work.plain, task=task)
    for task in pickle_work.INSTANCES[:1] if quick else pickle_work.INSTANCES:
        arguments = {"task": task, "quick": quick}
        yield Row.from_json(in_fresh_process(pickle_work.pure, arguments, environment={"SAFEPICKLE_PURE": "1"}))
    for after in ("", "5,000 dataclasses"):
        yield from _fresh(settings, pickle_work.small, after=after)
    for task in IN_MEMORY:
        found = {
            name: measured(pickle_work.memory, {"task": task, "name": name, "quick": quick}, settings)
            for name in pickle_work.picklers()
        }
        for verb in ("dumps", "loads"):
            samples = {name: [parts[verb]] for name, parts in found.items()}
            yield Row("memory", f"peak of {verb}, to the bytes: {task}", samples, "pickle", unit="x")


def _tensors(settings: Settings) -> Iterator[Row]:
    from benchmarks import models, pickle_tensors

    device, quick = settings.device, settings.quick
    for task in models.PAYLOADS:
        yield from _fresh(settings, pickle_tensors.many, task=task, device=device)
    yield from _fresh(settings, pickle_tensors.in_band, size=settings.size(ONE_TENSOR), device=device)
    if device == "cpu":
        for size in OUT_OF_BAND[:1] if quick else OUT_OF_BAND:
            yield from _fresh(settings, pickle_tensors.out_of_band, size=size)
        yield from _files(settings)


def _files(settings: Settings) -> Iterator[Row]:
    """The peak of memory where large objects go to a file and come back from it."""
    from benchmarks import pickle_tensors

    size = settings.size(STATE)
    written: dict[str, list[float]] = {}
    read: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in pickle_tensors.BY_FILE[:2] if settings.quick else pickle_tensors.BY_FILE:
            arguments = {"name": name, "size": size, "file": os.path.join(folder, "state")}
            try:
                written[name] = [in_fresh_process(pickle_tensors.memory_written, arguments)]
                read[name] = [in_fresh_process(pickle_tensors.memory_read, arguments)]
            except RuntimeError:
                if name in ("pickle", "safepickle"):
                    raise
    what = f"a state of {size / 1e6:,.0f} MB"
    # of the object's size: in writing it is there already, in reading it comes; a tenth is left for the way
    goals = ([at_most(0.1)], [at_most(1.1)]) if not settings.quick else ([], [])
    yield Row("memory", f"dump to a file, beyond {what}", written, unit="x", goals=goals[0])
    yield Row("memory", f"load from a file, with {what}", read, unit="x", goals=goals[1])
