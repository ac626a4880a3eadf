"""Rules for what :mod:`functools` and the builtin descriptors make of functions.

- functions with a cache: by name if one leads there, else the function and the parameters, with an empty cache
- ``singledispatch`` functions: by name, else the function with all its implementations, open for more
- ``cached_property``: its function, with a fresh lock where it has one
- builtin methods, such as ``results.append``: with their owner
- descriptors made in C, which have no name of their own: by their class; ``super`` objects: their class and object
- ``property``, ``staticmethod``, ``classmethod``, also of subclasses: their functions
"""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Generator
from typing import Any, Final

from .. import restore, sources
from ..references import find
from ..registry import SHARE, Registry
from . import marked
from .closures import entangled
from .parts import ORIGIN, state_of
from .weakrefs import is_copied

__all__ = ["add_rules"]


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    shared = ("by value", "shared")
    rebuilt = "shared; rebuilt where its function holds an object that is copied"
    registry.add(functools._lru_cache_wrapper, reduce_cache, copy=copy_cache, shallow=SHARE, origin=ORIGIN,
                 summary=("by name, else its function and parameters with an empty cache", rebuilt))  # fmt: skip
    registry.add(marked.MARKS["_clear_cache"], reduce_dispatcher, copy=copy_dispatcher, origin=ORIGIN,
                 summary=("by name, else its function and implementations", rebuilt))  # fmt: skip
    registry.add(functools.cached_property, reduce_cached_property, copy=SHARE, origin=ORIGIN, summary=shared)
    by_name_or_parts = ("by the name of its class, else its functions", "shared")
    descriptors: tuple[tuple[type, Any], ...] = (
        (property, reduce_property), (staticmethod, reduce_wrapped), (classmethod, reduce_wrapped),
    )  # fmt: skip
    for kind, reduce in descriptors:
        registry.add(
            kind, reduce, copy=SHARE, subclasses=True, with_pickler=True, origin=ORIGIN, summary=by_name_or_parts
        )
    for made_in_c in (types.GetSetDescriptorType, types.ClassMethodDescriptorType):
        registry.add(
            made_in_c, reduce_builtin_descriptor, copy=SHARE, origin=ORIGIN, summary=("by its class and name", "shared")
        )
    registry.add(types.BuiltinFunctionType, copy=copy_builtin_method, shallow=SHARE, origin=ORIGIN,
                 summary=("by name; a method with its owner", "shared; a method goes with its owner"))  # fmt: skip
    registry.add(super, reduce_super, origin=ORIGIN, summary=("by value", "by value"))
    registry.add(type(functools.cmp_to_key(max)), reduce_sort_key, origin=ORIGIN, summary=("by value", "by value"))


# -- functions that remember ------------------------------------------------------------------------------------------


def reduce_cache(wrapper: Any) -> Any:
    """A function with a cache by its name, else its function and parameters. What it has cached stays here."""
    reference = find(wrapper)
    if reference is not None:
        own = (wrapper.__module__, getattr(wrapper, "__qualname__", None))
        return reference.qualname if (reference.module, reference.qualname) == own and not reference.path else (
            restore.function_cache, tuple(reference)
        )  # fmt: skip
    return restore.make_function_cache, (wrapper.__wrapped__, *_cache_parameters(wrapper)), _cache_attributes(wrapper)


def _cache_parameters(wrapper: Any) -> tuple[int | None, bool]:
    parameters = wrapper.cache_parameters()
    return parameters["maxsize"], parameters["typed"]


def _cache_attributes(wrapper: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(wrapper).items() if name != "cache_parameters"}


def copy_cache(wrapper: Any, memo: dict[Any, Any]) -> Generator[Any, Any, Any]:
    """The function itself, or one with an empty cache over the copy of a function that holds what is copied."""
    attributes = _cache_attributes(wrapper)
    if not entangled([wrapper.__wrapped__, *attributes.values()], memo):
        return wrapper
    function = yield wrapper.__wrapped__
    known = memo.get(id(wrapper))  # what the function holds may lead back to its cache
    if known is not None:
        return known
    made = memo[id(wrapper)] = restore.make_function_cache(function, *_cache_parameters(wrapper))
    made.__dict__.update({**attributes, "__wrapped__": function})
    changed = function is not wrapper.__wrapped__
    for name, value in attributes.items():
        if name != "__wrapped__" and entangled([value], memo):
            made.__dict__[name] = copied = yield value
            changed = changed or copied is not value
    if not changed:
        memo[id(wrapper)] = wrapper
    return made if changed else wrapper


