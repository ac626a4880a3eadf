"""How do functions, methods and modules travel that no name leads to?

By value: their code, the globals that they use and nothing else, their cells (shared cells stay shared), and their
**source text** with its first line, so that ``inspect.getsource``, tracebacks, ``@triton.jit`` and AutoGraph work where
they are loaded. Everything is written in a stable order and without random ids: equal programs write equal bytes.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from . import restore
from .references import Reference, find, importable, pickled_by_value, static_vars
from .texts import CodeCache, source_of

__all__ = [
    "ByValue",
    "Sorted",
    "function_by_value",
    "function_reference",
    "global_names",
    "reduce_cell",
    "reduce_code",
    "reduce_function",
    "reduce_method",
    "reduce_module",
    "reduce_property",
    "reduce_wrapped",
    "source_of",
]

_MAIN: Final = frozenset({"__main__", "__mp_main__"})
_GLOBAL_OPS: Final = frozenset({"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"})
#: In every namespace, or made again where it is loaded.
_GIVEN: Final = frozenset({"__builtins__", "__name__", "__package__"})


class ByValue:
    """What one run of a pickler must remember about things by value: namespaces and cells that several functions share.

    Args:
        unordered: leave sets as they are: whoever reads them gives them an order.
    """

    def __init__(self, *, unordered: bool = False) -> None:
        self._unordered = unordered
        self._sorted: dict[int, Sorted] = {}
        self._reordered: dict[int, tuple[Any, Any]] = {}
        self._looks = _LOOKS
        self._namespaces: dict[int, tuple[dict[str, Any], Any]] = {}
        self._cells: dict[int, types.CellType] = {}
        self._submodules: dict[str, list[tuple[frozenset[str], types.ModuleType]]] = {}
        #: What the owner of a function knows better than ``inspect`` does: id -> (function, text, first line,
        #: the owner's identity).
        self.texts: dict[int, tuple[Any, str, int, str | None]] = {}
        self._kept: list[Any] = []

    def namespace(self, variables: dict[str, Any]) -> Any:
        """The stand-in for the globals of a function; one for all functions of a module."""
        entry = self._namespaces.get(id(variables))
        if entry is None:
            entry = self._namespaces[id(variables)] = (variables, _stand_in(variables))
        return entry[1]

    def claim(self, cell: types.CellType) -> bool:
        """True for the first who asks: the contents of a cell are written once."""
        if id(cell) in self._cells:
            return False
        self._cells[id(cell)] = cell
        return True

    def in_order(self, read: Callable[[], Any], depth: int = 0) -> Any:
        """What ``read`` returns; a set that only its holder has is replaced by one that is written in order.

        The pickler writes a set itself, in the order of its table. A stand-in is another object to it: what else holds
        the set would get another set. The same goes for a small container with such a set in it.
        """
        value = read()
        cls = type(value)
        if self._unordered:
            return value
        if cls in (dict, list, tuple):
            alone = _holders(read) == _ONE_HOLDER + 1
            return self._with_sets_in_order(value, depth) if alone or id(value) in self._reordered else value
        if cls not in (set, frozenset):
            return value
        known = self._sorted.get(id(value))
        if known is None and (type(value) is frozenset or _holders(read) == _ONE_HOLDER + 1):
            known = self._sorted[id(value)] = Sorted(value)  # which holds it too
        return value if known is None else known

    def _with_sets_in_order(self, container: Any, depth: int) -> Any:
        """A container that only its holder has, made again if sets in it are replaced."""
        known = self._reordered.get(id(container))
        if known is not None:
            return known[1]
        if depth == _SHALLOW or not 0 < len(container) <= self._looks:
            return container
        self._looks -= len(container)
        keys: Iterable[Any] = list(container) if type(container) is dict else range(len(container))
        parts = [self.in_order(lambda: container[key], depth + 1) for key in keys]  # noqa: B023
        if all(part is container[key] for key, part in zip(keys, parts, strict=True)):
            return container
        made: Any = dict(zip(keys, parts, strict=True)) if type(container) is dict else type(container)(parts)
        self._reordered[id(container)] = (container, made)
        return made

    def submodules(self, package: str) -> list[tuple[frozenset[str], types.ModuleType]]:
        """The imported modules below a package, with the names that lead there."""
        known = self._submodules.get(package)
        if known is None:
            prefix = package + "."
            found = [
                (frozenset(name[len(prefix) :].split(".")), module)
                for name, module in sorted(sys.modules.copy().items())
                if name.startswith(prefix) and isinstance(module, types.ModuleType)
            ]
            known = self._submodules[package] = found
        return known

    def keep(self, obj: Any) -> Any:
        """Keep a temporary alive until the end: the pickler's memo knows objects by their ids."""
        self._kept.append(obj)
        return obj


