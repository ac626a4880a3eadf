"""Rules for queues, views, iterators and read-only wrappers.

- queues: the items, in a fresh queue; whoever waits for it stays behind
- views of dictionaries: the same kind of view of the restored dictionary
- ``MappingProxyType``: over the restored mapping; the namespace of a class as the namespace of that class
- ``memoryview``: over the restored buffer if it shows all of that, else over a copy of what it shows
- iterators: as the standard library pickles them; those of :mod:`itertools` also where it no longer does (Python
  3.14), as far as their state can be seen without running them
"""

from __future__ import annotations

import array
import collections
import copyreg
import functools
import gc
import itertools
import pickle
import queue
import re
import struct
import sys
import types
from typing import Any, Final

from .. import restore
from ..copier import copy as copy_once
from ..registry import SHARE, Registry
from .parts import ORIGIN, added, initialized, state_of
from .refusals import Refusal

__all__ = ["add_rules"]


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    items = ("the items, a fresh queue", "the items copied, a fresh queue")
    registry.add(queue.Queue, reduce_queue, shallow=copy_queue_once, subclasses=True, origin=ORIGIN, summary=items)
    registry.add(
        queue.SimpleQueue,
        reduce_simple_queue,
        shallow=copy_simple_queue_once,
        subclasses=True,
        origin=ORIGIN,
        summary=items,
    )
    registry.add(
        "asyncio.queues:Queue",
        reduce_async_queue,
        shallow=copy_queue_once,
        subclasses=True,
        origin=ORIGIN,
        summary=items,
    )
    by_value = ("by value", "by value")
    mappings: tuple[tuple[bool, Any], ...] = ((False, {}), (True, collections.OrderedDict()))
    view = ("the same view of the restored dictionary", "the same view of the copied dictionary")
    for ordered, mapping in mappings:
        for kind in ("keys", "values", "items"):
            reduce = functools.partial(reduce_view, kind, ordered)
            registry.add(type(getattr(mapping, kind)()), reduce, origin=ORIGIN, summary=view)
    registry.add(types.MappingProxyType, reduce_proxy, origin=ORIGIN, summary=by_value)
    registry.add(memoryview, reduce_memoryview, with_pickler=True, origin=ORIGIN, summary=by_value)
    registry.add(struct.Struct, reduce_struct, copy=SHARE, origin=ORIGIN, summary=("by value", "shared"))
    registry.add(re.Match, reduce_match, copy=SHARE, origin=ORIGIN, summary=("the same match, made again", "shared"))
    registry.add("_csv:Dialect", reduce_dialect, copy=SHARE, origin=ORIGIN, summary=("by value", "shared"))
    registry.add(
        "random:SystemRandom", reduce_system_random, subclasses=True, origin=ORIGIN, summary=("a new one", "a new one")
    )
    registry.add(itertools.pairwise, reduce_pairwise, origin=ORIGIN, summary=by_value)
    add_itertools_rules(registry)


# -- queues -----------------------------------------------------------------------------------------------------------

_QUEUE: Final = frozenset({"maxsize", "mutex", "not_empty", "not_full", "all_tasks_done", "unfinished_tasks", "queue"})
_ASYNC_QUEUE: Final = frozenset(
    {"_maxsize", "_loop", "_getters", "_putters", "_unfinished_tasks", "_finished", "_queue"}
)


def reduce_queue(obj: queue.Queue[Any]) -> tuple[Any, ...]:
    """A queue of the same size with the same items, none of which anybody is at work on."""
    items = _items_of(obj.queue)
    attributes = {"queue": items, "unfinished_tasks": len(items)}
    return initialized(obj, "queue:Queue", (obj.maxsize,), own=_QUEUE, attributes=attributes)


def _items_of(items: Any) -> Any:
    # The container of a subclass is left as it is: copying it once more may not be possible.
    return items.copy() if type(items) in (list, collections.deque) else items


def reduce_async_queue(obj: Any) -> tuple[Any, ...]:
    """As :func:`reduce_queue`; the queue belongs to no event loop yet."""
    items = _items_of(obj._queue)
    attributes = {"_queue": items}
    return initialized(obj, "asyncio.queues:Queue", (obj._maxsize,), own=_ASYNC_QUEUE, attributes=attributes)


