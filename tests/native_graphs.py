"""What do the tests of the C core copy? Random graphs of every kind of object that it tells apart."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

import safepickle
from safepickle import copier

__all__ = ["SPECS", "REGISTRY", "build", "outcome", "pure", "shape"]


def pure(x: Any, *arguments: Any, **options: Any) -> Any:
    """`safepickle.deepcopy` by the copier in Python."""
    core, copier.core = copier.core, None
    try:
        return copier._deepcopy(x, *arguments, **options)
    finally:
        copier.core = core


class Colour(enum.Enum):
    RED = 1
    BLUE = [2]


class Plain:
    pass


class Slots:
    __slots__ = ("first", "parts", "__weakref__")


class SlotsAndDict(Slots):
    pass


class SlotBelowDict(Plain):
    __slots__ = ("deeper",)


@dataclasses.dataclass(frozen=True, eq=False)
class Frozen:
    parts: Any = None


class Hooked:
    """Copies its parts itself, through the memo."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Hooked:
        new = memo[id(self)] = type(self)()
        new.parts = safepickle.deepcopy(self.parts, memo)
        return new


class HookedLate(Hooked):
    """The same, without telling the memo first: on the way back to itself it says so."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _once(self, lambda: [safepickle.deepcopy(part, memo) for part in self.parts])


_at_work: set[int] = set()


def _once(x: Any, copy: Callable[[], Any]) -> Any:
    if id(x) in _at_work:
        return "again"
    _at_work.add(id(x))
    try:
        return copy()
    finally:
        _at_work.discard(id(x))


class Reduced:
    def __reduce_ex__(self, protocol: int) -> Any:
        return Reduced, (), {"parts": self.parts}


class ReducedItems(list[Any]):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(arguments)


class MappingItems(dict[str, Any]):
    pass


class WithState:
    def __getstate__(self) -> Any:
        return (self.parts, "state")

    def __setstate__(self, state: Any) -> None:
        self.parts, self.said = state


class WithNew:
    def __new__(cls, *arguments: Any) -> Any:
        return super().__new__(cls)

    def __getnewargs__(self) -> Any:
        return (1, [2])


class ByRule(Plain):
    pass


class ByRuleInSteps(Plain):
    pass


class ByReducer(Plain):
    pass


class Declined(Plain):
    pass


class SharedByRule(Plain):
    pass


class SharedUnless(Plain):
    pass


class Caught(Plain):
    """Its rule copies what cannot be copied as None."""


class Refuses:
    def __reduce_ex__(self, protocol: int) -> Any:
        raise ValueError("not this one")


class OddReduce:
    def __reduce_ex__(self, protocol: int) -> Any:
        return (OddReduce,)


class FailingRule(Plain):
    pass


class HashedByPart(Plain):
    def __hash__(self) -> int:
        return hash(type(self.parts))


def _copy_by_rule(x: Any, memo: dict[int, Any]) -> Any:
    new = memo[id(x)] = type(x)()
    new.parts = safepickle.deepcopy(x.parts, memo)
    return new


def _copy_in_steps(x: Any, memo: dict[int, Any]) -> Iterator[Any]:
    new = memo[id(x)] = type(x)()
    new.parts = []
    for part in x.parts:
        new.parts.append((yield part))
    return new


def _copy_and_catch(x: Any, memo: dict[int, Any]) -> Iterator[Any]:
    new = memo[id(x)] = type(x)()
    new.parts = []
    for part in x.parts:
        try:
            new.parts.append((yield part))
        except Exception as error:
            new.parts.append(f"not copied: {type(error).__name__}")
    return new


def _fail(x: Any, memo: dict[int, Any]) -> Any:
    safepickle.deepcopy(x.parts, memo)
    raise KeyError("the rule")


def _rules() -> safepickle.Registry:
    registry = safepickle.Registry()
    registry.register(ByRule, copy=_copy_by_rule)
    registry.register(ByRuleInSteps, copy=_copy_in_steps)
    registry.register(Caught, copy=_copy_and_catch)
    registry.register(ByReducer, lambda x: (ByReducer, (), {"parts": x.parts}))
    registry.register(Declined, lambda x: NotImplemented, copy=lambda x, memo: NotImplemented)
    registry.register(SharedByRule, copy=safepickle.SHARE)
    registry.register(SharedUnless, copy=type(safepickle.SHARE)(lambda x: len(x.parts) > 1))
    registry.register(FailingRule, copy=_fail)
    return registry


REGISTRY = _rules()

ATOMS: list[Any] = [0, 10**20, "a", "é", b"b", 1.5, None, True, int, len, Colour.RED, Colour.BLUE]
SHELLS: dict[str, Callable[[], Any]] = {
    "list": list, "dict": dict, "set": set, "ordered": collections.OrderedDict, "deque": collections.deque,
    "default": lambda: collections.defaultdict(list), "bytearray": lambda: bytearray(b"ab"),
    "items": ReducedItems, "mapping": MappingItems,
    **{kind.__name__: kind for kind in (
        Plain, Slots, SlotsAndDict, SlotBelowDict, Frozen, Hooked, HookedLate, Reduced, WithState, WithNew,
        ByRule, ByRuleInSteps, ByReducer, Declined, SharedByRule, SharedUnless, Caught, HashedByPart,
    )},
}  # fmt: skip
FAILING: dict[str, Callable[[], Any]] = {kind.__name__: kind for kind in (Refuses, OddReduce, FailingRule)}
WRAPPERS = ("tuple", "frozenset", "own hook", "held dict")

_KINDS = st.sampled_from([*SHELLS, *SHELLS, *WRAPPERS, *FAILING])
SPECS = st.lists(st.tuples(_KINDS, st.lists(st.integers(-len(ATOMS), 14), max_size=5)), min_size=1, max_size=12)
"""For each object its kind and the numbers of its parts; below zero they are atoms."""


def build(specs: list[tuple[str, list[int]]]) -> Any:
    """The objects that a list of specs describes, in a list."""
    nodes: list[Any] = []
    for kind, children in specs:
        parts = [ATOMS[at] if at < 0 else nodes[at % len(nodes)] for at in children if at < 0 or nodes]
        if kind == "tuple":
            nodes.append(tuple(parts))
        elif kind == "frozenset":
            nodes.append(frozenset(_members(parts)))
        elif kind == "own hook":
            nodes.append(Plain())
            nodes[-1].parts = parts
            nodes[-1].__deepcopy__ = functools.partial(_copy_by_own_hook, nodes[-1])
        elif kind == "held dict":
            held = Plain()
            held.parts = parts
            nodes.append([held.__dict__, held])
        else:
            nodes.append({**SHELLS, **FAILING}[kind]())
    for (kind, children), node in zip(specs, nodes, strict=True):
        _fill(kind, node, [ATOMS[at] if at < 0 else nodes[at % len(nodes)] for at in children])
    return nodes


def _fill(kind: str, node: Any, parts: list[Any]) -> None:
    if kind in ("list", "deque", "items"):
        node.extend(parts)
    elif kind in ("dict", "ordered", "default", "mapping"):
        for at, part in enumerate(parts):
            node[part if _hashable(part) and at % 2 else f"key {at}"] = part
    elif kind == "set":
        node.update(_members(parts))
    elif kind == "Frozen":
        object.__setattr__(node, "parts", parts)
    elif kind not in (*WRAPPERS, "bytearray"):
        if isinstance(node, Slots) and parts:
            node.first = parts[0]
        if isinstance(node, SlotBelowDict):
            node.deeper = parts[-1:]
        node.parts = parts


def _copy_by_own_hook(x: Any, memo: dict[int, Any]) -> Any:
    return _once(x, lambda: ["own", safepickle.deepcopy(x.parts, memo)])


def _hashable(part: Any) -> bool:
    """Whether a part can be a key on both sides at any time: the hash of some objects needs what a copy gets late."""
    if isinstance(part, (tuple, frozenset)):
        return all(map(_hashable, part))
    return not isinstance(part, HashedByPart) and type(part).__hash__ is not None


def _members(parts: list[Any]) -> list[Any]:
    """Parts for a set: at most one is not an atom, for the order of several would depend on their addresses."""
    hashable = [part for part in parts if _hashable(part)]
    return [part for part in hashable if part in ATOMS] + [part for part in hashable if part not in ATOMS][:1]


def outcome(copy: Callable[..., Any], root: Any, **options: Any) -> Any:
    """The shape of the copy, or what was raised instead."""
    try:
        return shape(copy(root, registry=REGISTRY, **options), root)
    except Exception as error:
        return type(error).__name__, str(error), type(error.__cause__).__name__


def shape(root: Any, source: Any = None) -> list[Any]:
    """A description of a graph: each object's type, which parts are the same object, which objects are in `source`."""
    known: dict[int, int] = {}
    of_source = {id(node) for node in _nodes(source)}
    said: list[Any] = []
    for node in _nodes(root):
        known[id(node)] = len(known)
    for node in _nodes(root):
        parts = [known[id(part)] for part in _parts(node)]
        said.append((type(node).__name__, id(node) in of_source, parts, _value(node)))
    return said


def _value(node: Any) -> Any:
    return repr(node) if isinstance(node, (int, str, bytes, float, bytearray)) else None


def _nodes(root: Any) -> list[Any]:
    seen: dict[int, Any] = {}
    stack = [root]
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen[id(node)] = node
            stack.extend(reversed(_parts(node)))
    return list(seen.values())


def _parts(node: Any) -> list[Any]:
    if isinstance(node, (int, str, bytes, float, bytearray, type, enum.Enum)) or callable(node) or node is None:
        return []
    parts: list[Any] = []
    if isinstance(node, dict):
        for key, value in node.items():
            parts += [key, value]
    elif isinstance(node, (set, frozenset)):
        parts += sorted(node, key=lambda part: (type(part).__name__, repr(part) if part in ATOMS else ""))
    elif isinstance(node, (list, tuple, collections.deque)):
        parts += list(node)
    for name, value in vars(node).items() if hasattr(node, "__dict__") else ():
        parts += [name, value]
    parts += [getattr(node, name) for name in ("first", "deeper") if hasattr(node, name)]
    return parts
