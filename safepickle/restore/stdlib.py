"""What a pickle calls for locks, queues, weak references, context variables, views and functions that remember."""

from __future__ import annotations

import collections
import contextvars
import functools
import re
import threading
import types
import weakref
from typing import Any

from ..errors import UnpicklingError
from .checks import _check
from .functions import _FUNCTION_STATE
from .identities import identities
from .names import resolve

__all__ = [
    "builtin_descriptor",
    "class_namespace",
    "context_variable",
    "fill_context",
    "fill_dispatcher",
    "fill_simple_queue",
    "fill_weak_mapping",
    "fill_weak_set",
    "function_cache",
    "initialize",
    "make_context_variable",
    "make_dispatcher",
    "make_finalizer",
    "make_function_cache",
    "make_local",
    "make_match",
    "make_memoryview",
    "make_property",
    "make_simple_queue",
    "make_static_or_class_method",
    "make_view",
    "make_weak_method",
    "make_weak_proxy",
    "make_weak_reference",
    "released_memoryview",
    "remember_context_variable",
    "set_attributes",
]


#: Classes whose ``__init__`` makes what must be fresh: locks, lists of who waits, weak references.
_INITIALIZED = frozenset(
    {
        "threading:Condition", "threading:Event", "threading:Semaphore", "threading:BoundedSemaphore",
        "threading:Barrier", "threading:_RLock", "queue:Queue", "queue:_PySimpleQueue",
        "asyncio.locks:Lock", "asyncio.locks:Condition", "asyncio.locks:Event", "asyncio.locks:Semaphore",
        "asyncio.locks:BoundedSemaphore", "asyncio.locks:Barrier", "asyncio.queues:Queue",
        "weakref:WeakValueDictionary", "weakref:WeakKeyDictionary", "weakref:WeakSet",
        "logging:Handler", "logging:Logger",
    }
)  # fmt: skip


def initialize(obj: Any, state: tuple[str, tuple[Any, ...], dict[str, Any], dict[str, Any]]) -> None:
    """Run the ``__init__`` of a class of the standard library on a bare object, then set attributes and slots."""
    kind, arguments, attributes, slots = state
    _initialize(obj, kind, arguments)
    set_attributes(obj, attributes, slots)


def _initialize(obj: Any, kind: str, arguments: tuple[Any, ...]) -> Any:
    if kind not in _INITIALIZED:
        raise UnpicklingError(f"malformed pickle: {kind!r} is not a class that is initialized")
    module, _, name = kind.partition(":")
    cls: Any = resolve(module, name)
    _check(obj, cls, "an object to initialize")
    cls.__init__(obj, *arguments)
    return cls


def set_attributes(obj: Any, attributes: dict[str, Any], slots: dict[str, Any]) -> None:
    """Give an object attributes and slots. Not written to pickles itself."""
    if attributes:
        obj.__dict__.update(attributes)
    for name, value in slots.items():
        setattr(obj, name, value)


