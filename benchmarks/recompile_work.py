"""What each measurement of `kernel_recompile` does in its process: copy or load a kernel, and launch it once.

Each function takes and returns what JSON holds, and runs in a fresh process. Without a GPU the launch compiles for
sm_90 through a driver that only says that there is one; the compiler, `ptxas` included, is the real one.
"""

from __future__ import annotations

import copy
import importlib
import os
import pickle
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safepickle
from benchmarks.common import failure

__all__ = ["WAYS", "read_function", "read_kernel", "write_function", "write_kernel"]

#: By what objects are copied and pickled. "by hand" is the standard library and objects with the usual workaround.
WAYS = ("safepickle", "by hand", "pickle", "copium", "cloudpickle", "dill")
PROTOCOL = 5

Record = dict[str, Any]


def verbs(way: str) -> tuple[Callable[[Any], Any] | None, Callable[[Any], bytes] | None, Callable[[bytes], Any] | None]:
    """The deepcopy, dumps and loads of a way; None where it has no such function."""
    if way == "safepickle":
        return safepickle.deepcopy, lambda obj: safepickle.dumps(obj, PROTOCOL), safepickle.loads
    if way in ("by hand", "pickle"):
        return copy.deepcopy, lambda obj: pickle.dumps(obj, PROTOCOL), pickle.loads
    module = importlib.import_module(way)
    if way == "copium":
        return module.deepcopy, None, None
    return getattr(module, "copy", None), lambda obj: module.dumps(obj, protocol=PROTOCOL), module.loads


# -- Triton ------------------------------------------------------------------------------------------------------------


class StubDriver:
    """Says that there is a GPU, which is enough to compile for it."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_device_interface(self) -> Any:
        import torch

        return torch

    def get_benchmarker(self) -> Any:
        return lambda call, quantiles: [1.0, 1.0, 1.0]

    def is_active(self) -> bool:
        return True


class Counter:
    """What Triton does at a launch, told by its own hooks: kernels compiled, kernels read from disk, tuning runs."""

    def __init__(self) -> None:
        from triton import knobs

        self.compiled = self.read = self.tuned = 0
        knobs.compilation.listener = self._listen
        knobs.autotuning.listener = self._tuned

    def _listen(self, *, cache_hit: bool, **_: Any) -> None:
        if cache_hit:
            self.read += 1
        else:
            self.compiled += 1

    def _tuned(self, *, cache_hit: bool, **_: Any) -> None:
        self.tuned += not cache_hit

    def take(self) -> dict[str, int]:
        taken = {"compiled": self.compiled, "read": self.read, "tuned": self.tuned}
        self.compiled = self.read = self.tuned = 0
        return taken


class Launcher:
    """Launches kernels of one kind, and says what that took; the kernel's one-off costs of the process are paid."""

    def __init__(self, kind: str, device: str, cache: str) -> None:
        os.environ["TRITON_CACHE_DIR"] = cache
        from benchmarks import kernels

        self.kind = kernels.KINDS[kind]
        self.device = device
        if device == "cuda":
            import torch

            self.torch = torch
            self.arguments = [*self.kind.arrays(torch), self.kind.size]
        else:
            from triton.runtime import driver
            from triton.runtime.jit import MockTensor

            driver.set_active(StubDriver())
            self.arguments = [*[MockTensor("fp32")] * self.kind.pointers, self.kind.size]
        self.counter = Counter()
        self._warm_up()

    def _warm_up(self) -> None:
        """Compile another kernel: what the first launch of a process loads and starts is not that kernel's cost."""
        from benchmarks import warm_up

        with tempfile.TemporaryDirectory() as cache:
            before = os.environ["TRITON_CACHE_DIR"]
            os.environ["TRITON_CACHE_DIR"] = cache
            if self.device == "cuda":
                x = self.torch.ones(16, device="cuda")
                warm_up.kernel[(1,)](x, BLOCK=16)
                self.torch.cuda.synchronize()
            else:
                warm_up.kernel.warmup(self.arguments[0], BLOCK=16, grid=(1,))
            os.environ["TRITON_CACHE_DIR"] = before
        self.counter.take()

    def launch(self, kernel: Any) -> Record:
        """Launch a kernel, or compile it as the launch would."""
        start = time.perf_counter()
        if self.device == "cuda":
            kernel[self.kind.grid](*self.arguments, **self.kind.constants)
            self.torch.cuda.synchronize()
        else:
            kernel.warmup(*self.arguments, grid=self.kind.grid, **self.kind.constants)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, **self.counter.take()}


def _holder(way: str, kind: str) -> Any:
    from benchmarks import kernels

    return kernels.HandWritten(kind) if way == "by hand" else kernels.Holder(kernels.KINDS[kind].make())


