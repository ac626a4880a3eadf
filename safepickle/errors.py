"""What went wrong, and where in the object?

One hierarchy under :class:`pickle.PickleError`. A failure of pickling is a :class:`PicklingError` *and* of the type
that the standard library would have raised, so that code which catches that keeps working. Its first line names the
culprit and the path to it, which is found by a second look at the object after the failure: nothing here runs as long
as nothing fails.
"""

from __future__ import annotations

import copy
import pickle
import types
from typing import Any, Final

__all__ = ["CopyError", "PicklingError", "RegistrationError", "UnpicklingError"]


class PicklingError(pickle.PicklingError):
    """An object cannot be pickled; the message says which one and where it is.

    Attributes:
        path: where the culprit is, in Python syntax from the root, which is called ``obj``; ``None`` where it was not
            found.
        type_name: the type of the culprit.
        reason: what the standard library, a rule or the object's own method said.
        hint: what to do about it.
    """

    path: str | None = None
    type_name: str | None = None
    reason: str | None = None
    hint: str | None = None


#: A pickle cannot be loaded here. The standard library's own class: if it were a derived one, ``except
#: safepickle.UnpicklingError`` would miss what the C unpickler raises, for one in ``super().persistent_load()``.
UnpicklingError = pickle.UnpicklingError


class CopyError(PicklingError, copy.Error):
    """An object cannot be copied; the message says which one and where it is."""


class RegistrationError(pickle.PickleError, TypeError):
    """A rule cannot be registered, or not be found to be taken back."""


def type_name(obj: Any) -> str:
    """The type of an object as messages show it."""
    return class_name(type(obj))


def class_name(cls: type) -> str:
    """A class as messages show it."""
    return cls.__qualname__ if cls.__module__ in ("builtins", None) else f"{cls.__module__}.{cls.__qualname__}"


# -- what a rule did wrong ---------------------------------------------------------------------------------------------


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
    raise _of_rule(
        PicklingError, obj,
        f"the {rule} returned {problem}; expected a string, NotImplemented or a tuple (callable, arguments[, state"
        "[, list items[, dict items[, state setter]]]])",
    )  # fmt: skip


def reducer_failed(rule: Any, obj: Any, error: Exception) -> Exception:
    """The error to raise when a rule's function has raised; one about something inside the object stays as it is."""
    if isinstance(error, (PicklingError, RecursionError)):
        return error
    reason = f"the {rule} raised {_said(error, always_typed=True)}"
    message = f"cannot pickle {type_name(obj)!r}: {reason}"
    made = combined(PicklingError, error, message)
    return error if made is None else _described(made, reason=reason, type_name=type_name(obj))


def _of_rule(kind: type[PicklingError], obj: Any, reason: str) -> PicklingError:
    made = kind(f"cannot pickle {type_name(obj)!r}: {reason}")
    made.reason, made.type_name = reason, type_name(obj)
    return made


def _described(error: Any, **attributes: Any) -> Any:
    error.__dict__.update(attributes)
    return error


def _said(error: BaseException, *, always_typed: bool = False) -> str:
    """What an error says, with its type unless that is one of pickling anyway."""
    text = str(error)
    if isinstance(error, (pickle.PickleError, copy.Error)) and text and not always_typed:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# -- an error of two types ---------------------------------------------------------------------------------------------

_HEAP_TYPE: Final = 1 << 9
_made: dict[tuple[type, type], type[Exception] | None] = {}


def combined(kind: type[Exception], error: BaseException, message: str) -> Exception | None:
    """An error of our kind that is also of the original's type and has its attributes, for code that catches that.

    Returns:
        The error, or ``None`` where no class can be both.
    """
    cls = _combined_class(kind, type(error))
    if cls is None:
        return None
    made = _bare_instance(cls, type(error), error.args)
    if made is None:
        return None
    _copy_attributes(error, made)
    made.args = (message,)
    return made


def combined_by_type(
    kind: type[Exception], original: type[Exception], message: str, attributes: dict[str, Any]
) -> Exception:
    """As :func:`combined`, from what was kept of such an error in a pickle."""
    cls = _combined_class(kind, original)
    made = None if cls is None else _bare_instance(cls, original, ())
    if made is None:
        made = kind(message)
    made.args = (message,)
    made.__dict__.update(attributes)
    return made


def _combined_class(kind: type[Exception], original: type[BaseException]) -> type[Exception] | None:
    if issubclass(kind, original):
        return kind
    if "_original" in vars(original) and issubclass(original, kind):
        return original  # made here before
    key = (kind, original)
    if key in _made:
        return _made[key]
    bases = (original,) if issubclass(original, kind) else (kind, original)
    namespace = {
        "__module__": __name__,
        "__doc__": kind.__doc__,
        "__str__": BaseException.__str__,
        "__reduce__": _reduce_combined,
        "_kind": kind,
        "_original": original,
    }
    try:
        cls: type[Exception] | None = type(kind.__name__, bases, namespace)
    except Exception:  # two layouts, a metaclass, a class that may not be derived from
        cls = None
    if (
        not original.__flags__ & _HEAP_TYPE
    ):  # a class that was made at run time must not live for ever because it failed once
        _made[key] = cls
    return cls


