"""What a pickle calls for things that have a name, and for types and modules."""

from __future__ import annotations

import builtins
import functools
import hashlib
import importlib
import inspect
import textwrap
import types
import warnings
from typing import Any

from ..errors import UnpicklingError
from ..references import inner_function, load, names_of_parts, walk
from .checks import _check

__all__ = [
    "bind_method",
    "bound_classmethod",
    "builtin_type",
    "check_pin",
    "class_attribute",
    "fill_module",
    "function",
    "make_module",
    "module_attribute",
    "resolve",
    "same_module",
    "source_digest",
    "sentinel",
    "stand_in",
    "submodule",
]


def resolve(module: str, qualname: str, path: tuple[str, ...] = ()) -> Any:
    """The object of that name. Not written to pickles itself: the functions below check what was found.

    Raises:
        UnpicklingError: there is no such module or no such name in it.
    """
    _check(module, str, "a module name")
    _check(qualname, str, "a qualified name")
    _check(path, tuple, "an attribute path")
    name = ".".join([f"{module}:{qualname}", *path])
    try:
        found = load(module)
    except ImportError as error:
        raise UnpicklingError(
            f"cannot load the reference {name}: module {module!r} cannot be imported here ({error}). It was importable "
            "where the pickle was written; a package may have extended sys.path there"
        ) from error
    try:
        return walk(found, qualname, path)
    except AttributeError as error:
        raise UnpicklingError(
            f"cannot load the reference {name}: {error}. The module is {getattr(found, '__file__', 'built in')}; "
            "the name may be defined there only under some condition, or in another version"
        ) from error


def function(module: str, qualname: str, path: tuple[str, ...]) -> types.FunctionType:
    """The undecorated function below the object that took its name: ``kernel.fn``, ``f.__wrapped__``."""
    found = resolve(module, qualname, path)
    if not path or type(found) is not types.FunctionType:
        raise UnpicklingError(
            f"the reference {module}:{qualname} with path {path!r} leads to a {type(found).__qualname__}, "
            f"not to a function below "
            "a decorated one"
        )
    return found


def stand_in(module: str, qualname: str, path: tuple[str, ...]) -> Any:
    """The object that took the place of the function of that name: it holds that function, or a kernel of it."""
    found = resolve(module, qualname, path)
    if path or (module, qualname) not in names_of_parts(found):
        raise UnpicklingError(
            f"the reference {module}:{qualname} leads to a {type(found).__qualname__} that does not "
            f"hold the function of that name"
        )
    return found


def class_attribute(cls: type, name: str, part: str = "") -> Any:
    """What a class has under that name in its own dictionary, or a part of it, such as the getter of a property."""
    _check(cls, type, "the owner of an attribute")
    _check(name, str, "the name of an attribute")
    _check(part, str, "the name of a part")
    found = vars(cls).get(name)
    if part:
        found = getattr(found, part, None) if isinstance(found, _DESCRIPTORS) and part in _DESCRIPTOR_PARTS else None
    if not isinstance(found, (types.FunctionType, *_DESCRIPTORS)):
        raise UnpicklingError(
            f"{cls.__module__}:{cls.__qualname__} has no method or property {name!r}"
            f"{part and f' with a {part}'} of its own here"
        )
    return found


_DESCRIPTORS = (property, staticmethod, classmethod, functools.cached_property)


_DESCRIPTOR_PARTS = frozenset({"fget", "fset", "fdel", "__func__", "func"})


def bound_classmethod(cls: type, name: str) -> types.MethodType:
    """The class method ``name`` bound to ``cls``."""
    _check(cls, type, "the owner of a class method")
    _check(name, str, "a method name")
    found = getattr(cls, name, None)
    if not isinstance(found, types.MethodType) or found.__self__ is not cls:
        raise UnpicklingError(f"{cls.__qualname__}.{name} is not a class method")
    return found


def submodule(name: str) -> types.ModuleType:
    """A module by name, imported."""
    _check(name, str, "a module name")
    return importlib.import_module(name)


def module_attribute(parent: str, name: str) -> types.ModuleType:
    """A module that another one holds under a name, and that is not imported by its own: a lazy stand-in."""
    found = resolve(parent, name)
    _check(found, types.ModuleType, f"{parent}.{name}")
    return found  # type: ignore[no-any-return]


def sentinel(module: str, qualname: str) -> Any:
    """A private marker object of the standard library that is compared by identity (``dataclasses._FIELD``)."""
    if (module, qualname) not in _SENTINELS:
        raise UnpicklingError(f"{module}:{qualname} is not a known marker")
    return resolve(module, qualname)


_SENTINELS = {
    ("dataclasses", "_FIELD"),
    ("dataclasses", "_FIELD_CLASSVAR"),
    ("dataclasses", "_FIELD_INITVAR"),
    ("dataclasses", "_HAS_DEFAULT_FACTORY"),
    ("dataclasses", "MISSING"),
    ("dataclasses", "KW_ONLY"),
}


def make_module(name: str, doc: str | None) -> types.ModuleType:
    """A module that was made on the fly, empty."""
    _check(name, str, "a module name")
    module = types.ModuleType(name, doc)
    module.__dict__["__builtins__"] = builtins
    return module


def same_module(module: types.ModuleType) -> types.ModuleType:
    """The module that some of its functions have been given their globals from; its state follows."""
    _check(module, types.ModuleType, "a module")
    return module


def fill_module(module: types.ModuleType, state: tuple[type | None, dict[str, Any]]) -> None:
    """Give a module its contents, and its class if it has one of its own."""
    _check(module, types.ModuleType, "a module")
    cls, contents = state
    module.__dict__.update(contents)
    if cls is not None:
        module.__class__ = cls


def builtin_type(name: str) -> type:
    """A type of the interpreter that only the module ``types`` names (``types.FunctionType``)."""
    _check(name, str, "the name of a type")
    found = getattr(types, name, None)
    if not isinstance(found, type):
        raise UnpicklingError(f"types.{name} is not a type of this Python")
    return found


def bind_method(function: Any, owner: Any) -> types.MethodType:
    """A function bound to an object that does not have it as an attribute of that name."""
    if not callable(function):
        raise UnpicklingError(f"malformed pickle: a method needs a callable, not {type(function).__qualname__}")
    return types.MethodType(function, owner)


# -- pinned references -------------------------------------------------------------------------------------------------


def source_digest(obj: Any) -> str:
    """A hash of the source text of the function inside an object; how the text is indented does not matter.

    Raises:
        OSError: the text cannot be had.
    """
    function = inner_function(obj)
    if function is None:
        raise OSError(f"no Python function in {type(obj).__qualname__}")
    text = textwrap.dedent("".join(inspect.getsourcelines(function)[0]))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def check_pin(found: Any, name: str, digest: str, mode: str) -> None:
    """Compare the source of what a pinned reference leads to with that it was made from.

    Raises:
        UnpicklingError: it is another one, and the reference was pinned with ``"raise"``.
    """
    _check(digest, str, "the hash of a source")
    try:
        same = source_digest(found) == digest
        problem = f"the source of {name} is not the one that the pickle was made with"
    except OSError as error:
        same, problem = False, f"the source of {name} cannot be compared: {error}"
    if same:
        return
    if mode != "warn":
        raise UnpicklingError(f"{problem} (the reference is pinned)")
    warnings.warn(problem, RuntimeWarning, stacklevel=3)
