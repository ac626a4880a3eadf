"""Rules for Python itself and its standard library.

- functions, classes, methods and modules: by the name that leads to them, else by value with source
- code, cells, type variables: by value
- locks of every kind: a fresh one, not held
"""

from __future__ import annotations

import _thread
import dataclasses
import gc
import threading
import types
from typing import Any

from .. import restore, sources
from ..registry import SHARE, Registry
from . import closures, marked, stand_ins

__all__ = ["add_rules"]

ORIGIN = __name__


def reduce_lock(lock: Any) -> tuple[Any, ...]:
    """A fresh lock. ``_thread.allocate_lock`` is the one name for it that every version of Python has."""
    return _thread.allocate_lock, ()


def reduce_rlock(lock: Any) -> tuple[Any, ...]:
    """A fresh reentrant lock."""
    return threading.RLock, ()


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    add_code_rules(registry)
    add_lock_rules(registry)
    stand_ins.add_rules(registry)


def add_code_rules(registry: Registry) -> None:
    """Functions, classes, modules and what they are made of."""
    by_name = "by name, else by value with source"
    registry.add(types.FunctionType, marked.reduce_function, copy=marked.copy_function, shallow=SHARE, with_pickler=True,
                 origin=ORIGIN, summary=(by_name, "shared; rebuilt where its cells hold an object that is copied"))  # fmt: skip
    registry.add(
        type, sources.reduce_class, copy=SHARE, subclasses=True, with_pickler=True, origin=ORIGIN, summary=(by_name, "shared")
    )
    registry.add(types.MethodType, sources.reduce_method, copy=closures.copy_method, shallow=_copy_method_once, with_pickler=True,
                 origin=ORIGIN, summary=("owner and name", "bound to the copy of its owner"))  # fmt: skip
    registry.add(types.ModuleType, sources.reduce_module, copy=SHARE, subclasses=True, with_pickler=True, origin=ORIGIN,
                 summary=("by name", "shared"))  # fmt: skip
    registry.add(types.CodeType, sources.reduce_code, copy=SHARE, with_pickler=True, origin=ORIGIN, summary=("by value", "shared"))
    registry.add(types.CellType, sources.reduce_cell, copy=closures.copy_cell, with_pickler=True, origin=ORIGIN, summary=("by value", "by value"))
    for kind in sources.iter_type_variable_kinds():
        registry.add(kind, sources.reduce_type_variable, copy=SHARE, with_pickler=True, origin=ORIGIN, summary=(by_name, "shared"))


    by_value = ("by value", "shared")
    registry.add(property, reduce_property, copy=SHARE, origin=ORIGIN, summary=by_value)
    registry.add(staticmethod, reduce_wrapped, copy=SHARE, origin=ORIGIN, summary=by_value)
    registry.add(classmethod, reduce_wrapped, copy=SHARE, origin=ORIGIN, summary=by_value)
    registry.add(types.MappingProxyType, reduce_proxy, origin=ORIGIN, summary=("by value", "by value"))
    for name in ("_FIELD", "MISSING", "_HAS_DEFAULT_FACTORY", "KW_ONLY"):
        marker = getattr(dataclasses, name, None)
        if marker is not None:
            registry.add(type(marker), reduce_marker, copy=SHARE, origin=ORIGIN)


def reduce_property(prop: property) -> tuple[Any, ...]:
    """A property as its functions."""
    return property, (prop.fget, prop.fset, prop.fdel, prop.__doc__)


def reduce_wrapped(wrapper: Any) -> tuple[Any, ...]:
    """A static or class method as what it wraps."""
    return type(wrapper), (wrapper.__func__,)


def reduce_proxy(proxy: Any) -> tuple[Any, ...]:
    """A read-only view of a mapping as that mapping; only the garbage collector can name it."""
    return types.MappingProxyType, (gc.get_referents(proxy)[0],)


def reduce_marker(marker: Any) -> tuple[Any, ...]:
    """A marker that is compared by identity."""
    for name in ("_FIELD", "_FIELD_CLASSVAR", "_FIELD_INITVAR", "_HAS_DEFAULT_FACTORY", "MISSING", "KW_ONLY"):
        if getattr(dataclasses, name, None) is marker:
            return restore.sentinel, ("dataclasses", name)
    return NotImplemented  # type: ignore[return-value]


def _copy_method_once(method: types.MethodType) -> Any:
    return NotImplemented


def add_lock_rules(registry: Registry) -> None:
    """Locks: a fresh one, not held, for both verbs."""
    fresh = ("a fresh one, not held", "a fresh one, not held")
    registry.add(type(threading.Lock()), reduce_lock, origin=ORIGIN, summary=fresh)
    registry.add(type(threading.RLock()), reduce_rlock, origin=ORIGIN, summary=fresh)
