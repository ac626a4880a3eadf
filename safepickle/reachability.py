"""Which objects does a call get to see, starting from its root?

Some answers depend on what else is in the same object: whether the cell of a hook holds a part of the model that is
being copied, whether the referent of a weak reference is part of the pickle. The pickler and the copier go depth first
and may meet the question before the answer, so the garbage collector's view of the graph is walked once, on the first
such question of a call.
"""

from __future__ import annotations

import enum
import functools
import gc
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

__all__ = ["Plan", "function_parts", "reachable_ids", "reaches", "referent_of", "referents"]

#: Code and the interpreter's own objects lead everywhere; data does not lead through them.
_CLOSED: Final = (
    types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType, types.CodeType, types.FrameType,
    types.TracebackType, types.GeneratorType, types.CoroutineType, types.GetSetDescriptorType,
    types.MemberDescriptorType, weakref.ref, str, bytes, int, float, complex, enum.Enum,
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
    return referents(obj)


def referents(obj: Any) -> list[Any]:
    """What an object refers to; arrays of NumPy do not tell the garbage collector about the objects in them."""
    return gc.get_referents(obj) or _hidden(obj)


def _hidden(obj: Any) -> list[Any]:
    cls = type(obj)
    return _in_array(obj) if cls.__module__ == "numpy" and cls.__name__ == "ndarray" else []


def _in_array(array: Any) -> list[Any]:
    if not array.dtype.hasobject:
        return []
    if array.dtype.names is None:
        elements: list[Any] = array.ravel().tolist()
        return elements
    return [part for name in array.dtype.names for part in _in_array(array[name])]


def function_parts(function: types.FunctionType) -> list[Any]:
    """What a function holds besides its code and its globals: cell contents, defaults, attributes."""
    parts: list[Any] = []
    for cell in function.__closure__ or ():
        try:
            parts.append(cell.cell_contents)
        except ValueError:
            continue
    return [*parts, *_outside_of_cells(function)]


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
            parts = referents(obj)
        way.append(obj)
        stack.append(iter(parts))
    return None


_END: Final = object()


# -- what a copy will copy, functions included -----------------------------------------------------------------------


class Plan:
    """Which objects a call copies, and which functions it must rebuild, whatever the order in which it meets them.

    What data leads to from the root is copied. A function is rebuilt if it leads to something that is copied, or shares
    a variable with one that is rebuilt; what it holds on the way there is copied for it, with everything below; and
    that may tie further functions. So the answer is a least fixed point, worked out backwards from what is copied.

    Args:
        root: the object that is copied.
        closed: says of a type that its objects are shared.
        named: says of a function that it is shared because a name leads to it.
        limit: how many objects to look at that only functions lead to.

    Attributes:
        copied: the ids of data that is copied.
        tied: the ids of what functions lead to (and of functions) that leads to something copied.
    """

    def __init__(
        self, root: Any, closed: Callable[[type], bool], named: Callable[[Any], bool], limit: int = 200_000
    ) -> None:
        self._closed = closed
        self._named = named
        self._kinds: dict[type, int] = {}
        self._nodes: dict[int, Any] = {}  # what only functions lead to, and these
        self._above: defaultdict[int, list[int]] = defaultdict(list)  # node -> the nodes that hold it
        self._users: defaultdict[int, list[int]] = defaultdict(list)  # cell -> the functions that have it
        self._work: list[int] = []
        self.copied: set[int] = set()
        self.tied: set[int] = set()
        functions = self._walk_data(root)
        hits = self._walk_functions(functions, limit)
        for node in hits:
            self._tie(node)
        self._propagate()
        self._explored = set(self._nodes)
        del self._nodes, self._above, self._work

    def covers(self, obj: Any) -> bool:
        """Whether the answer takes the object into account."""
        return id(obj) in self.copied or id(obj) in self._explored

    def shares_cells(self, function: Any) -> bool:
        """Whether another function has one of this function's cells, or data holds one."""
        return any(len(self._users.get(id(cell), ())) > 1 or id(cell) in self.copied for cell in _cells(function))

    # -- the graph ---------------------------------------------------------------------------------------------------

    def _kind(self, cls: type) -> int:
        """How the walk goes on from objects of a type."""
        kind = self._kinds.get(cls)
        if kind is None:
            if self._closed(cls):
                kind = _SHUT
            elif issubclass(cls, (*_HOLDERS, *_SOFT)):
                kind = _CODE
            elif issubclass(cls, _CLOSED):
                kind = _SHUT
            else:
                kind = _ODD if cls in (tuple, frozenset) or cls.__module__ == "numpy" else _DATA
            self._kinds[cls] = kind
        return kind

    def _is_own_copy(self, obj: Any) -> bool:
        """Whether it is a tuple of nothing that could be copied; the empty one is part of almost everything."""
        return type(obj) in (tuple, frozenset) and not any(self._kind(type(part)) for part in obj)

    def _walk_data(self, root: Any) -> list[Any]:
        """Enter what data leads to; returns the functions at its border."""
        functions: list[Any] = []
        stack, kinds, copied = [root], self._kinds, self.copied
        while stack:
            found = []
            for obj in stack[-_AT_ONCE:]:
                cls = type(obj)
                kind = kinds.get(cls)
                if kind is None:
                    kind = self._kind(cls)
                if kind == _SHUT:
                    continue
                if kind == _CODE:
                    functions.append(obj)
                elif id(obj) not in copied and (kind == _DATA or not self._is_own_copy(obj)):
                    copied.add(id(obj))
                    found.append(obj)
            del stack[-_AT_ONCE:]
            stack += gc.get_referents(*found)
            for obj in found:
                if kinds[type(obj)] == _ODD:
                    stack += _hidden(obj)
        return functions

    def _walk_functions(self, functions: list[Any], limit: int) -> list[int]:
        """Enter what functions lead to, and what holds what there; returns what holds something that is copied."""
        hits = []
        queue = deque(functions)
        while queue and len(self._nodes) < limit:
            obj = queue.popleft()
            node = id(obj)
            if node in self._nodes:
                continue
            self._nodes[node] = obj
            for cell in _cells(obj):
                self._users[id(cell)].append(node)
            for part in _held_by(obj):
                if id(part) in self.copied:
                    hits.append(node)
                elif self._kind(type(part)) and not self._is_own_copy(part):
                    self._above[id(part)].append(node)
                    queue.append(part)
        return hits

    # -- backwards from what is copied -------------------------------------------------------------------------------

    def _tie(self, node: int) -> None:
        """This node leads to something that is copied."""
        if node not in self.tied and not (_is_holder(self._nodes[node]) and self._named(self._nodes[node])):
            self.tied.add(node)
            self._work.append(node)

    def _propagate(self) -> None:
        while self._work:
            node = self._work.pop()
            obj = self._nodes[node]
            for above in self._above.get(node, ()):
                self._tie(above)
            if _is_holder(obj):
                for cell in _cells(obj):
                    for user in self._users.get(id(cell), ()):
                        self._tie(user)
                for part in _direct_parts(obj):
                    if id(part) in self.tied:
                        self._take(part)
            elif any(self._takes(above) for above in self._holders(node)):
                self._take(obj)

    def _holders(self, node: int) -> Iterator[int]:
        """The functions that hold a node, in a cell or otherwise."""
        for above in self._above.get(node, ()):
            if type(self._nodes[above]) is types.CellType:
                yield from self._users.get(above, ())
            else:
                yield above

    def _takes(self, node: int) -> bool:
        return node in self.tied and _is_holder(self._nodes[node])

    def _take(self, part: Any) -> None:
        """A function that is rebuilt has this part copied for it, with all that the part holds."""
        stack = [part]
        while stack:
            obj = stack.pop()
            node = id(obj)
            if node not in self._nodes or node in self.copied or _is_holder(obj) or _is_soft(obj):
                continue
            self.copied.add(node)
            for above in self._above.get(node, ()):
                self._tie(above)
            stack.extend(_held_by(obj))


def referent_of(obj: Any) -> Any:
    """What a weak reference, a proxy or a builtin method is about, though it may not keep it or not show it."""
    cls = type(obj)
    if issubclass(cls, weakref.ref):
        return weakref.ref.__call__(obj)
    if cls in (weakref.ProxyType, weakref.CallableProxyType):
        try:
            return getattr(obj.__repr__, "__self__", None)  # a method that the proxy passes on
        except ReferenceError:
            return None
    if cls is types.BuiltinFunctionType and not issubclass(type(obj.__self__), (types.ModuleType, type)):
        return obj.__self__  # results.append
    return None


def _held_by(obj: Any) -> list[Any]:
    """What leads on from an object; from a function through its cells, so that those who share them are found."""
    if _is_soft(obj):
        referent = referent_of(obj)
        return [] if referent is None else [referent]
    if type(obj) is types.FunctionType:
        return [*_cells(obj), *_outside_of_cells(obj)]
    if _is_holder(obj):
        return _direct_parts(obj)
    return referents(obj)


def _cells(function: Any) -> tuple[types.CellType, ...]:
    return (function.__closure__ or ()) if type(function) is types.FunctionType else ()


def _direct_parts(function: Any) -> list[Any]:
    """What is copied for a function that is rebuilt, where it leads to something copied."""
    if type(function) is types.FunctionType:
        return function_parts(function)
    return list(vars(function).values())  # its function is __wrapped__


def _outside_of_cells(function: types.FunctionType) -> list[Any]:
    return [
        *(function.__defaults__ or ()),
        *(function.__kwdefaults__ or {}).values(),
        *function.__dict__.values(),
    ]


#: Code that holds objects: functions, and those with a cache, which is not part of the copy.
_HOLDERS: Final = (types.FunctionType, type(functools.lru_cache(lambda: None)))

#: How a walk goes on: not at all; from code; through data; through data of which a second look says something.
_SHUT, _CODE, _DATA, _ODD = range(4)
#: How many objects the garbage collector is asked about at once.
_AT_ONCE: Final = 4096

#: What leads to an object without being data that holds it.
_SOFT: Final = (weakref.ref, weakref.ProxyType, weakref.CallableProxyType, types.BuiltinFunctionType)


def _is_holder(obj: Any) -> bool:
    return type(obj) in _HOLDERS  # not isinstance: a proxy says that it is what it stands for


def _is_soft(obj: Any) -> bool:
    return issubclass(type(obj), _SOFT)
