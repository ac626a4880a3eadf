"""What do a library's state methods do, so that the copier need not call them?

A class whose ``__getstate__``, ``__setstate__`` and ``__getattr__`` are described here is copied by the C core as one
that has none: attribute by attribute. The copier in Python calls the methods, with the same result. A subclass with a
method of its own in the place of one of these has that one called.
"""

from __future__ import annotations

import types
from typing import Any, Final, NamedTuple

from .registry import on_change

__all__ = ["Drops", "Meaning", "Searches", "Updates", "describe", "meaning_of"]


class Drops(NamedTuple):
    """``__getstate__`` returns the instance's dictionary without these names."""

    names: tuple[str, ...]


class Updates(NamedTuple):
    """``__setstate__`` updates the instance's dictionary; nothing else happens where the state has all these names."""

    names: tuple[str, ...]


class Searches(NamedTuple):
    """``__getattr__`` looks into the dictionaries that are these attributes, and nowhere else."""

    attributes: tuple[str, ...]


Meaning = Drops | Searches | Updates

_known: Final[dict[types.FunctionType, Meaning]] = {}


def describe(method: types.FunctionType, meaning: Meaning) -> None:
    """Say what a method does.

    Args:
        method: the function, as the class has it.
        meaning: what it does; whoever says so has made sure that this version of the library does.
    """
    _known[method] = meaning
    for notify in on_change:
        notify()


def meaning_of(method: Any) -> Meaning | None:
    """What a method is known to do."""
    return _known.get(method) if type(method) is types.FunctionType else None
