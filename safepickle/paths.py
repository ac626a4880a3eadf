"""Which part of an object was it that failed, and how does one get there from the root?

After a failure the object is walked a second time: in the order in which the pickler went, with the same questions to
the same functions, but nothing is written and nothing built. The walk is iterative, so that any depth will do, knows
each object by its id while it keeps it alive, and ends after a number of objects or seconds. It consumes no iterator
that an object holds, only the fresh ones in reduce values, as the pickler does.

A failed copy leaves better evidence: the stack of the exception holds the very objects that were being copied.
"""

from __future__ import annotations

import collections
import copy as _stdlib_copy
import copyreg
import io
import pickle
import time
import types
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from .references import static_vars
from .registry import Share

__all__ = ["CopyQuestions", "Finding", "Node", "PickleQuestions", "Step", "Walk", "chain_of_copy", "slots_of"]

#: The second look ends after so many objects, or so many seconds.
MOST_OBJECTS: Final = 2_000_000
MOST_SECONDS: Final = 5.0

#: Objects that the pickler writes itself, and that have no parts.
LEAVES: Final = frozenset({type(None), bool, int, float, str, bytes, bytearray})
CONTAINERS: Final = frozenset({list, tuple, dict, set, frozenset})


class Step(NamedTuple):
    """How a part hangs on its owner.

    Attributes:
        kind: ``item``, ``key``, ``element`` of a builtin container; ``function``, ``argument``, ``state``,
            ``list item``, ``dict key``, ``dict item``, ``setter`` of a reduce value; ``attribute``, ``cell``,
            ``cell contents``, ``default``, ``keyword default`` where it was found without asking; ``persistent id``;
            ``unknown``.
        detail: the key, the index or the name.
        position: the position where ``detail`` is a key.
    """

    kind: str
    detail: Any = None
    position: int = 0


class Node:
    """An object on the way from the root.

    Attributes:
        obj: the object.
        step: how it hangs on its parent.
        parent: the node above; ``None`` for the root.
        reduced: what it was reduced to, once it was asked.
    """

    __slots__ = ("obj", "parent", "reduced", "step")

    def __init__(self, obj: Any, step: Step | None = None, parent: Node | None = None) -> None:
        self.obj = obj
        self.step = step
        self.parent = parent
        self.reduced: Any = None

    def chain(self) -> list[Node]:
        """The nodes from the root to this one."""
        found: list[Node] = []
        node: Node | None = self
        while node is not None:
            found.append(node)
            node = node.parent
        return found[::-1]


class Finding(NamedTuple):
    """An object that cannot go, and what says so."""

    node: Node
    error: Exception


Parts = Iterable[tuple[Step, Any]]


# -- the walk ----------------------------------------------------------------------------------------------------------


class Walk:
    """The findings in an object, in the order in which the pickler would meet them.

    Args:
        root: the object.
        questions: how parts are asked for.
        objects: the most objects to look at.
        seconds: the longest time to take.

    Attributes:
        deepest: the node that is farthest from the root, as far as the walk went.
        depth: how far that is.
        looked_at: how many objects were asked.
        gave_up: whether the walk ended early, at its limits.
        seen: every object that was asked, by its id.
    """

    def __init__(
        self, root: Any, questions: Any, *, objects: int = MOST_OBJECTS, seconds: float = MOST_SECONDS
    ) -> None:
        self._questions = questions
        self._objects = objects
        self._seconds = seconds
        self.seen: dict[int, Any] = {}
        self.root = self.deepest = Node(root)
        self.depth = 0
        self.looked_at = 0
        self.gave_up = False

    def __iter__(self) -> Iterator[Finding]:
        deadline = time.monotonic() + self._seconds
        finding, parts = self._ask(self.root)
        if finding is not None:
            yield finding
        stack: list[tuple[Node, Iterator[tuple[Step, Any]]]] = [(self.root, parts)]
        visited = 0
        while stack:
            owner, parts = stack[-1]
            visited += 1
            if self.looked_at >= self._objects or (visited % 256 == 0 and time.monotonic() > deadline):
                self.gave_up = True
                return
            try:
                step, part = next(parts)
            except StopIteration:
                stack.pop()
                continue
            except Exception as error:  # an iterator in a reduce value
                stack.pop()
                yield Finding(owner, error)
                continue
            if type(part) in LEAVES or id(part) in self.seen:
                continue
            node = Node(part, step, owner)
            finding, parts = self._ask(node)
            if finding is not None:
                yield finding
            else:
                stack.append((node, parts))
                if len(stack) > self.depth:
                    self.depth, self.deepest = len(stack), node

    def _ask(self, node: Node) -> tuple[Finding | None, Iterator[tuple[Step, Any]]]:
        self.seen[id(node.obj)] = node.obj
        self.looked_at += 1
        try:
            return None, iter(self._questions.parts(node))
        except Exception as error:
            return Finding(node, error), iter(())

    def first(self) -> Finding | None:
        """The first finding."""
        return next(iter(self), None)


