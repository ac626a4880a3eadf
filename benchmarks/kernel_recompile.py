"""What does the first launch of a kernel cost, after the object that holds it was copied or loaded?

After deepcopy, after dumps and loads in the same process, in a fresh process; with what Triton keeps on disk there
(warm) or not (cold); for a kernel that a module holds, one from a factory, and one behind heuristics and autotune; by
safepickle, by the standard library with a hand-written ``__getstate__`` that drops the kernel and makes it again, and
by the others where they can. Compilations are counted by Triton's own hook. The same for retraces of a `tf.function`.

Times are wall times, for the compiler is other processes.

    python -m benchmarks kernel_recompile [--device cuda] [--quick]
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from benchmarks import recompile_work
from benchmarks.common import Goal, Row, Settings, at_most, in_fresh_process
from benchmarks.recompile_work import WAYS

__all__ = ["DISTRIBUTIONS", "KERNELS", "QUESTION", "measure"]

QUESTION = "What does the first launch of a kernel cost, after the object that holds it was copied or loaded?"
DISTRIBUTIONS = ("triton", "torch", "tensorflow-cpu", "tensorflow", "copium", "cloudpickle", "dill")

KERNELS = ("importable", "closure", "autotune stack")
FRESH = "after loads in a fresh process"
TIMEOUT = 300

#: way -> event -> records; and way -> event -> why there are none.
Records = dict[str, dict[str, list[dict[str, Any]]]]
Failures = dict[str, dict[str, str]]

#: What is counted at a launch, and how the tables call it.
COUNTED = {"compiled": "compilations", "read": "kernels read from disk", "tuned": "tuning runs"}


def measure(settings: Settings) -> Iterator[Row]:
    """The rows about kernels, then those about functions, as far as the libraries are installed."""
    if importlib.util.find_spec("triton") is not None:
        for kind in KERNELS[:1] if settings.quick else KERNELS:
            yield from _kernels(kind, settings)
    if importlib.util.find_spec("tensorflow") is not None:
        yield from _functions(settings)


def _ways(settings: Settings) -> tuple[str, ...]:
    wanted = WAYS[:2] if settings.quick else WAYS
    standard = ("safepickle", "by hand", "pickle")
    return tuple(way for way in wanted if way in standard or importlib.util.find_spec(way) is not None)


def _kernels(kind: str, settings: Settings) -> Iterator[Row]:
    found: Records = {}
    failures: Failures = defaultdict(dict)
    sizes: dict[str, list[float]] = {}
    for way in _ways(settings):
        with tempfile.TemporaryDirectory() as folder:
            arguments: dict[str, Any] = {"way": way, "kind": kind, "device": settings.device, "folder": folder}
            rounds = 1 if settings.quick else 3
            try:
                written = in_fresh_process(
                    recompile_work.write_kernel, {**arguments, "rounds": rounds}, timeout=TIMEOUT
                )
            except RuntimeError as error:
                failures[way]["everything"] = str(error).splitlines()[0]
                continue
            found[way] = written["events"]
            failures[way] = written["failures"]
            if written["bytes"] is not None:
                sizes[way] = [written["bytes"]]
                _read(way, arguments, rounds, found, failures)
    yield from _rows(f"{kind} kernel", found, failures, COUNTED if settings.device == "cuda" else _without_tuning())
    yield Row(f"{kind} kernel", "bytes of the pickle", sizes, unit="B")


def _without_tuning() -> dict[str, str]:
    return {name: unit for name, unit in COUNTED.items() if name != "tuned"}


def _read(way: str, arguments: dict[str, Any], rounds: int, found: Records, failures: Failures) -> None:
    """Load in processes of their own what was written, each once, for the second launch is another event."""
    for disk in ("warm", "cold"):
        for _ in range(rounds):
            try:
                record = in_fresh_process(recompile_work.read_kernel, {**arguments, "disk": disk}, timeout=TIMEOUT)
            except RuntimeError as error:
                record = {"failure": str(error).splitlines()[0]}
            if "failure" in record:
                failures[way][FRESH] = record["failure"]
                return
            found[way].setdefault(f"{FRESH}, {disk} disk", []).append(record)


def _rows(group: str, found: Records, failures: Failures, counted: dict[str, str]) -> Iterator[Row]:
    """For each event a row with the times, and one for each thing that is counted."""
    events = dict.fromkeys(event for records in found.values() for event in records)
    for event in events:
        here = {way: records[event] for way, records in found.items() if event in records}
        rounds = min(map(len, here.values()))
        failed = {way: what for way, told in failures.items() for start, what in told.items() if _about(event, start)}
        seconds = {way: [record["seconds"] for record in records[:rounds]] for way, records in here.items()}
        yield Row(group, event, seconds, _baseline(seconds), failures=failed, clock="wall")
        for name, unit in counted.items():
            counts = {way: [max(record[name] for record in records)] for way, records in here.items()}
            yield Row(group, event, counts, unit=unit, goals=_goals(group, event, name))


def _about(event: str, start: str) -> bool:
    return start == "everything" or event.startswith(start)


def _baseline(samples: dict[str, Any]) -> str | None:
    return "by hand" if "by hand" in samples else None


def _goals(group: str, event: str, name: str) -> list[Goal]:
    """Nothing is compiled, read or traced again where the object is still there; nor compiled if it is on disk."""
    if name == "traced":
        shared = group.startswith("importable") or (group.startswith("closure") and "same process" in event)
        if event in ("after deepcopy", "after loads in the same process"):
            # one that is bound to variables is traced anew for the copy's variables
            return [at_most(0 if shared else 1)]
        return [at_most(1)] if event == FRESH else []
    if event.startswith(("after deepcopy", "after loads in the same process")):
        return [at_most(0)]
    if event == f"{FRESH}, warm disk" and name == "compiled":
        return [at_most(0)]
    return []


def _functions(settings: Settings) -> Iterator[Row]:
    found: dict[str, Records] = defaultdict(dict)
    failures: dict[str, Failures] = defaultdict(lambda: defaultdict(dict))
    for way in ("safepickle",) if settings.quick else _ways(settings):
        with tempfile.TemporaryDirectory() as folder:
            arguments = {"way": way, "folder": folder}
            written = in_fresh_process(recompile_work.write_function, arguments, timeout=TIMEOUT)
            for kind, told in written.items():
                found[kind][way] = told["events"]
                failures[kind][way] = told["failures"]
            if way == "copium":
                continue
            read = in_fresh_process(recompile_work.read_function, arguments, timeout=TIMEOUT)
            for kind, record in read.items():
                if "failure" in record:
                    failures[kind][way][FRESH] = record["failure"]
                else:
                    found[kind][way][FRESH] = [record]
    for kind in found:
        yield from _rows(kind, found[kind], failures[kind], {"traced": "traces"})