class Namespace:
    """Stands for the globals of a script or a module while pickling; becomes a dictionary on loading."""

    def __init__(self, names: tuple[Any, Any]) -> None:
        self._names = names

    def __reduce__(self) -> tuple[Any, ...]:
        return restore.make_namespace, self._names


class ModuleNamespace:
    """Stands for the globals of a module that was made on the fly: with the module in the pickle, they stay its own."""

    def __init__(self, name: str, doc: str | None) -> None:
        self.module = BareModule(name, doc)

    def __reduce__(self) -> tuple[Any, ...]:
        return restore.module_namespace, (self.module,)


class BareModule:
    """Stands for a module without its contents."""

    def __init__(self, name: str, doc: str | None) -> None:
        self._arguments = (name, doc)

    def __reduce__(self) -> tuple[Any, ...]:
        return restore.make_module, self._arguments


def _stand_in(variables: dict[str, Any]) -> Any:
    name = variables.get("__name__")
    if (
        isinstance(name, str) and name not in _MAIN and "__doc__" in variables
    ):  # else they are no module's, or were restored
        module = sys.modules.get(name)
        if static_vars(module) is not variables or not importable(name) or pickled_by_value(name):
            doc = variables.get("__doc__")
            return ModuleNamespace(interned(name), doc if isinstance(doc, str) else None)
    return Namespace((home(name), interned(variables.get("__package__")) or None))


def home(name: Any) -> Any:
    """The name of a module; a worker that multiprocessing has started calls the main script something else."""
    return "__main__" if name == "__mp_main__" else interned(name)


def interned(value: Any) -> Any:
    """The one object for all strings that are equal to this one.

    The pickler writes a string once and refers to it, if it is the same *object*: without this, bytes would depend on
    where a name came from.
    """
    return sys.intern(value) if type(value) is str else value


# -- sets in a stable order --------------------------------------------------------------------------------------------


