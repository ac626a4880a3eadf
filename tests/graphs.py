"""Random object graphs with sharing and cycles, and what their shape is.

A graph is drawn as a plan: a list of nodes, each of a kind and with the numbers of its children. Objects that can
change are made empty and filled at the end, so that they may hold anything, themselves included; objects that cannot
are made from those before them.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

__all__ = [
    "ATOMS", "LEAVES", "PARTS", "Plan", "build", "graphs", "kinds_at", "mutable_ids", "parts_of", "plans", "shape",
]  # fmt: skip


class Plain:
    """An instance with nothing but a dictionary."""


class Slots:
    __slots__ = ("first", "second")


class SlotsAndDict(Slots):
    pass


@dataclasses.dataclass
class Data:
    first: Any = None
    second: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    first: Any = None
    second: Any = None


class ListWithAttributes(list):
    pass


class DictWithAttributes(dict):
    pass


class TupleWithAttributes(tuple):
    pass


class Stateful:
    """Has a state of its own making."""

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def __getstate__(self) -> Any:
        return ("state", self.parts)

    def __setstate__(self, state: Any) -> None:
        assert state[0] == "state"
        self.parts = state[1]


class Reduces:
    """Says itself how it is rebuilt."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.parts: Any = None

    def __reduce__(self) -> Any:
        return Reduces, (self.number,), {"parts": self.parts}


class CopiesItself:
    """Has a ``__deepcopy__`` method that uses the memo, as one should; its parts may be copied in another order."""

    def __init__(self) -> None:
        self.first: Any = None
        self.second: Any = None

    def __deepcopy__(self, memo: Any) -> CopiesItself:
        import safepickle

        twin = memo[id(self)] = CopiesItself()
        twin.second = safepickle.deepcopy(self.second, memo)
        twin.first = safepickle.deepcopy(self.first, memo)
        return twin

    def method(self) -> Any:
        return self.first


class Point(collections.namedtuple("Point", "x y")):  # noqa: PYI024
    __slots__ = ()


Parts = list[Any]


def _fill_attributes(obj: Any, parts: Parts) -> None:
    for index, part in enumerate(parts):
        setattr(obj, f"attribute_{index}", part)


def _fill_two(obj: Any, parts: Parts) -> None:
    obj.first, obj.second = [*parts, None, None][:2]


def _fill_dict(obj: Any, parts: Parts) -> None:
    obj.update({f"key {index}": part for index, part in enumerate(parts)})


def _fill_slots_and_dict(obj: Any, parts: Parts) -> None:
    _fill_two(obj, parts)
    obj.third = parts[-1] if parts else None


def _fill_list_with_attributes(obj: Any, parts: Parts) -> None:
    obj.extend(parts[1:])
    obj.attribute = parts[0] if parts else None


def _fill_dict_with_attributes(obj: Any, parts: Parts) -> None:
    _fill_dict(obj, parts[1:])
    obj.attribute = parts[0] if parts else None


def _fill_parts(obj: Any, parts: Parts) -> None:
    obj.parts = list(parts)


#: kind -> (make it empty, fill it)
MUTABLE: dict[str, tuple[Callable[[], Any], Callable[[Any, Parts], None]]] = {
    "list": (list, lambda obj, parts: obj.extend(parts)),
    "dict": (dict, _fill_dict),
    "Plain": (Plain, _fill_attributes),
    "Slots": (Slots, _fill_two),
    "SlotsAndDict": (SlotsAndDict, _fill_slots_and_dict),
    "Data": (Data, _fill_two),
    "OrderedDict": (collections.OrderedDict, _fill_dict),
    "defaultdict": (lambda: collections.defaultdict(list), _fill_dict),
    "deque": (collections.deque, lambda obj, parts: obj.extend(parts)),
    "SimpleNamespace": (types.SimpleNamespace, _fill_attributes),
    "ListWithAttributes": (ListWithAttributes, _fill_list_with_attributes),
    "DictWithAttributes": (DictWithAttributes, _fill_dict_with_attributes),
    "Stateful": (Stateful, _fill_parts),
    "Reduces": (lambda: Reduces(7), _fill_parts),
    "CopiesItself": (CopiesItself, _fill_two),
    "bytearray": (lambda: bytearray(b"bytes"), lambda obj, parts: None),
    "set": (set, lambda obj, parts: obj.update(part for part in parts if type(part) in (int, str, bytes, bool))),
}

#: kind -> make it of its parts
IMMUTABLE: dict[str, Callable[[Parts], Any]] = {
    "tuple": tuple,
    "Point": lambda parts: Point(*[*parts, None, None][:2]),
    "Frozen": lambda parts: Frozen(*[*parts, None, None][:2]),
    "frozenset": lambda parts: frozenset(part for part in parts if type(part) in (int, str, bytes, bool)),
    "partial": lambda parts: functools.partial(max, *parts),
    "method": lambda parts: next((p.method for p in parts if type(p) is CopiesItself), None),
    "TupleWithAttributes": TupleWithAttributes,
}

ATOMS = [
    None,
    True,
    0,
    1,
    -5,
    300,
    70000,
    2**40,
    -(2**70),
    1.5,
    "",
    "text",
    "ä\n",
    b"",
    b"bytes",
    "x" * 300,
    int,
    len,
    Plain,
    ...,
]

Plan = list[tuple[str, list[int]]]

