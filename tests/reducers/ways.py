"""The ways in which an object becomes another one: each protocol that is in use, and a deep copy."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import safepickle

__all__ = ["PICKLED", "WAYS", "Way", "every_way", "pickled_ways"]

Way = Callable[[Any], Any]


def _round_trip(protocol: int, obj: Any) -> Any:
    return safepickle.loads(safepickle.dumps(obj, protocol))


def _read_by_stdlib(obj: Any) -> Any:
    """What the standard library's own reader makes of it."""
    return pickle.loads(safepickle.dumps(obj))


PICKLED: dict[str, Way] = {
    **{f"protocol {n}": functools.partial(_round_trip, n) for n in (2, 4, 5)},
    "read by pickle": _read_by_stdlib,
}
WAYS: dict[str, Way] = {**PICKLED, "deepcopy": safepickle.deepcopy}

every_way = pytest.mark.parametrize("way", list(WAYS.values()), ids=list(WAYS))
pickled_ways = pytest.mark.parametrize("way", list(PICKLED.values()), ids=list(PICKLED))
