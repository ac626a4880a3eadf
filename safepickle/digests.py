"""A hash of what an object holds, the same in every process.

The bytes of a pickle depend on more than the value: on the hash seed where there are sets, and on which equal parts are
one object. So an object is taken apart as for pickling, and the graph of its parts is hashed from below: what has equal
parts has equal hashes. Parts on a cycle have no "below"; they are numbered in the order in which they are met, or,
where sets have no order, told apart by what they lead to. There is no recursion: depth does not matter.
"""

from __future__ import annotations

import hashlib
import pickle
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from .entries import foreign_entry
from .errors import PicklingError, translate_pickling_error
from .registry import Registry, default_registry
from .sources import ByValue

__all__ = ["content_digest", "digest"]

#: A part of a node: the hash of something without parts, or the number of a node.
Part = bytes | int

#: How many steps away from itself a set on a cycle is told apart from others.
_ROUNDS: Final = 200


def digest(obj: Any, *, registry: Registry | None = None) -> str:
    """A hash of an object that is the same in every process for equal objects.

    Objects are equal here if they are of the same types and hold equal parts: the order of dictionaries counts, that of
    sets and of attributes does not, nor does which equal parts are one object. A class or function that has an
    importable name is that name; any other is its code (which depends on the version of Python), not the place where
    it is written.

    Args:
        obj: anything that can be pickled.
        registry: the rules to use; the default registry unless given.

    Returns:
        A SHA-256, in hexadecimal.

    Raises:
        PicklingError: some part of the object cannot be pickled; the message says which and where.

    Example:
        >>> import safepickle
        >>> safepickle.digest({"lr": 0.1, "tags": {"a", "b"}}) == safepickle.digest({"lr": 0.1, "tags": {"b", "a"}})
        True
    """
    rules = default_registry if registry is None else registry
    try:
        return content_digest(obj, rules)
    except Exception as error:
        translated = translate_pickling_error(error, obj, _Questions(rules, obj))
        if translated is error:
            raise
        raise translated from translated.__cause__


def content_digest(obj: Any, registry: Registry) -> str:
    """As :func:`digest`, for use while pickling: the pickler says itself where something went wrong."""
    graph = _Graph(_Questions(registry, obj))
    root = graph.part(obj)
    graph.complete()
    return _hash(root if isinstance(root, bytes) else _Digests(graph).of(root)).hex()


class _Questions:
    """Stands for the pickler where rules ask for one."""

    canonical = True
    protocol = 4
    pin = None
    buffer_callback = None

    def __init__(self, registry: Registry, root: Any) -> None:
        self.registry = registry
        self._root = root  # the rules for weak references ask what else is part of it
        self.by_value = ByValue(unordered=True)

    def reducer_override(self, obj: Any) -> Any:
        """What the rules say."""
        from .pickler import reduce_by_rules

        rules = self.registry.rules_for(type(obj), "pickle")
        return reduce_by_rules(rules, obj, self) if rules else NotImplemented

    def reduce(self, obj: Any) -> Any:
        """What a pickler would write for an object that is no builtin container: a reduce value, or a name."""
        reduced = self.reducer_override(obj)
        if reduced is not NotImplemented:
            return reduced
        cls = type(obj)
        reducer = foreign_entry(cls)
        if reducer is not None:
            return reducer(obj)
        if issubclass(cls, type) or cls.__name__ == "function":
            return obj.__qualname__
        return obj.__reduce_ex__(self.protocol)


# -- the graph ---------------------------------------------------------------------------------------------------------


