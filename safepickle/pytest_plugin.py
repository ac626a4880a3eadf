"""The fixture ``roundtrip``: is an object of mine still itself after pickling and copying?

pytest loads this module wherever safepickle is installed (entry point ``pytest11``), so it imports nothing but pytest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["pytest_addoption", "roundtrip"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The settings, for ``pyproject.toml`` and its kind."""
    parser.addini("roundtrip_protocols", "the pickle protocols that roundtrip takes (default: all)", type="args")
    parser.addini("roundtrip_timeout", "seconds that the fresh process of roundtrip may take", default="60")


@pytest.fixture
def roundtrip(pytestconfig: pytest.Config) -> Callable[..., dict[str, Any]]:
    """Take an object through pickle, a fresh process and deepcopy: ``roundtrip(obj)``.

    Each time, what comes back must be equal to the object; ``equal=`` says how they are compared, and ``check=`` is a
    function that uses what came back. Arguments, result and errors are those of
    :func:`safepickle.roundtrips.round_trip`.
    """
    from .roundtrips import RoundTripError, round_trip

    numbers = [int(number) for number in pytestconfig.getini("roundtrip_protocols")] or None
    seconds = float(pytestconfig.getini("roundtrip_timeout"))

    def call(obj: Any, **options: Any) -> dict[str, Any]:
        __tracebackhide__ = True
        try:
            return round_trip(obj, **{"protocols": numbers, "timeout": seconds, **options})
        except RoundTripError as error:
            error.args = (f"roundtrip of {type(obj).__module__}.{type(obj).__qualname__}, {error}",)
            raise

    return call
