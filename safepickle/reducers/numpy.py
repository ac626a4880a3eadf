"""Rules for NumPy: how are arrays of Python objects copied?

NumPy hands their elements to ``copy.deepcopy``, which knows none of our rules: a lock stops the copy, a kernel is
cloned. All else is as in NumPy: arrays of numbers, and every array in a pickle.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy

from ..registry import Registry

__all__ = ["add_rules"]


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    registry.add(numpy.ndarray, copy=copy_array, origin=__name__,
                 summary=("as NumPy does", "as NumPy does; objects in it by these rules"))  # fmt: skip


def copy_array(array: Any, memo: dict[Any, Any]) -> Generator[Any, Any, Any]:
    """An array over copies of the objects in it; what has none is left to NumPy."""
    if not array.dtype.hasobject:
        return NotImplemented
    make, arguments, (*layout, elements) = array.__reduce__()
    twin = memo[id(array)] = make(*arguments)
    elements = yield elements
    twin.__setstate__((*layout, elements))
    return twin