def copy_queue_once(obj: Any) -> Any:
    """A queue of its own with the same items."""
    name = "_queue" if hasattr(obj, "_queue") else "queue"
    reduce = reduce_async_queue if name == "_queue" else reduce_queue
    _, (cls,), (kind, arguments, attributes, slots), *_ = reduce(obj)
    attributes[name] = copy_once(attributes[name])
    made = cls.__new__(cls)
    restore.initialize(made, (kind, arguments, attributes, slots))
    return made


def reduce_simple_queue(obj: Any) -> tuple[Any, ...]:
    """The items, which only the garbage collector can see without taking them out."""
    return (
        restore.make_simple_queue,
        (type(obj),),
        (_simple_items(obj), *added(obj)),
        None,
        None,
        restore.fill_simple_queue,
    )


def _simple_items(obj: Any) -> list[Any]:
    size = obj.qsize()
    if size == 0:
        return []
    referents = [part for part in gc.get_referents(obj) if part is not type(obj)]
    if sys.version_info < (3, 13):
        referents = referents[-1]  # a list, in which None stands for items that were taken
    if len(referents) < size:
        raise Refusal(
            "the items of this queue cannot be seen without taking them out: use queue.Queue, or keep a list of them"
        )
    return list(referents[-size:])


def copy_simple_queue_once(obj: Any) -> Any:
    """A queue of its own with the same items."""
    made = restore.make_simple_queue(type(obj))
    restore.fill_simple_queue(made, (_simple_items(obj), *added(obj)))
    return made


# -- views and wrappers -----------------------------------------------------------------------------------------------


def reduce_view(kind: str, ordered: bool, view: Any) -> tuple[Any, ...]:
    """A view as the dictionary that it shows: later changes of that show here too."""
    return restore.make_view, (kind, ordered, gc.get_referents(view)[0])


def reduce_proxy(proxy: Any) -> tuple[Any, ...]:
    """A read-only view of a mapping as that mapping; only the garbage collector can name it."""
    mapping = gc.get_referents(proxy)[0]
    owner = _owner_of_namespace(mapping)
    return (restore.class_namespace, (owner,)) if owner is not None else (types.MappingProxyType, (mapping,))


def _owner_of_namespace(mapping: Any) -> type | None:
    """The class whose ``__dict__`` this is: the descriptors in it know."""
    if type(mapping) is not dict:
        return None
    for value in mapping.values():
        owner = getattr(value, "__objclass__", None) if type(value) in _DESCRIPTORS else None
        if isinstance(owner, type):
            namespace = type.__dict__["__dict__"].__get__(owner)
            return owner if any(part is mapping for part in gc.get_referents(namespace)) else None
    return None


_DESCRIPTORS: Final = (
    types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType, types.MethodDescriptorType,
)  # fmt: skip


def reduce_memoryview(view: memoryview, pickler: Any) -> tuple[Any, ...]:
    """A view of all of a buffer as that buffer, so that both still share it; any other as a copy of what it shows."""
    try:
        base = view.obj
    except ValueError:
        return restore.released_memoryview, ()
    form = (view.format, view.shape, view.readonly)
    if view.format not in _FORMATS or (view.ndim > 1 and view.nbytes == 0):
        raise Refusal(
            f"only its owner can make a memoryview of format {view.format!r} and shape {view.shape}: keep that one"
        )
    # An array itself does not go out of band; what it holds does, through a view.
    in_band = pickler is None or pickler.buffer_callback is None
    owners = (bytes, bytearray, array.array) if in_band else (bytes, bytearray)
    if isinstance(base, owners) and view.contiguous and view.nbytes == memoryview(base).nbytes:
        return restore.make_memoryview, (base, *form)
    if pickler is not None and pickler.protocol >= 5 and view.c_contiguous:
        return restore.make_memoryview, (pickle.PickleBuffer(view), *form)
    contents = view.tobytes()
    return restore.make_memoryview, (contents if view.readonly else bytearray(contents), *form)


#: What ``memoryview.cast`` takes.
_FORMATS: Final = frozenset([sign + letter for sign in ("", "@") for letter in "?cbBhHiIlLqQnNfdP"])


def reduce_struct(obj: struct.Struct) -> tuple[Any, ...]:
    """A compiled format as its text."""
    return struct.Struct, (obj.format,)


def reduce_dialect(dialect: Any) -> tuple[Any, ...]:
    """A dialect of :mod:`csv` as its settings."""
    names = (
        "delimiter",
        "doublequote",
        "escapechar",
        "lineterminator",
        "quotechar",
        "quoting",
        "skipinitialspace",
        "strict",
    )
    settings = {name: getattr(dialect, name) for name in names}
    return copyreg.__newobj_ex__, (type(dialect), (), settings)  # type: ignore[attr-defined]


