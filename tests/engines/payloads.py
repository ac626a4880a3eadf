"""What do tests and benchmarks send through engines, and how do they know that it still works?

Four payloads, by name in :data:`PAYLOADS`: modules that hold a kernel, a lambda and a lock, and a large tensor with a
view of it. :func:`check` *uses* what a payload holds, wherever it has got to. On a machine without a GPU the kernel
that is run is an interpreted one; the module holds a compiled one too, which only has to stay itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
import triton.language as tl

__all__ = [
    "PAYLOADS", "Kernel", "Lambda", "Lock", "big", "check", "check_and_return", "check_big", "make", "make_and_check",
    "small",
]  # fmt: skip

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def interpreting(wanted: bool) -> Iterator[None]:
    """Kernels that are defined in this block are interpreted, or compiled: Triton decides when it decorates them."""
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1" if wanted else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before


with interpreting(DEVICE == "cpu"):

    @triton.jit
    def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        x, y = tl.load(x_ptr + offsets, mask=mask), tl.load(y_ptr + offsets, mask=mask)
        tl.store(out_ptr + offsets, x + y, mask=mask)


with interpreting(False):

    @triton.jit
    def compiled_kernel(x_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x_ptr + offsets, 1.0, mask=offsets < n)


class Tied(torch.nn.Module):
    """Two layers with one weight: what a module is sent as must keep that."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.head = torch.nn.Linear(3, 3)
        self.head.weight = self.linear.weight

    def check_weights(self) -> None:
        """Both layers work, and have one weight."""
        assert self.linear(torch.ones(3)).shape == self.head(torch.ones(3)).shape == (3,)
        assert self.head.weight is self.linear.weight, "the layers' weights are no longer tied"


class Kernel(Tied):
    """A module that holds kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.add = add_kernel
        self.compiled = compiled_kernel

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        self.add[(triton.cdiv(x.numel(), 16),)](x, y, out, x.numel(), BLOCK=16)
        return out

    def check(self) -> str:
        """Run the kernel; the other one is still the module's."""
        x = torch.arange(20.0, device=DEVICE)
        assert self(x, 2 * x).tolist() == (3 * x).tolist()
        assert self.add is add_kernel, "the kernel is another one"
        assert self.compiled is compiled_kernel
        assert type(compiled_kernel) is triton.runtime.jit.JITFunction
        self.check_weights()
        return "kernel"


class Lambda(Tied):
    """A module that holds a lambda with a closure."""

    def __init__(self, factor: float = 3.0) -> None:
        super().__init__()
        self.scale = lambda x: x * factor

    def check(self) -> str:
        """Call the lambda."""
        assert self.scale(torch.ones(2)).tolist() == [3.0, 3.0]
        self.check_weights()
        return "lambda"


class Lock(Tied):
    """A module that holds locks."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.reentrant = threading.RLock()

    def check(self) -> str:
        """Take the locks, twice where that is allowed; another thread then has to wait."""
        assert self.lock.acquire(timeout=1)
        assert not self.lock.acquire(blocking=False)
        self.lock.release()
        with self.reentrant, self.reentrant:
            taken: list[bool] = []
            thread = threading.Thread(target=lambda: taken.append(self.reentrant.acquire(blocking=False)))
            thread.start()
            thread.join(5)
            assert taken == [False]
        self.check_weights()
        return "lock"


def big(megabytes: int = 100) -> dict[str, torch.Tensor]:
    """A tensor of that size, and a view of its second half."""
    base = torch.arange(megabytes * 2**18, dtype=torch.float32)
    return {"base": base, "view": base[len(base) // 2 :]}


def small() -> dict[str, torch.Tensor]:
    """As :func:`big`, of one megabyte."""
    return big(1)


def check_big(payload: dict[str, torch.Tensor]) -> str:
    """The view shows what is written to the tensor."""
    base, view = payload["base"], payload["view"]
    half = len(base) // 2
    assert len(view) == half and view[1] == half + 1 and base[1] == 1
    before = base[half].item()
    base[half] = -5.0
    assert view[0] == -5.0, "the view is no longer one of the tensor"
    base[half] = before
    return "big"


PAYLOADS: dict[str, Callable[[], Any]] = {"kernel": Kernel, "lambda": Lambda, "lock": Lock, "big": big}


def make(name: str) -> Any:
    """A new payload of that name; ``"small"`` is a small big one."""
    return small() if name == "small" else PAYLOADS[name]()


def check(payload: Any) -> str:
    """Use what the payload holds, and say which one it is.

    Raises:
        AssertionError: it does not work any more.
    """
    return check_big(payload) if isinstance(payload, dict) else payload.check()


def check_and_return(payload: Any) -> Any:
    """What a worker does: use it, and send it back."""
    check(payload)
    return payload


def make_and_check(name: str) -> Any:
    """The same with a payload that is made in the worker."""
    return check_and_return(make(name))