class _Graph:
    """An object and all its parts: for each one that has parts a node with a label and its parts, in order or not."""

    def __init__(self, questions: _Questions) -> None:
        self.questions = questions
        self.labels: list[bytes] = []
        self.parts: list[list[Part]] = []
        self.ordered: list[bool] = []
        self._numbers: dict[int, int] = {}
        self._todo: list[tuple[int, Any]] = []
        self._alive: list[Any] = []  # objects are known by their ids

    def part(self, obj: Any) -> Part:
        """The hash of an atom, or the number of the node of anything else."""
        write = _ATOMS.get(type(obj))
        if write is not None:
            return _atom(write(obj))
        number = self._numbers.get(id(obj))
        if number is None:
            number = self._numbers[id(obj)] = len(self.labels)
            self.labels.append(b"")
            self.parts.append([])
            self.ordered.append(True)
            self._alive.append(obj)
            self._todo.append((number, obj))
        return number

    def complete(self) -> None:
        """Find the parts of all that is known so far, and theirs."""
        while self._todo:
            number, obj = self._todo.pop()
            label, parts, self.ordered[number] = self._describe(obj)
            self.labels[number] = label
            self.parts[number] = [part if type(part) is _Ready else self.part(part) for part in parts]

    def _describe(self, obj: Any) -> tuple[bytes, list[Any], bool]:
        cls = type(obj)
        if cls in (list, tuple):
            return _label(cls.__name__), list(obj), True
        if cls in (set, frozenset):
            return _label(cls.__name__), list(obj), False
        if cls is dict:
            return b"dict", [part for pair in obj.items() for part in pair], True
        if cls is _Attributes:
            return b"attributes", obj.parts(), True
        form = _FORMS.get(f"{cls.__module__}:{cls.__qualname__}")
        described = form(obj) if form is not None else None
        if described is not None:
            return (*described, True)
        return (*self._describe_reduced(obj), True)

    def _describe_reduced(self, obj: Any) -> tuple[bytes, list[Any]]:
        reduced = self.questions.reduce(obj)
        if isinstance(reduced, str):
            module = pickle.whichmodule(obj, reduced)  # type: ignore[attr-defined]
            return _label("name", "__main__" if module == "__mp_main__" else module, reduced), []
        if not isinstance(reduced, tuple) or not 2 <= len(reduced) <= 6:
            raise PicklingError(
                f"cannot pickle {type(obj).__qualname__!r} object: __reduce__ returned {type(reduced).__qualname__}"
            )
        self._alive.append(reduced)
        make, arguments, state, items, pairs, setter = (*reduced, None, None, None, None)[:6]
        parts: list[Any] = [make, arguments, _state(obj, make, state), setter]
        counts = [-1, -1]
        for index, iterator in enumerate((items, pairs)):
            if iterator is not None:
                found = list(iterator) if index == 0 else [part for pair in iterator for part in pair]
                counts[index] = len(found)
                parts.extend(found)
                self._alive.append(found)
        return _label("object", *map(str, counts)), parts


class _Ready(bytes):
    """A part that is a hash already."""


class _Attributes:
    """The instance dictionary of an object: the order in which attributes were set is not part of its value."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self._attributes = attributes

    def parts(self) -> list[Any]:
        return [part for name in sorted(self._attributes) for part in (name, self._attributes[name])]


def _state(obj: Any, make: Any, state: Any) -> Any:
    """The state, or its unordered form where it is the object's own attributes."""
    if getattr(make, "__module__", None) != "copyreg" or _has_own_state(type(obj)):
        return state
    if type(state) is tuple and len(state) == 2:
        return tuple(map(_unordered, state))
    return _unordered(state)


def _unordered(state: Any) -> Any:
    return _Attributes(state) if type(state) is dict and all(type(name) is str for name in state) else state


def _has_own_state(cls: type) -> bool:
    return getattr(cls, "__getstate__", None) is not getattr(object, "__getstate__", None)


# -- atoms -------------------------------------------------------------------------------------------------------------


def _label(*texts: str) -> bytes:
    return b"".join(_atom(text.encode("utf-8", "surrogatepass")) for text in texts)


def _atom(data: bytes) -> bytes:
    return len(data).to_bytes(8, "big") + data if len(data) <= 64 else b"\xff" * 8 + _hash(data)


def _hash(data: Any) -> bytes:
    return hashlib.sha256(data).digest()


_ATOMS: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): lambda value: b"N",
    type(...): lambda value: b"E",
    type(NotImplemented): lambda value: b"I",
    bool: lambda value: b"T" if value else b"F",
    int: lambda value: b"i" + value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True),
    float: lambda value: b"f" + (struct.pack(">d", value) if value == value else b"nan"),
    complex: lambda value: b"c" + struct.pack(">dd", value.real, value.imag),
    str: lambda value: b"s" + value.encode("utf-8", "surrogatepass"),
    bytes: lambda value: b"b" + value,
    bytearray: lambda value: b"B" + bytes(value),
}


# -- objects with a form of their own: their values do not show in what they reduce to ---------------------------------


def _array(array: Any) -> tuple[bytes, list[Any]] | None:
    """A numpy array: the values, wherever they lie in memory."""
    if array.dtype.hasobject:
        return _label("numpy.ndarray"), [array.dtype, array.shape, array.ravel().tolist()]
    return _label("numpy.ndarray"), [array.dtype, array.shape, _Ready(_atom(array.tobytes()))]


def _tensor(tensor: Any) -> tuple[bytes, list[Any]] | None:
    """A dense torch tensor: the values, wherever they lie in memory and on whichever device."""
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return None
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    attributes = _Attributes(dict(tensor.__dict__))
    cls = type(tensor)
    parts = [str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad, attributes, _Ready(_atom(data))]
    return _label(f"{cls.__module__}.{cls.__qualname__}"), parts