class Sorted:
    """A set or frozenset in an order that does not depend on the hash seed."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self._values), (sorted(self._values, key=_order),)


def _order(value: Any) -> tuple[str, str]:
    if type(value) in (str, bytes, int, float, bool, type(None)):
        return type(value).__name__, repr(value)
    from .digests import content_digest
    from .registry import default_registry

    try:
        return type(value).__name__, content_digest(value, default_registry)
    except Exception:
        return type(value).__name__, ""


def _holders(read: Callable[[], Any]) -> int:
    return sys.getrefcount(read())


def _count_for_one_holder() -> int:
    holder = {"key": set[int]()}
    return _holders(lambda: holder["key"])


_ONE_HOLDER: Final = _count_for_one_holder()

#: How deep to look for sets in containers, and at how many parts: beyond that it is data and not a table of options.
_SHALLOW: Final = 10
_LOOKS: Final = 10_000


# -- code --------------------------------------------------------------------------------------------------------------


def reduce_code(code: types.CodeType, pickler: Any = None) -> tuple[Any, ...]:
    """A code object as the arguments of its constructor, stamped with the version of Python that can run it."""
    canonical = pickler is not None and pickler.canonical
    constants: tuple[Any, ...] = code.co_consts if canonical else tuple(map(_constant, code.co_consts))
    # Strings are interned, so that equal ones are one object whether the code was compiled or read from a file.
    head = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_nlocals, code.co_stacksize,
            code.co_flags, code.co_code, constants, _interned(code.co_names), _interned(code.co_varnames))  # fmt: skip
    name = sys.intern(code.co_name)
    tail: tuple[Any, ...] = ()
    if sys.version_info >= (3, 11):
        name_and_qualname: tuple[Any, ...] = (name, sys.intern(code.co_qualname))
        tail = (code.co_exceptiontable,)
    else:
        name_and_qualname = (name,)
    place: tuple[Any, ...] = (code.co_firstlineno, code.co_linetable)
    filename: tuple[Any, ...] = (sys.intern(code.co_filename),)
    if canonical:  # where it was written is not what it is
        place, filename = (), ()
    variables = (_interned(code.co_freevars), _interned(code.co_cellvars))
    return restore.make_code, (
        sys.implementation.cache_tag,
        *head,
        *filename,
        *name_and_qualname,
        *place,
        *tail,
        *variables,
    )


def _interned(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(sys.intern, names))


def _constant(value: Any) -> Any:
    if type(value) is frozenset:
        return Sorted(frozenset(_constant(v) for v in value) if any(type(v) is frozenset for v in value) else value)
    if type(value) is tuple and any(type(v) in (frozenset, tuple) for v in value):
        return tuple(_constant(v) for v in value)
    return interned(value)


_global_names: CodeCache[tuple[str, ...]] = CodeCache()


def global_names(code: types.CodeType) -> tuple[str, ...]:
    """The globals that the code and the code inside it read or write, in the order of their first use."""
    return _global_names.get(code, lambda code: tuple(dict.fromkeys(_names_in(code))))


def _names_in(code: types.CodeType) -> Iterator[str]:
    stored: set[str] = set()
    straight = not getattr(code, "co_exceptiontable", b"")  # an error may jump from anywhere to where that says (3.11)
    for instruction in dis.get_instructions(code):
        operation, name = instruction.opname, instruction.argval
        if operation in _GLOBAL_OPS:
            yield name
        elif operation == "LOAD_NAME" and name not in stored:
            yield name  # in the body of a class, or of a text that was executed
        elif operation == "STORE_NAME" and straight:
            stored.add(name)
        elif operation == "DELETE_NAME":
            stored.discard(name)
        elif "JUMP" in operation or operation.startswith(("FOR_", "SETUP_")) or instruction.is_jump_target:
            straight = False  # from here on a name may be bound or not
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


_attribute_names: CodeCache[frozenset[str]] = CodeCache()


def _all_names(code: types.CodeType) -> frozenset[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _all_names(constant)
    return frozenset(names)


def _used_submodules(code: types.CodeType, values: list[Any], context: ByValue) -> list[types.ModuleType]:
    """Submodules that the code reaches as attributes of a package: elsewhere ``import a`` would not bring ``a.b``."""
    found: dict[str, types.ModuleType] = {}
    for value in values:
        if not isinstance(value, types.ModuleType):
            continue
        variables = static_vars(value)
        package = variables.get("__name__")
        if "__path__" not in variables or not isinstance(package, str):
            continue
        names = _attribute_names.get(code, _all_names)
        found.update((module.__name__, module) for needed, module in context.submodules(package) if needed <= names)
    return [found[name] for name in sorted(found)]


# -- functions ---------------------------------------------------------------------------------------------------------


def function_reference(function: types.FunctionType) -> Reference | None:
    """The name under which a function travels: one in the module that it names, or one below what took its place."""
    reference = find(function, everywhere=False)
    return reference if reference is not None and (reference.path or reference.module == function.__module__) else None


def reduce_function(function: types.FunctionType, pickler: Any) -> Any:
    """A function by its name, by that of what took its place (``kernel.fn``), as its library says, else by value."""
    reference = function_reference(function)
    if reference is not None and reference.path:
        return restore.function, tuple(reference)
    if reference is not None:
        # Under its own name the pickler writes the global itself.
        return NotImplemented if reference.qualname == function.__qualname__ else reference.qualname
    owned = _owned(function)
    if owned is not None:
        return restore.class_attribute, owned
    rule = pickler.registry.function_rule(function)
    reduced = rule.reduce(function) if rule is not None else NotImplemented
    return function_by_value(function, pickler) if reduced is NotImplemented else reduced


_PARTS: Final = {
    property: ("fget", "fset", "fdel"),
    classmethod: ("__func__",),
    staticmethod: ("__func__",),
    functools.cached_property: ("func",),
}


def _owned(function: Any) -> tuple[Any, ...] | None:
    """Class, name and part, where a function is inside a property or a class method of an importable class."""
    owner = _importable_owner(function)
    if owner is None:
        return None
    name = function.__qualname__.rpartition(".")[2]
    holder = vars(owner).get(name)
    if holder is function:  # its name leads elsewhere: the metaclass has one
        return owner, name
    for part in _PARTS.get(type(holder), ()):
        if getattr(holder, part) is function:
            return owner, name, part
    return None


def _importable_owner(function: Any) -> type | None:
    """The class in whose body a function was written, if a name leads to it."""
    owner_name = function.__qualname__.rpartition(".")[0] if type(function) is types.FunctionType else ""
    module = function.__module__ if owner_name else None
    if not isinstance(module, str) or not importable(module) or pickled_by_value(module):
        return None
    found: Any = sys.modules.get(module)
    for part in owner_name.split("."):
        found = vars(found).get(part) if isinstance(found, (types.ModuleType, type)) else None
    if not isinstance(found, type) or find(found, everywhere=False) is None:
        return None
    return found


_moved: CodeCache[tuple[types.CodeType, tuple[str, str, int] | None]] = CodeCache()


def _travelling(function: types.FunctionType) -> tuple[types.CodeType, tuple[str, str, int] | None]:
    """The code and the text as they travel: under a file name that is made from the text."""
    return _moved.get(function.__code__, lambda code: _move(function, source_of(function)))


def _move(
    function: types.FunctionType, text: tuple[str, int] | None
) -> tuple[types.CodeType, tuple[str, str, int] | None]:
    code = function.__code__
    if text is None:
        # Not its own file's name: what is there, or will be there where it is loaded, is not the text of this function.
        filename = code.co_filename if code.co_filename == "<string>" else f"<safepickle {code.co_name.strip('<>')}>"
        return restore.renamed(code, filename), None
    filename = interned(restore.source_file(function, *text))
    return restore.renamed(code, filename), (filename, *text)


def function_by_value(function: types.FunctionType, pickler: Any) -> tuple[Any, ...]:
    """Code, globals in use, cells, attributes and source text."""
    context: ByValue = pickler.by_value
    override = context.texts.get(id(function))
    owner = None
    if override is not None and override[0] is function:
        code, source = _move(function, (override[1], override[2]))
        owner = override[3]
        context.keep(code)
    elif pickler.canonical:
        code, source = function.__code__, None
    else:
        code, source = _travelling(function)
    cells = function.__closure__
    fresh = [cell for cell in cells or () if context.claim(cell)]
    namespace = context.namespace(function.__globals__)
    arguments = (code, namespace, interned(function.__name__), cells, source, *([owner] if owner else []))
    return (
        restore.make_function,
        arguments,
        _function_state(function, fresh, context),
        None,
        None,
        restore.fill_function,
    )


def _function_state(function: types.FunctionType, cells: list[types.CellType], context: ByValue) -> dict[str, Any]:
    code = function.__code__
    available = function.__globals__
    names = [name for name in global_names(code) if name in available and name not in _GIVEN]
    used = {interned(name): context.in_order(lambda: available[name]) for name in names}  # noqa: B023
    contents = [(cell, context.in_order(lambda: cell.cell_contents)) for cell in cells if _is_set(cell)]  # noqa: B023
    state: dict[str, Any] = {"globals": used, "cells": contents}
    modules = _used_submodules(code, [*used.values(), *(value for _, value in contents)], context)
    if modules:
        state["modules"] = modules
    if function.__dict__:
        attributes = function.__dict__
        state["vars"] = {name: context.in_order(lambda: attributes[name]) for name in attributes}  # noqa: B023
    values: tuple[tuple[str, Any, Any], ...] = (
        ("qualname", interned(function.__qualname__), getattr(code, "co_qualname", function.__name__)),
        ("module", home(function.__module__), home(available.get("__name__"))),
        ("doc", function.__doc__, _own_doc(code)),
        ("defaults", _defaults(function, context), None),
        ("kwdefaults", _keyword_defaults(function, context), None),
        ("annotations", _annotations(function), {}),
        ("type_params", getattr(function, "__type_params__", ()), ()),
    )
    state.update(
        (name, value) for name, value, default in values if value is not default and not _is_equal(value, default)
    )
    return state


def _defaults(function: types.FunctionType, context: ByValue) -> tuple[Any, ...] | None:
    values: Any = function.__defaults__
    return values and tuple([context.in_order(lambda: values[i]) for i in range(len(values))])  # noqa: B023


def _keyword_defaults(function: types.FunctionType, context: ByValue) -> dict[str, Any] | None:
    values: Any = function.__kwdefaults__
    return values and {interned(name): context.in_order(lambda: values[name]) for name in values}  # noqa: B023


def _is_equal(value: Any, default: Any) -> bool:
    return (
        type(value) is type(default)
        and type(value) in (str, dict, tuple)
        and len(value) == len(default)
        and value == default
    )


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


# -- methods and descriptors -------------------------------------------------------------------------------------------


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


def reduce_property(prop: property, pickler: Any = None) -> tuple[Any, ...]:
    """A property by the name of an importable class that has it, else as its functions."""
    owned = _owned_descriptor(prop, prop.fget)
    return (restore.class_attribute, owned) if owned else (property, (prop.fget, prop.fset, prop.fdel, prop.__doc__))


def reduce_wrapped(wrapper: Any, pickler: Any = None) -> tuple[Any, ...]:
    """A static or class method by the name of an importable class that has it, else as what it wraps."""
    owned = _owned_descriptor(wrapper, wrapper.__func__)
    return (restore.class_attribute, owned) if owned else (type(wrapper), (wrapper.__func__,))


def _owned_descriptor(descriptor: Any, function: Any) -> tuple[type, str] | None:
    owner = _importable_owner(function)
    name = function.__qualname__.rpartition(".")[2] if owner is not None else ""
    return (owner, name) if owner is not None and vars(owner).get(name) is descriptor else None


# -- modules -----------------------------------------------------------------------------------------------------------

_NOT_CONTENTS: Final = frozenset({"__builtins__", "__spec__", "__loader__", "__name__", "__doc__"})


def reduce_module(module: types.ModuleType, pickler: Any) -> tuple[Any, ...]:
    """A module by its name, if an import finds it, else by value."""
    name = static_vars(module).get("__name__")
    if not isinstance(name, str):
        name = module.__name__
    if name in _MAIN and sys.modules.get(name) is module:
        return restore.submodule, ("__main__",)
    if not pickled_by_value(name):
        if _is_imported(module, name):
            return restore.submodule, (name,)
        holder = _holder_of(module, name)
        if holder is not None:
            return restore.module_attribute, holder
    variables = static_vars(module)
    context: ByValue = pickler.by_value
    stand_in = context.namespace(variables)
    bare = (
        stand_in.module
        if isinstance(stand_in, ModuleNamespace)
        else context.keep(BareModule(interned(name), module.__doc__))
    )
    contents = {interned(key): value for key, value in variables.items() if key not in _NOT_CONTENTS}
    cls = None if type(module) is types.ModuleType else type(module)
    return restore.same_module, (bare,), (cls, contents), None, None, restore.fill_module


def _is_imported(module: types.ModuleType, name: str) -> bool:
    """Whether an import of that name gives this module, or one that is as good."""
    if not importable(name):
        return False
    here = sys.modules.get(name)
    if here is module or type(module) is not types.ModuleType:  # a lazy stand-in of a class of its own
        return True
    file = static_vars(module).get("__file__")  # imported, thrown out of sys.modules and imported again
    return isinstance(file, str) and static_vars(here).get("__file__") == file and module.__spec__ is not None


def _holder_of(module: types.ModuleType, name: str) -> tuple[str, str] | None:
    """The importable module, and the name in it, that holds a lazy module which is not imported under its own name."""
    parent, _, leaf = name.rpartition(".")
    if (
        type(module) is not types.ModuleType
        and importable(parent)
        and static_vars(sys.modules[parent]).get(leaf) is module
    ):
        return parent, leaf
    return None
