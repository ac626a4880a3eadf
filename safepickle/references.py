"""Which name is this object, and which object has this name?

An object goes *by reference* when a name leads to that very object, here and in a process that has yet to import it.
Names are taken from what the object says of itself and from a search by identity; each candidate is verified with
``is``. Nothing is imported while pickling, and no object is compared, hashed or asked for attributes through its own
code (a kernel that is hashed freezes the globals it saw; a lazy proxy raises).
"""

from __future__ import annotations

import ast
import importlib
import linecache
import os
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

__all__ = [
    "Reference",
    "find",
    "find_stand_in",
    "importable",
    "inner_function",
    "leads_to",
    "load",
    "main_is_shared",
    "names_of_parts",
    "pickled_by_value",
    "static_vars",
    "walk",
    "written_as_global",
]

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


# -- modules -----------------------------------------------------------------------------------------------------------

_importable_cache: dict[str, tuple[weakref.ref[types.ModuleType], bool, tuple[str, ...]]] = {}


class _Sharing(threading.local):
    """What is known, in this thread for the time being, of the processes that are written for."""

    main = False


_sharing: Final = _Sharing()


@contextmanager
def main_is_shared(shared: bool = True) -> Iterator[None]:
    """Within this block ``__main__`` counts as a module that the reader has too: multiprocessing runs it again."""
    before = _sharing.main
    _sharing.main = shared
    try:
        yield
    finally:
        _sharing.main = before


def importable(name: str) -> bool:
    """Whether a process that lacks the module would find it under this name.

    A module that was made on the fly, or loaded from a path under a name that no finder knows, is in ``sys.modules``
    here and nowhere else. ``importlib.util.find_spec`` answers from ``sys.modules`` first, so the finders are asked
    directly.
    """
    module = sys.modules.get(name)
    if module is None:
        return False
    if name in _MAIN:
        return _sharing.main
    cached = _importable_cache.get(name)
    if cached is not None and cached[0]() is module and cached[1]:
        return True
    path_now = tuple(map(str, sys.path))
    if cached is not None and cached[0]() is module and cached[2] == path_now:
        return False
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
        if spec is not None and _same_place(spec, module):
            return True
        if spec is not None:
            break
    # Nothing is found, or a file that puts another module in its own place (collections/abc.py, since Python 3.13).
    return bool(parent_name) and _is_second_name(module, name, getattr(sys.modules[parent_name], leaf, None))


def _is_second_name(module: types.ModuleType, name: str, attribute: Any) -> bool:
    """Whether the parent gives the name to a module that has another name (``collections.abc``, ``six.moves``)."""
    first = getattr(getattr(module, "__spec__", None), "name", name)
    return attribute is module and first != name and sys.modules.get(first) is module and importable(first)


def _same_place(spec: Any, module: types.ModuleType) -> bool:
    """Whether the finders would load this module and not another one of the same name."""
    file = getattr(module, "__file__", None)
    if spec.loader is None:
        return file is None
    if not spec.has_location or not isinstance(spec.origin, str):
        return True
    if not isinstance(file, str):
        return getattr(module, "__spec__", None) is not None  # else made by hand, under a name that is taken
    return file == spec.origin or os.path.realpath(file) == os.path.realpath(spec.origin) or file.endswith(".pyc")


def pickled_by_value(module_name: str) -> bool:
    """Whether the user asked for the module's contents by value, with ``cloudpickle.register_pickle_by_value``."""
    cloudpickle = sys.modules.get("cloudpickle.cloudpickle")
    names = getattr(cloudpickle, "_PICKLE_BY_VALUE_MODULES", None)
    while names and module_name:
        if module_name in names:
            return True
        module_name = module_name.rpartition(".")[0]
    return False


# -- walking -----------------------------------------------------------------------------------------------------------


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


