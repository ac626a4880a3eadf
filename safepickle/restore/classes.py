"""What a pickle calls for classes, enumerations and what annotations are made of."""

from __future__ import annotations

import abc
import builtins
import collections
import enum
import sys
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

from ..errors import UnpicklingError
from .checks import _check
from .functions import _check_version
from .identities import identities

__all__ = [
    "begin_class",
    "enum_member",
    "fill_class",
    "make_class",
    "make_enum",
    "make_named_tuple",
    "make_new_type",
    "make_type_alias",
    "make_type_variable",
    "mark_complete",
]


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
    """The object of that identity that this process has: it came or went in a pickle, or is defined here."""
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
    from ..classes import identity_of

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
    ``__init_subclass__`` are called again, which would ask for the arguments of the class statement and find a class
    without attributes.
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
            _fill_abstract(made, [])  # its attributes may hold an instance, made before its methods arrive
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
    # One in front that answers instead, and is taken away again. Python allows that where the layout of instances
    # stays the same.
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
        make: Any = collections.namedtuple  # noqa: PYI024  the fields are known only here
        again = any(field.startswith("_") for field in fields)  # as `rename=True` has made such names before
        made: type = make(name, fields, rename=again, defaults=defaults or None)
        identities.remember(made, identity)
        return made


def begin_class(cls: type, methods: dict[str, Any]) -> type:
    """Give a class the methods that making its instances calls, before its attributes arrive: they may hold some."""
    _check(cls, type, "a class")
    _check(methods, dict, "methods")
    with identities.lock:
        if not _is_complete(cls):
            assign = _native(type(cls), "__setattr__")
            for name, method in methods.items():
                assign(cls, name, method)
    return cls


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

    FunctionMeta.__init__(cls, cls.__name__, cls.__bases__, {})


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