def write_kernel(way: str, kind: str, device: str, folder: str, rounds: int) -> dict[str, Any]:
    """Launch a kernel, copy it and launch the copy, load it and launch that; leave a pickle for other processes.

    Returns:
        What each event took, a record a round, and what failed, with the exception.
    """
    cache = os.path.join(folder, "cache")
    launcher = Launcher(kind, device, cache)
    obj = _holder(way, kind)
    events: dict[str, list[Record]] = {"first launch of all, cold disk": [launcher.launch(obj.kernel)]}
    again = [launcher.launch(obj.kernel) for _ in range(30)]
    events["the same object again"] = [{**again[-1], "seconds": statistics.median(r["seconds"] for r in again[5:])}]
    failures: dict[str, str] = {}
    deepcopy, dumps, loads = verbs(way)

    def round_trip(obj: Any) -> Any:
        assert dumps is not None
        assert loads is not None
        return loads(dumps(obj))

    for event, twin_of in (
        ("after deepcopy", deepcopy),
        ("after loads in the same process", round_trip if dumps is not None else None),
    ):
        if twin_of is None:
            failures[event] = "has no such function"
            continue
        try:
            for disk in ("warm", "cold"):
                events[f"{event}, {disk} disk"] = [
                    _launched_anew(launcher, twin_of, obj, cache if disk == "warm" else None) for _ in range(rounds)
                ]
        except Exception as error:
            failures[event] = failure(error)
    size = None
    if dumps is not None:
        try:
            data = dumps(obj)
            Path(folder, "pickle").write_bytes(data)
            size = len(data)
        except Exception as error:
            failures["after loads in a fresh process"] = failure(error)
    return {"events": events, "failures": failures, "bytes": size}


def _launched_anew(launcher: Launcher, twin_of: Callable[[Any], Any], obj: Any, cache: str | None) -> Record:
    with tempfile.TemporaryDirectory() as empty:
        before = os.environ["TRITON_CACHE_DIR"]
        os.environ["TRITON_CACHE_DIR"] = cache or empty
        try:
            return launcher.launch(twin_of(obj).kernel)
        finally:
            os.environ["TRITON_CACHE_DIR"] = before


def read_kernel(way: str, kind: str, device: str, folder: str, disk: str) -> Record:
    """Load what another process wrote, and launch it."""
    _, _, loads = verbs(way)
    assert loads is not None
    with tempfile.TemporaryDirectory() as empty:
        launcher = Launcher(kind, device, os.path.join(folder, "cache") if disk == "warm" else empty)
        try:
            return launcher.launch(loads(Path(folder, "pickle").read_bytes()).kernel)
        except Exception as error:
            return {"failure": failure(error)}


# -- TensorFlow --------------------------------------------------------------------------------------------------------


def _called(function: Any) -> Record:
    from benchmarks import functions

    x = functions.argument()
    before = functions.traces(function)
    start = time.perf_counter()
    function(x)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "traced": functions.traces(function) - before}


def write_function(way: str, folder: str) -> dict[str, Any]:
    """As `write_kernel`, for a `tf.function` of each kind: what the first call after each event takes."""
    from benchmarks import functions

    deepcopy, dumps, loads = verbs(way)
    found: dict[str, Any] = {}
    for number, (kind, make) in enumerate(functions.KINDS.items()):
        obj = functions.HandWritten(kind) if way == "by hand" else make()
        events = {"first call of all": _called(obj.function), "the same object again": _called(obj.function)}
        failures: dict[str, str] = {}
        data: bytes | None = None
        try:
            if deepcopy is None:
                failures["after deepcopy"] = "has no such function"
            else:
                events["after deepcopy"] = _called(deepcopy(obj).function)
        except Exception as error:
            failures["after deepcopy"] = failure(error)
        try:
            if dumps is None or loads is None:
                failures["after loads in the same process"] = "has no such function"
            else:
                data = dumps(obj)
                events["after loads in the same process"] = _called(loads(data).function)
        except Exception as error:
            failures["after loads in the same process"] = failure(error)
        if data is not None:
            Path(folder, f"pickle {number}").write_bytes(data)
        found[kind] = {"events": {name: [record] for name, record in events.items()}, "failures": failures}
    return found


def read_function(way: str, folder: str) -> dict[str, Record]:
    """Load what another process wrote, and call it."""
    from benchmarks import functions

    _, _, loads = verbs(way)
    assert loads is not None
    functions.scaled(0.5)(functions.argument())  # the costs of a process's first trace are not the function's
    found: dict[str, Record] = {}
    for number, kind in enumerate(functions.KINDS):
        file = Path(folder, f"pickle {number}")
        if file.exists():
            try:
                found[kind] = _called(loads(file.read_bytes()).function)
            except Exception as error:
                found[kind] = {"failure": failure(error)}
    return found
