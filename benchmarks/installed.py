"""Do plain pickle and copy take longer while safepickle is installed?

Objects that no rule is about: installed, they are pickled and copied by the same code, from the same tables with more
entries. Prints a table; run it as ``python -m benchmarks.installed``.
"""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable, Iterator

import safepickle
from benchmarks.common import Row, Settings, part_of

__all__ = ["DISTRIBUTIONS", "QUESTION", "measure"]

QUESTION = "Do plain pickle and copy take longer while safepickle is installed?"
DISTRIBUTIONS = ("torch",)

BASELINE = "not installed"
GOAL = 1.05


class Point:
    """A small object as programs have many."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = str(number)
        self.parts = [number]


def workloads(settings: Settings) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    count = settings.size(20_000)
    points = [Point(number) for number in range(count)]
    rows = {f"row {number}": [number, float(number), (number, str(number))] for number in range(count)}
    found: dict[str, Callable[[], object]] = {
        "pickle.dumps, objects": lambda: pickle.dumps(points),
        "pickle.dumps, rows": lambda: pickle.dumps(rows),
        "copy.deepcopy, objects": lambda: copy.deepcopy(points[: count // 6]),
    }
    try:
        import torch
    except ImportError:
        return found
    layers = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(settings.size(100))])
    found["pickle.dumps, layers"] = lambda: pickle.dumps(layers)
    found["copy.deepcopy, layers"] = lambda: copy.deepcopy(layers)
    return found


def seconds(work: Callable[[], object]) -> float:
    """CPU time, the best of three, after a call that is not timed: installing has filled the caches otherwise."""
    work()
    best = float("inf")
    for _ in range(3):
        start = time.thread_time()
        work()
        best = min(best, time.thread_time() - start)
    return best


def measure(settings: Settings) -> Iterator[Row]:
    """One row a workload; both ways in turn."""
    for task, work in workloads(settings).items():
        times: dict[str, list[float]] = {BASELINE: [], "installed": []}
        for _ in range(settings.rounds):
            times[BASELINE].append(seconds(work))
            with safepickle.installed():
                times["installed"].append(seconds(work))
        yield Row("installed", task, times, BASELINE, [part_of(GOAL, BASELINE, of="installed")])


if __name__ == "__main__":
    from benchmarks.report import show

    show(QUESTION, list(measure(Settings())))
