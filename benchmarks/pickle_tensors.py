"""What each measurement of `pickle_throughput` about tensors does in its process. Needs torch.

Each function takes and returns what JSON holds, and runs in a fresh process.
"""

from __future__ import annotations

import gc
import io
import pickle
from collections.abc import Callable
from typing import Any

import torch

import safepickle
from benchmarks import models
from benchmarks.common import Goal, Row, Settings, at_most, interleave, part_of
from benchmarks.copy_graphs import PROTOCOL
from benchmarks.copy_models import clocks, peak_resident, reset_peak_resident
from benchmarks.pickle_work import pickled, picklers

__all__ = ["BY_FILE", "in_band", "many", "memory_read", "memory_written", "out_of_band"]

IN_BAND_GOAL = 1.1
OUT_OF_BAND_GOAL = 150e-6


class TorchSave:
    """`torch.save` and `torch.load`, as a module with dumps and loads."""

    @staticmethod
    def dumps(obj: Any, protocol: int = PROTOCOL) -> bytes:
        file = io.BytesIO()
        torch.save(obj, file)
        return file.getvalue()

    @staticmethod
    def loads(data: bytes) -> Any:
        return torch.load(io.BytesIO(data), weights_only=False)

    @staticmethod
    def dump(obj: Any, file: Any, protocol: int = PROTOCOL) -> None:
        torch.save(obj, file)

    @staticmethod
    def load(file: Any) -> Any:
        return torch.load(file, weights_only=False)


class Numpy:
    """The standard library's pickles of the same bytes in an array of NumPy: the limit for tensors."""

    @staticmethod
    def dumps(obj: torch.Tensor, **options: Any) -> bytes:
        return pickle.dumps(obj.numpy(), **options)

    loads = staticmethod(pickle.loads)


def modules_for_tensors() -> dict[str, Any]:
    return {**picklers(), "torch.save": TorchSave}


def many(task: str, device: Any, quick: bool) -> list[dict[str, Any]]:
    """Dumps, loads and the size of the pickles of many small tensors."""
    settings = Settings(device, quick)
    make, size, dumps, loads = models.PAYLOADS[task]
    obj = make(settings.size(size), device)
    goals = [part_of(dumps, "pickle")], [part_of(loads, "pickle")]
    return pickled(task, obj, modules_for_tensors(), *goals, settings, "tensors", clocks(device))


def in_band(size: int, device: Any, quick: bool) -> list[dict[str, Any]]:
    """One tensor, its bytes in the pickle."""
    settings = Settings(device, quick)
    obj = _tensor(size, device)
    modules = modules_for_tensors()
    modules.pop("dill", None)  # seconds for a tensor of this size
    goals: list[Goal] = []
    if device == "cpu":
        modules["numpy"] = Numpy
        if not quick:
            goals = [part_of(IN_BAND_GOAL, "numpy")]
    task = f"{_megabytes(size)}, in-band"
    return pickled(task, obj, modules, goals, goals, settings, "one tensor", clocks(device))


def out_of_band(size: int, quick: bool) -> list[dict[str, Any]]:
    """One tensor, its bytes beside the pickle (PEP 574): nothing is copied."""
    settings = Settings(quick=quick)
    obj = _tensor(size, "cpu")
    array = obj.numpy()
    found: dict[str, tuple[Any, Any]] = {"pickle": (pickle, obj), "safepickle": (safepickle, obj)}
    found["numpy"] = (pickle, array)

    def dumping(module: Any, what: Any) -> Callable[[], object]:
        return lambda: module.dumps(what, protocol=PROTOCOL, buffer_callback=[].append)

    def loading(module: Any, what: Any) -> Callable[[], object]:
        buffers: list[pickle.PickleBuffer] = []
        data = module.dumps(what, protocol=PROTOCOL, buffer_callback=buffers.append)
        return lambda: module.loads(data, buffers=buffers)

    task = f"{_megabytes(size)}, out-of-band"
    goals = [at_most(OUT_OF_BAND_GOAL)]
    dumps = interleave({name: dumping(*what) for name, what in found.items()}, settings)
    loads = interleave({name: loading(*what) for name, what in found.items()}, settings)
    facts = {"size": size}
    return [
        Row("dumps, one tensor", task, dumps, "pickle", goals, facts=facts).as_json(),
        Row("loads, one tensor", task, loads, "pickle", goals, facts=facts).as_json(),
    ]


def _tensor(size: int, device: Any) -> torch.Tensor:
    obj = torch.zeros(size // 4, device=device)
    obj += 1
    return obj


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= 1_000_000 else f"{size / 1e3:,.0f} kB"


# -- memory ------------------------------------------------------------------------------------------------------------

BY_FILE = ("pickle", "safepickle", "cloudpickle", "torch.save")


def _payload(size: int) -> dict[str, torch.Tensor]:
    return {f"layer {number}": _tensor(size // 4, "cpu") for number in range(4)}


def memory_written(name: str, size: int, file: str) -> float:
    """What writing a state of so many bytes to a file needs beyond the state itself, as a part of it."""
    module = modules_for_tensors()[name]
    obj = _payload(size)
    with open(file, "wb") as stream:
        module.dump(_payload(4_000), stream, protocol=PROTOCOL)
    gc.collect()
    reset_peak_resident()
    before = peak_resident()
    with open(file, "wb") as stream:
        module.dump(obj, stream, protocol=PROTOCOL)
    return (peak_resident() - before) / size


def memory_read(name: str, size: int, file: str) -> float:
    """What reading it needs, the state that comes back included."""
    module = modules_for_tensors()[name]
    small = module.dumps(_payload(4_000), protocol=PROTOCOL)
    module.loads(small)
    gc.collect()
    reset_peak_resident()
    before = peak_resident()
    with open(file, "rb") as stream:
        result = module.load(stream)
    most = (peak_resident() - before) / size
    if sum(tensor.sum().item() for tensor in result.values()) != size // 4:
        raise AssertionError(f"{name} loads other numbers than it has written")
    return most