_SLOTS = ("Slots", "SlotsAndDict")
_SUBCLASSES = ("ListWithAttributes", "DictWithAttributes", "TupleWithAttributes")


def kinds_at(protocol: int) -> list[str]:
    """What the standard library pickles at a protocol: slots need 2, so do subclasses of containers in cycles."""
    without = () if protocol >= 2 else (*_SLOTS, *_SUBCLASSES)
    return [kind for kind in [*MUTABLE, *IMMUTABLE] if kind not in without]


def plans(kinds: list[str] | None = None, size: int = 12) -> st.SearchStrategy[Plan]:
    """Plans of graphs: the first node is the root."""
    kinds = [*MUTABLE, *IMMUTABLE] if kinds is None else kinds
    children = st.lists(st.integers(0, size + len(ATOMS) - 1), max_size=4)
    return st.lists(st.tuples(st.sampled_from(kinds), children), min_size=1, max_size=size)


def build(plan: Plan) -> list[Any]:
    """The objects of a plan; the last one is a list of all others, so that it reaches every one of them."""
    objects: list[Any] = []
    for kind, children in plan:
        if kind in MUTABLE:
            objects.append(MUTABLE[kind][0]())
        else:
            objects.append(IMMUTABLE[kind]([_part(objects, number, len(plan)) for number in children]))
    for obj, (kind, children) in zip(objects, plan, strict=True):
        if kind in MUTABLE:
            MUTABLE[kind][1](obj, [_part(objects, number, len(plan)) for number in children])
    return objects


def _part(objects: list[Any], number: int, size: int) -> Any:
    """An atom, or an object made so far."""
    if number < len(ATOMS):
        return ATOMS[number]
    number -= len(ATOMS)
    return objects[number % len(objects)] if objects else None


def graphs(kinds: list[str] | None = None, size: int = 12) -> st.SearchStrategy[list[Any]]:
    """Lists of objects that hold each other."""
    return plans(kinds, size).map(build)


# -- what they look like ---------------------------------------------------------------------------------------------

LEAVES = (type(None), bool, int, float, complex, str, bytes, type, types.BuiltinFunctionType, type(...))


#: How to see the parts of objects of further types, for tests that add kinds of their own.
PARTS: dict[type, Callable[[Any], list[Any]]] = {}


def parts_of(obj: Any) -> list[Any]:
    """What an object holds, in a fixed order."""
    if type(obj) in PARTS:
        return PARTS[type(obj)](obj)
    if isinstance(obj, (list, tuple, collections.deque)):
        return [*obj, *_attributes(obj)]
    if isinstance(obj, dict):
        return [part for pair in obj.items() for part in pair] + _attributes(obj)
    if isinstance(obj, (set, frozenset)):
        return sorted(obj, key=repr)
    if isinstance(obj, functools.partial):
        return [obj.func, *obj.args, *obj.keywords.values()]
    if isinstance(obj, types.MethodType):
        return [obj.__func__, obj.__self__]
    if isinstance(obj, types.FunctionType):
        return function_parts(obj)
    if isinstance(obj, types.CellType):
        return [obj.cell_contents] if obj != types.CellType() else []
    return _attributes(obj)


def function_parts(function: Any) -> list[Any]:
    """Cells, defaults and attributes."""
    return [
        *(function.__closure__ or ()),
        *(function.__defaults__ or ()),
        *[part for pair in sorted((function.__kwdefaults__ or {}).items()) for part in pair],
        *[part for pair in function.__dict__.items() for part in pair],
    ]


def _attributes(obj: Any) -> list[Any]:
    slots = [name for cls in type(obj).__mro__ for name in vars(cls).get("__slots__", ()) if hasattr(obj, name)]
    return [
        *[getattr(obj, name) for name in slots],
        *[part for pair in getattr(obj, "__dict__", {}).items() for part in pair],
    ]


def shape(root: Any) -> list[Any]:
    """Kinds, values and identities: equal for two graphs if and only if they cannot be told apart from inside."""
    numbers: dict[int, int] = {}
    found: list[Any] = []
    keep: list[Any] = []
    queue = collections.deque([root])
    numbers[id(root)] = 0
    while queue:
        obj = queue.popleft()
        keep.append(obj)
        children = []
        for part in parts_of(obj):
            if isinstance(part, LEAVES) or part == ():
                children.append((type(part), repr(part)))
                continue
            if type(part) is frozenset:  # a value: of equal ones it does not matter which one it is
                children.append((frozenset, [repr(element) for element in parts_of(part)]))
                continue
            if id(part) not in numbers:
                numbers[id(part)] = len(numbers)
                queue.append(part)
            children.append(numbers[id(part)])
        value = (
            bytes(obj) if isinstance(obj, bytearray) else obj.__code__ if isinstance(obj, types.FunctionType) else None
        )
        found.append((type(obj), value, children))
    return found


def mutable_ids(root: Any) -> dict[int, Any]:
    """All objects in a graph that can change, by id; functions and what is shared as code are not among them."""
    found: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    stack = [root]
    while stack:
        obj = stack.pop()
        if isinstance(obj, LEAVES) or id(obj) in seen:
            continue
        seen[id(obj)] = obj
        if not isinstance(obj, (tuple, frozenset, functools.partial, types.MethodType, types.FunctionType)):
            found[id(obj)] = obj
        stack.extend(parts_of(obj))
    return found
