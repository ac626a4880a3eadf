"""What does a pickle call when it is loaded?

Every function that ``safepickle.dumps`` writes a call to is here, and nothing else. They are small, check the types of their arguments,
never call what a name resolves to, and take no nested pickle. They are a file format: a function here is never renamed and its
arguments never change their meaning (``tests/golden`` keeps files of every release). Libraries are imported inside the functions.
"""

from __future__ import annotations

import abc
import builtins
import collections
import contextlib
import contextvars
import enum
import functools
import hashlib
import importlib
import inspect
import io
import linecache
import math
import operator
import os
import re
import sys
import threading
import types
import typing
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from .errors import UnpicklingError
from .references import load, names_of_parts, static_vars, walk

__all__ = [
    "bind_method",
    "bound_classmethod",
    "builtin_type",
    "class_attribute",
    "enum_member",
    "fill_cell",
    "fill_class",
    "fill_function",
    "fill_module",
    "function",
    "make_cell",
    "make_class",
    "make_code",
    "make_enum",
    "make_error",
    "make_function",
    "make_module",
    "make_named_tuple",
    "make_namespace",
    "make_new_type",
    "make_type_alias",
    "make_type_variable",
    "module_attribute",
    "module_namespace",
    "same_module",
    "sentinel",
    "submodule",
    "torch_parameter",
    "torch_storage",
    "torch_tensor",
    "torch_typed_storage",
    "torch_uninitialized",
    "fill_torch_optimizer",
    "fill_torch_parametrized",
    "fill_torch_tensor",
    "torch_event",
    "torch_generator",
    "torch_mkldnn",
    "torch_weak_keys",
    "fill_torch_weak_keys",
    "torch_parametrized",
    "torch_process_group",
    "torch_stream",
    "fill_torch_module",
    "fill_torch_optimized_module",
    "torch_compile",
    "torch_compiled",
    "torch_compiler",
    "torch_config_patch",
    "torch_disable",
    "torch_run_compiled",
    "fill_torch_script_module",
    "torch_script_function",
    "torch_script_function_named",
    "torch_script_method",
    "torch_script_module",
    "torch_traced_function",
    "fill_torch_exported_program",
    "fill_torch_fx_graph",
    "fill_torch_graph_module",
    "torch_exported_program",
    "torch_fake_mode",
    "torch_fake_tensor",
    "torch_fx_graph",
    "torch_fx_node",
    "torch_graph_module",
    "torch_custom_op",
    "torch_custom_op_named",
    "torch_higher_order_operator",
    "torch_library",
    "torch_namespace",
    "torch_operator",
    "torch_triton_op",
    "torch_wrapped_kernel",
    "torch_wrapped_kernel_named",
    "tf_tensor",
    "tf_variable",
    "tf_default_strategy",
    "tf_context",
    "tf_static_table",
    "tf_table",
    "tf_dataset",
    "tf_function_by_name",
    "tf_function",
    "fill_tf_function",
    "tf_method",
    "tf_concrete_function",
    "initialize",
    "make_local",
    "make_simple_queue",
    "fill_simple_queue",
    "make_weak_reference",
    "make_weak_method",
    "make_weak_proxy",
    "make_finalizer",
    "fill_weak_mapping",
    "fill_weak_set",
    "context_variable",
    "make_context_variable",
    "fill_context",
    "make_view",
    "make_memoryview",
    "released_memoryview",
    "class_namespace",
    "make_property",
    "make_static_or_class_method",
    "function_cache",
    "make_function_cache",
    "make_dispatcher",
    "fill_dispatcher",
    "make_match",
    "standard_stream",
    "open_raw_file",
    "make_buffered_file",
    "make_text_file",
    "closed_file",
    "open_compressed_file",
    "make_exception",
    "fill_exception",
    "keras_object",
    "fill_keras_object",
    "keras_tensor",
    "fill_keras_tensor",
    "keras_node",
    "fill_keras_node",
    "keras_tracker",
    "fill_keras_tracker",
    "keras_container",
    "fill_keras_container",
    "builtin_descriptor",
    "fill_codecs_stream",
    "fill_exception_origin",
    "h5py_file",
    "h5py_object",
]


def _check(value: Any, kind: type | tuple[type, ...], what: str) -> None:
    if not isinstance(value, kind):
        names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise UnpicklingError(f"malformed pickle: {what} must be {names}, not {type(value).__qualname__}")


# -- names -------------------------------------------------------------------------------------------------------------------


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
    """The undecorated Python function below the object that took its name: ``kernel.fn``, ``step.python_function``, ``f.__wrapped__``."""
    found = resolve(module, qualname, path)
    if not path or type(found) is not types.FunctionType:
        raise UnpicklingError(
            f"the reference {module}:{qualname} with path {path!r} leads to a {type(found).__qualname__}, not to a function below "
            "a decorated one"
        )
    return found


def stand_in(module: str, qualname: str, path: tuple[str, ...]) -> Any:
    """The object that took the place of the function of that name: it holds that function, or a kernel of it."""
    found = resolve(module, qualname, path)
    if path or (module, qualname) not in names_of_parts(found):
        raise UnpicklingError(
            f"the reference {module}:{qualname} leads to a {type(found).__qualname__} that does not hold the function of that name"
        )
    return found