def reduce_match(match: re.Match[Any]) -> tuple[Any, ...]:
    """A match as a question that has it as the answer."""
    pattern, string = match.re, match.string
    for start in (match.pos, match.start()):
        for method in ("search", "match", "fullmatch"):
            for end in (match.endpos, match.end()):
                found = getattr(pattern, method)(string, start, end)
                if found is not None and found.regs == match.regs:
                    return restore.make_match, (pattern, method, string, start, end)
    raise Refusal("this match is none that its pattern finds now: keep its groups and positions")


def reduce_system_random(random: Any) -> tuple[Any, ...]:
    """The operating system's source of random numbers has no state."""
    return type(random), (), state_of(random, {"gauss_next"})


# -- iterators --------------------------------------------------------------------------------------------------------


def add_itertools_rules(registry: Registry) -> None:
    """Rules for the iterators that Python pickles with a warning (3.12 and 3.13) or not at all (3.14)."""
    if sys.version_info < (3, 12):
        return
    for name, reduce in _ITERTOOLS.items():
        registry.add(getattr(itertools, name), reduce, origin=ORIGIN, summary=("by value", "by value"))
    for name in _HIDDEN:
        kind = getattr(itertools, name)
        if "__reduce__" not in vars(kind):
            registry.add(kind, reduce_hidden_iterator, origin=ORIGIN)


def _referents(iterator: Any) -> list[Any]:
    return [part for part in gc.get_referents(iterator) if part is not type(iterator)]


def reduce_count(iterator: Any) -> tuple[Any, ...]:
    """``count(now, step)``."""
    parts = _referents(iterator)
    if len(parts) == 1:  # small whole numbers are counted outside of Python; the text shows them
        return itertools.count, (int(repr(iterator).removeprefix("count(").removesuffix(")")),)
    return itertools.count, tuple(parts)


def reduce_repeat(iterator: Any) -> tuple[Any, ...]:
    """``repeat(value)`` or ``repeat(value, how often still)``."""
    (value,) = _referents(iterator)
    try:
        return itertools.repeat, (value, iterator.__length_hint__())
    except TypeError:
        return itertools.repeat, (value,)


def reduce_starmap(iterator: Any) -> tuple[Any, ...]:
    """``starmap(function, the rest)``."""
    rest, function = _referents(iterator)
    return itertools.starmap, (function, rest)


def reduce_filterfalse(iterator: Any) -> tuple[Any, ...]:
    """``filterfalse(function, the rest)``."""
    rest, function = _referents(iterator)
    return itertools.filterfalse, (function, rest)


def reduce_compress(iterator: Any) -> tuple[Any, ...]:
    """``compress(the rest, its selectors)``."""
    return itertools.compress, tuple(_referents(iterator))


def reduce_chain(iterator: Any) -> tuple[Any, ...]:
    """``chain(the iterator that is at work, those after it)``."""
    parts = _referents(iterator)
    if not parts:
        return itertools.chain, ()
    # The source of iterators and, once it has begun, the one at work; the first is last again when both are put in a
    # chain.
    source, *active = parts
    return itertools.chain.from_iterable, (itertools.chain(active, source) if active else source,)


def reduce_pairwise(iterator: Any) -> tuple[Any, ...]:
    """``pairwise(the last item, then the rest)``."""
    rest, *last = _referents(iterator)
    if sys.version_info >= (3, 13):
        last.pop()  # the tuple that is handed out next
    return itertools.pairwise, (itertools.chain(last, rest) if last else rest,)


def reduce_hidden_iterator(iterator: Any) -> Any:
    """An error: the state is in the interpreter's memory only."""
    raise Refusal(
        f"this version of Python does not show the state of itertools.{type(iterator).__name__}: "
        "keep what it is made from, or a list of its items"
    )


_ITERTOOLS: Final[dict[str, Any]] = {
    "count": reduce_count, "repeat": reduce_repeat, "starmap": reduce_starmap, "filterfalse": reduce_filterfalse,
    "compress": reduce_compress, "chain": reduce_chain,
}  # fmt: skip

#: Their state is in the interpreter's memory only.
_HIDDEN: Final = (
    "accumulate", "batched", "combinations", "combinations_with_replacement", "cycle", "dropwhile", "groupby", "islice",
    "permutations", "product", "takewhile", "zip_longest",
)  # fmt: skip
