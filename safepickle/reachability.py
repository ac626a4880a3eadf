"""Which objects does a call get to see, starting from its root?

Some answers depend on what else is in the same object: whether the cell of a hook holds a part of the model that is
being copied, whether the
referent of a weak reference is part of the pickle. The pickler and the copier go depth first and may meet the
question before the
answer, so the garbage collector's view of the graph is walked once, on the first such question of a call.
"""

from __future__ import annotations

import enum
import gc
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

__all__ = ["reachable_ids", "reaches"]

#: Code and the interpreter's own objects lead everywhere; data does not lead through them.
_CLOSED: Final = (
    types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType, types.CodeType, types.FrameType,
    types.TracebackType,
    types.GeneratorType, types.CoroutineType, types.GetSetDescriptorType, types.MemberDescriptorType, weakref.ref,
    str, bytes, int, float, complex, enum.Enum,
)  # fmt: skip


def _never_open(cls: type) -> bool:
    return False


def reachable_ids(
    roots: Iterable[Any], closed: Callable[[type], bool] = _never_open, *, through_functions: bool = False
) -> set[int]:
    """The ids of all objects that are found from ``roots`` without going through code.

    Args:
        roots: where to start.
        closed: says of a type that its objects are not part of the graph (shared by a rule).
        through_functions: also go into what a function that travels by value takes along: its cells and defaults.

    Returns:
        Ids of objects that live as long as the roots do and do not change.
    """
    seen: set[int] = set()
    stack = list(roots)
    verdicts: dict[type, bool] = {}

    def is_open(cls: type) -> bool:
        verdict = verdicts.get(cls)
        if verdict is None:
            is_code = cls is types.FunctionType and through_functions
            verdict = verdicts[cls] = is_code or not (issubclass(cls, _CLOSED) or closed(cls))
        return verdict

    while stack:
        obj = stack.pop()
        cls = type(obj)
        if not is_open(cls) or id(obj) in seen:
            continue
        if cls in (tuple, frozenset) and not any(is_open(type(part)) for part in obj):
            continue  # its own copy; the empty tuple is part of almost everything
        seen.add(id(obj))
        stack.extend(_parts(obj, cls))
    return seen


def _parts(obj: Any, cls: type) -> list[Any]:
    if cls is types.FunctionType:
        return function_parts(obj)
    return gc.get_referents(obj)


def function_parts(function: types.FunctionType) -> list[Any]:
    """What a function holds besides its code and its globals: cell contents, defaults, attributes."""
    parts: list[Any] = []
    for cell in function.__closure__ or ():
        try:
            parts.append(cell.cell_contents)
        except ValueError:
            continue
    parts.extend(function.__defaults__ or ())
    parts.extend((function.__kwdefaults__ or {}).values())
    parts.extend(function.__dict__.values())
    return parts


def reaches(
    start: Iterable[Any], hit: Callable[[Any], bool], closed: Callable[[type], bool] = _never_open, limit: int = 100_000
) -> list[Any] | None:
    """The way from ``start`` to the first hit, through data and through functions.

    Args:
        start: where to start.
        hit: says of an object whether it is what is looked for.
        closed: says of a type that there is no way through its objects.
        limit: give up after so many objects.

    Returns:
        The objects on the way, the hit last; ``None`` where there is none.
    """
    seen: set[int] = set()
    way: list[Any] = []
    stack = [iter(list(start))]
    while stack and len(seen) < limit:
        obj = next(stack[-1], _END)
        if obj is _END:
            stack.pop()
            if way:
                way.pop()
            continue
        if id(obj) in seen:
            continue
        seen.add(id(obj))
        if hit(obj):
            return [*way, obj]
        cls = type(obj)
        if cls is types.FunctionType:
            parts = function_parts(obj)  # type: ignore[arg-type]
        elif issubclass(cls, _CLOSED) or closed(cls):
            continue
        else:
            parts = gc.get_referents(obj)
        way.append(obj)
        stack.append(iter(parts))
    return None


_END: Final = object()
