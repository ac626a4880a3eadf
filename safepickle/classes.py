"""How do classes travel that no name leads to, and how does one class stay one class?

By value: bases, metaclass and attributes, as they are now. A class has an identity made from its content, so that two
payloads of it give one class where they are loaded, and the class itself where it was made: loading never changes it.
Type variables, new types and type aliases travel in the same way.
"""

from __future__ import annotations

import abc
import collections
import copyreg
import enum
import sys
import types
import typing
from collections.abc import Iterator
from typing import Any, Final

from . import restore
from .errors import PicklingError
from .references import find, importable, pickled_by_value, static_vars
from .registry import Registry, default_registry
from .sources import function_reference, home, interned

__all__ = [
    "class_by_value",
    "identity_of",
    "iter_type_variable_kinds",
    "reduce_class",
    "reduce_enum_member",
    "reduce_new_type",
    "reduce_type_alias",
    "reduce_type_variable",
]

_HEAP_TYPE: Final = 1 << 9
_TYPES_BY_NAME: Final = {
    value: name
    for name, value in vars(types).items()
    if isinstance(value, type) and value.__module__ == "builtins" and not hasattr(__builtins__, value.__qualname__)
}


# -- identity ----------------------------------------------------------------------------------------------------------


def identity_of(obj: Any, registry: Registry = default_registry) -> str:
    """What makes two payloads one object: its module and name, and a digest of all that it is made from.

    It is made once: an object that changes later stays the same object.

    Raises:
        PicklingError: some part of it cannot be pickled.
    """
    known = restore.identities.identity_of(obj)
    if known is None:
        from .digests import content_digest

        known = restore.identities.remember(obj, f"{_name(obj)}:{content_digest(obj, registry)[:24]}")
        if isinstance(obj, type):
            restore.mark_complete(obj)
    return known


def _identity(obj: Any, pickler: Any) -> str:
    return _name(obj) if pickler.canonical else identity_of(obj, pickler.registry)


def _name(obj: Any) -> str:
    qualname = obj.__name__ if isinstance(obj, _TYPE_VARIABLES) else obj.__qualname__
    return f"{home(obj.__module__)}:{qualname}"


# -- classes -----------------------------------------------------------------------------------------------------------


def reduce_class(cls: type, pickler: Any) -> Any:
    """A class by its name, else by value.

    Raises:
        PicklingError: no name leads to it, and it is made in C.
    """
    if cls.__module__ == "builtins" and cls.__flags__ & _HEAP_TYPE == 0:
        name = _TYPES_BY_NAME.get(cls)
        special = (type(None), type(NotImplemented), type(...))
        return (restore.builtin_type, (name,)) if name is not None and cls not in special else NotImplemented
    reference = find(cls, everywhere=False)
    if reference is not None and not reference.path and reference.module == cls.__module__:
        return NotImplemented if reference.qualname == cls.__qualname__ else reference.qualname
    if not cls.__flags__ & _HEAP_TYPE:
        return NotImplemented  # made in C: nothing but its name can be written
    return class_by_value(cls, pickler)


def class_by_value(cls: type, pickler: Any) -> tuple[Any, ...]:
    """Bases, metaclass and attributes.

    Raises:
        PicklingError: the class is made in C.
    """
    own = (value for name, value in vars(cls).items() if name not in _OWN_SLOTS and isinstance(value, _MADE_IN_C))
    if any(value.__objclass__ is cls for value in own):
        raise PicklingError(
            f"cannot pickle the class {cls.__module__}.{cls.__qualname__}: no name leads to it, and what is made in C "
            "cannot travel by value"
        )
    identity = _identity(cls, pickler)
    write = _writer_for(cls)
    make, arguments, state = write(cls, identity, pickler)
    if not pickler.canonical and write is not _write_enum:
        attributes = state["attributes"]
        begun = [_Begun(cls, {interned(n): attributes[n]}) for n in _CALLED_ON_LOADING if n in attributes]
        if begun:
            state = {"first": pickler.by_value.keep(begun), **state}
    return make, arguments, state, None, None, restore.fill_class