def _make_dispatcher() -> Any:
    return functools.singledispatch(lambda argument: None)


_MADE_BY_FUNCTOOLS: Final = ("register", "dispatch", "registry", "_clear_cache")
_DISPATCHER_CODE: Final = _make_dispatcher().__code__


def reduce_dispatcher(function: Any) -> Any:
    """A ``singledispatch`` function as its implementations; declined where it has a name, or only the mark."""
    if function.__code__ is not _DISPATCHER_CODE or find(function, everywhere=False) is not None:
        return NotImplemented
    implementations = list(function.registry.items())
    state = {
        "implementations": implementations,
        "attributes": {name: value for name, value in vars(function).items() if name not in _MADE_BY_FUNCTOOLS},
        "name": function.__name__, "qualname": function.__qualname__,
        "module": function.__module__, "doc": function.__doc__,
    }  # fmt: skip
    return restore.make_dispatcher, (function.__wrapped__,), state, None, None, restore.fill_dispatcher


def copy_dispatcher(function: Any, memo: dict[Any, Any]) -> Generator[Any, Any, Any]:
    """The function itself, or one over the copies of implementations that hold what is copied."""
    if function.__code__ is not _DISPATCHER_CODE:
        return NotImplemented
    if not entangled([*function.registry.values(), function.__wrapped__], memo):
        return function
    wrapped = yield function.__wrapped__
    known = memo.get(id(function))
    if known is not None:
        return known
    made = memo[id(function)] = restore.make_dispatcher(wrapped)
    for cls, implementation in list(function.registry.items()):
        made.register(cls, (yield implementation))
    made.__dict__.update(
        {name: value for name, value in vars(function).items() if name not in (*_MADE_BY_FUNCTOOLS, "__wrapped__")}
    )
    return made


def reduce_sort_key(key: Any) -> tuple[Any, ...]:
    """What ``functools.cmp_to_key`` gives, and its keys; only the garbage collector sees the comparison."""
    compare, *value = [part for part in gc.get_referents(key) if part is not type(key)]
    return (functools.cmp_to_key(compare), (value[0],)) if value else (functools.cmp_to_key, (compare,))


# -- descriptors ------------------------------------------------------------------------------------------------------


def reduce_cached_property(prop: functools.cached_property[Any]) -> tuple[Any, ...]:
    """A cached property as its function and name."""
    return functools.cached_property, (prop.func,), state_of(prop, {"func", "lock"})


def reduce_builtin_descriptor(descriptor: Any) -> tuple[Any, ...]:
    """A descriptor that a class made in C has, by the class."""
    return restore.builtin_descriptor, (descriptor.__objclass__, descriptor.__name__)


def copy_builtin_method(method: Any, memo: dict[Any, Any]) -> Generator[Any, Any, Any]:
    """A builtin function itself; ``results.append`` as that of the copy, if the list is copied in the same call."""
    owner = method.__self__
    if owner is None or issubclass(type(owner), (types.ModuleType, type)) or not is_copied(owner, memo):
        return method
    copied = yield owner
    return method if copied is owner else getattr(copied, method.__name__)


def reduce_super(obj: Any) -> tuple[Any, ...]:
    """``super(cls, obj)``; asked for its reduction, it would give that of ``obj``."""
    return (super, (obj.__thisclass__,)) if obj.__self__ is None else (super, (obj.__thisclass__, obj.__self__))


def reduce_property(prop: property, pickler: Any) -> tuple[Any, ...]:
    """A property by name or as its functions; one of a subclass also with its attributes."""
    if type(prop) is property:
        return sources.reduce_property(prop, pickler)
    parts = (prop.fget, prop.fset, prop.fdel, prop.__doc__)
    return restore.make_property, (type(prop), *parts), state_of(prop, {"__doc__"})


def reduce_wrapped(wrapper: Any, pickler: Any) -> tuple[Any, ...]:
    """A static or class method by name or as what it wraps; one of a subclass also with its attributes."""
    if type(wrapper) in (staticmethod, classmethod):
        return sources.reduce_wrapped(wrapper, pickler)
    return restore.make_static_or_class_method, (type(wrapper), wrapper.__func__), state_of(wrapper, _WRAPPED)


_WRAPPED: Final = frozenset((*functools.WRAPPER_ASSIGNMENTS, "__wrapped__"))
