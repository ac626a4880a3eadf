"""Models and tensors for `copy_throughput`: what each measurement does in its process. Needs torch.

On a CPU, times are the thread's CPU time. On a GPU they are wall time with the device synchronized, and the limit is
what cloning the same tensors one by one, or copying the same bytes in one piece, takes there.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import models
from benchmarks.common import Goal, Row, Settings, at_most, faster, interleave, part_of
from benchmarks.copy_graphs import NOT_BEHIND, PROTOCOL, copiers

__all__ = ["launches", "model", "peak", "scaling", "tensor"]

#: A copy of large parameters, as a part of the time that cloning the same tensors takes.
CLONES_GOAL = 1.1
BY_CLONES = "clones of the tensors"
IN_ONE_PIECE = "one clone of the same bytes"


def clocks(device: str) -> dict[str, Any]:
    """How `interleave` tells the time on a device."""
    if device == "cuda":
        return {"clock": time.perf_counter, "synchronize": torch.cuda.synchronize}
    return {}


def clones(obj: Any) -> Callable[[], object]:
    """The least that a copy has to do: clone each tensor."""
    tensors = models.tensors_of(obj)

    def clone() -> object:
        with torch.no_grad():
            return [tensor.clone() for tensor in tensors]

    return clone


def _alternatives(obj: Any, device: str) -> dict[str, Callable[[], object]]:
    found: dict[str, Callable[[], object]] = {
        name: partial(copier, obj) for name, copier in copiers().items()
    }
    found["pickle round trip"] = lambda: pickle.loads(pickle.dumps(obj, PROTOCOL))
    found[BY_CLONES] = clones(obj)
    if device == "cuda":
        whole = torch.empty(models.tensor_bytes(obj), dtype=torch.uint8, device=device)
        found[IN_ONE_PIECE] = whole.clone
    return found


def _row(group: str, task: str, obj: Any, goals: list[Goal], settings: Settings, **facts: float) -> dict[str, Any]:
    failures: dict[str, str] = {}
    times = interleave(
        _alternatives(obj, settings.device), settings, failures=failures, **clocks(settings.device)
    )
    facts = {**facts, "tensors": len(models.tensors_of(obj)), "bytes": models.tensor_bytes(obj)}
    clock = "wall" if settings.device == "cuda" else "CPU"
    return Row(group, task, times, "copy", goals, facts=facts, failures=failures, clock=clock).as_json()


def model(task: str, device: Any, quick: bool) -> dict[str, Any]:
    """One model, copied by everybody; those with large parameters are compared with clones of their tensors."""
    settings = Settings(device, quick)
    make, size, than_copy = models.MODELS[task]
    obj = make(settings.size(size), device)
    goals = [faster(NOT_BEHIND, "copium")]
    if than_copy is not None:
        goals.insert(0, faster(than_copy, "copy"))
    if task.startswith("large"):
        goals = [part_of(CLONES_GOAL, BY_CLONES)]
    return _row("models", task, obj, goals, settings)


def scaling(layers: int, device: Any, quick: bool) -> dict[str, Any]:
    """A module of ever more small layers."""
    obj = models.small_layers(layers, device)
    return _row("small layers, growing", f"{layers:,}", obj, [], Settings(device, quick), size=layers)


def tensor(size: int, device: Any, quick: bool) -> dict[str, Any]:
    """One tensor of so many bytes."""
    obj = torch.zeros(size // 4, device=device)
    obj += 1  # its pages are there, so that the first copy does not pay for them
    return _row("one tensor, growing", f"{size:,} B", obj, [], Settings(device, quick), size=size)


def peak(name: str, device: Any, quick: bool) -> float:
    """The memory that a copy of large parameters needs at most, its result included, as a part of the model's."""
    obj = models.large_linear(1 if quick else 4, device)
    copier = copiers()[name]
    copier(models.small_layers(2, device))
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = copier(obj)
        most = torch.cuda.max_memory_allocated() - before
    else:
        reset_peak_resident()
        before = peak_resident()
        result = copier(obj)
        most = peak_resident() - before
    del result
    return float(most / models.tensor_bytes(obj))


def reset_peak_resident() -> None:
    """From here on, `peak_resident` tells the largest size of this process."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_resident() -> int:
    """The largest resident size of this process since `reset_peak_resident`, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def launches(name: str, layers: int) -> int:
    """How many kernels and copies a copy of small layers starts on the GPU."""
    obj = models.small_layers(layers, "cuda")
    copier = {**copiers(), BY_CLONES: lambda obj: clones(obj)()}[name]
    copier(obj)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        result = copier(obj)
        torch.cuda.synchronize()
    del result
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events())


def launches_row(counts: dict[str, int], layers: int) -> Row:
    """A few launches, however many parameters."""
    samples = {name: [float(count)] for name, count in counts.items()}
    return Row("launches", f"{layers:,} small layers", samples, unit="launches", goals=[at_most(32)])