def _reduce_combined(error: Any) -> tuple[Any, ...]:
    """Errors go through process pools, by plain pickle: what matters goes along, the objects that failed do not."""
    from .restore import make_error

    plain = {
        name: value for name, value in error.__dict__.items() if type(value) in (str, int, float, bool, type(None))
    }
    if notes := getattr(error, "__notes__", None):
        plain["__notes__"] = [str(note) for note in notes]
    return make_error, (error._kind.__name__, error._original, str(error), plain)


def _bare_instance(cls: type[Exception], original: type[BaseException], arguments: tuple[Any, ...]) -> Exception | None:
    """An instance without running a constructor that somebody wrote: it may want other arguments."""
    base: Any = next(base for base in original.__mro__ if not base.__flags__ & _HEAP_TYPE)
    for given in (arguments, ()):
        try:
            made = base.__new__(cls, *given)
        except Exception:
            continue
        if isinstance(made, cls):
            return made
    return None


def _copy_attributes(error: BaseException, made: Exception) -> None:
    made.__dict__.update(error.__dict__)
    if "__notes__" in made.__dict__:
        made.__dict__["__notes__"] = list(made.__dict__["__notes__"])
    for cls in type(error).__mro__:
        if cls in (BaseException, object):
            continue
        for name, member in list(vars(cls).items()):
            if type(member) not in (types.MemberDescriptorType, types.GetSetDescriptorType) or name.startswith("__"):
                continue
            try:
                member.__set__(made, member.__get__(error, type(error)))
            except Exception:  # read-only, or empty
                continue


# -- a failed dump or copy ---------------------------------------------------------------------------------------------


def translate_pickling_error(error: Exception, obj: Any, pickler: Any) -> Exception:
    """The error to raise for a failed dump, its cause set: as the original, and saying which part failed.

    Returns:
        A new error, or the original one where it says nothing about the object (no memory, a full disk).
    """
    return _translate("pickle", error, obj, lambda: _second_look(error, obj, pickler))


def translate_copy_error(error: Exception, obj: Any, registry: Any, *, deep: bool = True) -> Exception:
    """The error to raise for a failed copy, its cause set: as the original, and saying which part failed."""
    return _translate("copy", error, obj, lambda: _look_at_copy(error, obj, deep))


def _translate(verb: str, error: Exception, obj: Any, look: Any) -> Exception:
    if isinstance(error, MemoryError):
        return error
    try:
        found = look()
        if found is None and isinstance(error, OSError):
            return error  # the file's, not the object's
        from .diagnosis import describe

        kind = PicklingError if verb == "pickle" else CopyError
        details = describe(verb, error, obj, found)
        made = combined(kind, error, details.message)
        if made is None:
            return with_note(error, details.message)
        _described(made, path=details.path, type_name=details.type_name, reason=details.reason, hint=details.hint)
    except Exception:  # whatever goes wrong here must not hide what went wrong first
        return error
    made.__cause__ = error.__cause__ if "reason" in error.__dict__ and error.__cause__ is not None else error
    return made


def with_note(error: Exception, note: str) -> Exception:
    """The error itself with a line added, for what cannot be an error of ours."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        error.__notes__ = [*getattr(error, "__notes__", ()), note]  # type: ignore[attr-defined]
    return error


def _second_look(error: Exception, obj: Any, pickler: Any) -> Any:
    """Where the pickler's own questions lead to the object that failed."""
    from .paths import PickleQuestions, Walk
    from .sources import ByValue

    attributes = pickler.__dict__
    before = {name: attributes[name] for name in ("_by_value", "canonical") if name in attributes}
    try:
        # Nothing will be loaded, so rules need no identity of what goes by value: to make one asks all its parts.
        for canonical in (True, False):
            attributes.update(_by_value=ByValue(), canonical=canonical)
            walk = Walk(obj, PickleQuestions(pickler))
            finding = walk.first()
            if finding is not None:
                return walk, finding.node, finding.error
            if isinstance(error, RecursionError) or walk.gave_up:
                break
        if isinstance(error, RecursionError) and walk.depth > 1:
            return walk, walk.deepest, error
        return (walk, None, error) if walk.gave_up else None
    finally:
        for name in ("_by_value", "canonical"):
            attributes.pop(name, None)
        attributes.update(before)


def _look_at_copy(error: Exception, obj: Any, deep: bool) -> Any:
    from .paths import Node, chain_of_copy

    return None, chain_of_copy(error, obj) if deep else Node(obj), error
