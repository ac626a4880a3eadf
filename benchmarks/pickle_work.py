"""What each measurement of `pickle_throughput` does in its process, but for tensors. Only the standard library.

Each function takes and returns what JSON holds, and runs in a fresh process.
"""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import safepickle
from benchmarks import workloads
from benchmarks.common import Goal, Row, Settings, extra, failure, interleave, part_of
from benchmarks.copy_graphs import LARGE, PROTOCOL

__all__ = ["TASKS", "memory", "picklers", "plain", "pure", "size_row", "small"]

#: task -> the part of pickle's time that dumps may take, and that loads may take. The bytes are identical.
PLAIN_GOAL = 1.05
TASKS: dict[str, tuple[float, float]] = {
    "2,000 JSON-like records": (PLAIN_GOAL, PLAIN_GOAL),
    "200 lists of 1,000 ints": (PLAIN_GOAL, PLAIN_GOAL),
    "100,000 floats": (PLAIN_GOAL, PLAIN_GOAL),
    "1,000 strings of 10 kB": (PLAIN_GOAL, PLAIN_GOAL),
    "5,000 immutable tuples": (PLAIN_GOAL, PLAIN_GOAL),
    "dict of 20,000 strings": (PLAIN_GOAL, PLAIN_GOAL),
    "500 sets of 20": (PLAIN_GOAL, PLAIN_GOAL),
    "5,000 dataclasses (int, list, dict)": (0.65, PLAIN_GOAL),
    "5,000 plain objects": (0.65, PLAIN_GOAL),
    "5,000 objects with slots": (0.75, PLAIN_GOAL),
    "100 nested configs of dataclasses": (0.75, PLAIN_GOAL),
}

#: Tasks where the objects are instances; cloudpickle is much slower there, and the fallback in Python has a limit.
INSTANCES = [task for task, (dumps, _) in TASKS.items() if dumps < 1]
CLOUDPICKLE_GOAL = 0.35
PURE_GOAL = 1.22
SMALL_CALL_GOAL = 0.5e-6


def picklers() -> dict[str, Any]:
    """Modules with dumps and loads, the standard library's first."""
    found: dict[str, Any] = {"pickle": pickle, "safepickle": safepickle}
    for name in ("cloudpickle", "dill"):
        try:
            found[name] = __import__(name)
        except ImportError:
            pass
    return found


def _dumping(module: Any, obj: Any) -> Callable[[], bytes]:
    return partial(module.dumps, obj, protocol=PROTOCOL)


def _made(task: str, settings: Settings) -> Any:
    make, size = workloads.GRAPHS[task]
    return make(settings.size(size))


def plain(task: str, quick: bool) -> list[dict[str, Any]]:
    """Dumps, loads and the size of the pickles of one workload."""
    settings = Settings(quick=quick)
    obj = _made(task, settings)
    goals: list[Goal] = [part_of(TASKS[task][0], "pickle")]
    if task in INSTANCES:
        goals.append(part_of(CLOUDPICKLE_GOAL, "cloudpickle"))
    return pickled(task, obj, picklers(), goals, [part_of(TASKS[task][1], "pickle")], settings)


def pickled(
    task: str,
    obj: Any,
    modules: dict[str, Any],
    dumps_goals: list[Goal],
    loads_goals: list[Goal],
    settings: Settings,
    what: str = "objects",
    timing: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """The rows about one object: dumps, loads, the size of the pickles. Each module loads what it has written.

    `timing` says which clock tells the time, where it is not the default of `interleave`.
    """
    data: dict[str, bytes] = {}
    failures: dict[str, str] = {}
    for name, module in modules.items():
        try:
            data[name] = bytes(module.dumps(obj, protocol=PROTOCOL))
        except Exception as error:
            failures[name] = failure(error)
    facts = {"bytes": len(data["pickle"])}
    timing = timing or {}
    dumps = interleave({name: _dumping(modules[name], obj) for name in data}, settings, **timing)
    loads = interleave({name: partial(modules[name].loads, data[name]) for name in data}, settings, **timing)
    told: dict[str, Any] = {"facts": facts, "failures": failures, "clock": "wall" if timing else "CPU"}
    return [
        Row(f"dumps, {what}", task, dumps, "pickle", dumps_goals, **told).as_json(),
        Row(f"loads, {what}", task, loads, "pickle", loads_goals, **told).as_json(),
        size_row(what, task, data).as_json(),
    ]


def size_row(what: str, task: str, data: dict[str, bytes]) -> Row:
    """How large the pickles are; those of plain objects are the standard library's, byte for byte."""
    samples = {name: [len(pickle_)] for name, pickle_ in data.items()}
    row = Row(f"bytes, {what}", task, samples, "pickle", [part_of(1.0, "pickle")], unit="B")
    row.facts = {"identical": int(data["safepickle"] == data["pickle"])}
    return row


def pure(task: str, quick: bool) -> dict[str, Any]:
    """Without the C core; the process is started so that there is none."""
    settings = Settings(quick=quick)
    obj = _made(task, settings)
    modules = {"pickle": pickle, "safepickle": safepickle}
    times = interleave({name: _dumping(module, obj) for name, module in modules.items()}, settings)
    return Row("dumps, without the C core", task, times, "pickle", [part_of(PURE_GOAL, "pickle")]).as_json()


def small(after: str, quick: bool) -> list[dict[str, Any]]:
    """Calls that take less than a microsecond, in a fresh process or after a large dump."""
    settings = Settings(quick=quick)
    modules = picklers()
    if after:
        obj = LARGE[after](quick)
        for module in modules.values():
            module.loads(module.dumps(obj, protocol=PROTOCOL))
        del obj
    rows = []
    for what, obj in (("1", 1), ("a small dict", {"a": [1, 2]})):
        suffix = f" after {after}" if after else ""
        times = interleave({name: _dumping(module, obj) for name, module in modules.items()}, settings)
        goals = [extra(SMALL_CALL_GOAL, "pickle")]
        rows.append(Row("small calls", f"dumps of {what}{suffix}", times, "pickle", goals).as_json())
        data = pickle.dumps(obj, PROTOCOL)
        times = interleave({name: partial(module.loads, data) for name, module in modules.items()}, settings)
        rows.append(Row("small calls", f"loads of {what}{suffix}", times, "pickle", goals).as_json())
    return rows


def memory(task: str, name: str, quick: bool) -> dict[str, float]:
    """What dumps and loads need at most, result included, as a part of the pickle's bytes."""
    module = picklers()[name]
    obj = _made(task, Settings(quick=quick))
    module.loads(module.dumps(obj[:3], protocol=PROTOCOL))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    data = module.dumps(obj, protocol=PROTOCOL)
    dumps = tracemalloc.get_traced_memory()[1] - before
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    result = module.loads(data)
    loads = tracemalloc.get_traced_memory()[1] - before
    del result
    return {"dumps": dumps / len(data), "loads": loads / len(data)}