def container_parts(obj: Any) -> Parts:
    """The parts of a builtin container."""
    if type(obj) is dict:
        return _dict_parts(obj)
    kind = "item" if type(obj) in (list, tuple) else "element"
    return ((Step(kind, index), part) for index, part in enumerate(obj) if type(part) not in LEAVES)


def _dict_parts(obj: dict[Any, Any]) -> Parts:
    for index, (key, value) in enumerate(obj.items()):
        if type(key) not in LEAVES:
            yield Step("key", index, index), key
        if type(value) not in LEAVES:
            yield Step("item", key, index), value


def reduced_parts(reduced: Any) -> Parts:
    """The parts of a reduce value, in the order in which they are written."""
    if not isinstance(reduced, tuple):
        return
    missing: list[Any] = [None] * (6 - len(reduced))
    function, arguments, state, items, pairs, setter = [*reduced, *missing]
    yield Step("function"), function
    for index, argument in enumerate(arguments):
        yield Step("argument", index), argument
    for index, item in enumerate(items if items is not None else ()):
        yield Step("list item", index), item
    for index, (key, value) in enumerate(pairs if pairs is not None else ()):
        yield Step("dict key", index, index), key
        yield Step("dict item", key, index), value
    if setter is not None:
        yield Step("setter"), setter
    if state is not None:
        yield Step("state"), state


def static_parts(obj: Any) -> Parts:
    """What an object holds in its attributes, without asking the object."""
    for name, value in static_vars(obj).items():
        yield Step("attribute", name), value
    for name, value in slots_of(obj):
        yield Step("attribute", name), value


def slots_of(obj: Any) -> list[tuple[str, Any]]:
    """The members of an object that are no entries of its ``__dict__``: slots, and the fields of types made in C."""
    found = []
    for cls in type(obj).__mro__:
        for name, member in list(vars(cls).items()):
            if type(member) is types.MemberDescriptorType and name not in ("__dict__", "__weakref__"):
                try:
                    found.append((name, member.__get__(obj, cls)))
                except Exception:  # an empty slot
                    continue
    return found


# -- what the pickler asks ---------------------------------------------------------------------------------------------


class _Judge(pickle.Pickler):
    """The real pickler's opinion of one reduce value, without its parts: they are all persistent here."""

    def __init__(self, protocol: int) -> None:
        self._sink = io.BytesIO()
        super().__init__(self._sink, protocol)
        self.subject: Any = None
        self.reduced: Any = NotImplemented

    def persistent_id(self, obj: Any) -> Any:
        return None if obj is self.subject else "part"

    def reducer_override(self, obj: Any) -> Any:
        return self.reduced

    def judge(self, obj: Any, reduced: Any) -> None:
        """Raise what pickling the object would raise, its parts aside."""
        self.subject, self.reduced = obj, reduced
        try:
            self.dump(obj)
        finally:
            self.clear_memo()
            self.subject, self.reduced = None, NotImplemented
            self._sink.seek(0)
            self._sink.truncate()


