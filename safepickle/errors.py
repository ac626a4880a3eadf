"""What went wrong, and where in the object?

One hierarchy under :class:`pickle.PickleError`. A failure of pickling is a :class:`PicklingError` *and* of the type that
the standard library would have raised, so that code which catches that keeps working.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

__all__ = ["CopyError", "PicklingError", "RegistrationError", "UnpicklingError"]


class PicklingError(pickle.PicklingError):
    """An object cannot be pickled; the message says which one and where it is."""


#: A pickle cannot be loaded here. The standard library's own class: if it were a derived one, ``except
#: safepickle.UnpicklingError`` would miss what the C unpickler raises, for one in ``super().persistent_load()``.
UnpicklingError = pickle.UnpicklingError


class CopyError(PicklingError, copy.Error):
    """An object cannot be copied; the message says which one and where it is."""


class RegistrationError(pickle.PickleError, TypeError):
    """A rule cannot be registered, or not be found to be taken back."""


def check_reduced(rule: Any, obj: Any, reduced: Any) -> None:
    """Refuse what ``__reduce__`` may not return.

    Raises:
        PicklingError: naming the rule.
    """
    if isinstance(reduced, str):
        return
    if not isinstance(reduced, tuple):
        problem = f"a {type(reduced).__qualname__}"
    elif not 2 <= len(reduced) <= 6:
        problem = f"a tuple of {len(reduced)}"
    elif not callable(reduced[0]):
        problem = f"a tuple whose first item, a {type(reduced[0]).__qualname__}, cannot be called"
    elif not isinstance(reduced[1], tuple):
        problem = f"a tuple whose second item is a {type(reduced[1]).__qualname__}, not a tuple of arguments"
    else:
        return
    raise PicklingError(
        f"cannot pickle {type_name(obj)!r}: the {rule} returned {problem}; expected a string, NotImplemented or a tuple "
        "(callable, arguments[, state[, list items[, dict items[, state setter]]]])"
    )


def reducer_failed(rule: Any, obj: Any, error: Exception) -> Exception:
    """The error to raise when a rule's function has raised; an error about something inside the object stays as it is."""
    if isinstance(error, (PicklingError, RecursionError)):
        return error
    return _combined(PicklingError, error, f"cannot pickle {type_name(obj)!r}: the {rule} raised {type(error).__name__}: {error}")


def type_name(obj: Any) -> str:
    """The type of an object as messages show it."""
    cls = type(obj)
    return cls.__qualname__ if cls.__module__ in ("builtins", None) else f"{cls.__module__}.{cls.__qualname__}"


_made: dict[tuple[type, type], type] = {}


def _combined(kind: type[Exception], error: BaseException, message: str) -> Exception:
    """An error of our kind that is also of the original's type, for code that catches that."""
    original = type(error)
    if isinstance(error, kind):
        cls: type = original
    elif issubclass(kind, original):
        cls = kind
    else:
        cls = _made.get((kind, original))  # type: ignore[assignment]
        if cls is None:
            try:
                cls = type(kind.__name__, (kind, original), {"__module__": __name__, "__doc__": kind.__doc__})
            except TypeError:
                cls = kind
            _made[kind, original] = cls
    try:
        made = cls(message)
    except Exception:
        made = kind(message)
    return made  # type: ignore[no-any-return]


def translate_pickling_error(error: Exception, obj: Any, pickler: Any) -> Exception:
    """The error to raise for a failed dump."""
    if isinstance(error, PicklingError):
        return error
    if isinstance(error, (TypeError, AttributeError, pickle.PicklingError)):
        return _combined(PicklingError, error, str(error))
    return error


def translate_copy_error(error: Exception, obj: Any, registry: Any) -> Exception:
    """The error to raise for a failed copy."""
    if isinstance(error, CopyError):
        return error
    if isinstance(error, (TypeError, AttributeError, PicklingError)):
        return _combined(CopyError, error, str(error))
    return error
