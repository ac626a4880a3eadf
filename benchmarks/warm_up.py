"""A kernel that nothing measures: compiling it pays what the first compilation of a process costs. Needs triton."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["kernel"]


@triton.jit
def kernel(x_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, tl.exp(tl.load(x_ptr + offsets)) * 2)