class PickleQuestions:
    """Asks what :class:`safepickle.Pickler` asks, in its order.

    Args:
        pickler: the pickler whose dump failed; its ``reducer_override`` is that of the dump.
        override: what to call instead of that.
    """

    verb = "pickle"

    def __init__(self, pickler: Any, override: Any = None) -> None:
        self._override = pickler.reducer_override if override is None else override
        self._protocol = pickler.protocol
        table: Any = getattr(pickler, "dispatch_table", None)
        self._table: Any = copyreg.dispatch_table if table is None else table
        persistent_id = getattr(pickler, "persistent_id", None)
        # That of the C pickler, which exists since 3.13, always says None.
        self._persistent_id = None if isinstance(persistent_id, types.BuiltinMethodType) else persistent_id
        self._judge = _Judge(self._protocol)

    def parts(self, node: Node) -> Parts:
        """The parts of an object, as far as anybody has to pickle them.

        Raises:
            Exception: the object cannot be pickled, whatever its parts are.
        """
        obj = node.obj
        if self._persistent_id is not None and (node.step is None or node.step.kind != "persistent id"):
            claimed = self._persistent_id(obj)
            if claimed is not None:
                if self._protocol == 0 and not str(claimed).isascii():
                    raise pickle.PicklingError("persistent IDs in protocol 0 must be ASCII strings")
                return ((Step("persistent id"), claimed),)
        cls = type(obj)
        if cls in LEAVES:
            return ()
        if cls in CONTAINERS:
            return container_parts(obj)
        if cls is pickle.PickleBuffer or holds_no_objects(cls, obj):
            reduced = NotImplemented
            if cls is not pickle.PickleBuffer:
                return ()
        else:
            reduced = self._reduce(obj, cls)
        self._judge.judge(obj, _without_iterators(reduced))
        node.reduced = reduced
        return reduced_parts(reduced)

    def _reduce(self, obj: Any, cls: type) -> Any:
        reduced = self._override(obj)
        if reduced is not NotImplemented or cls is type or cls is types.FunctionType:
            return reduced
        try:
            reducer = self._table[cls]
        except KeyError:
            reducer = None
        if reducer is not None:
            return reducer(obj)
        if issubclass(cls, type):
            return NotImplemented
        reducer = getattr(obj, "__reduce_ex__", None)
        return obj.__reduce__() if reducer is None else reducer(self._protocol)


def _without_iterators(reduced: Any) -> Any:
    """The same reduce value with its iterators, which can be used up only once, replaced by empty ones."""
    if not isinstance(reduced, tuple) or not 4 <= len(reduced) <= 6:
        return reduced
    iterators = [iter(()) if hasattr(part, "__next__") else part for part in reduced[3:5]]
    return (*reduced[:3], *iterators, *reduced[5:])


def holds_no_objects(cls: type, obj: Any) -> bool:
    """Whether an object is raw memory that always goes; asking it would copy all of it."""
    module = cls.__module__
    if module == "numpy":
        return cls.__name__ == "ndarray" and not obj.dtype.hasobject
    return module == "torch.storage" and cls.__name__ == "UntypedStorage"


# -- what the copier asks ----------------------------------------------------------------------------------------------


class CopyQuestions:
    """Asks what :func:`safepickle.deepcopy` asks, without building copies.

    A ``__deepcopy__`` method or a copy function cannot be asked for parts; what such an object holds in its attributes
    stands for them.
    """

    verb = "copy"

    def __init__(self, registry: Any) -> None:
        self._registry = registry

    def parts(self, node: Node) -> Parts:
        """The parts of an object that would be copied with it.

        Raises:
            Exception: the object cannot be copied, whatever its parts are.
        """
        from .copier import ATOMIC

        obj = node.obj
        cls = type(obj)
        for rule in self._registry.rules_for(cls, "copy"):
            if isinstance(rule.copy, Share):
                if rule.copy(obj) is NotImplemented:
                    continue
                return ()
            if rule.copy is not None:
                return _parts_by_function(obj, cls)
            if rule.reduce is None:
                continue
            reduced = rule.reduce(obj, None) if rule.with_pickler else rule.reduce(obj)
            if reduced is not NotImplemented:
                return self._checked(node, reduced)
        if cls in ATOMIC or issubclass(cls, type) or holds_no_objects(cls, obj):
            return ()
        if cls in (list, tuple, dict):
            return container_parts(obj)
        if getattr(obj, "__deepcopy__", None) is not None:
            return static_parts(obj)
        from .copier import reduce_by_protocol

        return self._checked(node, reduce_by_protocol(obj, cls))

    @staticmethod
    def _checked(node: Node, reduced: Any) -> Parts:
        if not isinstance(reduced, (str, tuple)):
            raise TypeError(f"__reduce_ex__ must return a string or a tuple, not {type(reduced).__qualname__}")
        node.reduced = reduced
        return reduced_parts(reduced)


def _parts_by_function(obj: Any, cls: type) -> Parts:
    """What a copy function will presumably copy: functions are shared, methods and cells go with what they hold."""
    if cls is types.FunctionType:
        return ()
    if cls is types.MethodType:
        return ((Step("attribute", "__func__"), obj.__func__), (Step("attribute", "__self__"), obj.__self__))
    if cls is types.CellType:
        return ((Step("attribute", "cell_contents"), obj.cell_contents),) if _is_set(obj) else ()
    return static_parts(obj)


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


