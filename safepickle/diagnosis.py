"""What does an error say about the object that failed, and what can one do about it?"""

from __future__ import annotations

import pickle
import sys
import types
from typing import Any, Final, NamedTuple

from .errors import _said, type_name
from .path_syntax import ROOT, Segment, join, notes_of, repetition, segments
from .paths import Node, Walk
from .references import static_vars

__all__ = ["Details", "describe", "hint_for", "type_expression"]

_HEAP_TYPE: Final = 1 << 9


class Details(NamedTuple):
    """What an error says, in parts and as a whole."""

    message: str
    path: str | None
    type_name: str
    reason: str
    hint: str | None


def describe(
    verb: str, error: Exception, obj: Any, found: tuple[Walk | None, Node | None, Exception] | None
) -> Details:
    """Put together the message of an error.

    Args:
        verb: ``"pickle"`` or ``"copy"``.
        error: the first error.
        obj: the root.
        found: what the second look found: the walk, the node that failed and what failed there; ``None`` if nothing.
    """
    walk, node, second = found if found is not None else (None, None, error)
    reason = _reason(error)
    if node is None:
        return _undescribed(verb, obj, reason, walk)
    steps = segments(node.chain())
    path, name = join(steps), type_name(node.obj)
    lines = [f"in {note}" if not note.startswith("in ") else note for note in notes_of(steps)]
    said = _reason(second)
    inner = getattr(error, "path", None)
    if verb == "copy" and inner is not None and inner.startswith(ROOT):
        # A __deepcopy__ method that began a copy of its own: its path goes on where ours ends.
        path, name = path + inner.removeprefix(ROOT), error.type_name  # type: ignore[attr-defined]
        reason = said = error.reason  # type: ignore[attr-defined]
    if said in reason:  # a rule that pickles parts itself has passed on what failed there
        reason = said
    lines.append(f"reason: {_indented(reason)}")
    if said != reason:
        lines.append(f"a second look said: {_indented(said)}")
    hint = None if _is_refusal(second) else hint_for(verb, node, steps, path)
    if isinstance(error, RecursionError) and (len(steps) > _MANY or (verb == "pickle" and second is error)):
        lines += _about_depth(steps, walk)
        hint = _DEPTH_HINT
    if hint is not None:
        lines.append(f"hint: {hint}")
    return Details("\n  ".join([f"cannot {verb} {name!r} at {path}", *lines]), path, name, reason, hint)


def _undescribed(verb: str, obj: Any, reason: str, walk: Walk | None) -> Details:
    """Nothing was found: the first error has the word."""
    message = f"cannot {verb} {type_name(obj)!r}: {_indented(reason)}"
    if walk is not None and walk.gave_up:
        message += f"\n  a second look for the part that failed gave up after {walk.looked_at:,} objects"
    return Details(message, None, type_name(obj), reason, None)


def _reason(error: BaseException) -> str:
    known = getattr(error, "reason", None)
    return known if isinstance(known, str) and getattr(error, "path", None) is None else _said(error)


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")


def _is_refusal(error: BaseException) -> bool:
    """Whether a rule has said what to do."""
    from .errors import PicklingError

    return isinstance(error, PicklingError)


# -- nested too deep ---------------------------------------------------------------------------------------------------

#: With fewer steps than this a recursion is that of the object's own method.
_MANY: Final = 50

_DEPTH_HINT: Final = (
    "keep the links in a list instead of in each other, in the object or in what its __getstate__ returns; for objects "
    "whose own __reduce__ or __deepcopy__ recurses, a thread with a larger threading.stack_size() and "
    "sys.setrecursionlimit() may do"
)


def _about_depth(steps: list[Segment], walk: Walk | None) -> list[str]:
    levels = len(steps) + 1
    line = f"objects are nested {levels:,} deep here"
    if walk is not None and walk.gave_up:
        line += " or deeper"
    repeated = repetition(steps)
    if repeated is not None:
        start, length, count = repeated
        line += f"; the repeating part of the path is {join(steps[start : start + length], '')} ({count:,} times)"
    return [line]


# -- hints -------------------------------------------------------------------------------------------------------------


def hint_for(verb: str, node: Node, steps: list[Segment], path: str) -> str:
    """What to do, with one line that works for this very object."""
    if isinstance(node.obj, type) and node.parent is not None and type(node.parent.obj) is node.obj:
        node = node.parent  # an instance of a class that cannot go: a reducer for the class of the instance helps
        path = join(segments(node.chain()))
    if type(node.obj) is pickle.PickleBuffer:
        return "use protocol 5, and a buffer that is contiguous"
    expression = type_expression(type(node.obj), path)
    if verb == "copy":
        return f"share it with the copy: safepickle.register({expression}, copy=safepickle.SHARE)"
    holder = _holder(steps)
    if holder is not None:
        name, state = holder
        return (
            f"register a reducer for it, or drop it in __getstate__ of {name}: def __getstate__(self): return {state}"
        )
    line = f"safepickle.register({expression}, lambda it: (type(None), ()))"
    return f"register a reducer for it; this one loads None: {line}"


def _holder(steps: list[Segment]) -> tuple[str, str] | None:
    """The class of the last instance on the way, if it is the user's, and what its ``__getstate__`` may return."""
    for step in reversed(steps):
        if step.attribute is None:
            continue
        cls = type(step.holder)
        defined = [names for base in cls.__mro__[:-1] if (names := _STATE_METHODS & vars(base).keys())]
        inherited = set().union(*defined)
        if not _is_users(cls) or step.attribute not in static_vars(step.holder) or inherited - {"__getstate__"}:
            return None
        if "__getstate__" in vars(cls):
            return None  # it would have to be changed; nobody knows how
        state = "super().__getstate__()" if inherited else "self.__dict__"
        return cls.__qualname__, f"{{**{state}, {step.attribute!r}: None}}"
    return None


_STATE_METHODS: Final = frozenset({"__getstate__", "__reduce__", "__reduce_ex__"})


def _is_users(cls: type) -> bool:
    """Whether a class is written in Python, and neither part of Python nor installed."""
    module = cls.__module__
    if not cls.__flags__ & _HEAP_TYPE or module.partition(".")[0] in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return "site-packages" not in file and "dist-packages" not in file


def type_expression(cls: type, path: str) -> str:
    """How to write a type in a call of ``register``: its name if that leads to it, else by the object."""
    found: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is cls:
        return f'"{cls.__module__}:{cls.__qualname__}"' if cls.__module__ != "builtins" else cls.__qualname__
    for name, value in vars(types).items():
        if value is cls:
            return f"types.{name}"
    return f"type({path})"
