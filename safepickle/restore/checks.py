"""Is the argument of what a pickle calls of the type that it must be?"""

from __future__ import annotations

from typing import Any

from ..errors import UnpicklingError

__all__ = []


def _check(value: Any, kind: type | tuple[type, ...], what: str) -> None:
    if not isinstance(value, kind):
        names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise UnpicklingError(f"malformed pickle: {what} must be {names}, not {type(value).__qualname__}")


def _check_subclass(cls: Any, kinds: type | tuple[type, ...], what: str) -> None:
    if not (isinstance(cls, type) and issubclass(cls, kinds)):
        raise UnpicklingError(f"malformed pickle: {cls!r} is not the type of {what}")
