"""How do functions, classes and modules travel that no name leads to?

By value: their code, the globals that they use and nothing else, their cells (shared cells stay shared), and their **source
text** with its first line, so that ``inspect.getsource``, tracebacks, ``@triton.jit`` and AutoGraph work where they are loaded.
Everything is written in a stable order and without random ids: equal programs write equal bytes.
"""

from __future__ import annotations

import abc
import dis
import enum
import hashlib
import inspect
import re
import sys
import types
import typing
import weakref
from collections.abc import Iterator
from typing import Any, Final

from . import restore
from .references import Reference, find, importable, pickled_by_value, static_vars

__all__ = [
    "ByValue",
    "function_reference",
    "global_names",
    "reduce_cell",
    "reduce_class",
    "reduce_code",
    "reduce_function",
    "reduce_method",
    "reduce_module",
    "reduce_type_variable",
    "source_of",
]

_GLOBAL_OPS: Final = frozenset({"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_HEAP_TYPE: Final = 1 << 9


class ByValue:
    """What one run of a pickler must remember about things by value: namespaces and cells that several functions share."""

    def __init__(self) -> None:
        self._namespaces: dict[int, tuple[dict[str, Any], Namespace]] = {}
        self._cells: dict[int, types.CellType] = {}
        #: What the owner of a function knows better than ``inspect`` does: id -> (function, text, first line, the owner's identity).
        self.texts: dict[int, tuple[Any, str, int, str | None]] = {}
        self._kept: list[Any] = []

    def namespace(self, function: types.FunctionType) -> Namespace:
        """The stand-in for the globals of a function; one for all functions of a module."""
        entry = self._namespaces.get(id(function.__globals__))
        if entry is None:
            entry = (function.__globals__, Namespace(function))
            self._namespaces[id(function.__globals__)] = entry
        return entry[1]

    def claim(self, cell: types.CellType) -> bool:
        """True for the first who asks: the contents of a cell are written once."""
        if id(cell) in self._cells:
            return False
        self._cells[id(cell)] = cell
        return True

    def claimed(self, cell: types.CellType) -> bool:
        """Whether somebody else writes the contents."""
        return id(cell) in self._cells

    def keep(self, obj: Any) -> Any:
        """Keep a temporary alive until the end: the pickler's memo knows objects by their ids."""
        self._kept.append(obj)
        return obj


class Namespace:
    """Stands for the globals of one module while pickling; becomes a dictionary on loading."""

    def __init__(self, function: types.FunctionType) -> None:
        self._names = (function.__globals__.get("__name__"), function.__globals__.get("__package__"))

    def __reduce__(self) -> tuple[Any, ...]:
        return restore.make_namespace, self._names


class Sorted:
    """A set or frozenset in an order that does not depend on the hash seed."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self._values), (sorted(self._values, key=lambda v: (type(v).__name__, repr(v))),)


# -- source text -------------------------------------------------------------------------------------------------------------

_text_cache: weakref.WeakKeyDictionary[types.CodeType, tuple[str, int] | None] = weakref.WeakKeyDictionary()


def source_of(function: types.FunctionType) -> tuple[str, int] | None:
    """The text of a function and its first line, or ``None`` where it cannot be had or is visibly not this function's."""
    code = function.__code__
    if code not in _text_cache:
        _text_cache[code] = _read_source(function)
    return _text_cache[code]


def _read_source(function: types.FunctionType) -> tuple[str, int] | None:
    code = function.__code__
    try:
        lines, first = inspect.getsourcelines(code)
    except Exception:  # no file, or a text that does not tokenize
        return None
    text = "".join(lines)
    name = re.escape(code.co_name)
    expected = r"\blambda\b" if code.co_name == "<lambda>" else rf"\b(def|class)\s+{name}\b"
    if not re.search(expected, text):  # the file has changed since it was imported
        return None
    return text, first


# -- code ---------------------------------------------------------------------------------------------------------------------


def reduce_code(code: types.CodeType, pickler: Any = None) -> tuple[Any, ...]:
    """A code object as the arguments of its constructor, stamped with the version of Python that can run it."""
    constants = tuple(_constant(value) for value in code.co_consts)
    head = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_nlocals, code.co_stacksize,
            code.co_flags, code.co_code, constants, code.co_names, code.co_varnames, code.co_filename, code.co_name)  # fmt: skip
    if sys.version_info >= (3, 11):
        tail: tuple[Any, ...] = (code.co_qualname, code.co_firstlineno, code.co_linetable, code.co_exceptiontable)
    else:
        tail = (code.co_firstlineno, code.co_linetable)
    tag = sys.implementation.cache_tag
    return restore.make_code, (tag, *head, *tail, code.co_freevars, code.co_cellvars)


def _constant(value: Any) -> Any:
    if type(value) is frozenset:
        return Sorted(frozenset(_constant(v) for v in value) if any(type(v) is frozenset for v in value) else value)
    if type(value) is tuple and any(type(v) in (frozenset, tuple) for v in value):
        return tuple(_constant(v) for v in value)
    return value


def global_names(code: types.CodeType) -> list[str]:
    """The globals that the code and the code inside it read or write, in the order of their first use."""
    names: dict[str, None] = {}
    for instruction in dis.get_instructions(code):
        if instruction.opname in _GLOBAL_OPS:
            names[instruction.argval] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(dict.fromkeys(global_names(constant)))
    return list(names)


def _attribute_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _attribute_names(constant)
    return names


def _used_submodules(code: types.CodeType, values: list[Any]) -> list[types.ModuleType]:
    """Submodules that the code reaches as attributes of a package: ``import a`` on the other side would not import ``a.b``."""
    found: dict[str, types.ModuleType] = {}
    names: set[str] | None = None
    for value in values:
        if not isinstance(value, types.ModuleType) or not getattr(value, "__package__", None) or "__path__" not in vars(value):
            continue
        names = _attribute_names(code) if names is None else names
        prefix = value.__name__ + "."
        for name, module in list(sys.modules.items()):
            if name.startswith(prefix) and isinstance(module, types.ModuleType) and names.issuperset(name[len(prefix) :].split(".")):
                found[name] = module
    return [found[name] for name in sorted(found)]


# -- functions -----------------------------------------------------------------------------------------------------------------


def function_reference(function: types.FunctionType) -> Reference | None:
    """The name under which a function travels, if it does: one in the module that it names, or one below what took its place."""
    reference = find(function, everywhere=False)
    return reference if reference is not None and (reference.path or reference.module == function.__module__) else None


def reduce_function(function: types.FunctionType, pickler: Any) -> Any:
    """A function by its name, by the name of what took its place (``kernel.fn``), as its library says, else by value."""
    reference = function_reference(function)
    if reference is not None and reference.path:
        return restore.function, tuple(reference)
    if reference is not None:
        # Under its own name the pickler writes the global itself.
        return NotImplemented if reference.qualname == function.__qualname__ else reference.qualname
    rule = pickler.registry.function_rule(function)
    reduced = rule.reduce(function) if rule is not None else NotImplemented
    return function_by_value(function, pickler) if reduced is NotImplemented else reduced


def function_by_value(function: types.FunctionType, pickler: Any) -> tuple[Any, ...]:
    """Code, globals in use, cells, attributes and source text."""
    context: ByValue = pickler.by_value
    code = function.__code__
    override = context.texts.get(id(function))
    owner = None
    if override is not None and override[0] is function:
        text: tuple[str, int] | None = (override[1], override[2])
        owner = override[3]
    else:
        text = source_of(function)
    source = None
    if text is not None:
        filename = restore.source_file(function, *text)
        source = (filename, *text)
        code = context.keep(restore.renamed(code, filename))
    cells = function.__closure__
    fresh = [cell for cell in cells or () if context.claim(cell)]
    arguments = (code, context.namespace(function), function.__name__, cells, source, *([owner] if owner else []))
    return restore.make_function, arguments, _function_state(function, fresh), None, None, restore.fill_function


def _function_state(function: types.FunctionType, cells: list[types.CellType]) -> dict[str, Any]:
    code = function.__code__
    available = function.__globals__
    used = {name: available[name] for name in global_names(code) if name in available and name != "__builtins__"}
    contents = [(cell, cell.cell_contents) for cell in cells if _is_set(cell)]
    state: dict[str, Any] = {"globals": used, "cells": contents}
    modules = _used_submodules(code, [*used.values(), *(value for _, value in contents)])
    if modules:
        state["modules"] = modules
    if function.__dict__:
        state["vars"] = dict(function.__dict__)
    values = (
        ("qualname", function.__qualname__, function.__name__),
        ("module", function.__module__, available.get("__name__")),
        ("doc", function.__doc__, _own_doc(code)),
        ("defaults", function.__defaults__, None),
        ("kwdefaults", function.__kwdefaults__, None),
        ("annotations", _annotations(function), {}),
        ("type_params", getattr(function, "__type_params__", ()), ()),
    )
    state.update((name, value) for name, value, default in values if value is not default and value != default)
    return state


def _own_doc(code: types.CodeType) -> Any:
    first = code.co_consts[0] if code.co_consts else None
    return first if isinstance(first, str) else None


def _annotations(function: types.FunctionType) -> dict[str, Any]:
    try:
        return function.__annotations__
    except Exception:  # evaluated lazily since 3.14; a name may be missing
        return {}


def _is_set(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def reduce_cell(cell: types.CellType, pickler: Any) -> tuple[Any, ...]:
    """A cell; its contents unless a function that uses it writes them."""
    context: ByValue = pickler.by_value
    if not context.claim(cell):
        return restore.make_cell, ()
    contents = (cell.cell_contents,) if _is_set(cell) else ()
    return restore.make_cell, (), contents, None, None, restore.fill_cell


def reduce_method(method: types.MethodType, pickler: Any) -> Any:
    """A bound method as owner and name where the owner's class has it under that name, else as function and owner."""
    owner, function = method.__self__, method.__func__
    for rule in pickler.registry.rules_for(type(owner), "pickle"):
        if rule.methods is not None and (reduced := rule.methods(method)) is not NotImplemented:
            return reduced
    name = getattr(function, "__name__", None)
    if isinstance(owner, type):
        found = inspect.getattr_static(owner, name, None) if isinstance(name, str) else None
        if isinstance(found, classmethod) and found.__func__ is function:
            return restore.bound_classmethod, (owner, name)
    elif isinstance(name, str) and name not in static_vars(owner):
        for base in type(owner).__mro__:
            if name in vars(base):
                if vars(base)[name] is function:
                    return NotImplemented  # getattr(owner, name), as the standard library writes it
                break
    return restore.bind_method, (function, owner)


# -- classes -------------------------------------------------------------------------------------------------------------------

_TYPES_BY_NAME: Final = {
    value: name
    for name, value in vars(types).items()
    if isinstance(value, type) and value.__module__ == "builtins" and not hasattr(__builtins__, value.__qualname__)
}


def reduce_class(cls: type, pickler: Any) -> Any:
    """A class by its name, else by value with an identity that makes two payloads of it one class."""
    if cls.__module__ == "builtins" and cls.__flags__ & _HEAP_TYPE == 0:
        name = _TYPES_BY_NAME.get(cls)
        special = (type(None), type(NotImplemented), type(...))
        return (restore.builtin_type, (name,)) if name is not None and cls not in special else NotImplemented
    reference = find(cls, everywhere=False)
    if reference is not None and not reference.path and reference.module == cls.__module__:
        own = (reference.module, reference.qualname) == (cls.__module__, cls.__qualname__)
        return NotImplemented if own else reference.qualname
    if not cls.__flags__ & _HEAP_TYPE:
        return NotImplemented  # made in C: nothing but its name can be written
    return class_by_value(cls, pickler)


def class_by_value(cls: type, pickler: Any) -> tuple[Any, ...]:
    """Bases, metaclass and attributes."""
    identity = _identity(cls, pickler)
    metaclass = type(cls)
    namespace: dict[str, Any] = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    slots = vars(cls).get("__slots__")
    if slots is not None:
        names = [slots] if isinstance(slots, str) else list(slots)
        namespace["__slots__"] = tuple(names)
    if "__orig_bases__" in vars(cls):
        namespace["__orig_bases__"] = vars(cls)["__orig_bases__"]  # typing.Generic asks for it while the class is made
    bases = cls.__bases__
    state: dict[str, Any] = {"attributes": _class_attributes(cls)}
    if isinstance(cls, enum.EnumMeta):
        members = [(name, _plain_value(member)) for name, member in cls.__members__.items()]
        extras = {name: extra for name, member in cls.__members__.items() if (extra := _member_extras(member))}
        if extras:
            state["members"] = extras
        options = {"boundary": boundary} if (boundary := vars(cls).get("_boundary_")) is not None else {}
        arguments = (identity, metaclass, cls.__name__, bases, namespace, members, options)
        return restore.make_enum, arguments, state, None, None, restore.fill_class
    if isinstance(cls, abc.ABCMeta):
        registered = _registered(cls)
        if registered:
            state["registered"] = registered
        if vars(cls).get("__abstractmethods__"):
            state["abstract"] = sorted(vars(cls)["__abstractmethods__"])
    return restore.make_class, (identity, metaclass, cls.__name__, bases, namespace), state, None, None, restore.fill_class


def _identity(cls: type, pickler: Any) -> str:
    if pickler.canonical:
        return f"{cls.__module__}:{cls.__qualname__}"
    known = restore.identities.identity_of(cls)
    if known is None:
        from .digests import content_digest

        content = content_digest(cls, pickler.registry)
        known = restore.identities.remember(cls, f"{cls.__module__}:{cls.__qualname__}:{content[:24]}")
    restore.mark_complete(cls)
    return known


def _plain_value(member: enum.Enum) -> Any:
    return member._value_


def _member_extras(member: enum.Enum) -> dict[str, Any]:
    own = {"_value_", "_name_", "__objclass__", "_sort_order_", "_inverted_"}
    return {name: value for name, value in vars(member).items() if name not in own}


_MADE_BY_TYPE: Final = frozenset({"__dict__", "__weakref__", "__module__", "__qualname__", "__slots__", "_abc_impl", "__abstractmethods__",
                                 "__orig_bases__"})  # fmt: skip


def _class_attributes(cls: type) -> dict[str, Any]:
    slots = {name for name, value in vars(cls).items() if isinstance(value, types.MemberDescriptorType)}
    is_enum = isinstance(cls, enum.EnumMeta)
    members = set(cls.__members__) if is_enum else set()  # type: ignore[attr-defined]
    attributes: dict[str, Any] = {}
    for name, value in vars(cls).items():
        if name in _MADE_BY_TYPE or name in slots or name in members:
            continue
        if is_enum and (re.fullmatch(r"_[a-z]\w*_|__(new|format|str|repr|reduce_ex|dir|hash)__", name)):
            if name.startswith("_") and not name.startswith("__"):
                continue
            if not isinstance(value, types.FunctionType) or importable(value.__module__ or ""):
                continue  # put there by the metaclass
        if name == "__static_attributes__":
            value = tuple(sorted(value))  # 3.13 collects them in a set
        attributes[name] = Sorted(value) if type(value) is frozenset else value
    if "__doc__" in attributes and attributes["__doc__"] is None:
        del attributes["__doc__"]
    return attributes


def _registered(cls: type) -> list[type]:
    import _abc  # type: ignore[import-not-found]

    try:
        references = _abc._get_dump(cls)[0]
    except Exception:
        return []
    found = [ref() for ref in references]
    return sorted((c for c in found if c is not None), key=lambda c: (c.__module__, c.__qualname__))


def reduce_type_variable(variable: Any, pickler: Any) -> Any:
    """A type variable by its name, else by value."""
    reference = find(variable, everywhere=False)
    if reference is not None and not reference.path:
        return reference.qualname if reference.module == variable.__module__ else NotImplemented
    module = getattr(variable, "__module__", None)
    loaded = sys.modules.get(module or "")
    name = variable.__name__
    if loaded is not None and importable(module) and not pickled_by_value(module) and static_vars(loaded).get(name) is variable:
        return name
    kind = type(variable).__name__
    options: dict[str, Any] = {}
    arguments: tuple[Any, ...] = ()
    if kind == "TypeVar":
        arguments = variable.__constraints__
        options["bound"] = variable.__bound__
    if kind in ("TypeVar", "ParamSpec"):
        options.update(covariant=variable.__covariant__, contravariant=variable.__contravariant__)
        if kind == "TypeVar" and getattr(variable, "__infer_variance__", False):
            options["infer_variance"] = True
    identity = f"{module}:{name}:{kind}:{arguments!r}:{sorted(options.items())!r}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:24]
    known = restore.identities.identity_of(variable) or restore.identities.remember(variable, f"{module}:{name}:{digest}")
    return restore.make_type_variable, (known, kind, name, arguments, options)


# -- modules -------------------------------------------------------------------------------------------------------------------


def reduce_module(module: types.ModuleType, pickler: Any) -> tuple[Any, ...]:
    """A module by its name, if an import finds it, else by value."""
    name = module.__name__
    if sys.modules.get(name) is module and (name == "__main__" or importable(name)):
        return restore.submodule, (name,)
    if getattr(module, "__spec__", None) is not None and getattr(module, "__file__", None) is None and importable(name):
        return restore.submodule, (name,)
    state = {k: v for k, v in vars(module).items() if k not in ("__builtins__", "__spec__", "__loader__", "__name__", "__doc__")}
    return restore.make_module, (name, module.__doc__), state, None, None, restore.fill_module


def iter_type_variable_kinds() -> Iterator[type]:
    """The types of type variables in this Python."""
    for name in ("TypeVar", "ParamSpec", "TypeVarTuple"):
        kind = getattr(typing, name, None)
        if kind is not None:
            yield kind
