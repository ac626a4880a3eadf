"""Runs under valgrind's callgrind, for :mod:`tests.guard`: each workload between two calls of ``os.getppid``.

Callgrind writes what it has counted at each of them. Nothing here imports more than safepickle and the workloads, for
all of it is emulated.
"""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable
from typing import Any

import safepickle
from benchmarks import workloads

__all__ = ["SIZES", "SLOW", "STEPS"]

SIZES = (100, 200)


def by_rule(obj: Any) -> Any:
    """A copy where each instance costs a call of a Python function: what the guard has to notice."""
    return safepickle.deepcopy(obj, registry=SLOWER)


def _small(function: Callable[[Any], Any], obj: Any) -> tuple[Callable[[int], Any], Callable[[Any], Any]]:
    def many(count: int) -> None:
        for _ in range(count):
            function(obj)

    return (lambda count: count), many


SLOW = "deepcopy of dataclasses of atoms by a rule in Python"
SLOWER = safepickle.Registry()
SLOWER.register(workloads.Leaf, copy=lambda obj, memo: workloads.Leaf(obj.number, obj.weight, obj.name))

SMALL = {"a": [1, 2]}

#: name -> what makes the object of a size, and what is done with it. "pickle ..." is what the others are divided by.
STEPS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "pickle of dataclasses": (workloads.records, pickle.dumps),
    "deepcopy of dataclasses": (workloads.records, safepickle.deepcopy),
    "deepcopy of dataclasses of atoms": (workloads.leaves, safepickle.deepcopy),
    SLOW: (workloads.leaves, by_rule),
    "deepcopy of objects with slots": (workloads.slots, safepickle.deepcopy),
    "deepcopy of JSON-like records": (workloads.json_records, safepickle.deepcopy),
    "dumps of dataclasses": (workloads.records, safepickle.dumps),
    "dumps of JSON-like records": (workloads.json_records, safepickle.dumps),
    "a small deepcopy": _small(safepickle.deepcopy, SMALL),
    "a small dumps": _small(safepickle.dumps, SMALL),
    "a small loads": _small(safepickle.loads, pickle.dumps(SMALL, 4)),
}


def main() -> None:
    """Each step twice to warm up, then between two marks, for each size."""
    gc.disable()
    for make, function in STEPS.values():
        for size in SIZES:
            obj = make(size)
            function(obj)
            function(obj)
            os.getppid()
            function(obj)
            os.getppid()


if __name__ == "__main__":
    main()
