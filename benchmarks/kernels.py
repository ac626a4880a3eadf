"""The Triton kernels whose first launch is measured: one of each kind that real programs hold. Needs triton.

`KINDS` says for each how to get it, how to make it anew, and what it is launched with; the launch compiles for sm_90
where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

__all__ = ["KINDS", "HandWritten", "Holder", "Kind", "matmul", "softmax"]


@triton.jit
def softmax(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    """A kernel at the top of a module."""
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
    x = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * columns + offsets, x / tl.sum(x, axis=0), mask=mask)


def scaled(factor: float) -> Any:
    """A kernel from a factory, which no name leads to."""
    captured: tl.constexpr = tl.constexpr(factor)

    @triton.jit
    def scale(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * captured, mask=mask)

    return scale


CONFIGS = [
    triton.Config({"BLOCK_M": 32, "BLOCK_N": 32}, num_warps=2),
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 32}, num_warps=4),
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 64}, num_warps=4),
]


def _even(arguments: dict[str, Any]) -> bool:
    return bool(arguments["size"] % 32 == 0)


@triton.autotune(configs=CONFIGS, key=["size"])
@triton.heuristics({"EVEN": _even})
@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, size, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """A square product behind heuristics and autotune, with three configurations."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, size, 32):
        inner = start + tl.arange(0, 32)
        if EVEN:
            a = tl.load(a_ptr + rows[:, None] * size + inner[None, :])
            b = tl.load(b_ptr + inner[:, None] * size + columns[None, :])
        else:
            a = tl.load(a_ptr + rows[:, None] * size + inner[None, :], mask=inner[None, :] < size, other=0.0)
            b = tl.load(b_ptr + inner[:, None] * size + columns[None, :], mask=inner[:, None] < size, other=0.0)
        total += tl.dot(a, b)
    tl.store(c_ptr + rows[:, None] * size + columns[None, :], total)


def anew(kernel: Any) -> Any:
    """The same kernel once more, as a hand-written ``__setstate__`` makes it."""
    if isinstance(kernel, triton.runtime.autotuner.Autotuner):
        return triton.autotune(configs=CONFIGS, key=["size"])(anew(kernel.fn))
    if isinstance(kernel, triton.runtime.autotuner.Heuristics):
        return triton.heuristics(kernel.values)(anew(kernel.fn))
    return triton.jit(kernel.fn)


class Holder:
    """An object with a kernel, as users' models have it."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel


class HandWritten:
    """The same with the usual workaround: the kernel is dropped from the state and made again."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.kernel = KINDS[kind].make()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["kernel"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.kernel = anew(KINDS[self.kind].make())


def _tiles(meta: dict[str, int]) -> tuple[int, int]:
    return triton.cdiv(256, meta["BLOCK_M"]), triton.cdiv(256, meta["BLOCK_N"])


def _matrices(torch: Any) -> list[Any]:
    return [torch.ones(256, 256, device="cuda") for _ in range(3)]


@dataclass(frozen=True)
class Kind:
    """How a kernel is made and launched.

    Attributes:
        make: the kernel; for a global the very object.
        pointers: how many arguments are pointers to float32; the rest of the arguments is `size`.
        size: the number among the arguments.
        constants: what is given by name.
        grid: how many programs, or a function of the constants that says so.
        configurations: how many kernels its first launch compiles.
        arrays: the arguments for a real launch.
    """

    make: Callable[[], Any]
    pointers: int
    size: int
    constants: dict[str, int]
    grid: Any
    configurations: int
    arrays: Callable[[Any], list[Any]]


KINDS: dict[str, Kind] = {
    "importable": Kind(
        lambda: softmax, 2, 256, {"BLOCK": 256}, (256,), 1, lambda torch: _matrices(torch)[:2]
    ),
    "closure": Kind(
        lambda: scaled(1.5), 2, 65_536, {"BLOCK": 256}, (256,), 1, lambda torch: _matrices(torch)[:2]
    ),
    "autotune stack": Kind(lambda: matmul, 3, 256, {}, _tiles, len(CONFIGS), _matrices),
}
