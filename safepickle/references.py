"""Which name is this object, and which object has this name?

An object goes *by reference* when a name leads to that very object, here and in a process that has yet to import it. Names are taken
from what the object says of itself and from a search by identity; each candidate is verified with ``is``. Nothing is
imported while pickling, and no object is compared, hashed or asked for attributes through its own code (a kernel
that is hashed freezes the globals it saw; a lazy proxy raises).
"""

from __future__ import annotations

import importlib
import os
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

__all__ = ["Reference", "find", "importable", "inner_function", "leads_to", "load", "pickled_by_value", "static_vars", "walk"]

#: How far the search below a named object goes: objects looked at.
SEARCH_LIMIT: Final = 400

_MAIN: Final = frozenset({"__main__", "__mp_main__"})
_MISSING: Final = object()


class Reference(NamedTuple):
    """A name: ``qualname`` in ``module``, then instance attributes along ``path``."""

    module: str
    qualname: str
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ".".join([f"{self.module}:{self.qualname}", *self.path])


# -- modules ---------------------------------------------------------------------------------------------------------------

_importable_cache: dict[str, tuple[weakref.ref[types.ModuleType], bool, tuple[str, ...]]] = {}


def importable(name: str) -> bool:
    """Whether a process that lacks the module would find it under this name.

    A module that was made on the fly, or loaded from a path under a name that no finder knows, is in ``sys.modules`` here and nowhere
    else. ``importlib.util.find_spec`` answers from ``sys.modules`` first, so the finders are asked directly.
    """
    module = sys.modules.get(name)
    if module is None or name in _MAIN:
        return False
    cached = _importable_cache.get(name)
    path_now = tuple(map(str, sys.path))
    if cached is not None and cached[0]() is module and (cached[1] or cached[2] == path_now):
        return cached[1]
    answer = _findable(name, module)
    try:
        _importable_cache[name] = (weakref.ref(module), answer, path_now)
    except TypeError:
        pass  # not everything in sys.modules is a module
    return answer


def _findable(name: str, module: types.ModuleType) -> bool:
    parent_name, _, leaf = name.rpartition(".")
    search: Any = None
    if parent_name:
        parent = sys.modules.get(parent_name)
        if parent is None or not importable(parent_name):
            return False
        search = getattr(parent, "__path__", None)
        if search is None:
            # A submodule of something that is no package: its parent makes it while being imported (torch._C._nn).
            return getattr(parent, leaf, None) is module
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        if find_spec is None:
            continue
        try:
            spec = find_spec(name, search, None)
        except Exception:
            continue
        if spec is not None:
            return _same_place(spec, module)
    return False


def _same_place(spec: Any, module: types.ModuleType) -> bool:
    """Whether the finders would load this module and not another one of the same name."""
    file = getattr(module, "__file__", None)
    if spec.loader is None:
        return file is None
    if not isinstance(file, str) or not spec.has_location or not isinstance(spec.origin, str):
        return True
    return file == spec.origin or os.path.realpath(file) == os.path.realpath(spec.origin) or file.endswith(".pyc")


def pickled_by_value(module_name: str) -> bool:
    """Whether the user asked for the module's functions and classes by value, through ``cloudpickle.register_pickle_by_value``."""
    cloudpickle = sys.modules.get("cloudpickle.cloudpickle")
    names = getattr(cloudpickle, "_PICKLE_BY_VALUE_MODULES", None)
    while names and module_name:
        if module_name in names:
            return True
        module_name = module_name.rpartition(".")[0]
    return False


# -- walking ---------------------------------------------------------------------------------------------------------------