# -- what the stack of a failed copy shows -----------------------------------------------------------------------------


def chain_of_copy(error: BaseException, root: Any) -> Node:
    """The object that was being copied when the error was raised, with the way to it, as the copier's frames say."""
    node = Node(root)
    locals_of_owner: list[dict[str, Any]] = []
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        for part, scopes in _copied_in(frame):
            if part is not node.obj:
                node = _link(node, part, locals_of_owner)
                locals_of_owner = []
            locals_of_owner.extend(scopes)
        traceback = traceback.tb_next
    return node


def _copied_in(frame: types.FrameType) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """The objects that a frame of a copier is about, with the variables that may tell how their parts hang on them."""
    module = frame.f_globals.get("__name__")
    if module != "safepickle.copier" and frame.f_code.co_filename != _stdlib_copy.__file__:
        return
    variables = frame.f_locals
    stack = variables.get("stack")
    if isinstance(stack, list) and module == "safepickle.copier":  # the copier that does not recurse
        for owner, steps in stack:
            yield owner, _locals_of_generators(steps)
    elif "x" in variables:
        yield variables["x"], [dict(variables)]


def _locals_of_generators(generator: Any) -> list[dict[str, Any]]:
    found = []
    while isinstance(generator, types.GeneratorType):
        if generator.gi_frame is not None:
            found.append(dict(generator.gi_frame.f_locals))
        generator = generator.gi_yieldfrom
    return found


def _link(owner: Node, part: Any, scopes: list[dict[str, Any]]) -> Node:
    """The node of a part of which we know the owner and the variables of the functions that copied the owner."""
    for scope in scopes:
        function, arguments = scope.get("func"), scope.get("args")
        if function is not None and isinstance(arguments, tuple):
            owner.reduced = (function, arguments, scope.get("state"))
        # args is replaced by its copies once they are made, and what was not copied needs no path
        reduced = scope.get("reduced")
        if isinstance(reduced, tuple) and 2 <= len(reduced) <= 6:
            owner.reduced = reduced
    step = _step_to(owner, part, scopes)
    if step is not None:
        return Node(part, step, owner)
    return _search_below(owner, part) or Node(part, Step("unknown"), owner)


def _step_to(owner: Node, part: Any, scopes: list[dict[str, Any]]) -> Step | None:
    for step, candidate in _likely_parts(owner, scopes):
        if candidate is part:
            return step
    return None


def _likely_parts(owner: Node, scopes: list[dict[str, Any]]) -> Parts:
    obj = owner.obj
    cls = type(obj)
    if cls in CONTAINERS:
        yield from container_parts(obj)
        if cls not in (set, frozenset):  # they are copied by reduction, through a list
            return
    if isinstance(owner.reduced, tuple):
        _, arguments, *rest = owner.reduced
        if rest and rest[0] is not None:
            yield Step("state"), rest[0]
        for index, argument in enumerate(arguments):
            yield Step("argument", index), argument
    for scope in scopes:
        made = scope.get("y")
        if "item" in scope and isinstance(made, (list, collections.deque)):  # as many as there are have been copied
            yield Step("list item", len(made)), scope["item"]
        if "value" in scope and issubclass(cls, dict):
            for index, (key, value) in enumerate(dict.items(obj)):
                yield Step("dict key", index, index), key
                yield Step("dict item", key, index), value
    if cls is types.FunctionType:
        yield from _function_parts(obj)
    elif cls is types.CellType or cls is types.MethodType:
        yield from _parts_by_function(obj, cls)
    yield from static_parts(obj)


def _function_parts(function: Any) -> Parts:
    for index, cell in enumerate(function.__closure__ or ()):
        yield Step("cell", index), cell
        if _is_set(cell):
            yield Step("cell contents", index), cell.cell_contents
    for index, value in enumerate(function.__defaults__ or ()):
        yield Step("default", index), value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield Step("keyword default", name), value


def _search_below(owner: Node, part: Any, limit: int = 2000) -> Node | None:
    """A part that a ``__deepcopy__`` method has reached through several attributes or containers at once."""
    queue = [owner]
    seen = {id(owner.obj)}
    for node in queue:
        obj = node.obj
        parts = container_parts(obj) if type(obj) in CONTAINERS else static_parts(obj)
        for step, candidate in parts:
            if candidate is part:
                return Node(part, step, node)
            if id(candidate) not in seen and len(queue) < limit and type(candidate) not in LEAVES:
                seen.add(id(candidate))
                queue.append(Node(candidate, step, node))
    return None
