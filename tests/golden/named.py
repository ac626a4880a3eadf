"""Things with names, for the golden files that refer to them. Nothing here is ever renamed."""

from __future__ import annotations

import contextvars
import functools
import types
from typing import Any

__all__ = ["Methods", "alias", "decorated", "dispatched", "held", "lazy", "plain", "taken_over", "variable"]


def plain(x: int) -> int:
    """Add one."""
    return x + 1


class Wrapper:
    """Takes a function's place."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def __call__(self, *args: Any) -> Any:
        return self.fn(*args)


@Wrapper
def decorated(x: int) -> int:
    """Double."""
    return 2 * x


def taken_over(x: int) -> int:
    """Negate."""
    return -x


alias = taken_over


def taken_over(x: int) -> int:  # type: ignore[no-redef]
    """Negate twice."""
    return -alias(x)


class Methods:
    """Methods and descriptors of all kinds."""

    def method(self) -> str:
        """A method."""
        return "method"

    @property
    def prop(self) -> str:
        """A property."""
        return "property"

    @classmethod
    def made(cls) -> type:
        """A class method."""
        return cls

    @staticmethod
    def static() -> str:
        """A static method."""
        return "static"


@functools.lru_cache(maxsize=5)
def cached(x: int) -> int:
    """Triple."""
    return 3 * x


held = Wrapper(cached)
del cached


@functools.singledispatch
def dispatched(x: object) -> str:
    """Any."""
    return "any"


@dispatched.register
def _(x: int) -> str:
    return "int"


class LazyModule(types.ModuleType):
    """A module of a class of its own that is imported under no name."""


lazy = LazyModule("tests.golden.named.lazy")
variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=5)