#: Where kernels, tf.functions, custom ops, partials, jitted functions and their like keep the function that they wrap.
_WRAPPED: Final = (
    "fn", "_python_function", "func", "_init_fn", "__wrapped__", "_fun", "py_func", "orig_func",
    "_annotated_function", "pyfunc",
)  # fmt: skip


def inner_function(obj: Any) -> types.FunctionType | None:
    """The Python function at the end of a chain of wrappers, however long, if there is one."""
    seen: set[int] = set()
    while id(obj) not in seen:
        seen.add(id(obj))
        if type(obj) is types.FunctionType:
            return obj
        if _is_leaf(obj):
            return None
        if type(obj) is types.MethodType:
            obj = obj.__func__
            continue
        attributes = static_vars(obj)
        obj = next((inner for name in _WRAPPED if (inner := attributes.get(name)) is not None), None)
    return None


# -- from an object to its name ----------------------------------------------------------------------------------------

_found: dict[int, tuple[weakref.ref[Any], Reference]] = {}


def find(obj: Any, *, everywhere: bool = True) -> Reference | None:
    """The name that leads to this very object, in this process and in a fresh one.

    Args:
        obj: a function, kernel, compiled function, class or another object that takes a function's place in a module.
        everywhere: where its own module does not have it, also search all others by identity.

    Returns:
        The reference, or ``None`` where the object has no importable name (or the user asked for its module by value).
    """
    cached = _found.get(id(obj))
    if cached is not None and cached[0]() is obj and leads_to(cached[1], obj) and _usable(cached[1].module):
        return cached[1]
    reference = _search(obj, everywhere)
    if reference is not None:
        key = id(obj)
        forget = _forget  # a global may be gone when the interpreter ends
        try:
            _found[key] = (weakref.ref(obj, lambda ref: forget(key, ref)), reference)
        except TypeError:
            pass
    return reference


def find_stand_in(obj: Any) -> Reference | None:
    """The name of the function whose place an object took.

    The object holds the function, or a kernel of it, and the function's name leads to the object.
    """
    for module, qualname in names_of_parts(obj):
        reference = Reference(module, qualname)
        if _usable(module) and leads_to(reference, obj):
            return reference
    return None


def names_of_parts(obj: Any) -> Iterator[tuple[str, str]]:
    """(module, qualified name) of the functions, wrapped or not, that an object holds as attributes."""
    for value in list(static_vars(obj).values()):
        function = inner_function(value)
        if function is not None and isinstance(function.__module__, str):
            yield function.__module__, function.__qualname__


def written_as_global(reference: Reference, obj: Any, protocol: int) -> bool:
    """Whether the pickler can write the name as it is, without a call on loading.

    It looks in the module that the object itself names. Before protocol 4 a dotted name is written as a call of
    ``getattr``, and a name outside ASCII not at all.
    """
    name = reference.qualname
    plain = protocol >= 4 or (name.isascii() and reference.module.isascii() and "." not in name)
    return plain and not reference.path and static_vars(obj).get("__module__") == reference.module


def _forget(key: int, ref: weakref.ref[Any]) -> None:
    entry = _found.get(key)
    if entry is not None and entry[0] is ref:
        _found.pop(key, None)


def _usable(module_name: str) -> bool:
    return importable(module_name) and not pickled_by_value(module_name)


def _search(obj: Any, everywhere: bool) -> Reference | None:
    function = inner_function(obj)
    names = list(_own_names(obj, function))
    reference = _by_own_name(obj, names)
    if reference is not None:
        return reference
    origins = list(dict.fromkeys(module for module, _ in names))
    if function is not None and isinstance(home := function.__globals__.get("__name__"), str) and home not in origins:
        origins.append(home)
    if any(pickled_by_value(origin) for origin in origins):
        return None
    usable = [origin for origin in origins if _usable(origin)]
    for origin in usable:
        reference = _search_own_module(origin, obj, function)
        if reference is not None:
            return reference
    # Made by a script, in a notebook or on the fly: if another module has it, it got it at run time, and only here.
    if not everywhere or (origins and not usable):
        return None
    return _search_other_modules(obj, origins)


