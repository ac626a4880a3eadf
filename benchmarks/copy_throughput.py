"""How fast is `safepickle.deepcopy`, and what does it need?

Against `copy.deepcopy`, copium and a pickle round trip: over object graphs and models, as their size grows over four
decades, after large copies, in memory and in depth; on other Pythons, and where the C core keeps to what every version
of Python has. The limit for tensors is what cloning them takes.

    python -m benchmarks copy_throughput [--device cuda] [--quick] [--python python3.12]
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import copy_graphs, workloads
from benchmarks.common import Row, Settings, at_least, at_most, failure, in_fresh_process, measured

__all__ = ["DISTRIBUTIONS", "QUESTION", "measure"]

QUESTION = "How fast is `safepickle.deepcopy`, and what does it need?"
DISTRIBUTIONS = ("torch", "numpy", "networkx", "copium")

#: Sizes over four decades.
COUNTS = (10, 100, 1_000, 10_000, 100_000)
LAYERS = (1, 10, 100, 1_000, 10_000)
TENSOR_BYTES = (16_000, 160_000, 1_600_000, 16_000_000, 160_000_000)

WITHOUT_CORE = ("5,000 dataclasses (int, list, dict)", "5,000 plain objects", "2,000 JSON-like records")
IN_MEMORY = ("5,000 dataclasses of atoms", "2,000 JSON-like records")
DEPTHS = (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
SMALL_STACK = 512 * 1024


def measure(settings: Settings) -> Iterator[Row]:
    """Each row from a process of its own. On a GPU: the rows about models and tensors."""
    if settings.device == "cpu":
        yield from _graphs(settings)
        yield from _memory(settings)
        yield from _depths(settings)
    if importlib.util.find_spec("torch") is not None:
        yield from _models(settings)


def _fresh(settings: Settings, function: Callable[..., Any], **arguments: Any) -> Row:
    return Row.from_json(measured(function, {**arguments, "quick": settings.quick}, settings))


def _graphs(settings: Settings) -> Iterator[Row]:
    quick = settings.quick
    for task in workloads.GRAPHS:
        if task.startswith("networkx") and importlib.util.find_spec("networkx") is None:
            continue
        yield _fresh(settings, copy_graphs.graph, task=task)
    for kind in ("dataclasses", "JSON-like records"):
        for size in COUNTS[:2] if quick else COUNTS:
            yield _fresh(settings, copy_graphs.scaling, kind=kind, size=size)
    for task in WITHOUT_CORE[:1] if quick else WITHOUT_CORE:
        arguments = {"task": task, "quick": quick}
        yield Row.from_json(
            in_fresh_process(copy_graphs.without_core, arguments, environment={"SAFEPICKLE_PURE": "1"})
        )
    for python in (sys.executable, *settings.pythons):
        group = f"without private layouts, Python {_version(python)}"
        for task in list(copy_graphs.PORTABLE_GOALS)[:1] if quick else copy_graphs.PORTABLE_GOALS:
            arguments = {"task": task, "quick": quick, "group": group}
            portable = {"SAFEPICKLE_PORTABLE": "1"}
            yield Row.from_json(in_fresh_process(copy_graphs.graph, arguments, python=python, environment=portable))


def _version(python: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def _memory(settings: Settings) -> Iterator[Row]:
    quick = settings.quick
    names = list(copy_graphs.copiers())
    for large in list(copy_graphs.LARGE)[:1] if quick else copy_graphs.LARGE:
        samples: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(1 if quick else 3):
            for name in names:
                arguments = {"name": name, "large": large, "quick": quick}
                samples[name].append(measured(copy_graphs.history, arguments, settings))
        task = f"a small copy after {large}, to one before"
        yield Row("history", task, samples, unit="x", goals=[at_most(1.3)])
    for task in IN_MEMORY:
        found = {
            name: measured(copy_graphs.memory, {"name": name, "task": task, "quick": quick}, settings)
            for name in [*names, "pickle round trip"]
        }
        peaks = {name: [sizes["peak"] / sizes["result"]] for name, sizes in found.items()}
        yield Row("memory", f"peak, to the result: {task}", peaks, unit="x", goals=[at_most(1.15)])
        stays = {name: [sizes["stays"]] for name, sizes in found.items()}
        yield Row("memory", f"stays when the copy is gone: {task}", stays, unit="B", goals=[at_most(0)])
    growth = {name: [measured(copy_graphs.resident, {"name": name, "quick": quick}, settings)] for name in names}
    # what the allocator rounds up to is no leak; a leaked copy of the largest object is some megabytes a time
    yield Row("memory", "the process grows over 50 copies of each size", growth, unit="B", goals=[at_most(1_000_000)])


def _depths(settings: Settings) -> Iterator[Row]:
    tries = DEPTHS[1::3] if settings.quick else DEPTHS
    for kind in ("lists",) if settings.quick else ("lists", "instances"):
        for stack in (SMALL_STACK,) if settings.quick else (0, SMALL_STACK):
            samples: dict[str, list[float]] = {}
            failures: dict[str, str] = {}
            for name in copy_graphs.copiers():
                deepest, ending = _deepest(name, kind, tries, stack)
                samples[name] = [deepest]
                if ending:
                    failures[name] = ending
            where = ", in a thread with a stack of 512 kB" if stack else ""
            row = Row("depth", f"nested {kind}{where}", samples, unit="levels", failures=failures)
            if not settings.quick:
                row.goals = [at_least(10_000)]
            yield row


def _deepest(name: str, kind: str, depths: tuple[int, ...], stack: int) -> tuple[int, str]:
    """The deepest of some chains that can be copied, and how the first one ends that cannot."""
    deepest = 0
    for depth in depths:
        arguments = {"name": name, "kind": kind, "depth": depth, "stack": stack}
        try:
            if not in_fresh_process(copy_graphs.deepest, arguments):
                return deepest, f"RecursionError at {depth:,}"
        except RuntimeError as error:
            status = failure(error).rpartition("status ")[2]
            return deepest, f"the process ends at {depth:,}, with status {status}"
        deepest = depth
    return deepest, ""


def _models(settings: Settings) -> Iterator[Row]:
    from benchmarks import copy_models, models

    device, quick = settings.device, settings.quick
    for task in models.MODELS:
        yield _fresh(settings, copy_models.model, task=task, device=device)
    for layers in LAYERS[:2] if quick else LAYERS:
        yield _fresh(settings, copy_models.scaling, layers=layers, device=device)
    for size in TENSOR_BYTES[:2] if quick else TENSOR_BYTES:
        yield _fresh(settings, copy_models.tensor, size=size, device=device)
    peaks: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    for name in copy_graphs.copiers():
        try:
            peaks[name] = [in_fresh_process(copy_models.peak, {"name": name, "device": device, "quick": quick})]
        except RuntimeError as error:
            failed[name] = str(error).strip().splitlines()[-1]
    goals = [at_most(1.15)] if not quick else []
    yield Row("memory", "peak, to the model: large parameters", peaks, unit="x", goals=goals, failures=failed)
    if device == "cuda":
        count = settings.size(1_000)
        counts = {
            name: in_fresh_process(copy_models.launches, {"name": name, "layers": count})
            for name in ("copy", "safepickle", copy_models.BY_CLONES)
        }
        yield copy_models.launches_row(counts, count)
