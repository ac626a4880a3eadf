"""How do tests count what code does, where time would depend on the machine and on who else uses it?"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

__all__ = ["Calls", "blocks_kept", "calls", "for_each", "peak_to_result"]


class Calls(tuple[int, int]):
    """How many Python functions a call runs, and how many C functions those call."""

    __slots__ = ()

    @property
    def python(self) -> int:
        return self[0]

    @property
    def c(self) -> int:
        return self[1]


def calls(function: Callable[[], object]) -> Calls:
    """Count the calls below a call that has run before, so that what is loaded and cached is that by now."""
    function()
    function()
    counts = {"call": 0, "c_call": 0}

    def count(frame: Any, event: str, argument: object) -> None:
        if event in counts:
            counts[event] += 1

    gc.disable()  # finalizers and callbacks of the collector are no part of it
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return Calls((counts["call"], counts["c_call"] - 1))  # the last one is sys.setprofile's own


def for_each(make: Callable[[int], object], count: Callable[[Any], float], size: int) -> float:
    """How much more of something there is for each object more: what does not depend on their number cancels out."""
    few, many = make(size), make(2 * size)
    return (count(many) - count(few)) / size


def blocks_kept(function: Callable[[], object]) -> int:
    """How many blocks of Python's allocator the result of a call takes."""
    function()
    gc.collect()
    gc.disable()
    try:
        before = sys.getallocatedblocks()
        result = function()
        after = sys.getallocatedblocks()
    finally:
        gc.enable()
    del result
    return after - before


def peak_to_result(function: Callable[[], object]) -> float:
    """How much memory a call needs at most, its result included, as a multiple of the result's."""
    function()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        result = function()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del result
    return (peak - before) / (after - before)