def _own_names(obj: Any, function: types.FunctionType | None) -> Iterator[tuple[str, str]]:
    """(module, qualified name) as the innermost function says, then as the object itself says; text only."""
    sources: list[Any] = []
    if function is not None:
        sources.append((function.__module__, function.__qualname__))
    if issubclass(type(obj), type):
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


def _by_own_name(obj: Any, names: list[tuple[str, str]]) -> Reference | None:
    """The object is what one of these names leads to, or hangs below it."""
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
    return None


def _is_leaf(obj: Any) -> bool:
    return obj is None or issubclass(type(obj), (types.ModuleType, type, str, bytes, int, float))


def _path_below(holder: Any, wanted: Any) -> tuple[str, ...] | None:
    """The shortest chain of instance attributes from ``holder`` to ``wanted``, not through containers."""
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


# -- by identity -------------------------------------------------------------------------------------------------------


def _search_own_module(name: str, obj: Any, function: types.FunctionType | None) -> Reference | None:
    """Another name in the object's own module, in a class there, or a place below another wrapper of its function."""
    module = sys.modules[name]
    alias = _alias(name, module, obj)
    if alias is not None:
        return alias
    searchable = type(obj) is not types.FunctionType and not issubclass(type(obj), type)
    for key, value in list(static_vars(module).items()):
        if type(key) is not str or not key.isidentifier():
            continue
        if issubclass(type(value), type):
            found = _search_class(name, key, value, obj) if searchable and _is_own_class(name, key, value) else None
        else:
            found = _search_wrapper(name, key, value, obj, function)
        if found is not None:
            return found
    return None


def _alias(name: str, module: types.ModuleType, obj: Any) -> Reference | None:
    """The shortest public name that the module gives to this very object."""
    names = [k for k, v in list(static_vars(module).items()) if v is obj and type(k) is str and k.isidentifier()]
    names = [k for k in names if not _is_placeholder(name, module, k)]
    return Reference(name, min(names, key=lambda n: (n.startswith("_"), len(n), n))) if names else None


def _search_class(name: str, qualname: str, cls: type, obj: Any) -> Reference | None:
    """An attribute, or a static method, of a class or of a class in its body."""
    for attribute, member in list(vars(cls).items()):
        dotted = f"{qualname}.{attribute}"
        if issubclass(type(member), type):
            in_body = member.__qualname__ == f"{cls.__qualname__}.{attribute}"
            found = _search_class(name, dotted, member, obj) if in_body else None
            if found is not None:
                return found
        elif member is obj or (type(member) is staticmethod and member.__func__ is obj):
            reference = Reference(name, dotted)
            if leads_to(reference, obj):
                return reference
    return None


def _is_own_class(name: str, key: str, value: Any) -> bool:
    """Whether a module made this class: under this very name, or in one of its functions."""
    if not issubclass(type(value), type) or value.__module__ != name:
        return False
    return value.__qualname__ == key or "<locals>" in value.__qualname__


def _search_wrapper(name: str, key: str, value: Any, obj: Any, function: types.FunctionType | None) -> Reference | None:
    """A place below a wrapper of the same function: ``tuned.fn``."""
    if function is None or type(value) is types.FunctionType or inner_function(value) is not function:
        return None
    path = _path_below(value, obj)
    return None if path is None or _is_placeholder(name, sys.modules[name], key) else Reference(name, key, path)


def _search_other_modules(obj: Any, origins: list[str]) -> Reference | None:
    """A name in any other module that is imported, those of the same package first; there also in a class."""
    if _was_missed(obj):
        return None
    modules = [(name, module) for name, module in _modules() if name not in origins and name not in _MAIN]
    tops = {name.partition(".")[0] for name in origins}
    holders = [(name, module) for name, module in modules if _has(module, obj)]
    holders.sort(key=lambda item: (item[0].partition(".")[0] not in tops, item[0].count("."), item[0]))
    for name, module in holders:
        alias = _alias(name, module, obj) if _usable(name) else None
        if alias is not None:
            return alias
    for name, module in modules:
        if name.partition(".")[0] in tops and _usable(name):
            for key, value in list(static_vars(module).items()):
                found = _search_class(name, key, value, obj) if _is_own_class(name, key, value) else None
                if found is not None:
                    return found
    _miss(obj)
    return None