class _Begun:
    """Stands for a class with no more than methods that the unpickler calls on its instances."""

    def __init__(self, cls: type, methods: dict[str, Any]) -> None:
        self._arguments = (cls, methods)

    def __reduce__(self) -> tuple[Any, ...]:
        return restore.begin_class, self._arguments


#: An attribute of a class may hold instances of it, which are made while the class is; and so may the globals and the
#: cells of its methods, hence one after the other. ``__setstate__`` of a frozen dataclass with slots reads its fields.
_CALLED_ON_LOADING: Final = (
    "__new__", "__dataclass_fields__", "__setstate__", "__hash__", "__eq__", "__setattr__", "__setitem__", "append",
    "extend", "add",
)  # fmt: skip

_MADE_IN_C: Final = (types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType)
_OWN_SLOTS: Final = ("__dict__", "__weakref__")


def _writer_for(cls: type) -> Any:
    if isinstance(cls, enum.EnumMeta):
        return _write_enum
    return _write_named_tuple if _is_named_tuple(cls) else _write_class


def _write_class(cls: type, identity: str, pickler: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    slots = _slots(cls)
    skip = _MADE_BY_TYPE.union(() if slots is None else slots)
    namespace = _first_attributes(cls)
    if slots is not None:
        namespace["__slots__"] = slots
    attributes = _attributes(cls, skip | namespace.keys() - {"__slots__"}, pickler)
    arguments = (identity, _metaclass(cls), interned(cls.__name__), cls.__bases__, namespace, *_tag(cls))
    state: dict[str, Any] = {"attributes": attributes, **_abstract_state(cls)}
    if "_backward_cls" in attributes and type(cls).__module__ == "torch.autograd.function":
        del attributes["_backward_cls"]  # made by the metaclass, with a number that counts such classes
        state["autograd_function"] = True
    if getattr(attributes.get("__subclasshook__"), "__module__", None) == "typing":
        del attributes["__subclasshook__"]
        state["protocol"] = True
    return restore.make_class, arguments, state


def _metaclass(cls: type) -> type | None:
    """The metaclass, unless the bases bring it; not all versions of Python call it by the same name."""
    return None if any(type(base) is type(cls) for base in cls.__bases__) else type(cls)


def _tag(cls: type) -> tuple[str, ...]:
    """The version of Python, if the class has code of its own, so that another one refuses the class to begin with."""
    return (str(sys.implementation.cache_tag),) if any(map(_is_code, list(vars(cls).values()))) else ()


def _is_code(value: Any) -> bool:
    """Whether an attribute of a class is a function, or something around one, that goes by value."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    return type(value) is types.FunctionType and function_reference(value) is None


def _first_attributes(cls: type) -> dict[str, Any]:
    """What must be there when the class is made."""
    first: dict[str, Any] = {"__module__": home(cls.__module__), "__qualname__": interned(cls.__qualname__)}
    for name, value in vars(cls).items():
        # Where the metaclass has a property of the same name, assigning would call that.
        if name not in _SETTABLE and _has_setter(type(cls), name):
            first[name] = value
    return first


_SETTABLE: Final = frozenset(vars(type))


def _has_setter(metaclass: type, name: str) -> bool:
    for base in metaclass.__mro__:
        if name in vars(base):
            return hasattr(type(vars(base)[name]), "__set__")
    return False


def _slots(cls: type) -> tuple[str, ...] | None:
    """The names of a class's own slots as they are in its dictionary; ``None`` for a class without ``__slots__``."""
    variables = vars(cls)
    slots = [
        name
        for name, value in variables.items()
        if type(value) in (types.MemberDescriptorType, types.GetSetDescriptorType) and value.__objclass__ is cls
    ]
    return tuple(slots) if "__slots__" in variables or not set(slots).issubset(_OWN_SLOTS) else None


#: What ``type``, ``ABCMeta`` and ``copyreg`` put into a class themselves, or what is written apart.
_MADE_BY_TYPE: Final = frozenset({
    "__dict__", "__weakref__", "__module__", "__qualname__", "_abc_impl", "__abstractmethods__", "__slotnames__",
    "__annotations_cache__", "__annotate_func__",
})  # fmt: skip


def _attributes(cls: type, skip: Any, pickler: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    variables = vars(cls)
    for name in list(variables):
        if (
            name in skip
            or (name == "__doc__" and variables[name] is None)
            or (pickler.canonical and name == "__firstlineno__")
        ):
            continue
        value = pickler.by_value.in_order(lambda: variables[name])  # noqa: B023
        if type(value).__name__ == "CField" and type(value).__module__ == "_ctypes":
            continue  # made from _fields_
        if name == "__static_attributes__":
            value = tuple(sorted(value))  # collected in a set
        attributes[interned(name)] = value
    if sys.version_info >= (3, 14):
        annotations = _annotations(cls)
        if annotations:
            attributes["__annotations__"] = annotations
    return attributes


def _annotations(cls: type) -> Any:
    """A class's own annotations where they are evaluated on demand (3.14)."""
    import annotationlib  # type: ignore[import-not-found]

    try:
        return annotationlib.get_annotations(cls)
    except Exception:  # a name in them is missing
        return annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF)


def _abstract_state(cls: type) -> dict[str, Any]:
    state: dict[str, Any] = {}
    if isinstance(cls, abc.ABCMeta):
        registered = _registered(cls)
        if registered:
            state["registered"] = registered
    if "__abstractmethods__" in vars(cls):
        state["abstract"] = sorted(vars(cls)["__abstractmethods__"])
    return state


def _registered(cls: type) -> list[type]:
    try:
        references = abc._get_dump(cls)[0]  # type: ignore[attr-defined]
    except Exception:  # an abstract class of another kind
        return []
    found = [ref() for ref in references]
    return sorted((c for c in found if c is not None), key=lambda c: (c.__module__, c.__qualname__))


# -- enumerations ------------------------------------------------------------------------------------------------------


def _write_enum(cls: Any, identity: str, pickler: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    members = [
        (interned(name), pickler.by_value.in_order(lambda: member._value_), _data(cls, member))  # noqa: B023
        for name, member in cls.__members__.items()
    ]
    boundary = vars(cls).get("_boundary_")
    inherited = getattr(cls.__bases__[-1], "_boundary_", None)
    options = {} if boundary is inherited else {"boundary": boundary}
    namespace = {"__module__": home(cls.__module__), "__qualname__": interned(cls.__qualname__)}
    name = interned(cls.__name__)
    arguments = (identity, _metaclass(cls), name, cls.__bases__, namespace, members, options, *_tag(cls))
    state: dict[str, Any] = {"attributes": _attributes(cls, _MADE_BY_TYPE | _made_by_enum(cls), pickler)}
    contents = {
        name: held
        for name, member in cls.__members__.items()
        if any(held := _contents(member)) and member._name_ == name
    }
    if contents:
        state["members"] = contents
    known = cls._value2member_map_.items()
    values = [(value, m._name_) for value, m in known if m._name_ in cls._member_map_ and not _same(value, m._value_)]
    if values:
        state["values"] = values
    if "__new_member__" in vars(cls):
        state["new_member"] = vars(cls)["__new_member__"]
    return restore.make_enum, arguments, {**state, **_abstract_state(cls)}


def reduce_enum_member(member: Any, pickler: Any) -> Any:
    """A member of an enumeration that goes by value, as enumeration and name.

    The standard library writes the value, which need not be equal to a copy of itself.
    """
    cls = type(member)
    name = static_vars(member).get("_name_")
    if cls._member_map_.get(name) is not member or find(cls, everywhere=False) is not None:
        return NotImplemented
    return restore.enum_member, (cls, interned(name))


def _same(value: Any, other: Any) -> bool:
    return value is other or (type(value) is type(other) and bool(value == other))


def _data(cls: Any, member: Any) -> tuple[Any, ...]:
    """The arguments with which the member's data type makes it: ``(1,)`` for a member that is an ``int``."""
    kind = cls._member_type_
    if kind is object:
        return ()
    if kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__:
        new_arguments = getattr(kind, "__getnewargs__", None)
        return new_arguments(member) if new_arguments is not None else ()
    arguments: tuple[Any, ...] = kind.__reduce_ex__(member, 4)[1]
    return arguments


def _contents(member: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attributes of a member that a user's ``__new__`` or ``__init__`` gave it."""
    own = {"_value_", "_name_", "__objclass__", "_sort_order_", "_inverted_"}
    attributes = {name: value for name, value in static_vars(member).items() if name not in own}
    names: list[str] = copyreg._slotnames(type(member))  # type: ignore[attr-defined]
    slots = {name: getattr(member, name) for name in names if name not in own and hasattr(member, name)}
    return attributes, slots


def _made_by_enum(cls: Any) -> set[str]:
    """The attributes that the metaclass makes, so that the one of the Python that loads it makes its own."""
    made = {"__new__", "__new_member__", *cls.__members__}
    for name, value in vars(cls).items():
        may_be_inherited = name.startswith("__") or name == "_generate_next_value_"
        if name in _OWNED_BY_ENUM or (may_be_inherited and _is_inherited(cls, name, value)):
            made.add(name)
    return made


_OWNED_BY_ENUM: Final = frozenset({
    "_member_names_", "_member_map_", "_member_type_", "_value2member_map_", "_hashable_values_",
    "_unhashable_values_", "_unhashable_values_map_", "_new_member_", "_use_args_", "_boundary_", "_flag_mask_",
    "_singles_mask_", "_all_bits_", "_inverted_", "_value_repr_", "_iter_member_", "_iter_member_by_value_",
    "_iter_member_by_def_", "_order_", "__order__",
})  # fmt: skip


def _is_inherited(cls: type, name: str, value: Any) -> bool:
    """Whether the metaclass has put there what a base, or the module ``enum``, has."""
    if getattr(getattr(value, "__func__", value), "__module__", None) == "enum":
        return True
    return any(vars(base).get(name) is value for base in cls.__mro__[1:])


# -- named tuples ------------------------------------------------------------------------------------------------------

_make_named_tuple: Any = collections.namedtuple  # noqa: PYI024
_NAMED_TUPLE_CODE: Final = frozenset(
    c.co_name for c in _make_named_tuple.__code__.co_consts if isinstance(c, types.CodeType)
)


def _is_named_tuple(cls: type) -> bool:
    """Whether ``collections.namedtuple`` made the class, so that it can make it again under any version of Python."""
    fields = vars(cls).get("_fields")
    new: Any = vars(cls).get("__new__")
    return (
        type(cls) is type
        and cls.__bases__ == (tuple,)
        and type(fields) is tuple
        and type(new) is staticmethod
        and getattr(new.__func__, "__globals__", {}).get("__name__") == f"namedtuple_{cls.__name__}"
    )


def _write_named_tuple(cls: Any, identity: str, pickler: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    variables = vars(cls)
    new = cls.__new__
    skip = _MADE_BY_TYPE | {name for name in variables if _is_made_by_namedtuple(cls, name)}
    state: dict[str, Any] = {"attributes": _attributes(cls, skip, pickler)}
    for name, value in (("__module__", home(cls.__module__)), ("__qualname__", interned(cls.__qualname__))):
        state["attributes"][name] = value
    if getattr(new, "__annotations__", None):
        state["field_types"] = new.__annotations__
    arguments = (identity, interned(cls.__name__), cls._fields, new.__defaults__ or ())
    return restore.make_named_tuple, arguments, state


def _is_made_by_namedtuple(cls: Any, name: str) -> bool:
    value = vars(cls)[name]
    if name in (
        "__new__",
        "__slots__",
        "_fields",
        "_field_defaults",
        "__match_args__",
        "__static_attributes__",
        "__firstlineno__",
    ):
        return True
    if name == "__doc__":
        return bool(value == f"{cls.__name__}({', '.join(cls._fields)})")
    if name in cls._fields:
        doc = f"Alias for field number {cls._fields.index(name)}"
        return type(value).__name__ == "_tuplegetter" and value.__doc__ == doc
    function = getattr(value, "__func__", value)
    code = getattr(function, "__code__", None)
    return code is not None and code.co_name in _NAMED_TUPLE_CODE and function.__globals__ is vars(collections)


# -- what annotations are made of --------------------------------------------------------------------------------------


def reduce_type_variable(variable: Any, pickler: Any) -> Any:
    """A type variable by its name, else by value."""
    module, name = variable.__module__, variable.__name__
    if _is_named(variable, module, name):
        return name
    kind = type(variable).__name__
    options: dict[str, Any] = {}
    arguments: tuple[Any, ...] = ()
    if kind == "TypeVar":
        arguments = variable.__constraints__
    if kind in ("TypeVar", "ParamSpec"):
        options.update(
            bound=variable.__bound__, covariant=variable.__covariant__, contravariant=variable.__contravariant__
        )
        if getattr(variable, "__infer_variance__", False):
            options["infer_variance"] = True
    if getattr(variable, "has_default", bool)():
        options["default"] = variable.__default__
    options = {name: value for name, value in options.items() if value is not None and value is not False}
    return restore.make_type_variable, (_identity(variable, pickler), kind, name, arguments, options)


def reduce_new_type(new_type: Any, pickler: Any) -> Any:
    """A ``typing.NewType`` by its name, else by value."""
    if _is_named(new_type, new_type.__module__, new_type.__qualname__):
        return new_type.__qualname__
    return restore.make_new_type, (_identity(new_type, pickler), new_type.__qualname__, new_type.__supertype__)


def reduce_type_alias(alias: Any, pickler: Any) -> Any:
    """What a ``type`` statement made by its name, else by value.

    Raises:
        PicklingError: no importable name leads to it, and it mentions itself, as only a ``type`` statement can.
    """
    module, name = alias.__module__, alias.__name__
    if _is_named(alias, module, name):
        return name
    value = alias.__value__
    if _mentions(value, alias):
        raise PicklingError(
            f"cannot pickle the type alias {module}.{name}: it mentions itself, and no importable name leads to it. "
            "Put it into a module"
        )
    return restore.make_type_alias, (home(module), interned(name), value, alias.__type_params__)


def _mentions(annotation: Any, alias: Any) -> bool:
    todo, seen = [annotation], set()
    while todo:
        part = todo.pop()
        if part is alias:
            return True
        if id(part) not in seen and not isinstance(part, type):
            seen.add(id(part))
            todo.extend(
                part
                if isinstance(part, (list, tuple))
                else (*getattr(part, "__args__", ()), getattr(part, "__origin__", None))
            )
    return False


def _is_named(obj: Any, module: Any, qualname: str) -> bool:
    """Whether its own name leads to the object, here and in a fresh process."""
    if not isinstance(module, str) or not importable(module) or pickled_by_value(module):
        return False
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = vars(found).get(part) if isinstance(found, (types.ModuleType, type)) else None
    return found is obj


_TYPE_VARIABLES: Final = tuple(
    getattr(typing, name) for name in ("TypeVar", "ParamSpec", "TypeVarTuple") if hasattr(typing, name)
)


def iter_type_variable_kinds() -> Iterator[type]:
    """The types of type variables in this Python."""
    yield from _TYPE_VARIABLES
