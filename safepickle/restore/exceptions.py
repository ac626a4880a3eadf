"""What a pickle calls for exceptions."""

from __future__ import annotations

from typing import Any

from ..errors import UnpicklingError
from .checks import _check
from .stdlib import set_attributes

__all__ = [
    "fill_exception",
    "fill_exception_origin",
    "make_error",
    "make_exception",
]


def make_error(kind: str, original: type, message: str, attributes: dict[str, Any]) -> Exception:
    """An error of this package that is also of the type of another error, as process pools send it back."""
    from .. import errors

    kinds: dict[str, type[Exception]] = {
        "PicklingError": errors.PicklingError,
        "CopyError": errors.CopyError,
        "UnpicklingError": errors.UnpicklingError,
    }
    if kind not in kinds:
        raise UnpicklingError(f"malformed pickle: {kind!r} is not a kind of error")
    if not (isinstance(original, type) and issubclass(original, Exception)):
        raise UnpicklingError(f"malformed pickle: {original!r} is not a type of error")
    _check(message, str, "a message")
    _check(attributes, dict, "the attributes of an error")
    return errors.combined_by_type(kinds[kind], original, message, attributes)


_HEAP_TYPE = 1 << 9


def make_exception(cls: type, arguments: tuple[Any, ...]) -> BaseException:
    """A bare exception: no ``__init__`` or ``__new__`` of its class runs; they may want other arguments."""
    if not (isinstance(cls, type) and issubclass(cls, BaseException)):
        raise UnpicklingError(f"malformed pickle: {cls!r} is not a kind of exception")
    base: Any = next(c for c in cls.__mro__ if not c.__flags__ & _HEAP_TYPE)
    made: BaseException = base.__new__(cls, *arguments)
    return made


def fill_exception(error: BaseException, state: dict[str, Any]) -> None:
    """Give an exception its arguments, the fields that its builtin class has, its attributes, and what it came from."""
    _check(error, BaseException, "an exception")
    if "args" in state:
        error.args = state["args"]
    for name, value in state.get("fields", {}).items():
        setattr(error, name, value)
    set_attributes(error, state.get("attributes", {}), state.get("slots", {}))
    _set_origin(error, state)


def fill_exception_origin(error: BaseException, state: tuple[Any, dict[str, Any]]) -> None:
    """Give an exception that reduces itself the state that it asked for, and what it came from."""
    _check(error, BaseException, "an exception")
    own, origin = state
    if own is not None:
        error.__setstate__(own)
    _set_origin(error, origin)


def _set_origin(error: BaseException, origin: dict[str, Any]) -> None:
    for name, value in (("cause", origin.get("cause")), ("context", origin.get("context"))):
        if value is not None:
            _check(value, BaseException, f"the {name} of an exception")
            setattr(error, f"__{name}__", value)
    error.__suppress_context__ = origin.get("suppress", False)