_FORMS: Final[dict[str, Callable[[Any], tuple[bytes, list[Any]] | None]]] = {
    "numpy:ndarray": _array,
    "torch:Tensor": _tensor,
    "torch.nn.parameter:Parameter": _tensor,
}


# -- from the graph to a hash ------------------------------------------------------------------------------------------


class _Digests:
    """The hashes of the nodes of a graph, each from those of its parts."""

    def __init__(self, graph: _Graph) -> None:
        self._graph = graph
        self._known: dict[int, bytes] = {}
        #: Whether nodes are met in an order that depends on nothing but the value.
        self._stable = all(
            ordered or not _nodes(parts) for ordered, parts in zip(graph.ordered, graph.parts, strict=True)
        )

    def of(self, root: int) -> bytes:
        """The hash of a node."""
        for component in self._components(root):
            first = component[0]
            if len(component) == 1 and first not in self._graph.parts[first]:
                self._known[first] = self._from_parts(first, self._known.__getitem__)
            elif any(
                not self._graph.ordered[n] and not set(component).isdisjoint(_nodes(self._graph.parts[n]))
                for n in component
            ):
                self._known.update(self._by_refinement(component))
            else:
                self._known.update(self._by_order(component))
        return self._known[root]

    def _from_parts(self, number: int, hash_of: Callable[[int], bytes]) -> bytes:
        graph = self._graph
        hashes = [part if isinstance(part, bytes) else b"n" + hash_of(part) for part in graph.parts[number]]
        if not graph.ordered[number]:
            hashes = sorted(map(_hash, hashes))
        state = hashlib.sha256(_atom(graph.labels[number]))
        state.update(len(hashes).to_bytes(8, "big"))
        for one in hashes:
            state.update(one)
        return state.digest()

    def _components(self, root: int) -> Iterator[list[int]]:
        """The strongly connected components, parts before wholes, each from the node that was met first on (Tarjan)."""
        index: dict[int, int] = {root: 0}
        low = {root: 0}
        open_nodes: list[int] = [root]
        is_open = {root}
        work = [(root, iter(_nodes(self._graph.parts[root])))]
        while work:
            node, rest = work[-1]
            for part in rest:
                if part not in index:
                    index[part] = low[part] = len(index)
                    open_nodes.append(part)
                    is_open.add(part)
                    work.append((part, iter(_nodes(self._graph.parts[part]))))
                    break
                if part in is_open:
                    low[node] = min(low[node], index[part])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    start = open_nodes.index(node) if len(open_nodes) < 8 else _last_index(open_nodes, node)
                    component = open_nodes[start:]
                    del open_nodes[start:]
                    is_open.difference_update(component)
                    yield component

    def _by_order(self, component: list[int]) -> dict[int, bytes]:
        """A component without sets: what the walk from a node writes, each node by the number of its first visit."""
        if self._stable:
            whole, numbers = self._walk(component[0], set(component))
            return {node: _hash(whole + number.to_bytes(8, "big")) for node, number in numbers.items()}
        # The node that was met first may be another one next time: each is the beginning of its own walk.
        inside = set(component)
        return {node: self._walk(node, inside)[0] for node in component}

    def _walk(self, start: int, inside: set[int]) -> tuple[bytes, dict[int, int]]:
        numbers = {start: 0}
        order = [start]
        state = hashlib.sha256(b"cycle")
        for node in order:
            for part in self._graph.parts[node]:
                if not isinstance(part, bytes) and part in inside and part not in numbers:
                    numbers[part] = len(order)
                    order.append(part)
            state.update(
                self._from_parts(node, lambda n: self._known[n] if n not in inside else numbers[n].to_bytes(8, "big"))
            )
        return state.digest(), numbers

    def _by_refinement(self, component: list[int]) -> dict[int, bytes]:
        """A component with sets: nodes are told apart by what is around them, one step further in each round."""
        known = dict(self._known)
        colours = dict.fromkeys(component, b"")
        kinds = 0
        for _ in range(_ROUNDS):
            known.update(colours)
            colours = {node: self._from_parts(node, known.__getitem__) for node in component}
            now = len(set(colours.values()))
            if now == kinds:
                break
            kinds = now
        whole = _hash(b"".join(sorted(colours.values())))
        return {node: _hash(whole + colour) for node, colour in colours.items()}


def _nodes(parts: list[Part]) -> list[int]:
    return [part for part in parts if not isinstance(part, bytes)]


def _last_index(items: list[int], item: int) -> int:
    position = len(items) - 1
    while items[position] != item:
        position -= 1
    return position
