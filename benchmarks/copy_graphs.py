"""Object graphs for `copy_throughput`: what each measurement does in its process. Only the standard library.

Each function takes and returns what JSON holds, and runs in a fresh process.
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import safepickle
from benchmarks import workloads
from benchmarks.common import Row, Settings, faster, interleave, part_of

__all__ = ["deepest", "graph", "history", "memory", "resident", "scaling", "without_core"]

#: task -> how many times as fast as copy.deepcopy, and as copium.
GOALS: dict[str, tuple[float, float]] = {
    "5,000 dataclasses (int, list, dict)": (26, 5),
    "5,000 dataclasses of atoms": (40, 8),
    "5,000 plain objects": (40, 8),
    "5,000 objects with slots": (45, 7),
    "5,000 dataclasses with slots": (100, 12),
    "100 nested configs of dataclasses": (32, 5),
    "object graph with cycles, 1,500 nodes": (28, 4),
    "2,000 JSON-like records": (18, 1.6),
    "one small JSON-like record": (16, 1.3),
    "one dataclass": (22, 4),
    "200 lists of 1,000 ints": (26, 1.1),
    "100,000 floats": (26, 1.1),
    "1,000 strings of 10 kB": (26, 1.1),
    "5,000 immutable tuples": (75, 2.2),
    "dict of 20,000 strings": (30, 2.5),
    "500 sets of 20": (20, 2),
    "5,000 members of an enum": (30, 9),
}

#: All other tasks: not behind copium, within what two runs of the same differ by.
NOT_BEHIND = 0.95

#: Without private layouts of the interpreter: how many times as fast as copy.deepcopy.
PORTABLE_GOALS = {
    "5,000 dataclasses (int, list, dict)": 12,
    "5,000 dataclasses of atoms": 12,
    "5,000 plain objects": 12,
    "5,000 objects with slots": 12,
    "2,000 JSON-like records": 10,
    "one small JSON-like record": 10,
}

PROTOCOL = 5


def copiers() -> dict[str, Callable[[Any], Any]]:
    """Who copies, the standard library first; copium where it is installed."""
    found: dict[str, Callable[[Any], Any]] = {"copy": copy.deepcopy, "safepickle": safepickle.deepcopy}
    try:
        import copium
    except ImportError:
        pass
    else:
        found["copium"] = copium.deepcopy
    return found


def round_trip(obj: Any) -> Any:
    return pickle.loads(pickle.dumps(obj, PROTOCOL))


def objects_in(obj: Any) -> int:
    """How many objects a copy makes anew or looks at: what the standard library notes in its memo, and the root."""
    memo: dict[int, Any] = {}
    copy.deepcopy(obj, memo)
    return max(1, len(memo) - 1)  # one entry is the list that keeps the originals alive


def _compared(obj: Any, settings: Settings) -> tuple[dict[str, list[float]], dict[str, str]]:
    alternatives: dict[str, Callable[[], object]] = {
        name: partial(copier, obj) for name, copier in copiers().items()
    }
    alternatives["pickle round trip"] = lambda: round_trip(obj)
    failures: dict[str, str] = {}
    times = interleave(alternatives, settings, failures=failures)
    return {name: list(values) for name, values in times.items()}, failures


def graph(task: str, quick: bool, group: str = "object graphs") -> dict[str, Any]:
    """One workload, copied by everybody."""
    settings = Settings(quick=quick)
    make, size = workloads.GRAPHS[task]
    obj = make(settings.size(size))
    times, failures = _compared(obj, settings)
    if group == "object graphs":
        than_copy, than_copium = GOALS.get(task, (0, NOT_BEHIND))
        goals = [*([faster(than_copy, "copy")] if than_copy else []), faster(than_copium, "copium")]
    else:
        goals = [faster(PORTABLE_GOALS[task], "copy")]
    return Row(group, task, times, "copy", goals, facts={"objects": objects_in(obj)}, failures=failures).as_json()


def scaling(kind: str, size: int, quick: bool) -> dict[str, Any]:
    """The same kind of object in growing numbers."""
    make = {"dataclasses": workloads.records, "JSON-like records": workloads.json_records}[kind]
    obj = make(size)
    times, failures = _compared(obj, Settings(quick=quick))
    facts = {"size": size, "objects": objects_in(obj)}
    return Row(f"{kind}, growing", f"{size:,}", times, "copy", facts=facts, failures=failures).as_json()


# -- history -----------------------------------------------------------------------------------------------------------

LARGE: dict[str, Callable[[bool], Any]] = {
    "5,000 dataclasses": lambda quick: workloads.records(500 if quick else 5_000),
    "200,000 lists": lambda quick: [[number] for number in range(2_000 if quick else 200_000)],
}


def history(name: str, large: str, quick: bool) -> float:
    """How many times its fresh time a small copy takes after a large one."""
    copier = copiers()[name]
    small = workloads.json_record(1)

    def timed() -> float:
        values = []
        for _ in range(30):
            start = time.thread_time()
            for _ in range(200):
                copier(small)
            values.append(time.thread_time() - start)
        return sorted(values)[len(values) // 2]

    timed()
    gc.collect()
    fresh = timed()
    obj = LARGE[large](quick)
    copier(obj)
    del obj
    gc.collect()
    return timed() / fresh


# -- memory ------------------------------------------------------------------------------------------------------------


def memory(name: str, task: str, quick: bool) -> dict[str, int]:
    """The bytes that a copy takes and needs at most on the way, and those that stay when it is gone.

    As Python's allocator sees them: all of these alternatives use it. What stays after the first copy is what the
    source has grown by (or a leak); the second one is measured, which finds the source as it left it.
    """
    copier = {**copiers(), "pickle round trip": round_trip}[name]
    make, size = workloads.GRAPHS[task]
    copier(make(3))  # what is imported and cached at the first call is not the copy's
    obj = make(Settings(quick=quick).size(size))
    gc.collect()
    tracemalloc.start()
    start, _ = tracemalloc.get_traced_memory()
    copier(obj)
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    result = copier(obj)
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del result
    return {"result": after - before, "peak": peak - before, "stays": before - start}


def resident(name: str, quick: bool) -> int:
    """By how many bytes the process grows over 50 copies of every size, once the first ones have been made."""
    copier = copiers()[name]
    sizes = (10, 100, 1_000) if quick else (10, 1_000, 30_000, 200_000)
    objects = [[[number] for number in range(size)] for size in sizes]
    for _ in range(2):
        for obj in objects:
            copier(obj)
    gc.collect()
    before = _resident()
    for _ in range(5 if quick else 50):
        for obj in objects:
            copier(obj)
    gc.collect()
    return _resident() - before


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# -- depth -------------------------------------------------------------------------------------------------------------


class Link:
    """An instance that holds the next one."""

    def __init__(self, next: Any) -> None:
        self.next = next


def chain(kind: str, depth: int) -> Any:
    obj: Any = None
    for _ in range(depth):
        obj = [obj] if kind == "lists" else Link(obj)
    return obj


def deepest(name: str, kind: str, depth: int, stack: int) -> bool:
    """Whether a nested object can be copied, in a thread with a stack of so many bytes (0: the main thread).

    A crash ends this process; a `RecursionError` is the answer False.
    """
    copier = copiers()[name]
    obj = chain(kind, depth)
    answer: list[bool] = []

    def attempt() -> None:
        try:
            result = copier(obj)
        except RecursionError:
            answer.append(False)
        else:
            levels = 0
            while result is not None:
                result = result[0] if kind == "lists" else result.next
                levels += 1
            answer.append(levels == depth)

    if stack:
        threading.stack_size(stack)
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
    else:
        attempt()
    return answer[0]


def without_core(task: str, quick: bool) -> dict[str, Any]:
    """The copier in Python, which serves where there is no compiler."""
    settings = Settings(quick=quick)
    make, size = workloads.GRAPHS[task]
    obj = make(settings.size(size))
    times = interleave({"copy": lambda: copy.deepcopy(obj), "safepickle": lambda: safepickle.deepcopy(obj)}, settings)
    return Row("without the C core", task, times, "copy", [part_of(1.0, "copy")]).as_json()
