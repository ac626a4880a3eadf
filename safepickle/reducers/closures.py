"""Rules for functions that hold objects: a copy must not keep calling the original.

- a function without cells, defaults or attributes is code: shared
- a function that a name leads to: shared
- a function whose cells (or defaults, or attributes) hold an object that is copied in the same call: rebuilt on the
  **copy**, with its other cells holding what they held
- any other function: shared
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Generator
from typing import Any

from ..copier import copied_in_this_call, is_shared_type, running_call
from ..reachability import function_parts, reaches
from ..references import find

__all__ = ["copy_cell", "copy_function", "copy_method", "entangled"]


def copy_function(function: types.FunctionType, memo: dict[Any, Any]) -> Generator[Any, Any, Any]:
    """The function itself, or one that is bound to the copies of what it holds."""
    parts = function_parts(function)
    if not parts or not entangled(parts, memo) or find(function, everywhere=False) is not None:
        return function
    cells = [_cell_for(cell, memo) for cell in function.__closure__ or ()]
    twin = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, tuple(cells) or None)
    memo[id(function)] = twin
    changed = False
    for old, new in zip(function.__closure__ or (), cells, strict=True):
        if old is new or not _is_filled(old):
            continue
        contents = old.cell_contents
        if _is_filled(new):  # by a function that shares the variable, which may still be at it
            changed = changed or entangled([contents], memo)
            continue
        new.cell_contents = contents
        if entangled([contents], memo):
            new.cell_contents = copied = yield contents
            changed = changed or copied is not contents
    defaults = list(function.__defaults__ or ())
    for index, value in enumerate(defaults):
        if entangled([value], memo):
            defaults[index] = copied = yield value
            changed = changed or copied is not value
    twin.__defaults__ = tuple(defaults) or None
    twin.__kwdefaults__ = dict(function.__kwdefaults__) if function.__kwdefaults__ else None
    twin.__dict__.update(function.__dict__)
    for holder in (twin.__kwdefaults__ or {}, twin.__dict__):
        for name, value in list(holder.items()):
            if entangled([value], memo):
                holder[name] = copied = yield value
                changed = changed or copied is not value
    for name in ("__module__", "__qualname__", "__doc__", "__annotations__", "__type_params__"):
        if hasattr(function, name):
            setattr(twin, name, getattr(function, name))
    if not changed:  # all that was found are objects that are their own copies
        memo[id(function)] = function
        return function
    return twin


def copy_method(method: types.MethodType, memo: dict[Any, Any]) -> Generator[Any, Any, types.MethodType]:
    """Bound to the copy of its owner, and to the copy of its function where that one holds objects."""
    function = yield method.__func__
    owner = yield method.__self__
    return types.MethodType(function, owner)


def copy_cell(cell: types.CellType, memo: dict[Any, Any]) -> Generator[Any, Any, types.CellType]:
    """A new cell over a copy of its contents."""
    twin = memo[id(cell)] = types.CellType()
    if _is_filled(cell):
        twin.cell_contents = yield cell.cell_contents
    return twin


def entangled(parts: list[Any], memo: dict[Any, Any]) -> bool:
    """Whether the parts lead to an object that is copied in this call."""
    call = running_call(memo)
    known: set[int] = set() if call is None else call.entangled

    def is_copied(part: Any) -> bool:
        if id(part) in known or copied_in_this_call(part, memo):
            return True
        referent = _referent(part)
        return referent is not None and copied_in_this_call(referent, memo)

    way = reaches(parts, is_copied, is_shared_type(memo))
    if way is None:
        return False
    known.update(map(id, way))  # a chain of closures is walked once, not once a link
    return True


def _referent(obj: Any) -> Any:
    """What a weak reference, a proxy or a builtin method is about; the walk does not lead there."""
    if issubclass(type(obj), weakref.ref):
        return weakref.ref.__call__(obj)
    if type(obj) in (weakref.ProxyType, weakref.CallableProxyType):
        try:
            return getattr(obj.__repr__, "__self__", None)  # a method that the proxy passes on
        except ReferenceError:
            return None
    if type(obj) is types.BuiltinFunctionType and not issubclass(type(obj.__self__), (types.ModuleType, type)):
        return obj.__self__  # results.append
    return None


def _cell_for(cell: types.CellType, memo: dict[Any, Any]) -> types.CellType:
    """One new cell for each old one: functions that shared a variable go on sharing it."""
    new = memo.get(id(cell))
    if type(new) is not types.CellType:
        new = memo[id(cell)] = types.CellType()
    return new


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