def class_attribute(cls: type, name: str, part: str = "") -> Any:
    """What a class has under that name in its own dictionary, or a part of it: the getter of a property, the function of a class method."""
    _check(cls, type, "the owner of an attribute")
    _check(name, str, "the name of an attribute")
    _check(part, str, "the name of a part")
    found = vars(cls).get(name)
    if part:
        found = getattr(found, part, None) if isinstance(found, _DESCRIPTORS) and part in _DESCRIPTOR_PARTS else None
    if not isinstance(found, (types.FunctionType, *_DESCRIPTORS)):
        raise UnpicklingError(
            f"{cls.__module__}:{cls.__qualname__} has no method or property {name!r}{part and f' with a {part}'} of its own here"
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


# -- source text of functions that travel by value ------------------------------------------------------------------------------


#: File name -> text and first line of what came in pickles, so that it can go on from here with its text.
texts: dict[str, tuple[str, int]] = {}


def source_file(function: types.FunctionType, text: str, first_line: int) -> str:
    """The name of the file that a function by value comes from: made from its text, so that equal texts are one file."""
    digest = hashlib.sha256(f"{first_line}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"<safepickle {function.__code__.co_name.strip('<>')} {digest}>"


def renamed(code: types.CodeType, filename: str) -> types.CodeType:
    """The code, and the code inside it, as if it came from that file."""
    constants = tuple(renamed(c, filename) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=filename, co_consts=constants)


class Lines(list[str]):
    """The lines of a function under their original numbers: blank ones in front, which take no memory."""

    def __init__(self, text: str, first_line: int) -> None:
        super().__init__(text.splitlines(keepends=True))
        self._blank = max(first_line - 1, 0)

    def __len__(self) -> int:
        return self._blank + super().__len__()

    def __iter__(self) -> Iterator[str]:
        yield from ("\n" for _ in range(self._blank))
        yield from super().__iter__()

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = operator.index(index)
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError("list index out of range")
        return "\n" if position < self._blank else super().__getitem__(position - self._blank)


def register_source(filename: str, text: str, first_line: int) -> None:
    """Make the text known to ``linecache``, so that ``inspect.getsource``, tracebacks and ``@triton.jit`` find it."""
    for value, kind in ((filename, str), (text, str), (first_line, int)):
        _check(value, kind, "a part of a source text")
    if not filename.startswith("<safepickle "):
        raise UnpicklingError(f"malformed pickle: {filename!r} is not the name of a text that came in a pickle")
    texts.setdefault(filename, (text, first_line))
    if filename not in linecache.cache:
        # A modification time of None survives linecache.checkcache.
        linecache.cache[filename] = (len(text), None, Lines(text, first_line), filename)


# -- functions and code by value --------------------------------------------------------------------------------------------------


def make_code(tag: str, *arguments: Any) -> types.CodeType:
    """A code object, if it was written by this very version of Python: byte code of another one crashes the interpreter."""
    _check_version(tag, "function")
    return types.CodeType(*arguments)


def _check_version(tag: str, what: str) -> None:
    _check(tag, str, "a version of Python")
    here = sys.implementation.cache_tag
    if tag != here:
        raise UnpicklingError(
            f"this pickle holds a {what} by value, which was written by Python {_readable(tag)} and cannot run under "
            f"Python {_readable(str(here))}: load it with the former, or put the {what} into a module so that it goes by "
            "reference"
        )


def _readable(tag: str) -> str:
    name, _, digits = tag.partition("-")
    version = f"{digits[0]}.{digits[1:]}" if digits.isdigit() else digits
    return f"{version} ({name})" if name != "cpython" else version


def make_namespace(name: str | None, package: str | None) -> dict[str, Any]:
    """The globals of functions that came from one module, to be filled with those that they use."""
    return {"__name__": name, "__package__": package, "__builtins__": builtins}


def module_namespace(module: types.ModuleType) -> dict[str, Any]:
    """The dictionary of a module that was made on the fly: the globals of its functions."""
    _check(module, types.ModuleType, "a module")
    return module.__dict__


def make_cell() -> types.CellType:
    """An empty cell; :func:`fill_cell` or :func:`fill_function` puts the value in."""
    return types.CellType()


def fill_cell(cell: types.CellType, value: tuple[Any, ...]) -> None:
    """Put the value into a cell."""
    _check(cell, types.CellType, "a cell")
    if value:
        cell.cell_contents = value[0]


#: The attribute of what is made and not filled yet: a list of what waits until it is.
_UNFINISHED = "__safepickle_unfinished__"


def make_function(
    code: types.CodeType,
    namespace: dict[str, Any],
    name: str,
    closure: tuple[types.CellType, ...] | None,
    source: tuple[str, str, int] | None,
    owner: str | None = None,
) -> types.FunctionType:
    """A function with its code, an empty closure and no attributes; :func:`fill_function` brings the rest.

    Where the kernel of identity ``owner`` lives here, it is the function of that kernel.
    """
    _check(code, types.CodeType, "code")
    _check(namespace, dict, "a namespace")
    living = None if owner is None else static_vars(identities.object_of(owner)).get("fn")
    if type(living) is types.FunctionType:
        return living
    if source is not None:
        register_source(*source)
    made = types.FunctionType(code, namespace, name, None, closure)
    made.__dict__[_UNFINISHED] = []
    return made


def fill_function(function: types.FunctionType, state: dict[str, Any]) -> None:
    """Give a function its globals, cell contents, defaults and attributes, unless it has them."""
    _check(function, types.FunctionType, "a function")
    waiting = function.__dict__.pop(_UNFINISHED, None)
    if waiting is None:
        return
    for name, value in state.pop("globals").items():
        function.__globals__.setdefault(name, value)
    for cell, value in state.pop("cells"):
        cell.cell_contents = value
    state.pop("modules", None)
    for name, value in state.pop("vars", {}).items():
        function.__dict__[name] = value
    for name, value in state.items():
        setattr(function, _FUNCTION_STATE[name], value)
    for finish in waiting:
        finish()


_FUNCTION_STATE = {
    name: f"__{name}__" for name in ("qualname", "module", "doc", "defaults", "kwdefaults", "annotations", "type_params")
}


# -- objects by value that must stay one object --------------------------------------------------------------------------------------


class Identities:
    """Which living object has this identity, and which identity has this object?

    An identity is made from content, never at random, so that equal programs write equal bytes. Loading what this process
    knows gives the living object: the class at home, the kernel that is compiled already. Nothing is kept alive or hashed.
    """

    def __init__(self) -> None:
        self._objects: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self.lock = threading.RLock()

    def object_of(self, identity: str) -> Any | None:
        """The living object of that identity."""
        return self._objects.get(identity)

    def identity_of(self, obj: Any) -> str | None:
        """The identity under which the object was pickled or loaded here before."""
        entry = self._names.get(id(obj))
        return entry[1] if entry is not None and entry[0]() is obj else None

    def remember(self, obj: Any, identity: str) -> str:
        """Give an object its identity; one that is taken by another living object gets a number behind it."""
        with self.lock:
            number, unique = 0, identity
            while self._objects.get(unique, obj) is not obj:
                number += 1
                unique = f"{identity}-{number}"
            key, names = id(obj), self._names
            self._objects[unique] = obj
            names[key] = (weakref.ref(obj, lambda _: names.pop(key, None)), unique)
            return unique


#: Classes, type variables, kernels and compiled functions that travelled by value.
identities = Identities()

#: Classes that have their attributes; by id, because a metaclass may have its own idea of what is equal.
_complete: dict[int, weakref.ref[type]] = {}


def mark_complete(cls: type) -> None:
    """This class has its attributes: loading it must not set them again."""
    key = id(cls)
    _complete[key] = weakref.ref(cls, lambda ref: _complete.pop(key, None) if _complete.get(key) is ref else None)


def _is_complete(cls: type) -> bool:
    known = _complete.get(id(cls))
    return known is not None and known() is cls


def _living(identity: str, kind: type | tuple[type, ...]) -> Any:
    """The object of that identity that this process has: it came or went in a pickle, or the program here defines the very same."""
    _check(identity, str, "an identity")
    known = identities.object_of(identity)
    if known is None:
        known = _defined_here(identity, kind)
    return known if isinstance(known, kind) else None


def _named_here(identity: str, kind: type | tuple[type, ...]) -> Any:
    """What a module that is imported here has under the name in an identity."""
    module, _, rest = identity.partition(":")
    found: Any = sys.modules.get(module)
    for part in rest.partition(":")[0].split("."):
        if not isinstance(found, (types.ModuleType, type)):
            return None
        found = vars(found).get(part)
    return found if isinstance(found, kind) else None


def _defined_here(identity: str, kind: type | tuple[type, ...]) -> Any:
    """What a module that is imported here (``__main__``, mostly) has under the same name with the same content."""
    found = _named_here(identity, kind)
    if found is None or identities.identity_of(found) not in (None, identity):
        return None
    from .classes import identity_of

    try:
        return found if identity_of(found) == identity else None
    except Exception:  # it holds something that cannot be pickled, so it is not the one that was
        return None


def make_class(
    identity: str,
    metaclass: type | None,
    name: str,
    bases: tuple[type, ...],
    namespace: dict[str, Any],
    tag: str | None = None,
) -> type:
    """The class of that identity if this process knows it, else a new one without its attributes.

    Without a metaclass it gets that of its bases. ``tag`` is the version of Python that its methods need.

    A class travels with what making it has done to it, as an object does: neither the metaclass's own methods nor
    ``__init_subclass__`` are called again, which would ask for the arguments of the class statement and find a class without attributes.
    """
    if metaclass is None:
        metaclass = types.prepare_class(name, bases)[0]
    _check(metaclass, type, "a metaclass")
    with identities.lock:
        known = _living(identity, type)
        if known is not None:
            return known  # type: ignore[no-any-return]
        if tag is not None:
            _check_version(tag, "class")
        new = _native(metaclass, "__new__")
        made: type = _without_hooks(bases, lambda bases: new(metaclass, name, bases, dict(namespace)))
        _native(metaclass, "__init__")(made, name, bases, dict(namespace))
        if issubclass(metaclass, abc.ABCMeta):
            abc._abc_init(made)  # type: ignore[attr-defined]
        identities.remember(made, identity)
        return made


def _native(cls: type, name: str) -> Any:
    """The method that a class has from the most derived of its bases that is made in C."""
    for base in cls.__mro__:
        found = vars(base).get(name)
        if found is not None and not isinstance(found, (types.FunctionType, staticmethod, classmethod)):
            return found
    raise AttributeError(name)


def _without_hooks(bases: tuple[type, ...], make: Callable[[tuple[type, ...]], Any]) -> Any:
    """The class that ``make`` makes on these bases without a call of their ``__init_subclass__``."""
    if not any("__init_subclass__" in vars(c) for base in bases for c in base.__mro__ if c is not object):
        return make(bases)
    # One in front that answers instead, and is taken away again. Python allows that where the layout of instances stays the same.
    for model in (bases[0], object):
        try:
            made = make((_silent_base(model), *bases))
            type.__dict__["__bases__"].__set__(made, bases)
            return made
        except TypeError as error:
            problem = error
    raise problem


def _silent_base(base: type) -> type:
    """A class whose ``__init_subclass__`` does nothing and which adds the same to the same parent as ``base``."""
    top = base
    while top.__base__ is not None and _layout(top.__base__) == _layout(top):
        top = top.__base__
    parent = top.__base__ or object
    slots = tuple(
        name for name, offset in (("__dict__", "__dictoffset__"), ("__weakref__", "__weakrefoffset__"))
        if getattr(top, offset) and not getattr(parent, offset)
    )  # fmt: skip
    namespace: dict[str, Any] = {"__init_subclass__": classmethod(lambda cls, **options: None)}
    if set(slots) != _default_slots(parent):
        namespace["__slots__"] = slots
    new = _native(type(parent), "__new__")
    silent: type = _without_hooks((parent,), lambda bases: new(type(parent), "Silent", bases, namespace))
    return silent


def _default_slots(base: type) -> set[str]:
    """What a class without ``__slots__`` adds to this base."""
    added = {"__dict__"} if not base.__dictoffset__ else set()
    return added | ({"__weakref__"} if not base.__weakrefoffset__ and not base.__itemsize__ else set())


def _layout(cls: type) -> tuple[int, ...]:
    has_gc = cls.__flags__ & (1 << 14)
    return cls.__basicsize__, cls.__itemsize__, cls.__dictoffset__, cls.__weakrefoffset__, has_gc


class _Member:
    """What an enumeration's metaclass gets for the value of a member: how to make it, without the user's methods."""

    def __init__(self, value: Any, arguments: tuple[Any, ...]) -> None:
        self.value = value
        self.arguments = arguments


def _new_member(cls: Any, member: Any) -> Any:
    if type(member) is tuple:  # where the members are tuples
        member = member[0]
    made = _native(cls, "__new__")(cls, *member.arguments)
    made._value_ = member.value
    return made


def _init_member(self: Any, member: Any) -> None:
    """In place of a user's ``__init__``: what that did to the member is restored with its attributes."""


def make_enum(
    identity: str, metaclass: Any, name: str, bases: tuple[type, ...], namespace: dict[str, Any],
    members: list[tuple[str, Any, tuple[Any, ...]]], options: dict[str, Any], tag: str | None = None,
) -> type:  # fmt: skip
    """The enumeration of that identity, with its members: name, value and the arguments of its data type."""
    if metaclass is None:
        metaclass = types.prepare_class(name, bases)[0]
    if not (isinstance(metaclass, type) and issubclass(metaclass, enum.EnumMeta)):
        raise UnpicklingError(f"malformed pickle: {metaclass!r} is not the type of an enumeration")
    with identities.lock:
        known = _living(identity, enum.EnumMeta)
        if known is not None:
            return known  # type: ignore[no-any-return]
        if tag is not None:
            _check_version(tag, "class")
        prepare: Any = vars(enum.EnumMeta)["__prepare__"].__func__


        def make(real_bases: tuple[type, ...]) -> Any:
            body = prepare(metaclass, name, bases, **options)
            for key, value in namespace.items():
                body[key] = value
            body["__new__"], body["__init__"] = _new_member, _init_member
            for key, value, arguments in members:
                body[key] = _Member(value, arguments)
            return enum.EnumMeta.__new__(metaclass, name, real_bases, body, **options)

        made = _without_hooks(bases, make)
        type.__delattr__(made, "__init__")
        if "__new_member__" in vars(made):
            type.__delattr__(made, "__new_member__")
        kind: Any = metaclass
        if "_new_member_" in vars(made):  # since 3.11: what flags make their combinations with
            own, _, use_arguments = kind._find_new_({}, *kind._get_mixins_(name, bases))
            type.__setattr__(made, "_new_member_", own)
            type.__setattr__(made, "_use_args_", use_arguments)
        identities.remember(made, identity)
        return made  # type: ignore[no-any-return]


def enum_member(cls: Any, name: str) -> Any:
    """The member of that name."""
    _check(cls, enum.EnumMeta, "the class of a member")
    found = cls._member_map_.get(name)
    if found is None:
        raise UnpicklingError(f"{cls.__module__}:{cls.__qualname__} has no member {name!r} here")
    return found


def make_named_tuple(identity: str, name: str, fields: tuple[str, ...], defaults: tuple[Any, ...]) -> type:
    """The named tuple of that identity if this process knows it, else a new one."""
    _check(fields, tuple, "the fields of a named tuple")
    with identities.lock:
        known = _living(identity, type)
        if known is not None:
            return known  # type: ignore[no-any-return]
        make: Any = collections.namedtuple
        again = any(field.startswith("_") for field in fields)  # as `rename=True` has made such names before
        made: type = make(name, fields, rename=again, defaults=defaults or None)
        identities.remember(made, identity)
        return made


def fill_class(cls: type, state: dict[str, Any]) -> None:
    """Give a class its attributes, unless it has them: a class that lives here keeps the state it has."""
    _check(cls, type, "a class")
    with identities.lock:
        if _is_complete(cls):
            return
        assign = _native(type(cls), "__setattr__")
        for name, value in state["attributes"].items():
            assign(cls, name, value)
        for key, fill in _CLASS_STATE.items():
            if key in state:
                fill(cls, state[key])
        mark_complete(cls)


def _fill_members(cls: Any, members: dict[str, tuple[dict[str, Any], dict[str, Any]]]) -> None:
    for name, (attributes, slots) in members.items():
        member = cls._member_map_[name]
        member.__dict__.update(attributes)
        for slot, value in slots.items():
            object.__setattr__(member, slot, value)


def _fill_values(cls: Any, values: list[tuple[Any, str]]) -> None:
    for value, name in values:
        cls._value2member_map_[value] = cls._member_map_[name]


def _fill_new_member(cls: Any, new: Any) -> None:
    cls.__new_member__ = new
    if "_new_member_" in vars(cls):
        type.__setattr__(cls, "_new_member_", new)
        type.__setattr__(cls, "_use_args_", True)


def _fill_registered(cls: Any, registered: list[type]) -> None:
    for subclass in registered:
        abc.ABCMeta.register(cls, subclass)


def _fill_abstract(cls: Any, names: list[str]) -> None:
    type.__setattr__(cls, "__abstractmethods__", frozenset(names))


def _fill_protocol(cls: Any, is_one: bool) -> None:
    vars(typing.Protocol)["__init_subclass__"].__func__(cls)  # makes the hook of this version of Python


def _fill_autograd_function(cls: Any, is_one: bool) -> None:
    from torch.autograd.function import FunctionMeta

    FunctionMeta.__init__(cls, cls.__name__, cls.__bases__, {})  # type: ignore[misc]


def _fill_field_types(cls: Any, annotations: dict[str, Any]) -> None:
    cls.__new__.__annotations__ = annotations


#: Parts of a class's state, in the order in which they are restored.
_CLASS_STATE: dict[str, Callable[[Any, Any], None]] = {
    "members": _fill_members,
    "values": _fill_values,
    "new_member": _fill_new_member,
    "registered": _fill_registered,
    "abstract": _fill_abstract,
    "protocol": _fill_protocol,
    "autograd_function": _fill_autograd_function,
    "field_types": _fill_field_types,
}


# -- modules that were made on the fly -------------------------------------------------------------------------------------------------


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


# -- what annotations are made of ------------------------------------------------------------------------------------------------------


def make_type_variable(identity: str, kind: str, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """A type variable; the one of that identity if this process knows it."""
    if kind not in ("TypeVar", "ParamSpec", "TypeVarTuple"):
        raise UnpicklingError(f"malformed pickle: {kind!r} is not a kind of type variable")
    cls: Any = getattr(typing, kind, None)
    if cls is None:
        raise UnpicklingError(f"this pickle holds a {kind}, which this version of Python does not have")
    with identities.lock:
        known = _living(identity, cls)
        if known is None:
            known = cls(name, *arguments, **options)
            known.__module__ = identity.partition(":")[0]
            identities.remember(known, identity)
        return known


def make_new_type(identity: str, name: str, supertype: Any) -> Any:
    """A ``typing.NewType``; the one of that identity if this process knows it."""
    with identities.lock:
        known = _living(identity, typing.NewType)
        if known is None:
            make: Any = typing.NewType
            known = make(name, supertype)
            known.__module__ = identity.partition(":")[0]
            identities.remember(known, identity)
        return known


def make_type_alias(module: str, name: str, value: Any, type_params: tuple[Any, ...]) -> Any:
    """What a ``type`` statement makes."""
    cls = getattr(typing, "TypeAliasType", None)
    if cls is None:
        raise UnpicklingError(f"this pickle holds the type alias {name}, which needs Python 3.12")
    # The constructor takes the module from its caller.
    call = types.FunctionType(_call.__code__, {"__name__": module, "__builtins__": builtins})
    return call(cls, name, value, type_params=type_params)


def _call(function: Any, *arguments: Any, **options: Any) -> Any:
    return function(*arguments, **options)


# -- types and methods without a name of their own ------------------------------------------------------------------------------------


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


# -- torch: tensors and storages ----------------------------------------------------------------------------------------

#: From this size on a buffer that can be written to becomes a tensor's memory as it is; smaller ones are copied into
#: memory of torch's own, which can be resized and is better aligned.
TORCH_ADOPT_FROM = 1 << 20


def torch_tensor(
    cls: Any, data: Any, dtype: Any, size: tuple[int, ...], requires_grad: bool = False,
    stride: tuple[int, ...] | None = None, offset: int = 0, options: dict[str, Any] | None = None,
) -> Any:  # fmt: skip
    """A tensor or parameter on the bytes ``data``, or on the memory of the tensor or storage ``data``.

    ``stride``: contiguous unless given. ``options``: ``"device"``, ``"byteorder"`` of the bytes, ``"conj"``, ``"neg"``.
    """
    import torch

    _check(dtype, torch.dtype, "the type of a tensor's elements")
    _check(size, tuple, "the size of a tensor")
    in_band = type(data) in (bytes, bytearray) and 0 < len(data) < TORCH_ADOPT_FROM
    if in_band and _is_whole(len(data), dtype, size, stride, options):
        tensor = torch.frombuffer(bytearray(data), dtype=dtype).view(size).clone()
    else:
        tensor = _torch_view(data, dtype, size, stride, offset, options or {})
    if cls is torch.nn.Parameter:
        tensor.__class__ = cls  # what Parameter.__new__ makes, at a fraction of the time
    elif cls is not torch.Tensor:
        _check_torch_class(cls, torch.Tensor)
        tensor = torch.Tensor._make_subclass(cls, tensor)
    return tensor.requires_grad_() if requires_grad else tensor


def _is_whole(nbytes: int, dtype: Any, size: tuple[int, ...], stride: Any, options: Any) -> bool:
    """Whether the bytes are just those of a contiguous tensor of a common type."""
    if stride is not None or options or dtype not in _torch_common_types():
        return False
    return nbytes == math.prod(size) * int(dtype.itemsize)


def _torch_view(
    data: Any, dtype: Any, size: tuple[int, ...], stride: tuple[int, ...] | None, offset: int, options: dict[str, Any]
) -> Any:
    import torch

    if isinstance(data, torch.Tensor):
        storage = data.untyped_storage()
    elif isinstance(data, torch.UntypedStorage):
        storage = data
    else:
        storage = _torch_place(_torch_memory(data), options, dtype)
    tensor = torch.empty(0, dtype=dtype, device=storage.device)
    tensor.set_(storage, offset, size, _contiguous(size) if stride is None else stride)
    marks = {name: True for name in ("conj", "neg") if options.get(name)}
    if marks:
        torch._utils.set_tensor_metadata(tensor, marks)
    return tensor


@functools.cache
def _torch_common_types() -> frozenset[Any]:
    """Types of elements that every kernel of torch knows."""
    import torch

    names = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
             "complex64", "complex128")  # fmt: skip
    return frozenset(getattr(torch, name) for name in names)


def torch_parameter(cls: Any, data: Any, requires_grad: bool) -> Any:
    """A parameter of a layout that is no plain memory (sparse, quantized, ...)."""
    import torch

    _check_torch_class(cls, torch.Tensor)
    _check(data, torch.Tensor, "the data of a parameter")
    return torch.Tensor._make_subclass(cls, data, requires_grad)


def torch_mkldnn(dense: Any) -> Any:
    """A tensor in the layout that the CPU's library of kernels likes."""
    import torch

    _check(dense, torch.Tensor, "a tensor")
    return dense.to_mkldnn()


def torch_uninitialized(cls: Any, requires_grad: bool, device: str, dtype: Any) -> Any:
    """A parameter or buffer of a lazy module that has no shape yet."""
    import torch

    _check_torch_class(cls, torch.nn.parameter.UninitializedTensorMixin)
    return cls(requires_grad=requires_grad, device=device, dtype=dtype)


def fill_torch_tensor(tensor: Any, state: dict[str, Any]) -> None:
    """Give a tensor its attributes, its gradient and its hooks."""
    import torch

    _check(tensor, torch.Tensor, "a tensor")
    tensor.__dict__.update(state.get("attributes", {}))
    for name, value in state.get("slots", {}).items():
        setattr(tensor, name, value)
    if "grad" in state:
        tensor.grad = state["grad"]
    handles = torch.utils.hooks.RemovableHandle
    for key, name in (("hooks", "_backward_hooks"), ("after_grad", "_post_accumulate_grad_hooks")):
        if state.get(key):
            setattr(tensor, name, state[key])
            # A hook that is registered from now on must not take the number of one of these.
            handles.next_id = max(handles.next_id, 1 + max(state[key]))


def torch_storage(data: Any, options: dict[str, Any] | None = None) -> Any:
    """A storage of the bytes ``data``, or that of the tensor ``data``; a number of bytes where there is no memory."""
    import torch

    if isinstance(data, torch.Tensor):
        return data.untyped_storage()
    options = options or {}
    if isinstance(data, int):
        return torch.UntypedStorage(data, device="meta")
    return _torch_place(_torch_memory(data), options, None)


def torch_typed_storage(storage: Any, dtype: Any) -> Any:
    """A typed storage on an untyped one."""
    import torch

    _check(storage, torch.UntypedStorage, "a storage")
    _check(dtype, torch.dtype, "the type of a storage's elements")
    return torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def _check_torch_class(cls: Any, base: type) -> None:
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise UnpicklingError(f"malformed pickle: {cls!r} is not a kind of {base.__qualname__}")


def _contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for length in reversed(size):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def _torch_memory(data: Any) -> Any:
    """A storage on the CPU with those bytes. A buffer that is read-only is never written through, so it is copied."""
    import ctypes

    import torch

    view = memoryview(data)
    size = view.nbytes
    if size and not view.readonly:
        flat = torch.frombuffer(view.cast("B"), dtype=torch.uint8)
        if size < TORCH_ADOPT_FROM or flat.data_ptr() % 16:
            flat = flat.clone()
        return flat.untyped_storage()
    storage = torch.UntypedStorage(size, device="cpu")
    if size:
        ctypes.memmove(storage.data_ptr(), data if isinstance(data, bytes) else view.tobytes(), size)
    return storage


def _torch_place(storage: Any, options: dict[str, Any], dtype: Any) -> Any:
    """The storage in the byte order of this machine, on the device that the original was on."""
    import torch

    if dtype is not None and options.get("byteorder", "little") != sys.byteorder:
        storage.byteswap(dtype)
    device = options.get("device")
    if device is None:
        return storage
    _check(device, str, "the name of a device")
    try:
        return torch.serialization.default_restore_location(storage, device)
    except RuntimeError as error:
        raise UnpicklingError(
            f"this pickle holds a tensor that was on the device {device!r}, which is not here: {error}"
        ) from error


# -- PyTorch: code -----------------------------------------------------------------------------------------------------

_COMPILE_OPTIONS = {
    "backend", "dynamic", "fullgraph", "isolate_recompiles", "mode", "name", "options", "recompile_limit",
    "shapes_spec",
}  # fmt: skip


def torch_compile(target: Any, options: dict[str, Any]) -> Any:
    """A function or module compiled by ``torch.compile``; nothing is compiled before it is called."""
    import torch

    _check_torch_target(target)
    _check_options(options, _COMPILE_OPTIONS)
    # torch takes entries out of the options that it is given.
    return torch.compile(target, **{name: dict(v) if type(v) is dict else v for name, v in options.items()})


def torch_disable(target: Any, options: dict[str, Any]) -> Any:
    """A function or module that ``torch.compile`` leaves alone."""
    import torch

    _check_torch_target(target)
    _check_options(options, {"recursive", "reason", "wrapping"})
    return torch._dynamo.disable(target, **options)


def torch_run_compiled(target: Any, options: dict[str, Any]) -> Any:
    """A function or module that runs what was compiled before and compiles nothing (``torch._dynamo.run``)."""
    import torch

    _check_torch_target(target)
    _check_options(options, set())
    return torch._dynamo.run(target)


def torch_compiler(kind: str, options: dict[str, Any]) -> Any:
    """What these functions compile with: torch keeps it in what it compiles, and calls it by no public name."""
    makers = {"torch_compile": torch_compile, "torch_disable": torch_disable, "torch_run_compiled": torch_run_compiled}
    if kind not in makers:
        raise UnpicklingError(f"malformed pickle: {kind!r} is not a way to compile")
    made = makers[kind](lambda: None, options)
    names = made.__code__.co_freevars
    return made.__closure__[names.index("self")].cell_contents


def torch_config_patch(module: str, changes: dict[str, Any]) -> Any:
    """A context manager that changes settings of a part of torch (``torch._dynamo.config.patch``)."""
    from torch.utils._config_module import ConfigModule

    _check(module, str, "a module name")
    _check(changes, dict, "settings")
    config = load(module)
    _check(config, ConfigModule, "a module of settings")
    return config.patch(changes)


def torch_compiled(module: str, qualname: str, path: tuple[str, ...]) -> types.FunctionType:
    """A compiled function by the name that leads to it."""
    found: types.FunctionType = _torch_named(module, qualname, path, types.FunctionType)
    if "_torchdynamo_orig_callable" not in found.__dict__:
        raise UnpicklingError(f"the reference {module}:{qualname} leads to a function that torch did not compile")
    return found


def _check_torch_target(target: Any) -> None:
    import torch

    if isinstance(target, type) or not callable(target):
        raise UnpicklingError(f"malformed pickle: torch compiles functions and modules, not {target!r}")
    if isinstance(target, torch.nn.Module) and "training" not in target.__dict__:
        target.__dict__["training"] = True  # it holds what is made of it: its own attributes come later


def _check_options(options: dict[str, Any], known: set[str]) -> None:
    _check(options, dict, "options")
    unknown = sorted(options.keys() - known)
    if unknown:
        raise UnpicklingError(f"malformed pickle: {unknown[0]!r} is no option of torch.compile")


def fill_torch_optimized_module(module: Any, state: dict[str, Any]) -> None:
    """Give a compiled module what it has besides the module in it: hooks."""
    from torch._dynamo.eval_frame import OptimizedModule

    _check(module, OptimizedModule, "a compiled module")
    _check(state, dict, "the attributes of a module")
    module.__dict__.update(state)
    _skip_torch_hook_ids(state)


def fill_torch_module(module: Any, state: dict[str, Any]) -> None:
    """Give a module its attributes, among them hooks; those that are registered later get other numbers."""
    import torch

    _check(module, torch.nn.Module, "a module")
    _check(state, dict, "the attributes of a module")
    module.__setstate__(state)
    _skip_torch_hook_ids(state)


def _skip_torch_hook_ids(state: dict[str, Any]) -> None:
    """A process numbers its hooks from zero: one that is registered later must not take the place of a restored one."""
    from torch.utils.hooks import RemovableHandle

    for name, hooks in state.items():
        if name.endswith("_hooks") and isinstance(hooks, dict):
            for number in hooks:
                if isinstance(number, int) and number >= RemovableHandle.next_id:
                    RemovableHandle.next_id = number + 1


# -- triton: kernels, launchers, configurations ---------------------------------------------------------------------------------------


def kernel(module: str, qualname: str, path: tuple[str, ...]) -> Any:
    """The kernel of that name; nothing else is returned, whatever the name leads to.

    Raises:
        UnpicklingError: the name leads nowhere, or to something that is no kernel.
    """
    found = resolve(module, qualname, path)
    _check_kernel(found, f"the reference {'.'.join([f'{module}:{qualname}', *path])} leads to")
    return found


def _check_kernel(found: Any, what: str) -> None:
    if not isinstance(found, _kernel_types()):
        raise UnpicklingError(f"{what} an object of type {type(found).__module__}.{type(found).__qualname__}, which is no Triton kernel")


def _kernel_types() -> tuple[type, ...]:
    from triton.runtime import jit

    names = (jit.KernelInterface, jit.JITFunction, getattr(jit, "JITCallable", None), _interpreted() if _interpreting() else None)
    loaded = sys.modules.get("triton.runtime.interpreter")
    return tuple(cls for cls in (*names, getattr(loaded, "InterpretedFunction", None)) if isinstance(cls, type))


def _interpreting() -> bool:
    """Whether ``triton.jit`` makes functions for Triton's interpreter here."""
    import triton

    try:
        return bool(triton.knobs.runtime.interpret)
    except AttributeError:  # before Triton 3.4
        return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _interpreted() -> Any:
    from triton.runtime.interpreter import InterpretedFunction

    return InterpretedFunction


def launcher(kernel: Any, grid: Any) -> Any:
    """``kernel[grid]``."""
    _check_kernel(kernel, "malformed pickle: a launcher needs a kernel, not")
    return kernel[grid]


def kernel_method(kernel: Any, name: str) -> Any:
    """A method that is bound to a kernel: ``kernel.run``."""
    _check(name, str, "a method name")
    _check_kernel(kernel, f"malformed pickle: the owner of {name!r} must be a kernel, not")
    found = getattr(kernel, name, None)
    made_by_constructor = name == "run" and found is not None and static_vars(kernel).get(name) is found  # until Triton 3.4
    if not (getattr(found, "__self__", None) is kernel or made_by_constructor) or not callable(found):
        raise UnpicklingError(f"{type(kernel).__qualname__} has no method {name!r} here")
    return found


def make_kernel(identity: str, kind: str) -> Any:
    """The kernel of that identity if it lives here, else an empty one, for :func:`fill_kernel` to fill.

    It exists before its parts, so that a part may lead back to it: a kernel that calls itself through its own tuned wrapper.
    """
    _check(identity, str, "the identity of a kernel")
    known = identities.object_of(identity)
    if known is None:
        known = _kernel_defined_here(identity)
    if known is not None and isinstance(known, _kernel_types()):
        return known
    cls = _kernel_class(kind)
    made = cls.__new__(cls)
    made.__dict__[_UNFINISHED] = []
    return made


def _kernel_defined_here(identity: str) -> Any:
    """The kernel that this process has under the same name, or below it, if it is made from the very same.

    That is one of ``__main__``, mostly, in a worker that runs the same script.
    """
    kinds = _kernel_types()
    found = _named_here(identity, kinds)
    while isinstance(found, kinds):
        if _has_content(found, identity):
            return found if identities.remember(found, identity) == identity else None
        found = static_vars(found).get("fn")
    return None


def _has_content(kernel: Any, identity: str) -> bool:
    from .digests import content_digest
    from .registry import default_registry

    if identities.identity_of(kernel) is not None:
        return False
    try:
        return content_digest(kernel, default_registry)[:24] == identity.rpartition(":")[2]
    except Exception:  # it holds something that cannot be pickled, so it is not the one that was
        return False


def _kernel_class(kind: str) -> Any:
    from triton.runtime import autotuner, jit

    if kind == "jit":  # as triton.jit decides
        return _interpreted() if _interpreting() else jit.JITFunction
    place, name = _KERNEL_CLASSES.get(kind, ("", ""))
    found = getattr({"autotuner": autotuner, "jit": jit}.get(place), name, None)
    if kind == "gluon":
        try:
            found = importlib.import_module("triton.experimental.gluon._runtime").GluonJITFunction
        except (ImportError, AttributeError):
            found = None
    if found is None:
        raise UnpicklingError(f"Triton {_triton_version()} has no kernels of kind {kind!r}; the pickle is from another version")
    return found


_KERNEL_CLASSES = {
    "autotuner": ("autotuner", "Autotuner"),
    "heuristics": ("autotuner", "Heuristics"),
    "constexpr": ("jit", "ConstexprFunction"),
}


def _triton_version() -> str:
    import triton

    return str(getattr(triton, "__version__", "of unknown version"))


def fill_kernel(kernel: Any, state: dict[str, Any]) -> None:
    """Run the constructor of a kernel, once the function or kernel that it wraps is complete; a kernel that lives here stays as it is.

    Raises:
        UnpicklingError: this version of Triton cannot make the kernel.
    """
    _check_kernel(kernel, "malformed pickle: what is filled is")
    if _UNFINISHED not in static_vars(kernel):
        return
    waiting = static_vars(state["fn"]).get(_UNFINISHED)
    if waiting is not None:
        waiting.append(lambda: fill_kernel(kernel, state))
        return
    try:
        _construct_kernel(kernel, state)
    except Exception as error:
        raise UnpicklingError(
            f"cannot rebuild the kernel {state['identity'].rpartition(':')[0]} with Triton {_triton_version()}: "
            f"{type(error).__name__}: {error}"
        ) from error
    identities.remember(kernel, state["identity"])
    for finish in static_vars(kernel).pop(_UNFINISHED):
        finish()


def _construct_kernel(kernel: Any, state: dict[str, Any]) -> None:
    fn = state["fn"]
    if "values" in state:
        type(kernel).__init__(kernel, fn, state["arg_names"], state["values"])
    elif "configs" in state:
        _construct_autotuner(kernel, state)
    else:
        _construct_jit(kernel, fn, state)


def _construct_jit(kernel: Any, fn: Any, state: dict[str, Any]) -> None:
    from triton.runtime import jit

    _check(fn, types.FunctionType, "the function of a kernel")
    for name, value in state.get("globals", {}).items():
        fn.__globals__.setdefault(name, value)
    if "source" in state:
        _ensure_source(fn, *state["source"])
    # Triton enters each new kernel under its function's name; a kernel that is at home under that name stays there.
    registry = getattr(jit, "_triton_jit_function_registry", {})
    name = f"{fn.__module__}:{fn.__qualname__}"
    at_home = registry.get(name)
    type(kernel).__init__(kernel, fn, **_accepted(type(kernel), state["options"]))
    if at_home is not None:
        registry[name] = at_home
    _restore_text(kernel, state)
    for name, value in state.get("names", {}).items():
        setattr(kernel, name, value)


def _restore_text(kernel: Any, state: dict[str, Any]) -> None:
    """The text and line of the original, where the constructor found others: the key of compiled kernels is made from them."""
    text, line = state.get("src"), state.get("line")
    if line is not None and getattr(kernel, "starting_line_number", line) != line:
        kernel.starting_line_number = line
    if text is None or getattr(kernel, "src", None) == text:
        return
    if hasattr(kernel, "_unsafe_update_src"):
        kernel._unsafe_update_src(text)
    elif hasattr(kernel, "src"):
        kernel.src = text
    else:
        raise UnpicklingError("its text was replaced after it was made, which Triton's interpreter does not know")


def _construct_autotuner(kernel: Any, state: dict[str, Any]) -> None:
    import warnings

    cls = type(kernel)
    names = ("arg_names", "configs", "key", "reset_to_zero", "restore_value")
    parameters = inspect.signature(cls.__init__).parameters
    open_ended = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    if not open_ended and "restore_value" not in parameters:
        raise UnpicklingError("tuned kernels travel by value from Triton 3.0 on")
    options = _accepted(cls, state["options"])
    quiet = options.keys() & {"warmup", "rep", "use_cuda_graph"}
    with warnings.catch_warnings() if quiet else contextlib.nullcontext():
        if quiet:
            warnings.simplefilter("ignore", DeprecationWarning)  # no news to somebody who loads a kernel
        # By position, because there are libraries that wrap the constructor in one that takes only *args and **kwargs.
        cls.__init__(kernel, state["fn"], *(state[name] for name in names), **options)
    kernel.configs = state["configs"]  # where a cycle begins in this list, it is still empty, and the constructor made another


def _accepted(cls: type, options: dict[str, Any]) -> dict[str, Any]:
    """The options that the constructor of this version takes."""
    parameters = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return options
    return {name: value for name, value in options.items() if name in parameters}


def _ensure_source(fn: types.FunctionType, text: str, first_line: int) -> None:
    """See to it that ``inspect`` finds this text for the function."""
    try:
        if "".join(inspect.getsourcelines(fn)[0]) == text:
            return
    except (OSError, TypeError, SyntaxError):
        pass
    filename = source_file(fn, text, first_line)
    register_source(filename, text, first_line)
    fn.__code__ = renamed(fn.__code__, filename)


def make_config() -> Any:
    """A ``triton.Config`` with what this version has by default; :func:`fill_config` brings the rest."""
    import triton

    return triton.Config({})


def fill_config(config: Any, state: dict[str, Any]) -> None:
    """Give a configuration its values."""
    import triton

    _check(config, triton.Config, "a configuration")
    _check(state, dict, "the values of a configuration")
    config.__dict__.update(state)


def constexpr(value: Any) -> Any:
    """A constant of a kernel."""
    from triton.language.core import constexpr

    return constexpr(value)


# -- errors ----------------------------------------------------------------------------------------------------------------------------


def make_error(kind: str, original: type, message: str, attributes: dict[str, Any]) -> Exception:
    """An error of this package that is also of the type of another error, as process pools send it back."""
    from . import errors

    kinds: dict[str, type[Exception]] = {
        "PicklingError": errors.PicklingError,
        "CopyError": errors.CopyError,
        "UnpicklingError": errors.UnpicklingError,
    }
    if kind not in kinds:
        raise UnpicklingError(f"malformed pickle: {kind!r} is not a kind of error")
    if not (isinstance(original, type) and issubclass(original, Exception)):
        raise UnpicklingError(f"malformed pickle: {original!r} is not a type of error")
    _check(message, str, "a message")
    _check(attributes, dict, "the attributes of an error")
    return errors.combined_by_type(kinds[kind], original, message, attributes)


# TorchScript. The archives are torch's own: code that its compiler reads, no Python pickle.


def torch_script_module(archive: bytes, operators: tuple[Any, ...] = ()) -> Any:
    """A scripted module from the archive that ``torch.jit.save`` writes; its tensors follow.

    ``operators``: those that the code calls and torch does not bring; they are registered once they are loaded.
    """
    module = _torch_archive(archive)
    for part in module.modules():
        for name in ("__len__", "__contains__"):  # torch forgets that Python looks for these on the type
            if part._c._has_method(name):
                part.__dict__[name] = part._c._get_method(name)
    return module


def fill_torch_script_module(module: Any, state: dict[str, Any]) -> None:
    """Give a scripted module its tensors, and its Python side what only that has."""
    import torch

    _check(module, torch.jit.ScriptModule, "a scripted module")
    _check(state, dict, "the attributes of a module")
    for path, name, value in state.get("tensors", ()):
        part = module._c
        for step in path:
            part = part.getattr(step)
        part.setattr(name, value)
    for path, attributes in state.get("python", ()):
        part = module
        for step in path:
            part = part.__dict__["_modules"][step]
        part.__dict__.update(attributes)


def torch_script_method(module: Any, name: str) -> Any:
    """The method of that name of a scripted module."""
    import torch

    _check(module, torch.jit.ScriptModule, "a scripted module")
    _check(name, str, "the name of a method")
    return module._c._get_method(name)


def torch_script_function(function: types.FunctionType, names: dict[str, Any]) -> Any:
    """A Python function, scripted; ``names``: globals that its text uses and its code does not."""
    import torch

    _check(function, types.FunctionType, "a function to script")
    _check(names, dict, "globals")
    for name, value in names.items():
        function.__globals__.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # whoever scripted it first was told
        return torch.jit.script(function)


def torch_traced_function(archive: bytes, name: str, operators: tuple[Any, ...] = ()) -> Any:
    """A scripted function from the archive of its graph."""
    import torch

    _check(name, str, "the name of a function")
    graph = _torch_archive(archive)._c._get_method("forward").graph.copy()
    graph.eraseInput(0)  # torch saves a function as the method of a module that it does not use
    return torch._C._create_function_from_graph(name, graph)


def torch_script_function_named(module: str, qualname: str, path: tuple[str, ...]) -> Any:
    """A scripted function by the name that leads to it."""
    import torch

    return _torch_named(module, qualname, path, torch.jit.ScriptFunction)


def _torch_archive(archive: bytes) -> Any:
    import io

    import torch

    _check(archive, bytes, "an archive of TorchScript code")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.load(io.BytesIO(archive))


# -- torch: what is around tensors --------------------------------------------------------------------------------------


def torch_parametrized(base: Any) -> Any:
    """A module, still empty, of a class that can be parametrized; its state follows."""
    import torch
    from torch.nn.utils import parametrize

    _check_torch_class(base, torch.nn.Module)
    module = base.__new__(base)
    parametrize._inject_new_class(module)
    return module


def fill_torch_parametrized(module: Any, state: dict[str, Any]) -> None:
    """Give a parametrized module its state, and its class the properties that compute its tensors."""
    import torch
    from torch.nn.utils import parametrize

    _check(module, torch.nn.Module, "a module")
    module.__setstate__(state)
    _skip_torch_hook_ids(state)
    for name in module.__dict__["_modules"]["parametrizations"]:
        parametrize._inject_property(module, name)


def fill_torch_optimizer(optimizer: Any, state: tuple[dict[str, Any], bool]) -> None:
    """Give an optimizer its attributes, and note its steps for a learning rate scheduler if the original did so."""
    import torch

    _check(optimizer, torch.optim.Optimizer, "an optimizer")
    attributes, noted = state
    optimizer.__setstate__(attributes)
    _skip_torch_hook_ids(attributes)
    if noted:
        _note_steps(optimizer)


def _note_steps(optimizer: Any) -> None:
    """What a learning rate scheduler does to its optimizer when it is made: it wants to know whether that was used."""
    step, me = type(optimizer).step, weakref.ref(optimizer)

    @functools.wraps(step)
    def noting(*args: Any, **kwargs: Any) -> Any:
        this: Any = me()
        this._opt_called = True
        return step(this, *args, **kwargs)

    noting._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = noting


def torch_stream(cls: Any, device: str, priority: int, is_default: bool) -> Any:
    """A stream of that device and priority, or the default stream of the device."""
    import torch

    _check(cls, type, "the class of a stream")
    if not issubclass(cls, (torch.Stream, torch.cuda.Stream)):
        raise UnpicklingError(f"malformed pickle: {cls.__qualname__} is no kind of stream")
    place = torch.device(device)
    if not is_default:
        return cls(device=place) if priority == 0 else cls(device=place, priority=priority)
    if issubclass(cls, torch.cuda.Stream):
        return torch.cuda.default_stream(place)
    known = torch.Stream(device=place)  # tells the numbers of the device
    return cls(stream_id=0, device_index=known.device_index, device_type=known.device_type)


def torch_event(cls: Any, device: str | None) -> Any:
    """An event of that device that has not been recorded; it can take times, as the original may have been able to."""
    import torch

    _check(cls, type, "the class of an event")
    if not issubclass(cls, (torch.Event, torch.cuda.Event)):
        raise UnpicklingError(f"malformed pickle: {cls.__qualname__} is no kind of event")
    if device is None or issubclass(cls, torch.cuda.Event):
        return cls(enable_timing=True)
    return cls(device=torch.device(device), enable_timing=True)


def torch_generator(device: str, state: Any) -> Any:
    """A generator that continues from that state."""
    import torch

    _check(state, torch.Tensor, "the state of a generator")
    generator = torch.Generator(device=device)
    generator.set_state(state)
    return generator


def torch_weak_keys(cls: Any, ref_type: Any) -> Any:
    """An empty dictionary that holds its keys weakly and knows them by identity."""
    from torch.utils import weak

    _check_torch_class(cls, weak.WeakIdKeyDictionary)
    _check_torch_class(ref_type, weakref.ref)
    made = cls.__new__(cls)
    weak.WeakIdKeyDictionary.__init__(made, ref_type=ref_type)
    return made


def fill_torch_weak_keys(mapping: Any, items: list[tuple[Any, Any]]) -> None:
    """Enter the items."""
    from torch.utils import weak

    _check(mapping, weak.WeakIdKeyDictionary, "a dictionary with weak keys")
    for key, value in items:
        mapping[key] = value


def torch_process_group(name: str, ranks: tuple[int, ...]) -> Any:
    """The process group of this process that has that name, or else those ranks.

    Raises:
        UnpicklingError: there is none, or more than one.
    """
    import torch.distributed as distributed

    what = f"the process group {name!r} of ranks {list(ranks)}"
    if not distributed.is_available() or not distributed.is_initialized():
        raise UnpicklingError(f"{what} is not here: call torch.distributed.init_process_group before loading")
    groups = list(distributed.distributed_c10d._world.pg_map)
    same = [group for group in groups if tuple(distributed.get_process_group_ranks(group)) == tuple(ranks)]
    named = [group for group in same if group.group_name == name]
    found = named or same
    if len(found) != 1:
        count = "more than one group has" if found else "no group has"
        raise UnpicklingError(
            f"{what} is not here: {count} these ranks; make it with torch.distributed.new_group before loading"
        )
    return found[0]


# -- TensorFlow --------------------------------------------------------------------------------------------------------


def tf_tensor(value: Any, dtype: str) -> Any:
    """A tensor of a quantized type from the tensor of plain integers that it is made of."""
    import tensorflow as tf

    _check(value, tf.Tensor, "a tensor")
    kind = tf.as_dtype(dtype)
    if not kind.is_quantized:
        raise UnpicklingError(f"malformed pickle: {dtype!r} is not a quantized type")
    with tf.init_scope():
        return tf.bitcast(value, kind)


def tf_variable(value: Any, options: dict[str, Any]) -> Any:
    """A variable with that value, an array or a tensor; outside of any graph or strategy, whoever loads it."""
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable

    _check(value, (np.ndarray, np.generic, bytes, tf.Tensor), "the value of a variable")
    _check(options, dict, "the options of a variable")
    options = dict(options)
    device = options.pop("device", None)
    with tf.init_scope(), _on_device(device):
        return ResourceVariable(initial_value=value, **options)


def _on_device(name: str | None) -> Any:
    """Where a variable was, if there is such a device here."""
    import tensorflow as tf

    if name is None or not any(device.name == name for device in tf.config.list_logical_devices()):
        return contextlib.nullcontext()
    return tf.device(name)


def tf_default_strategy() -> Any:
    """The default distribution strategy of this process."""
    import tensorflow  # noqa: F401
    from tensorflow.python.distribute import distribute_lib

    # Not tf.distribute.get_strategy: within the scope of another strategy that is the other one.
    return distribute_lib._get_default_strategy()


def tf_context() -> Any:
    """The runtime of this process, of which there is one."""
    import tensorflow  # noqa: F401
    from tensorflow.python.eager import context

    return context.context()


def tf_static_table(cls: type, initializer: Any, default: Any, name: str, anonymous: bool) -> Any:
    """A lookup table that does not change, with its contents."""
    import tensorflow as tf
    from tensorflow.python.ops.lookup_ops import StaticHashTable, TableInitializerBase

    _check_subclass(cls, StaticHashTable, "a lookup table")
    _check(initializer, TableInitializerBase, "the initializer of a lookup table")
    with tf.init_scope():
        return cls(initializer, default, name=name, experimental_is_anonymous=anonymous)


def tf_table(cls: type, options: dict[str, Any], contents: tuple[Any, Any]) -> Any:
    """A lookup table that can be changed, with its contents."""
    import tensorflow as tf
    from tensorflow.python.ops.lookup_ops import DenseHashTable, MutableHashTable

    _check_subclass(cls, (MutableHashTable, DenseHashTable), "a lookup table")
    with tf.init_scope():
        table = cls(**options)
        table.insert(*contents)
    return table


def tf_dataset(graph: bytes, element_spec: Any) -> Any:
    """A dataset from the graph of its pipeline."""
    import tensorflow as tf
    from tensorflow.python.data.ops.dataset_ops import _VariantDataset

    _check(graph, bytes, "the graph of a dataset")
    with tf.init_scope():
        return _VariantDataset(tf.raw_ops.DatasetFromGraph(graph_def=graph), element_spec)


def _check_subclass(cls: Any, kinds: type | tuple[type, ...], what: str) -> None:
    if not (isinstance(cls, type) and issubclass(cls, kinds)):
        raise UnpicklingError(f"malformed pickle: {cls!r} is not the type of {what}")


# -- tf.function -------------------------------------------------------------------------------------------------------


def _tf_function_type() -> Any:
    import tensorflow  # noqa: F401  (the whole of it: a part of it cannot be imported first)
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    return Function


def tf_function_by_name(module: str, qualname: str, path: tuple[str, ...]) -> Any:
    """The ``tf.function`` of that name."""
    found = resolve(module, qualname, path)
    if not isinstance(found, _tf_function_type()):
        raise UnpicklingError(
            f"the reference {module}:{qualname} leads to a {type(found).__qualname__} here, not to a tf.function: is "
            "it decorated here too?"
        )
    return found


def tf_function(identity: str | None, stateless: bool) -> Any:
    """The ``tf.function`` of that identity if this process knows it, else a new one for :func:`fill_tf_function`.

    Only one that holds no state is remembered for the next pickle: a second payload of another brings its own state.
    """
    kind = _tf_function_type()
    if identity is None:
        return kind.__new__(kind)
    _check(identity, str, "the identity of a tf.function")
    with identities.lock:
        known = identities.object_of(identity)
        if isinstance(known, kind):
            return known
        made = kind.__new__(kind)
        if stateless:
            identities.remember(made, identity)
        return made


def fill_tf_function(function: Any, state: dict[str, Any]) -> None:
    """Give a ``tf.function`` its Python function and options, unless it has them. It is not traced."""
    kind = _tf_function_type()
    _check(function, kind, "a tf.function")
    if "_python_function" in static_vars(function):
        return
    inner, options, attributes = state["function"], state["options"], state["attributes"]
    if not callable(inner):
        raise UnpicklingError(f"malformed pickle: a tf.function needs a callable, not {type(inner).__qualname__}")
    defaults = state.get("defaults")
    if defaults is not None and type(inner) is types.FunctionType and not (inner.__defaults__ or inner.__kwdefaults__):
        # It refers to this tf.function, and is itself still waiting for its defaults, which are part of the signature.
        inner.__defaults__, inner.__kwdefaults__ = defaults
    kind.__init__(function, inner, state["name"], **options)
    _mark_as_decorator(inner, function)
    function.__dict__.update(attributes)


def _mark_as_decorator(inner: Any, function: Any) -> None:
    """What the decorator ``tf.function`` does besides making the object."""
    from tensorflow.python.util import tf_decorator

    try:
        tf_decorator.make_decorator(inner, function, decorator_name="tf.function")
    except Exception:
        # It asks the owner of a method whether it is true, which an object that is still being loaded cannot say.
        function._tf_decorator = tf_decorator.TFDecorator("tf.function", inner, "", None)
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(function, name, getattr(inner, name, None))
        function.__wrapped__ = function.__original_wrapped__ = inner
        function.__signature__ = inspect.signature(inner)


def tf_method(instance: Any, owner: type | None, name: str) -> Any:
    """The ``tf.function`` of a decorated method as the instance has it.

    Args:
        instance: the object, or the class for a class method.
        owner: the class whose attribute it is, where that is not what the class of the instance shows.
        name: the attribute.
    """
    _check(name, str, "the name of a method")
    cls = instance if isinstance(instance, type) else type(instance)
    found: Any = inspect.getattr_static(cls, name, None) if owner is None else vars(owner).get(name)
    if isinstance(found, classmethod):
        found = found.__func__
    if not isinstance(found, _tf_function_type()):
        raise UnpicklingError(f"{(owner or cls).__qualname__}.{name} is not decorated with tf.function here")
    bound = found.__get__(instance, cls)
    if not isinstance(instance, type):
        _keep_instance(found, instance, bound)
    return bound


class InstanceFunctions(weakref.WeakKeyDictionary[Any, Any]):
    """TensorFlow's table of the functions of a decorated method, by instance.

    TensorFlow's functions hold their instance weakly. One that was loaded from a pickle may be all that there is of its
    instance, so it holds it strongly, and the table holds the function weakly: else the class would keep both for ever.
    """

    def __getitem__(self, instance: Any) -> Any:
        function = super().__getitem__(instance)
        if type(function) is weakref.ref:
            function = function()
            if function is None:
                raise KeyError(instance)
        return function

    def __contains__(self, instance: object) -> bool:
        return self.get(instance) is not None

    def get(self, instance: Any, default: Any = None) -> Any:
        try:
            return self[instance]
        except (KeyError, TypeError):
            return default


def _keep_instance(method: Any, instance: Any, bound: Any) -> None:
    if "_safepickle_instance" in bound.__dict__:
        return
    table = method._descriptor_cache
    if type(table) is not InstanceFunctions:
        table = method._descriptor_cache = InstanceFunctions(table)
    bound.__dict__["_safepickle_instance"] = instance
    table[instance] = weakref.ref(bound)


def tf_concrete_function(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The concrete function of a signature: the one that is traced already, else one that is traced when it is used.

    While a pickle is loaded, the objects that the function reads may be incomplete.
    """
    _check(function, _tf_function_type(), "a tf.function")
    for traced in function._function_cache.values() if "_function_cache" in function.__dict__ else ():
        if _same_signature(traced.structured_input_signature, (args, kwargs)):
            return traced
    kind = _untraced_type()
    made = kind.__new__(kind)
    made.__dict__["_safepickle_recipe"] = (function, args, kwargs)
    return made


def _same_signature(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # arguments that compare to arrays
        return False


_untraced: list[Any] = []


def _untraced_type() -> Any:
    """A concrete function that is traced when something is asked of it."""
    if not _untraced:
        from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

        def trace(self: Any, name: str) -> Any:
            recipe = self.__dict__.get("_safepickle_recipe")
            if recipe is None or name.startswith("__"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            function, args, kwargs = recipe
            traced = function.get_concrete_function(*args, **kwargs)
            self.__dict__.update(traced.__dict__)
            self.__class__ = ConcreteFunction
            return getattr(self, name)

        body = {"__module__": __name__, "__getattr__": trace}
        _untraced.append(type("UntracedConcreteFunction", (ConcreteFunction,), body))
    return _untraced[0]


# Graphs. All nodes of a graph are made first, so that each can be an argument of any other.

#: Where a graph that is being loaded keeps its nodes.
TORCH_FX_NODES = "_safepickle_nodes"
#: The place of the node before the first, which is the one after the last too.
TORCH_FX_ROOT = -1


def torch_fx_graph(cls: Any, nodes: tuple[tuple[str, str], ...]) -> Any:
    """A graph with nodes of these kinds and names that do nothing yet."""
    import torch.fx

    _check_torch_class(cls, torch.fx.Graph)
    graph = cls()
    made = []
    for op, name in nodes:
        node = graph.create_node(op, callable if op == "call_function" else name, name=name)
        if node.name != name:
            node.name = name
        made.append(node)
    graph.__dict__[TORCH_FX_NODES] = made
    return graph


def fill_torch_fx_graph(graph: Any, state: dict[str, Any]) -> None:
    """Say what the nodes of a graph do, and with which others."""
    import torch.fx

    _check(graph, torch.fx.Graph, "a graph")
    _check(state, dict, "the state of a graph")
    for name, value in state["attributes"].items():
        graph.__dict__[name] = value
    nodes = graph.__dict__.pop(TORCH_FX_NODES)
    for node, (target, args, kwargs, kind, meta, attributes) in zip(nodes, state["nodes"], strict=True):
        node.target = target
        node.args = tuple(args)
        node.kwargs = kwargs
        node.type = kind
        node.meta = meta
        for name, value in attributes.items():
            setattr(node, name, value)


def torch_fx_node(graph: Any, place: int) -> Any:
    """The node at that place in a graph."""
    import torch.fx

    _check(graph, torch.fx.Graph, "a graph")
    _check(place, int, "the place of a node")
    if place == TORCH_FX_ROOT:
        return graph._root
    nodes = graph.__dict__.get(TORCH_FX_NODES)
    return (list(graph.nodes) if nodes is None else nodes)[place]


def torch_graph_module(cls: Any, name: str) -> Any:
    """A graph module without its attributes; as torch does, each gets a class of its own."""
    import torch.fx

    _check_torch_class(cls, torch.fx.GraphModule)
    _check(name, str, "the name of a class")
    module = cls.__new__(cls)
    type(module).__name__ = name
    return module


def fill_torch_graph_module(module: Any, state: dict[str, Any]) -> None:
    """Give a graph module its attributes and its graph, and generate its code."""
    import torch.fx

    _check(module, torch.fx.GraphModule, "a graph module")
    _check(state, dict, "the state of a graph module")
    module.__dict__.update(state["attributes"])
    module.graph = state["graph"]
    _skip_torch_hook_ids(state["attributes"])


def torch_fake_mode(fallback: bool, non_fake_inputs: bool) -> Any:
    """The mode that fake tensors belong to."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_fallback_kernels=bool(fallback), allow_non_fake_inputs=bool(non_fake_inputs))


def torch_fake_tensor(
    mode: Any, size: tuple[int, ...], stride: tuple[int, ...], dtype: Any, device: Any, requires_grad: bool,
    parameter: bool,
) -> Any:  # fmt: skip
    """A tensor without memory, of a mode."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    _check(mode, FakeTensorMode, "the mode of a fake tensor")
    with mode:
        tensor = torch.empty_strided(size, stride, dtype=dtype, device=device)
        return torch.nn.Parameter(tensor, requires_grad) if parameter else tensor.requires_grad_(requires_grad)


def torch_exported_program(archive: bytes, operators: tuple[Any, ...] = ()) -> Any:
    """An exported program from the archive that ``torch.export.save`` writes; its tensors follow."""
    import io

    import torch.export

    _check(archive, bytes, "the archive of an exported program")
    return torch.export.load(io.BytesIO(archive))


def fill_torch_exported_program(program: Any, state: dict[str, Any]) -> None:
    """Give an exported program its tensors."""
    import torch.export

    _check(program, torch.export.ExportedProgram, "an exported program")
    _check(state, dict, "the tensors of a program")
    program._state_dict = dict(state["state_dict"])
    program._constants = {**program._constants, **state["constants"]}
    program._example_inputs = state["example_inputs"]


# Operators. Torch finds them by name in one table for the process.


def torch_operator(name: str, overload: str | None, definition: Any = None) -> Any:
    """An operator, or one of its overloads, by name; ``definition``: what defines it, or the module that does."""
    import torch

    _check(name, str, "the name of an operator")
    _check(overload, (str, type(None)), "the name of an overload")
    if isinstance(definition, str):
        load(definition)
    namespace, _, operator = name.partition("::")
    try:
        packet = getattr(getattr(torch.ops, namespace), operator)
        return packet if overload is None else getattr(packet, overload)
    except AttributeError as error:
        raise UnpicklingError(
            f"the operator {name} (overload {overload}) is not registered here: import the module or load the library "
            "that defines it first"
        ) from error


def torch_higher_order_operator(name: str, module: str) -> Any:
    """A higher-order operator by name, and the module that registers it."""
    import torch
    from torch._ops import HigherOrderOperator

    _check(name, str, "the name of an operator")
    _check(module, str, "a module name")
    load(module)
    found = getattr(torch.ops.higher_order, name, None)
    if not isinstance(found, HigherOrderOperator):
        raise UnpicklingError(f"the higher-order operator {name!r} is not registered here; it was in module {module!r}")
    return found


def torch_namespace(root: str, name: str | None) -> types.ModuleType:
    """``torch.ops`` or ``torch.classes``, or a namespace of theirs."""
    import torch

    if root not in ("ops", "classes"):
        raise UnpicklingError(f"malformed pickle: torch.{root} has no namespaces")
    found = getattr(torch, root)
    if name is not None:
        _check(name, str, "the name of a namespace")
        found = getattr(found, name)
    _check(found, types.ModuleType, "a namespace")
    return found  # type: ignore[no-any-return]


def torch_custom_op(name: str, function: Any, options: dict[str, Any], functions: dict[str, Any]) -> Any:
    """The custom operator of that name; one that the process lacks is registered."""
    import torch

    def make(arguments: dict[str, Any]) -> Any:
        kernels = functions.get("kernels", [])
        own = [device for device, kernel in kernels if kernel is function]
        devices = None if None in own or not own else own
        made = torch.library.custom_op(
            name, mutates_args=arguments["mutates_args"], schema=arguments["schema"], device_types=devices,
            **({"tags": [getattr(torch.Tag, tag) for tag in arguments["tags"]]} if "tags" in arguments else {}),
        )(function)  # fmt: skip
        for device, kernel in kernels:
            if kernel is not function:
                made.register_kernel(device, kernel)
        return made

    return _torch_custom_op(name, options, functions, make)


def torch_triton_op(name: str, function: Any, options: dict[str, Any], functions: dict[str, Any]) -> Any:
    """The same for an operator that ``torch.library.triton_op`` made."""
    import torch

    return _torch_custom_op(
        name, options, functions,
        lambda arguments: torch.library.triton_op(name, function, mutates_args=arguments["mutates_args"]),
    )  # fmt: skip


def _torch_custom_op(name: str, options: dict[str, Any], functions: dict[str, Any], make: Any) -> Any:
    from torch._library.custom_ops import OPDEFS

    _check(name, str, "the name of an operator")
    _check(options, dict, "options")
    _check(functions, dict, "functions")
    with identities.lock:
        known = OPDEFS.get(name)
        if known is not None:
            return known
        made = make(options)
        if "fake" in functions:
            made.register_fake(functions["fake"])
        if "backward" in functions:
            made.register_autograd(functions["backward"], setup_context=functions.get("setup_context"))
        if "vmap" in functions:
            made.register_vmap(functions["vmap"])
        for device, dtype in options.get("autocast", {}).items():
            made.register_autocast(device, dtype)
        return made


def torch_custom_op_named(module: str, qualname: str, path: tuple[str, ...]) -> Any:
    """A custom operator by the name that leads to it."""
    from torch._library.custom_ops import CustomOpDef

    return _torch_named(module, qualname, path, CustomOpDef)


def torch_wrapped_kernel(kernel: Any, grid: Any) -> Any:
    """A Triton kernel in the wrapper that lets torch trace it, with its grid if it has one."""
    import torch
    from torch._higher_order_ops.triton_kernel_wrap import TraceableTritonKernelWrapper

    wrapped = torch.library.wrap_triton(kernel)
    if grid is None or not isinstance(wrapped, TraceableTritonKernelWrapper):
        return wrapped
    return TraceableTritonKernelWrapper(kernel, wrapped.kernel_idx, grid)


def torch_wrapped_kernel_named(module: str, qualname: str, path: tuple[str, ...]) -> Any:
    """The same by the name that leads to it."""
    from torch._higher_order_ops.triton_kernel_wrap import TraceableTritonKernelWrapper

    return _torch_named(module, qualname, path, TraceableTritonKernelWrapper)


def torch_library(module: str, qualname: str, path: tuple[str, ...]) -> Any:
    """A library of operators by the name that leads to it."""
    import torch.library

    return _torch_named(module, qualname, path, torch.library.Library)


def _torch_named(module: str, qualname: str, path: tuple[str, ...], kind: type) -> Any:
    found = resolve(module, qualname, path)
    if not isinstance(found, kind):
        raise UnpicklingError(
            f"the reference {'.'.join([f'{module}:{qualname}', *path])} leads to a {type(found).__qualname__}, "
            f"not to a {kind.__qualname__}"
        )
    return found


# -- the standard library: what is made anew --------------------------------------------------------------------------

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


# -- the standard library: weak references ----------------------------------------------------------------------------
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


# -- the standard library: context variables --------------------------------------------------------------------------

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


# -- the standard library: views, wrappers and functions that remember ------------------------------------------------


def make_view(kind: str, ordered: bool, mapping: dict[Any, Any]) -> Any:
    """``mapping.keys()``, ``.values()`` or ``.items()``, as ``dict`` or as ``OrderedDict`` has it."""
    import collections

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


# -- the standard library: open files ---------------------------------------------------------------------------------


def standard_stream(name: str, path: tuple[str, ...]) -> Any:
    """``sys.stdin``, ``sys.stdout`` or ``sys.stderr`` of this process, or the ``buffer`` of it."""
    if name.strip("_") not in ("stdin", "stdout", "stderr") or not {"buffer", "raw"}.issuperset(path):
        raise UnpicklingError(f"malformed pickle: sys.{'.'.join([name, *path])} is not a standard stream")
    found = getattr(sys, name)
    for part in path:
        found = getattr(found, part, None)
        if found is None:
            raise UnpicklingError(f"the pickle holds sys.{'.'.join([name, *path])}, which this process does not have")
    return found


def open_raw_file(cls: type, path: str, mode: str, position: int | None) -> io.FileIO:
    """The file of that path, never truncated and never created, at that position.

    Raises:
        UnpicklingError: the file is not there or cannot be opened.
    """
    if not (isinstance(cls, type) and issubclass(cls, io.FileIO)):
        raise UnpicklingError(f"malformed pickle: {cls!r} is not a kind of io.FileIO")
    _check(path, str, "the path of a file")
    made = cls.__new__(cls)
    try:
        io.FileIO.__init__(made, path, mode, opener=_reopen)
        if position is not None:
            made.seek(position)
    except OSError as error:
        raise UnpicklingError(
            f"cannot reopen the file {path!r} (mode {mode!r}, position {position}), which was open where the pickle "
            f"was written: {error.strerror or error}. A pickle holds the path of a file and not its contents"
        ) from error
    return made


def _reopen(path: str, flags: int) -> int:
    return os.open(path, flags & ~(os.O_TRUNC | os.O_CREAT | os.O_EXCL))


def make_buffered_file(cls: type, raw: Any, position: int | None) -> Any:
    """A buffered reader or writer over a raw file."""
    for base in (io.BufferedReader, io.BufferedWriter, io.BufferedRandom):
        if isinstance(cls, type) and issubclass(cls, base):
            made: Any = cls.__new__(cls)
            base.__init__(made, raw)
            if position is not None:
                made.seek(position)
            return made
    raise UnpicklingError(f"malformed pickle: {cls!r} is not a kind of buffered file")


def make_text_file(
    cls: type, buffer: Any, encoding: str, errors: str, newline: str | None, line_buffering: bool, write_through: bool,
    position: int | None,
) -> io.TextIOWrapper:  # fmt: skip
    """Text over a buffered file."""
    if not (isinstance(cls, type) and issubclass(cls, io.TextIOWrapper)):
        raise UnpicklingError(f"malformed pickle: {cls!r} is not a kind of io.TextIOWrapper")
    made = cls.__new__(cls)
    io.TextIOWrapper.__init__(made, buffer, encoding, errors, newline, line_buffering, write_through)
    if position is not None:
        made.seek(position)
    return made


def fill_codecs_stream(stream: Any, attributes: dict[str, Any]) -> None:
    """Give a stream of :mod:`codecs` its attributes; by hand, because it looks in its file for what it lacks."""
    import codecs

    _check(stream, (codecs.Codec, codecs.StreamReaderWriter, codecs.StreamRecoder), "a stream of codecs")
    object.__getattribute__(stream, "__dict__").update(attributes)


def closed_file(cls: type, name: Any, mode: str, encoding: str | None, errors: str | None) -> Any:
    """A file object that is closed. The file itself need not be here."""
    _check(cls, type, "the type of a file")
    raw = io.FileIO(os.devnull, mode.replace("t", "").replace("x", "w"), opener=_reopen)
    raw.name = name
    made: Any = raw
    if not issubclass(cls, io.FileIO):
        buffered: type = io.BufferedRandom if "+" in mode else io.BufferedReader if "r" in mode else io.BufferedWriter
        is_buffered = issubclass(cls, (io.BufferedReader, io.BufferedWriter, io.BufferedRandom))
        made = make_buffered_file(cls if is_buffered else buffered, raw, None)
        if issubclass(cls, io.TextIOWrapper):
            made = make_text_file(cls, made, encoding or "utf-8", errors or "strict", None, False, False, None)
    made.close()
    return made


def open_compressed_file(kind: str, path: str, position: int) -> Any:
    """A compressed file (``gzip``, ``bz2``, ``lzma``) for reading, at that position of its contents.

    Raises:
        UnpicklingError: the file is not there or cannot be opened.
    """
    classes = {"gzip": "GzipFile", "bz2": "BZ2File", "lzma": "LZMAFile"}
    if kind not in classes:
        raise UnpicklingError(f"malformed pickle: {kind!r} is not a way to compress files")
    try:
        made = getattr(importlib.import_module(kind), classes[kind])(path, "rb")
        made.seek(position)
    except OSError as error:
        raise UnpicklingError(
            f"cannot reopen the file {path!r} ({kind}, position {position}), which was open where the pickle was "
            f"written: {error.strerror or error}. A pickle holds the path of a file and not its contents"
        ) from error
    return made


# -- the standard library: exceptions ---------------------------------------------------------------------------------


_HEAP_TYPE = 1 << 9


def make_exception(cls: type, arguments: tuple[Any, ...]) -> BaseException:
    """A bare exception: no ``__init__`` or ``__new__`` of its class runs; they may want other arguments."""
    if not (isinstance(cls, type) and issubclass(cls, BaseException)):
        raise UnpicklingError(f"malformed pickle: {cls!r} is not a kind of exception")
    base: Any = next(c for c in cls.__mro__ if not c.__flags__ & _HEAP_TYPE)
    made: BaseException = base.__new__(cls, *arguments)
    return made


def fill_exception(error: BaseException, state: dict[str, Any]) -> None:
    """Give an exception its arguments, the fields that its builtin class has, its attributes, and what it came from."""
    _check(error, BaseException, "an exception")
    if "args" in state:
        error.args = state["args"]
    for name, value in state.get("fields", {}).items():
        setattr(error, name, value)
    set_attributes(error, state.get("attributes", {}), state.get("slots", {}))
    _set_origin(error, state)


def fill_exception_origin(error: BaseException, state: tuple[Any, dict[str, Any]]) -> None:
    """Give an exception that reduces itself the state that it asked for, and what it came from."""
    _check(error, BaseException, "an exception")
    own, origin = state
    if own is not None:
        error.__setstate__(own)
    _set_origin(error, origin)


def _set_origin(error: BaseException, origin: dict[str, Any]) -> None:
    for name, value in (("cause", origin.get("cause")), ("context", origin.get("context"))):
        if value is not None:
            _check(value, BaseException, f"the {name} of an exception")
            setattr(error, f"__{name}__", value)
    error.__suppress_context__ = origin.get("suppress", False)


# -- Keras -------------------------------------------------------------------------------------------------------------


def _keras_kinds() -> tuple[type, ...]:
    import keras
    from keras.src.ops.operation import Operation
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    return Operation, keras.metrics.Metric, keras.losses.Loss, BaseOptimizer


def keras_object(cls: Any, functional: bool = False) -> Any:
    """A layer, model, operation, metric, loss or optimizer, empty; :func:`fill_keras_object` brings its attributes.

    A subclass of ``Model`` becomes one of ``Functional`` when its first instance is made from inputs and outputs.
    """
    _check_subclass(cls, _keras_kinds(), "an object of Keras")
    if functional:
        from keras.src.models.model import inject_functional_model_class
        from keras.src.ops.function import Function

        if not issubclass(cls, Function):
            inject_functional_model_class(cls)
    base: Any
    for base in cls.__mro__:
        # That of Keras itself: it wraps ``build``, and a user's own may want arguments.
        if "__new__" in vars(base) and (base.__module__ or "").startswith("keras."):
            made = base.__new__(cls)
            break
    else:
        made = object.__new__(cls)
    if isinstance(made, _keras_kinds()[0]):
        made.__dict__["_inbound_nodes"], made.__dict__["_outbound_nodes"] = [], []
    return made


def fill_keras_object(made: Any, state: dict[str, Any]) -> None:
    """Give an object of Keras its attributes, and what depends on the addresses of objects."""
    _check(made, _keras_kinds(), "an object of Keras")
    attributes = state["attributes"]
    made.__dict__.update(attributes)
    if state.get("signature"):
        made.__dict__["_call_signature"] = inspect.signature(made.call)
    if state.get("graph"):
        made.__dict__["_nodes"] = _keras_node_keys(made)
    if state.get("indices"):
        keys = [made._var_key(variable) for variable in made._trainable_variables]
        made.__dict__["_trainable_variables_indices"] = {key: index for index, key in enumerate(keys)}


def _keras_node_keys(function: Any) -> set[str]:
    from keras.src.ops.function import make_node_key

    nodes = [node for nodes in function._nodes_by_depth.values() for node in nodes]
    return {make_node_key(node.operation, node.operation._inbound_nodes.index(node)) for node in nodes}


def keras_tensor() -> Any:
    """A symbolic tensor before it has its shape; :func:`fill_keras_tensor` brings it."""
    import keras

    return object.__new__(keras.KerasTensor)


def fill_keras_tensor(tensor: Any, state: tuple[dict[str, Any], Any]) -> None:
    """Give a symbolic tensor its attributes; the node that made it, which comes along, has told it where it is from."""
    import keras

    _check(tensor, keras.KerasTensor, "a symbolic tensor")
    attributes, _node = state
    tensor.__dict__.update(attributes)


def keras_node() -> Any:
    """A node of a graph of operations, unconnected; :func:`fill_keras_node` connects it."""
    from keras.src.ops.node import Node

    return object.__new__(Node)


def fill_keras_node(node: Any, state: dict[str, Any]) -> None:
    """Connect a node to its operation, to the operations that its inputs come from, and to its outputs."""
    from keras.src.ops.node import KerasHistory, Node

    _check(node, Node, "a node")
    node.__dict__.update(state["attributes"])
    operation = node.operation
    index = len(operation._inbound_nodes)
    operation._inbound_nodes.append(node)
    for tensor in node.arguments.keras_tensors:
        source = tensor._keras_history.operation
        if source is not None:
            source._outbound_nodes.append(node)
    if state["recorded"]:
        for position, tensor in enumerate(node.outputs):
            tensor.__dict__["_keras_history"] = KerasHistory(operation, index, position)


def keras_tracker() -> Any:
    """What collects the variables and layers of an object, empty; :func:`fill_keras_tracker` fills it."""
    from keras.src.utils.tracking import Tracker

    return object.__new__(Tracker)


def fill_keras_tracker(tracker: Any, state: dict[str, Any]) -> None:
    """Give a tracker its collections."""
    from keras.src.utils.tracking import Tracker

    _check(tracker, Tracker, "a tracker")
    tests = _keras_tests()
    collections = state["collections"].items()
    tracker.config = {name: (tests.get(name, test), collection) for name, (test, collection, _) in collections}
    # From the members and not from the collection, which may be still incomplete here.
    tracker.stored_ids = {name: {id(member) for member in members} for name, (_, _, members) in collections}
    tracker.__dict__.update(state["attributes"])


def _keras_tests() -> dict[str, Any]:
    """Name of a collection -> whether a value belongs into it."""
    import keras
    from keras.src.backend import Variable

    return {
        "variables": lambda value: isinstance(value, Variable),
        "trainable_variables": lambda value: isinstance(value, Variable) and value.trainable,
        "non_trainable_variables": lambda value: isinstance(value, Variable) and not value.trainable,
        "metrics": lambda value: isinstance(value, keras.metrics.Metric),
        "layers": lambda value: isinstance(value, keras.Layer) and not isinstance(value, keras.metrics.Metric),
        "seed_generators": lambda value: isinstance(value, keras.random.SeedGenerator),
    }


def keras_container(cls: type) -> Any:
    """A list, dictionary or set whose items are tracked, empty; :func:`fill_keras_container` fills it."""
    from keras.src.utils import tracking

    kinds = tuple(getattr(tracking, name) for name in _KERAS_CONTAINERS if hasattr(tracking, name))
    _check_subclass(cls, kinds, "a tracked container")
    return cls()


_KERAS_CONTAINERS = ("TrackedList", "TrackedDict", "TrackedOrderedDict", "TrackedSet")


def fill_keras_container(container: Any, state: tuple[Any, Any]) -> None:
    """Give a tracked container its items, which are tracked already, and its tracker."""
    items, tracker = state
    if isinstance(container, list):
        list.extend(container, items)
    elif isinstance(container, set):
        set.update(container, items)
    else:
        _check(container, dict, "a tracked container")
        for key, value in items:
            dict.__setitem__(container, key, value)
    container.tracker = tracker


# -- h5py ---------------------------------------------------------------------------------------------------------------


def h5py_file(cls: type, path: str, swmr: bool) -> Any:
    """The HDF5 file of that path, for reading.

    Raises:
        UnpicklingError: the file is not there or cannot be opened.
    """
    import h5py

    if not (isinstance(cls, type) and issubclass(cls, h5py.File)):
        raise UnpicklingError(f"malformed pickle: {cls!r} is not a kind of h5py.File")
    _check(path, str, "the path of a file")
    made = h5py.File.__new__(cls)
    try:
        h5py.File.__init__(made, path, "r", swmr=swmr)
    except OSError as error:
        raise UnpicklingError(
            f"cannot reopen the HDF5 file {path!r}, which was open where the pickle was written: {error}. "
            "A pickle holds the path of a file and not its contents"
        ) from error
    return made


def h5py_object(file: Any, name: str, kind: str) -> Any:
    """A group, a dataset or a named type in an HDF5 file."""
    import h5py

    _check(file, h5py.Group, "an HDF5 file")
    _check(name, str, "the name of an HDF5 object")
    try:
        found = file[name]
    except KeyError as error:
        raise UnpicklingError(f"the HDF5 file {file.filename!r} has no {name!r} here: {error}") from error
    if kind not in ("Group", "Dataset", "Datatype") or not isinstance(found, getattr(h5py, kind)):
        raise UnpicklingError(f"{name!r} in the HDF5 file {file.filename!r} is a {type(found).__name__}, not a {kind}")
    return found


# -- compiled functions of other libraries ---------------------------------------------------------------------------------------------

#: The types of objects that take a function's place in a module, beside Triton's kernels.
COMPILED = (
    "jaxlib._jax:PjitFunction",
    "jaxlib.xla_extension:PjitFunction",
    "jax._src.custom_derivatives:custom_jvp",
    "jax._src.custom_derivatives:custom_vjp",
    "helion.runtime.kernel:Kernel",
    "tilelang.jit:JITImpl",
    "cuda.tile._execution:kernel",
    "numba.core.dispatcher:Dispatcher",
    "numba.core.ccallback:CFunc",
    "numba.np.ufunc.dufunc:DUFunc",
    "numba.np.ufunc.gufunc:GUFunc",
    "numba.stencils.stencil:StencilFunc",
    "cupy._core.raw:RawKernel",
    "cupy._core._kernel:ElementwiseKernel",
    "cupy._core._reduction:ReductionKernel",
)


def compiled(module: str, qualname: str, path: tuple[str, ...]) -> Any:
    """The compiled function of that name; nothing else is returned, whatever the name leads to."""
    found = resolve(module, qualname, path)
    if not any(f"{base.__module__}:{base.__qualname__}" in COMPILED for base in type(found).__mro__):
        raise UnpicklingError(
            f"the reference {'.'.join([f'{module}:{qualname}', *path])} leads to an object of type {type(found).__module__}."
            f"{type(found).__qualname__}, which is no compiled function of a library that is known here"
        )
    return found


def jax_jit(identity: str, function: Any, options: dict[str, Any]) -> Any:
    """The jitted function of that identity if it lives here, else ``jax.jit(function, **options)``."""
    import jax

    _check(identity, str, "the identity of a compiled function")
    _check(options, dict, "the options of jax.jit")
    if not callable(function):
        raise UnpicklingError(f"malformed pickle: jax.jit needs a function, not {type(function).__qualname__}")
    with identities.lock:
        known = identities.object_of(identity)
        if known is not None:
            return known
        parameters = inspect.signature(jax.jit).parameters
        made = jax.jit(function, **{name: value for name, value in options.items() if name in parameters})
        identities.remember(made, identity)
        return made


def jax_custom_derivative(kind: str) -> Any:
    """An empty ``jax.custom_jvp`` or ``jax.custom_vjp``; its functions follow."""
    import jax

    if kind not in ("custom_jvp", "custom_vjp"):
        raise UnpicklingError(f"malformed pickle: {kind!r} is not a kind of custom derivative")
    return object.__new__(getattr(jax, kind))


def fill_jax_custom_derivative(derivative: Any, state: dict[str, Any]) -> None:
    """Give a custom derivative its functions."""
    import functools

    import jax

    _check(derivative, (jax.custom_jvp, jax.custom_vjp), "a custom derivative")
    functools.update_wrapper(derivative, state["fun"])
    vars(derivative).update(state)