def make_local(cls: type, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """A ``threading.local`` that is empty in this thread; others run ``cls.__init__`` with the arguments, as ever."""
    from _threading_local import local

    if not (isinstance(cls, type) and issubclass(cls, (threading.local, local))):
        raise UnpicklingError(f"malformed pickle: {cls!r} is not a kind of threading.local")
    make: Any = cls.__new__
    return make(cls, *arguments, **keywords)


def make_simple_queue(cls: type) -> Any:
    """An empty ``queue.SimpleQueue``."""
    import queue

    if not (isinstance(cls, type) and issubclass(cls, queue.SimpleQueue)):
        raise UnpicklingError(f"malformed pickle: {cls!r} is not a kind of queue.SimpleQueue")
    return cls.__new__(cls)


def fill_simple_queue(obj: Any, state: tuple[list[Any], dict[str, Any], dict[str, Any]]) -> None:
    """Put the items into a ``queue.SimpleQueue``."""
    import queue

    _check(obj, queue.SimpleQueue, "a queue")
    items, attributes, slots = state
    for item in items:
        queue.SimpleQueue.put(obj, item)
    set_attributes(obj, attributes, slots)


#
# A referent is an argument in a tuple, or the tuple is empty: then the reference is dead. A referent that nothing else
# in the pickle holds is not written, so that what is restored here has an owner, or dies with the unpickler.


class _Gone:
    """What dead references refer to, for a moment."""

    def method(self) -> None:
        """What dead references to methods refer to."""


class _GoneFunction:
    """What dead proxies of functions refer to, for a moment."""

    def __call__(self) -> None:
        """Never called."""


def make_weak_reference(cls: type, target: tuple[Any, ...], callback: Any = None) -> weakref.ref[Any]:
    """A ``weakref.ref``, or an object of a subclass without its attributes."""
    if not (isinstance(cls, type) and issubclass(cls, weakref.ref)):
        raise UnpicklingError(f"malformed pickle: {cls!r} is not a kind of weakref.ref")
    referent = target[0] if target else _Gone()
    made: weakref.ref[Any] = weakref.ref.__new__(cls, referent, callback)
    if not target:
        hash(made)  # a dead reference has the hash that it was asked for in its lifetime, or none: it may be a key
    return made


def make_weak_method(cls: type, target: tuple[Any, ...], callback: Any = None) -> weakref.WeakMethod[Any]:
    """A ``weakref.WeakMethod`` to a bound method."""
    if not (isinstance(cls, type) and issubclass(cls, weakref.WeakMethod)):
        raise UnpicklingError(f"malformed pickle: {cls!r} is not a kind of weakref.WeakMethod")
    if target:
        _check(target[0], types.MethodType, "the referent of a WeakMethod")
        return cls(target[0], callback)
    gone = _Gone()
    made = cls(gone.method, callback)
    hash(made)
    return made


def make_weak_proxy(target: tuple[Any, ...], callback: Any = None, called: bool = False) -> Any:
    """A ``weakref.proxy``; a dead one of an object that could be called, if so."""
    return weakref.proxy(target[0] if target else _GoneFunction() if called else _Gone(), callback)


def make_finalizer(cls: type, target: tuple[Any, ...], call: tuple[Any, ...]) -> weakref.finalize[Any, Any]:
    """A ``weakref.finalize`` that waits for the restored referent to go; without one, it has been called already."""
    if not (isinstance(cls, type) and issubclass(cls, weakref.finalize)):
        raise UnpicklingError(f"malformed pickle: {cls!r} is not a kind of weakref.finalize")
    made = cls.__new__(cls)
    if target:
        function, arguments, keywords, at_exit = call
        weakref.finalize.__init__(made, target[0], function, *arguments, **keywords)
        made.atexit = at_exit
    return made


def fill_weak_mapping(mapping: Any, state: tuple[str, list[tuple[Any, Any]], dict[str, Any], dict[str, Any]]) -> None:
    """Make a ``WeakValueDictionary`` or a ``WeakKeyDictionary`` and enter its items."""
    kind, items, attributes, slots = state
    cls: Any = _initialize(mapping, kind, ())
    set_attributes(mapping, attributes, slots)
    for key, value in items:
        cls.__setitem__(mapping, key, value)


def fill_weak_set(members: Any, state: tuple[list[Any], dict[str, Any], dict[str, Any]]) -> None:
    """Make a ``WeakSet`` and enter its members."""
    items, attributes, slots = state
    _initialize(members, "weakref:WeakSet", (items,))
    set_attributes(members, attributes, slots)


#: Identity -> variable. They cannot be referred to weakly; the interpreter's contexts keep them anyway.
_context_variables: dict[str, contextvars.ContextVar[Any]] = {}


_context_names: dict[int, str] = {}


def context_variable(module: str, qualname: str, path: tuple[str, ...]) -> contextvars.ContextVar[Any]:
    """The context variable of that name."""
    found = resolve(module, qualname, path)
    _check(found, contextvars.ContextVar, f"what the reference {'.'.join([f'{module}:{qualname}', *path])} leads to")
    return found  # type: ignore[no-any-return]


def make_context_variable(identity: str, name: str, default: tuple[Any, ...]) -> contextvars.ContextVar[Any]:
    """The context variable of that identity if this process knows it, else a new one."""
    _check(identity, str, "the identity of a context variable")
    with identities.lock:
        known = _context_variables.get(identity)
        if known is None:
            known = contextvars.ContextVar(name, default=default[0]) if default else contextvars.ContextVar(name)
            _context_variables[identity] = known
            _context_names[id(known)] = identity
        return known


def remember_context_variable(variable: contextvars.ContextVar[Any], identity: str) -> str:
    """The identity of a living variable; one that is taken gets a number behind it. Not written to pickles itself."""
    with identities.lock:
        known = _context_names.get(id(variable))
        if known is not None:
            return known
        number, unique = 0, identity
        while unique in _context_variables:
            number += 1
            unique = f"{identity}-{number}"
        _context_variables[unique] = variable
        _context_names[id(variable)] = unique
        return unique


def fill_context(context: contextvars.Context, values: list[tuple[Any, Any]]) -> None:
    """Set variables in a context."""
    _check(context, contextvars.Context, "a context")
    for variable, value in values:
        _check(variable, contextvars.ContextVar, "a context variable")
        context.run(variable.set, value)


def make_view(kind: str, ordered: bool, mapping: dict[Any, Any]) -> Any:
    """``mapping.keys()``, ``.values()`` or ``.items()``, as ``dict`` or as ``OrderedDict`` has it."""

    base = collections.OrderedDict if ordered else dict
    _check(mapping, base, "what a view shows")
    if kind not in ("keys", "values", "items"):
        raise UnpicklingError(f"malformed pickle: {kind!r} is not a view of a dictionary")
    return getattr(base, kind)(mapping)


def make_memoryview(buffer: Any, format: str, shape: tuple[int, ...], readonly: bool) -> memoryview:
    """A view of a whole buffer."""
    view = memoryview(buffer)
    if view.readonly and not readonly:  # a buffer that came out of band
        view = memoryview(bytearray(view))
    if readonly and not view.readonly:
        view = view.toreadonly()
    if (view.format, view.shape) == (format, shape):
        return view
    whole: Any = view.cast("B")
    return whole.cast(format) if len(shape) == 1 else whole.cast(format, shape)  # type: ignore[no-any-return]


def released_memoryview() -> memoryview:
    """A view that was released."""
    view = memoryview(b"")
    view.release()
    return view


def class_namespace(cls: type) -> types.MappingProxyType[str, Any]:
    """``vars(cls)``."""
    _check(cls, type, "a class")
    return type.__dict__["__dict__"].__get__(cls)  # type: ignore[no-any-return]


def builtin_descriptor(cls: type, name: str) -> Any:
    """A descriptor that a class made in C, or ``type`` itself, has put into its namespace."""
    _check(cls, type, "the owner of a descriptor")
    _check(name, str, "the name of a descriptor")
    found = class_namespace(cls).get(name)
    _check(found, _BUILTIN_DESCRIPTORS, f"{cls.__qualname__}.{name}")
    return found


_BUILTIN_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType)


