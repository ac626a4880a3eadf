"""Rules for functions that hold objects: a copy must not keep calling the original.

- a function without cells, defaults or attributes is code: shared
- a function that a name leads to: shared
- a function whose cells (or defaults, or attributes) lead to an object that is copied in the same call: rebuilt on the
  **copy**, with its other cells holding what they held
- a function that shares a variable with one that is rebuilt: rebuilt, so that they go on sharing it
- any other function: shared
"""

from __future__ import annotations

import sys
import types
from collections.abc import Generator
from typing import Any, Final

from ..copier import copied_in_this_call, running_call
from ..reachability import function_parts, reaches, referent_of
from ..references import find

__all__ = ["copy_cell", "copy_function", "copy_method", "entangled"]


def copy_function(function: types.FunctionType, memo: dict[Any, Any]) -> Generator[Any, Any, Any]:
    """The function itself, or one that is bound to the copies of what it holds."""
    if not _must_be_rebuilt(function, memo):
        return function
    cells = [_cell_for(cell, memo) for cell in function.__closure__ or ()]
    twin = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, tuple(cells) or None)
    memo[id(function)] = twin
    call = running_call(memo)
    changed = call is not None and call.plan.shares_cells(function)
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
        for cell in function.__closure__ or ():
            memo.pop(id(cell), None)
        return function
    return twin


def _must_be_rebuilt(function: types.FunctionType, memo: dict[Any, Any]) -> bool:
    parts = function_parts(function)
    call = running_call(memo)
    if call is not None:
        if all(call.is_shared_type(type(part)) for part in parts) and not _shares_variables(function):
            return False  # most functions: not worth a walk
        if call.plan.covers(function):
            return id(function) in call.plan.tied
    return entangled(parts, memo) and find(function, everywhere=False) is None


def _shares_variables(function: types.FunctionType) -> bool:
    """Whether somebody else may hold a cell of the function: another function, a frame that is running."""
    return any(_holders(function, index) > _ONE_HOLDER for index in range(len(function.__closure__ or ())))


def _holders(function: types.FunctionType, index: int) -> int:
    closure: Any = function.__closure__
    return sys.getrefcount(closure[index])


def _count_for_one_holder() -> int:
    def make() -> Any:
        value = 1
        return lambda: value

    return _holders(make(), 0)


_ONE_HOLDER: Final = _count_for_one_holder()


def copy_method(method: types.MethodType, memo: dict[Any, Any]) -> Generator[Any, Any, types.MethodType]:
    """Bound to the copy of its owner, and to the copy of its function where that one holds objects."""
    function = yield method.__func__
    owner = yield method.__self__
    known = memo.get(id(method))  # the owner may hold the method
    return types.MethodType(function, owner) if known is None else known


def copy_cell(cell: types.CellType, memo: dict[Any, Any]) -> Generator[Any, Any, types.CellType]:
    """A new cell over a copy of its contents."""
    twin = memo[id(cell)] = types.CellType()
    if _is_filled(cell):
        twin.cell_contents = yield cell.cell_contents
    return twin


def entangled(parts: list[Any], memo: dict[Any, Any]) -> bool:
    """Whether the parts lead to an object that is copied in this call."""
    call = running_call(memo)
    if call is None:
        return any(memo.get(id(part), part) is not part for part in parts)
    plan = call.plan
    if any(id(part) in plan.tied or copied_in_this_call(part, memo) for part in parts):
        return True
    unknown = [part for part in parts if not plan.covers(part)]
    if not unknown:
        return False

    def is_copied(part: Any) -> bool:
        referent = referent_of(part)
        if id(part) in plan.tied or copied_in_this_call(part, memo):
            return True
        return referent is not None and copied_in_this_call(referent, memo)

    # What a method of the object has made on the way, and the plan could not foresee.
    way = reaches(unknown, is_copied, call.is_shared_type)
    if way is None:
        return False
    plan.tied.update(map(id, way))  # a chain of closures is walked once, not once a link
    return True


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