def static_vars(obj: Any) -> dict[str, Any]:
    """The instance dictionary of an object, without asking the object; empty where it has none."""
    try:
        found = object.__getattribute__(obj, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return found if type(found) is dict else {}


def walk(module: types.ModuleType, qualname: str, path: tuple[str, ...] = ()) -> Any:
    """Follow a dotted name from a module, then instance attributes.

    Raises:
        AttributeError: there is nothing of that name.
    """
    found: Any = module
    for part in qualname.split("."):
        if part == "<locals>":
            raise AttributeError(f"{qualname!r} is local to a function")
        found = getattr(found, part)
    for part in path:
        attributes = static_vars(found)
        if part not in attributes:
            raise AttributeError(f"{type(found).__qualname__} object has no attribute {part!r} of its own")
        found = attributes[part]
    return found


def leads_to(reference: Reference, obj: Any) -> bool:
    """Whether the name leads to that very object now."""
    module = sys.modules.get(reference.module)
    if module is None:
        return False
    try:
        return walk(module, reference.qualname, reference.path) is obj
    except Exception:
        return False


def inner_function(obj: Any) -> types.FunctionType | None:
    """The Python function at the end of a chain of wrappers (``.fn``, ``.func``, ``__wrapped__``, ...), if there is one."""
    seen: set[int] = set()
    while id(obj) not in seen:
        seen.add(id(obj))
        if type(obj) is types.FunctionType:
            return obj
        if type(obj) is types.MethodType:
            obj = obj.__func__
            continue
        attributes = static_vars(obj)
        for name in ("fn", "_python_function", "func", "_init_fn", "__wrapped__", "_fun", "py_func"):
            inner = attributes.get(name)
            if inner is not None:
                obj = inner
                break
        else:
            return None
    return None


# -- from an object to its name ----------------------------------------------------------------------------------------------

_found: dict[int, tuple[weakref.ref[Any], Reference]] = {}


def find(obj: Any, *, everywhere: bool = True) -> Reference | None:
    """The name that leads to this very object, in this process and in a fresh one.

    Args:
        obj: a function, kernel, compiled function, class or another object that takes a function's place in a module.
        everywhere: also search by identity, in the object's own module and then in all others.

    Returns:
        The reference, or ``None`` where the object has no importable name (or the user asked for its module by value).
    """
    cached = _found.get(id(obj))
    if cached is not None and cached[0]() is obj and leads_to(cached[1], obj) and _usable(cached[1].module):
        return cached[1]
    reference = _search(obj, everywhere)
    if reference is not None:
        key = id(obj)
        try:
            _found[key] = (weakref.ref(obj, lambda ref: _forget(key, ref)), reference)
        except TypeError:
            pass
    return reference


def _forget(key: int, ref: weakref.ref[Any]) -> None:
    entry = _found.get(key)
    if entry is not None and entry[0] is ref:
        _found.pop(key, None)


def _usable(module_name: str) -> bool:
    return importable(module_name) and not pickled_by_value(module_name)


def _search(obj: Any, everywhere: bool) -> Reference | None:
    names = list(_own_names(obj))
    for module_name, qualname in names:
        module = sys.modules.get(module_name)
        if module is None or not _usable(module_name):
            continue
        try:
            holder = walk(module, qualname)
        except Exception:
            continue
        if holder is obj:
            return Reference(module_name, qualname)
        path = _path_below(holder, obj)
        if path is not None:
            return Reference(module_name, qualname, path)
    if not everywhere:
        return None
    own = [module for module, _ in names]
    if any(pickled_by_value(module) for module in own):
        return None
    return _search_modules(obj, own)


def _own_names(obj: Any) -> Iterator[tuple[str, str]]:
    """(module, qualified name) as the innermost function says, then as the object itself says; text only."""
    sources: list[Any] = []
    function = inner_function(obj)
    if function is not None:
        sources.append((function.__module__, function.__qualname__))
    if isinstance(obj, type):
        sources.append((obj.__module__, obj.__qualname__))
    elif function is not obj:
        attributes = static_vars(obj)
        qualname = attributes.get("__qualname__", attributes.get("__name__"))
        sources.append((attributes.get("__module__"), qualname))
        if type(obj) in (types.BuiltinFunctionType, types.MethodType) or not attributes:
            sources.append((getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)))
    seen = set()
    for module, qualname in sources:
        if isinstance(module, str) and isinstance(qualname, str) and (module, qualname) not in seen:
            seen.add((module, qualname))
            yield module, qualname


def _is_leaf(obj: Any) -> bool:
    return obj is None or issubclass(type(obj), (types.ModuleType, type, str, bytes, int, float))


def _path_below(holder: Any, wanted: Any) -> tuple[str, ...] | None:
    """The chain of instance attributes from ``holder`` to ``wanted``, shortest first; through wrapper objects, not containers."""
    queue: list[tuple[Any, tuple[str, ...]]] = [(holder, ())]
    seen = {id(holder)}
    for current, path in queue:
        if _is_leaf(current):
            continue
        for name, value in list(static_vars(current).items()):
            if type(name) is not str:
                continue
            if value is wanted:
                return (*path, name)
            if id(value) not in seen and len(queue) < SEARCH_LIMIT:
                seen.add(id(value))
                queue.append((value, (*path, name)))
    return None


def _search_modules(obj: Any, own: list[str]) -> Reference | None:
    """By identity: the object's own modules with what hangs below their kernels, then the others, the same package first."""
    for name in own:
        module = sys.modules.get(name)
        if module is not None and _usable(name):
            reference = _search_one(name, module, obj, below=True)
            if reference is not None:
                return reference
    tops = {name.partition(".")[0] for name in own}
    others = sorted(
        (name for name in list(sys.modules) if name not in own and name not in _MAIN),
        key=lambda name: (name.partition(".")[0] not in tops, name.count("."), name),
    )
    for name in others:
        module = sys.modules.get(name)
        if isinstance(module, types.ModuleType) and _names_of(module, obj) and _usable(name):
            reference = _search_one(name, module, obj, below=False)
            if reference is not None:
                return reference
    return None


def _names_of(module: types.ModuleType, obj: Any) -> list[str]:
    return [k for k, v in list(static_vars(module).items()) if v is obj and type(k) is str]


def _search_one(name: str, module: types.ModuleType, obj: Any, *, below: bool) -> Reference | None:
    names = [n for n in _names_of(module, obj) if n.isidentifier()]
    if names:
        return Reference(name, min(names, key=lambda n: (n.startswith("_"), len(n), n)))
    if not below:
        return None
    for key, value in list(static_vars(module).items()):
        if type(key) is not str or not key.isidentifier():
            continue
        if isinstance(value, type) and value.__module__ == name:
            for attribute, member in list(vars(value).items()):
                reference = Reference(name, f"{key}.{attribute}")
                if (member is obj or static_vars(member).get("__func__") is obj) and leads_to(reference, obj):
                    return reference
                if isinstance(member, (staticmethod, classmethod)) and leads_to(reference, obj):
                    return reference
        elif inner_function(value) is not None and not isinstance(value, types.FunctionType):
            path = _path_below(value, obj)
            if path is not None:
                return Reference(name, key, path)
    return None


# -- from a name to its object -----------------------------------------------------------------------------------------------


def load(module_name: str) -> types.ModuleType:
    """Import a module by its full name and return that very module, not what its parent shows under the same name."""
    importlib.import_module(module_name)
    return sys.modules[module_name]