def make_property(cls: type, fget: Any, fset: Any, fdel: Any, doc: Any) -> property:
    """An object of a subclass of ``property``, without its attributes."""
    if not (isinstance(cls, type) and issubclass(cls, property)):
        raise UnpicklingError(f"malformed pickle: {cls!r} is not a kind of property")
    made = cls.__new__(cls)
    property.__init__(made, fget, fset, fdel, doc)
    return made


def make_static_or_class_method(cls: type, function: Any) -> Any:
    """An object of a subclass of ``staticmethod`` or ``classmethod``, without its attributes."""
    if not (isinstance(cls, type) and issubclass(cls, (staticmethod, classmethod))):
        raise UnpicklingError(f"malformed pickle: {cls!r} is not a kind of staticmethod or classmethod")
    base: Any = staticmethod if issubclass(cls, staticmethod) else classmethod
    made = base.__new__(cls, function)
    base.__init__(made, function)
    return made


def function_cache(module: str, qualname: str, path: tuple[str, ...]) -> Any:
    """The function with a cache (``functools.lru_cache``) of that name."""
    found = resolve(module, qualname, path)
    _check(found, _cache_type(), f"what the reference {'.'.join([f'{module}:{qualname}', *path])} leads to")
    return found


def _cache_type() -> type:
    return functools._lru_cache_wrapper


def make_function_cache(function: Any, maxsize: int | None, typed: bool) -> Any:
    """``functools.lru_cache(maxsize, typed)(function)``: an empty cache."""
    if not callable(function):
        raise UnpicklingError(f"malformed pickle: a cache needs a function, not {type(function).__qualname__}")
    return functools.lru_cache(maxsize, typed)(function)


def make_dispatcher(function: Any) -> Any:
    """``functools.singledispatch(function)``; :func:`fill_dispatcher` registers the rest."""
    if not callable(function):
        raise UnpicklingError(f"malformed pickle: a dispatcher needs a function, not {type(function).__qualname__}")
    return functools.singledispatch(function)


def fill_dispatcher(dispatcher: Any, state: dict[str, Any]) -> None:
    """Give a ``functools.singledispatch`` function its implementations and attributes."""
    _check(dispatcher, types.FunctionType, "a dispatcher")
    for cls, implementation in state["implementations"]:
        dispatcher.register(cls, implementation)
    # It copied those of its function before that one was complete.
    for name in ("name", "qualname", "module", "doc"):
        setattr(dispatcher, _FUNCTION_STATE.get(name, f"__{name}__"), state[name])
    dispatcher.__dict__.update(state["attributes"])


def make_match(pattern: re.Pattern[Any], method: str, string: Any, position: int, end: int) -> re.Match[Any] | None:
    """What a pattern finds in a string: the same match once more."""
    _check(pattern, re.Pattern, "a pattern")
    if method not in ("match", "search", "fullmatch"):
        raise UnpicklingError(f"malformed pickle: {method!r} is not a way to match")
    found: re.Match[Any] | None = getattr(pattern, method)(string, position, end)
    return found