def _modules() -> list[tuple[str, types.ModuleType]]:
    return [(name, module) for name, module in list(sys.modules.items()) if issubclass(type(module), types.ModuleType)]


def _has(module: types.ModuleType, obj: Any) -> bool:
    # Not `in`: that would ask foreign objects whether they are equal.
    return any([value is obj for value in list(static_vars(module).values())])  # noqa: C419 - a list is twice as fast


#: What was searched for in vain, and how many modules there were. A kernel without a name is asked for again and again,
#: and a name that it gets in a module which was there before is one that a fresh process lacks.
_missed: dict[int, tuple[weakref.ref[Any], int]] = {}


def _was_missed(obj: Any) -> bool:
    entry = _missed.get(id(obj))
    return entry is not None and entry[0]() is obj and entry[1] == len(sys.modules)


def _miss(obj: Any) -> None:
    key = id(obj)
    try:
        _missed[key] = (weakref.ref(obj, lambda _: _missed.pop(key, None)), len(sys.modules))
    except TypeError:
        pass  # it cannot be referred to weakly


_placeholder_cache: dict[str, tuple[weakref.ref[types.ModuleType], frozenset[str]]] = {}


def _is_placeholder(name: str, module: types.ModuleType, attribute: str) -> bool:
    """Whether the module's text gives a name no more than a constant (``_kernel = None``).

    What such a name leads to was put there at run time: a fresh process would find the constant.
    """
    cached = _placeholder_cache.get(name)
    if cached is None or cached[0]() is not module:
        cached = _placeholder_cache[name] = (weakref.ref(module), frozenset(_placeholders(module)))
    return attribute in cached[1]


def _placeholders(module: types.ModuleType) -> Iterator[str]:
    file = static_vars(module).get("__file__")
    if not isinstance(file, str) or not file.endswith(".py"):
        return
    try:
        tree = ast.parse("".join(linecache.getlines(file, static_vars(module))))
    except (SyntaxError, ValueError, RecursionError):
        return
    bound: dict[str, bool] = {}
    for target, constant in _bindings(tree.body):
        bound[target] = constant and bound.get(target, True)
    yield from (target for target, constant in bound.items() if constant)


def _bindings(body: list[ast.stmt]) -> Iterator[tuple[str, bool]]:
    """The names that module-level statements bind, and whether to a constant or an empty container."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement.name, False
            continue
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield from ((alias.asname or alias.name.partition(".")[0], False) for alias in statement.names)
            continue
        value = getattr(statement, "value", None)
        assigned = isinstance(statement, (ast.Assign, ast.AnnAssign))
        constant = assigned and (value is None or isinstance(value, ast.Constant))
        for field, part in ast.iter_fields(statement):
            if field in ("body", "orelse", "finalbody"):
                yield from _bindings(part)
            elif field in ("handlers", "cases"):
                for inner in part:
                    yield from _bindings(inner.body)
            elif isinstance(part, (ast.AST, list)):
                yield from ((name, constant) for name in _stored_names(part))


def _stored_names(part: ast.AST | list[Any]) -> Iterator[str]:
    for node in part if isinstance(part, list) else [part]:
        if isinstance(node, ast.AST):
            yield from (n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


# -- from a name to its object -----------------------------------------------------------------------------------------


def load(module_name: str) -> types.ModuleType:
    """Import a module by its full name and return that very module, not what its parent shows under the same name."""
    importlib.import_module(module_name)
    return sys.modules[module_name]
