"""Which rule applies to an object of this type, and where does that rule come from?

A *rule* says what happens to objects of one type, for each verb on its own: how they are pickled (``reduce``)
and how they are copied (``copy``). A :class:`Registry` maps types to rules; registries are layered, so that a
user's rule stands before a built-in one and taking it away brings the built-in one back.

The built-in rules live in :mod:`safepickle.reducers`, one module a library. Nobody imports such a module but this one,
and only when a type of a library that is already imported turns up.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple, TypeVar, overload

from .entries import foreign_entry
from .errors import RegistrationError
from .references import static_vars

__all__ = ["SHARE", "Registry", "Rule", "Share", "default_registry", "register", "rule_for", "unregister"]

Reduced = Any
Reducer = Callable[..., Reduced]
Copier = Callable[[Any, dict[Any, Any]], Any]
Verb = Literal["pickle", "copy", "shallow"]
F = TypeVar("F", bound=Callable[..., Any])

ENTRY_POINT_GROUP: Final = "safepickle.reducers"

#: Top-level package -> the module of ours that holds its rules. The package is never imported for it.
LIBRARIES: Final[dict[str, str]] = {
    "h5py": "safepickle.reducers.h5py",
    "numpy": "safepickle.reducers.numpy",
    "torch": "safepickle.reducers.torch",
    "triton": "safepickle.reducers.triton",
    "tensorflow": "safepickle.reducers.tensorflow",
    "keras": "safepickle.reducers.keras",
    **dict.fromkeys(("cuda", "cupy", "helion", "jax", "jaxlib", "numba", "tilelang"), "safepickle.reducers.kernels"),
}

#: ``inspect.CO_GENERATOR``, without importing ``inspect``.
_GENERATOR: Final = 0x20

#: A rule that applies through inheritance yields to one of these defined on a more derived class.
PICKLE_PROTOCOL: Final = frozenset(
    {"__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "__getnewargs_ex__"}
)
PROTOCOL: Final[dict[Verb, frozenset[str]]] = {
    "pickle": PICKLE_PROTOCOL,
    "copy": PICKLE_PROTOCOL | {"__deepcopy__"},
    "shallow": PICKLE_PROTOCOL | {"__copy__"},
}


class Share:
    """The type of :data:`SHARE`: the copy of the object is the object itself.

    Args:
        unless: says of an object that it is copied after all, by the next rule or the standard library's way.
    """

    __slots__ = ("unless",)

    def __init__(self, unless: Callable[[Any], bool] | None = None) -> None:
        self.unless = unless

    def __call__(self, obj: Any) -> Any:
        """The object, or ``NotImplemented`` where it is not shared."""
        return NotImplemented if self.unless is not None and self.unless(obj) else obj

    def __repr__(self) -> str:
        return "SHARE"

    def __reduce__(self) -> str:
        return "SHARE"


SHARE: Final = Share()


class Rule(NamedTuple):
    """What happens to objects of one type.

    Attributes:
        target: ``"module:qualname"`` of the type.
        reduce: what ``__reduce__`` would be: a function of the object that returns a string (the name of a global), a
            tuple of two to six, or ``NotImplemented`` to decline. ``None``: the rule says nothing about pickling.
        copy: :data:`SHARE`, a function ``(obj, memo) -> copy``, or ``None``: the copy is rebuilt from ``reduce``.
        subclasses: whether the rule reaches subclasses.
        origin: who registered it: ``"user"``, a module of ours, or an entry point.
        with_pickler: ``reduce`` takes the running pickler as a second argument.
        shallow: what ``copy.copy`` does: :data:`SHARE`, a function ``(obj) -> copy``, or ``None`` for what follows
            from the rest.
        summary: for each verb one phrase of documentation, as the policy table prints it.
        methods: how a bound method of such an object is pickled: a function of the method, as ``reduce`` is of the
            object.
        only: for a rule with ``subclasses``, says of a type whether the rule reaches it.
        pickles_only: ``reduce`` does not serve copies.
        concerns: names of attributes. Where an object has none of them, or what it has is ``None`` or an empty
            dictionary, the rule declines, and a copier need not ask it. Empty: it has to be asked.
        named: ``reduce`` leaves an object alone to which its own ``__module__`` and ``__qualname__`` lead, in a module
            that can be imported.
        holding: for functions: ``copy`` shares one whose cells, defaults and attributes hold nothing but atoms, and a
            copier need not ask it.
    """

    target: str
    reduce: Reducer | None = None
    copy: Share | Copier | None = None
    subclasses: bool = False
    origin: str = "user"
    with_pickler: bool = False
    shallow: Share | Callable[[Any], Any] | None = None
    summary: tuple[str, str] | None = None
    methods: Reducer | None = None
    only: Callable[[type], bool] | None = None
    pickles_only: bool = False
    concerns: tuple[str, ...] = ()
    named: bool = False
    holding: bool = False

    def covers(self, verb: Verb) -> bool:
        """Whether the rule has anything to say about ``verb``. A reducer serves both; a copy function only copies."""
        if verb == "pickle":
            return self.reduce is not None
        if self.copy is not None or (verb == "shallow" and self.shallow is not None):
            return True
        return self.reduce is not None and not self.pickles_only

    @property
    def in_steps(self) -> bool:
        """Whether ``copy`` is a generator function, which yields each part to copy: that works at any depth."""
        function: Any = self.copy
        code = getattr(function, "__code__", None)
        while code is None and hasattr(function, "func"):  # a partial
            function = function.func
            code = getattr(function, "__code__", None)
        if code is None and function is not None:  # an object that can be called
            code = getattr(type(function).__call__, "__code__", None)
        return code is not None and bool(code.co_flags & _GENERATOR)

    def __str__(self) -> str:
        return f"rule for {self.target} (from {self.origin})"


def is_concerned(x: Any, names: tuple[str, ...]) -> bool:
    """Whether an object has one of the attributes by which a rule sees that it has something to say."""
    attributes = static_vars(x)
    for name in names:
        value = attributes.get(name)
        if value is not None and (value or type(value) not in (dict, OrderedDict)):
            return True
    return False


def _type_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _parse_name(name: str) -> tuple[str, str]:
    module, colon, qualname = name.partition(":")
    parts = [*module.split("."), *qualname.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise RegistrationError(
            f"cannot register {name!r}: expected a type or a string 'module:qualname', such as 'queue:Queue'"
        )
    return module, qualname


def _resolve_type(module: str, qualname: str) -> type | None:
    """The type of that name if its module is imported already and has it.

    No code of the module runs for it: a lazy one would import what it is asked for.
    """
    first, *rest = qualname.split(".")
    found = static_vars(sys.modules.get(module)).get(first)
    for part in rest:
        found = vars(found).get(part) if isinstance(found, type) else None
    return found if isinstance(found, type) else None


def _loading(module_name: str) -> bool:
    """Whether that module is in the middle of its own import, so that its types cannot be asked for yet."""
    spec = static_vars(sys.modules.get(module_name)).get("__spec__")
    return bool(getattr(spec, "_initializing", False))


def known_by_identity(cls: type) -> bool:
    """Whether a dictionary tells the type from all others: a metaclass may say that two of its classes are equal."""
    metaclass = type(cls)
    return metaclass is type or (metaclass.__eq__ is type.__eq__ and metaclass.__hash__ is type.__hash__)


class _TypeMap:
    """A dictionary whose keys are types, by identity, which it keeps alive."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, tuple[type, Rule]] = {}

    def get(self, cls: type) -> Rule | None:
        entry = self._entries.get(id(cls))
        return None if entry is None else entry[1]

    def set(self, cls: type, rule: Rule) -> None:
        self._entries[id(cls)] = (cls, rule)

    def pop(self, cls: type) -> Rule | None:
        entry = self._entries.pop(id(cls), None)
        return None if entry is None else entry[1]

    def items(self) -> list[tuple[type, Rule]]:
        return list(self._entries.values())

    def values(self) -> list[Rule]:
        return [rule for _, rule in self._entries.values()]


class _TypeCache:
    """A mapping from types to values that keeps no type alive."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        # Keyed by id, because a weak dictionary hashes its keys, and a metaclass may define its own __hash__ and
        # __eq__.
        self._entries: dict[int, tuple[weakref.ref[type], Any]] = {}

    def get(self, cls: type) -> tuple[Any] | None:
        entry = self._entries.get(id(cls))
        if entry is None or entry[0]() is not cls:
            return None
        return (entry[1],)

    def set(self, cls: type, value: Any) -> None:
        key, entries = id(cls), self._entries

        def forget(ref: weakref.ref[type]) -> None:
            entry = entries.get(key)
            if entry is not None and entry[0] is ref:
                entries.pop(key, None)

        entries[key] = (weakref.ref(cls, forget), value)

    def clear(self) -> None:
        self._entries.clear()


class Registry:
    """A mapping from types to rules, optionally on top of another one.

    Args:
        parent: rules that apply where this registry has none. Defaults to the rules that come with safepickle;
            pass ``Registry.empty()`` for a registry that knows nothing else.

    Attributes:
        settings: defaults of the options of :func:`safepickle.deepcopy`, by their names: ``{"nonleaf": "error"}``.
            What is not set here is as the parent says.

    Example:
        >>> import safepickle
        >>> class Connection:
        ...     def __init__(self, url): self.url, self.socket = url, object()
        >>> mine = safepickle.Registry()
        >>> _ = mine.register(Connection, lambda c: (Connection, (c.url,)))
        >>> safepickle.deepcopy(Connection("db://x"), registry=mine).url
        'db://x'
    """

    def __init__(self, parent: Registry | None = None, *, _root: bool = False) -> None:
        self._parent: Registry | None = None if _root else (parent if parent is not None else default_registry)
        self.settings: dict[str, Any] = {}
        self._rules = _TypeMap()
        self._names: dict[str, Rule] = {}  # what was registered as "module:qualname"
        self._bound: dict[str, list[type]] = {}  # types of such a name: several if the module was loaded again
        self._waiting: dict[str, list[tuple[str, str]]] = {}  # module -> the names, whole and in it, that no type had
        self._pending_modules: frozenset[str] = frozenset()  # these modules
        self._functions: dict[str, Rule] = {}
        self._made_classes: list[tuple[type, Rule]] = []
        self._cache = _TypeCache()
        self._version = 0
        self._native_plans: Any = None  # what the C core of the copier has made of the rules
        self._listeners: weakref.WeakSet[Registry] = weakref.WeakSet()
        self._live: set[Any] = set()  # per-call caches of running picklers, dropped when a rule changes
        if self._parent is not None:
            with _lock:
                self._parent._listeners.add(self)

    @classmethod
    def empty(cls) -> Registry:
        """A registry without any rule and without a parent."""
        return cls(_root=True)

    # -- registering -------------------------------------------------------------------------------------------------

    @overload
    def register(self, target: type | str, reduce: None = None, *, copy: None = None, subclasses: bool = False,
                 with_pickler: bool = False) -> Callable[[F], F]: ...  # fmt: skip
    @overload
    def register(self, target: type | str, reduce: Reducer | None = None, *, copy: Share | Copier | None = None,
                 subclasses: bool = False, with_pickler: bool = False) -> Any: ...  # fmt: skip

    def register(
        self,
        target: type | str,
        reduce: Reducer | None = None,
        *,
        copy: Share | Copier | None = None,
        subclasses: bool = False,
        with_pickler: bool = False,
    ) -> Any:
        """Say how objects of a type are pickled and copied.

        Args:
            target: the type, or ``"module:qualname"`` of one that may not be imported yet (and never is because of
                this).
            reduce: function of the object that returns what ``__reduce__`` may return: a string (the qualified name
                of a global), a tuple of two to six items, or ``NotImplemented`` to decline and leave the object to the
                next rule.
            copy: :data:`SHARE` (the copy is the object itself), a function ``(obj, memo) -> copy``, or ``None``:
                rebuild the copy
                from ``reduce``, its parts deep-copied. The function copies parts with ``safepickle.deepcopy(part,
                memo)``;
                or it is a generator that yields each part and is sent the copy, which works at any depth of nesting.
            subclasses: also apply to subclasses, except below a class that defines a protocol method of its own.
            with_pickler: call ``reduce(obj, pickler)`` instead of ``reduce(obj)``; when copying, the second argument
                is ``None``.

        Picklers write exact numbers, strings and builtin containers themselves and ask nobody about them; copiers ask.

        Returns:
            ``reduce``, or a decorator where neither ``reduce`` nor ``copy`` is given.

        Raises:
            RegistrationError: ``target`` is neither a type nor a well-formed name, or the functions cannot be called.
        """
        if reduce is None and copy is None:
            if not isinstance(target, type):
                self._check_target(target)

            def decorate(function: F) -> F:
                self.register(target, function, subclasses=subclasses, with_pickler=with_pickler)
                return function

            return decorate
        self.add(target, reduce, copy=copy, subclasses=subclasses, with_pickler=with_pickler)
        return reduce

    def add(
        self,
        target: type | str,
        reduce: Reducer | None = None,
        *,
        copy: Share | Copier | None = None,
        shallow: Share | Callable[[Any], Any] | None = None,
        subclasses: bool = False,
        with_pickler: bool = False,
        origin: str = "user",
        summary: tuple[str, str] | None = None,
        methods: Reducer | None = None,
        only: Callable[[type], bool] | None = None,
        pickles_only: bool = False,
        concerns: tuple[str, ...] = (),
        named: bool = False,
        holding: bool = False,
    ) -> Rule:
        """As :meth:`register`, with everything a :class:`Rule` may have. Returns the rule."""
        self._check_target(target)
        if reduce is not None and not callable(reduce):
            raise RegistrationError(f"cannot register {target!r}: reduce must be callable, not {reduce!r}")
        for what, value in (("copy", copy), ("shallow", shallow)):
            if value is not None and not isinstance(value, Share) and not callable(value):
                raise RegistrationError(f"cannot register {target!r}: {what} must be SHARE or callable, not {value!r}")
        name = _type_name(target) if isinstance(target, type) else target
        rule = Rule(
            name, reduce, copy, subclasses, origin, with_pickler, shallow, summary, methods, only, pickles_only,
            concerns, named, holding,
        )  # fmt: skip
        with _lock:
            self._forget_name(name)
            cls = target if isinstance(target, type) else _resolve_type(*_parse_name(target))
            if cls is not None:
                self._rules.set(cls, rule)
            if not isinstance(target, type):
                self._names[name] = rule
                self._bound[name] = [] if cls is None else [cls]
            self._changed()
        return rule

    def unregister(self, target: type | str) -> None:
        """Take back a registration of this registry; what its parent says applies again.

        Raises:
            RegistrationError: nothing is registered here under ``target``.
        """
        self._check_target(target)
        with _lock:
            if isinstance(target, type):
                found = self._rules.pop(target)
                for name in [name for name, types in self._bound.items() if any(cls is target for cls in types)]:
                    self._forget_name(name)
            else:
                found = self._forget_name(target)
                if found is None and (cls := _resolve_type(*_parse_name(target))) is not None:
                    found = self._rules.pop(cls)
            if found is None:
                raise RegistrationError(f"nothing is registered for {target!r} in this registry")
            self._changed()

    def _forget_name(self, name: str) -> Rule | None:
        """Take back what was registered under a name, and the rules of the types that had it."""
        rule = self._names.pop(name, None)
        for cls in self._bound.pop(name, ()):
            if self._rules.get(cls) is rule:
                self._rules.pop(cls)
        return rule

    def add_function(self, name: str, reduce: Reducer, *, origin: str, summary: tuple[str, str] | None = None) -> Rule:
        """Say how functions are pickled that a library makes inside a function of its own and that no name leads to.

        Args:
            name: ``"module:qualname"`` as those functions say of themselves, such as
                ``"lib.jit:launcher.<locals>.<lambda>"``.
            reduce: as for :meth:`register`.
            origin, summary: as in :class:`Rule`.
        """
        rule = self._functions[name] = Rule(name, reduce, SHARE, origin=origin, summary=summary)
        return rule

    def add_made_classes(
        self, base: type, only: Callable[[type], bool], reduce: Reducer, *, name: str | None = None, **options: Any
    ) -> Rule:
        """Say how objects are handled whose classes a library makes at run time, with protocol methods that refuse.

        The rule is asked before those of the classes, whatever methods they define.

        Args:
            base: what those classes inherit from.
            only: which subclasses of it are meant.
            reduce, options: as for :meth:`add`.
            name: what to call them, ``"module:qualname"``; unless given, as the base.
        """
        rule = Rule(_type_name(base) if name is None else name, reduce, subclasses=True, only=only, **options)
        with _lock:
            self._made_classes.append((base, rule))
            self._changed()
        return rule

    def function_rule(self, function: Any) -> Rule | None:
        """The rule for functions of this name, if a library has one (:meth:`add_function`)."""
        module = function.__module__
        if not isinstance(module, str) or "<locals>" not in function.__qualname__:
            return None
        _load_library(module.partition(".")[0])
        registry: Registry | None = self
        while registry is not None:
            rule = registry._functions.get(f"{module}:{function.__qualname__}")
            if rule is not None:
                return rule
            registry = registry._parent
        return None

    @staticmethod
    def _check_target(target: object) -> None:
        if isinstance(target, str):
            _parse_name(target)
        elif not isinstance(target, type):
            raise RegistrationError(
                f"cannot register {target!r}: expected a type or a string 'module:qualname', not an object of type "
                f"{type(target).__qualname__}"
            )

    def _changed(self) -> None:
        waiting: dict[str, list[tuple[str, str]]] = {}
        for name, types in self._bound.items():
            if not types:
                module, qualname = _parse_name(name)
                waiting.setdefault(module, []).append((name, qualname))
        self._waiting, self._pending_modules = waiting, frozenset(waiting)
        self._version += 1
        self._cache.clear()
        for live in list(self._live):
            live.clear()
        for notify in on_change:
            notify()
        for child in list(self._listeners):
            child._changed()

    def setting(self, name: str, default: Any = None) -> Any:
        """The value of a setting, here or in the next registry below that has it."""
        registry: Registry | None = self
        while registry is not None:
            if name in registry.settings:
                return registry.settings[name]
            registry = registry._parent
        return default

    # -- asking ------------------------------------------------------------------------------------------------------

    def rule_for(self, cls: type, verb: Verb = "pickle") -> Rule | None:
        """The rule that is asked first about objects of ``cls``; ``None`` where the standard library's way applies.

        Args:
            cls: the type of the objects.
            verb: ``"pickle"``, ``"copy"`` (a deep one) or ``"shallow"``: a rule may speak about some of them only.

        Returns:
            The rule; its ``origin`` tells who registered it and its ``target`` for which type.
        """
        self.refresh()
        rules = self.rules_for(cls, verb)
        return rules[0] if rules else None

    def rules_for(self, cls: type, verb: Verb) -> tuple[Rule, ...]:
        """All rules about objects of ``cls`` in the order in which they are asked; each may decline.

        A type that was asked for before gets the same answer until a rule changes or :meth:`refresh` is called.
        """
        cached = self._cache.get(cls)
        if cached is None:
            if not isinstance(cls, type):
                raise TypeError(f"rules are for types, not for an object of type {type(cls).__qualname__}")
            self.refresh()
            version = self._version
            entry, complete = self._lookup(cls)
            with _lock:
                if complete and version == self._version:  # or a rule has come meanwhile that this answer does not know
                    self._cache.set(cls, entry)
            return entry[verb]
        result: tuple[Rule, ...] = cached[0][verb]
        return result

    def refresh(self) -> None:
        """Bind rules that wait for a module which has been imported meanwhile."""
        registry: Registry | None = self
        while registry is not None:
            if registry._pending_modules and not sys.modules.keys().isdisjoint(registry._pending_modules):
                registry._bind_pending()
            registry = registry._parent

    def _bind_pending(self) -> None:
        found = [
            (name, cls)
            for module, names in self._waiting.items()
            if module in sys.modules
            for name, qualname in names
            if (cls := _resolve_type(module, qualname)) is not None
        ]
        if not found:
            return  # a name that its module does not have, in this version of it
        with _lock:
            for name, cls in found:
                if self._bound.get(name) == []:
                    self._bind(name, cls)
            self._changed()

    def _bind(self, name: str, cls: type) -> None:
        self._bound[name].append(cls)
        if self._rules.get(cls) is None:
            self._rules.set(cls, self._names[name])

    def _rule_at(self, cls: type) -> Rule | None:
        """The rule registered here for the very type, or for its name if its module was loaded a second time."""
        rule = self._rules.get(cls)
        if rule is not None or not self._names:
            return rule
        name = _type_name(cls)
        if name not in self._names or _resolve_type(*_parse_name(name)) is not cls:
            return None
        with _lock:
            if name in self._names:
                self._bind(name, cls)
        return self._rules.get(cls)

    def _lookup(self, cls: type) -> tuple[dict[Verb, tuple[Rule, ...]], bool]:
        complete = _load_libraries(cls)
        found: dict[Verb, list[Rule]] = {"pickle": [], "copy": [], "shallow": []}
        registry: Registry | None = self
        while registry is not None:
            for made, special in registry._made_classes:
                if made in cls.__mro__ and special.only is not None and special.only(cls):
                    for rules in found.values():
                        rules.append(special)
            for base in cls.__mro__:
                rule = registry._rule_at(base)
                if rule is None or not (base is cls or rule.subclasses) or not (rule.only is None or rule.only(cls)):
                    continue
                for verb, rules in found.items():
                    if rule.covers(verb) and not _overruled(cls, base, verb):
                        rules.append(rule)
            registry = registry._parent
        return {verb: tuple(rules) for verb, rules in found.items()}, complete

    def __copy__(self) -> Registry:
        """The registry itself: what layers it is part of belongs to the process, not to an object that holds it."""
        return self

    def __deepcopy__(self, memo: Any) -> Registry:
        """The registry itself."""
        return self

    def __reduce__(self) -> str:
        """The registries of the package go by name."""
        for name in ("default_registry", "builtin_registry"):
            if globals()[name] is self:
                return name
        raise TypeError("a registry cannot be pickled: make it and register its rules where it is needed")

    def types(self) -> list[tuple[type, Rule]]:
        """The types that rules of this registry are registered for, as far as they are imported, each with its rule."""
        with _lock:
            return list(self._rules.items())

    @property
    def modules(self) -> frozenset[str]:
        """The modules of the names that rules are registered under, here and in the registries below."""
        below = frozenset() if self._parent is None else self._parent.modules
        return below.union([_parse_name(name)[0] for name in list(self._names)])

    def __iter__(self) -> Iterator[Rule]:
        """The rules of this registry, without its parent's."""
        with _lock:
            made = [rule for _, rule in self._made_classes]
            rules = [*self._rules.values(), *self._names.values(), *self._functions.values(), *made]
            return iter({id(rule): rule for rule in rules}.values())


def _overruled(cls: type, registered: type, verb: Verb) -> bool:
    """Whether a class between ``cls`` and the registered one brings a way of its own, or ``copyreg`` knows ``cls``."""
    if cls is registered:
        return False
    if foreign_entry(cls) is not None:  # of the very type: entries are not inherited, and tblib makes one of Exception
        return True
    # Classes are atoms to the standard library: it asks no method of a metaclass how to pickle or copy them.
    names: frozenset[str] = frozenset() if issubclass(cls, type) else PROTOCOL[verb]
    for base in cls.__mro__:
        if base is registered:
            return False
        if not names.isdisjoint(vars(base)):
            return True
    return False


#: One lock for all registries: a change of one is a change of all that are layered on it. No foreign code runs under
#: it.
_lock = threading.RLock()


def _renew_locks() -> None:
    """In a forked child: the thread that held a lock in the parent is not there to let go of it."""
    global _lock, _load_lock
    _lock, _load_lock = threading.RLock(), threading.RLock()
    _begun.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)

#: Called after every change of a rule, by those who cache what follows from rules.
on_change: Final[list[Callable[[], Any]]] = []

builtin_registry: Final = Registry.empty()
default_registry: Final = Registry(builtin_registry)


# -- loading the rules that come with safepickle, and those of other packages ------------------------------------------

_STDLIB: Final = "safepickle.reducers.stdlib"

_loaded: set[str] = set()  # top-level packages whose rules are here
_begun: set[str] = set()  # those whose rules this thread is loading
_modules_loaded: set[str] = set()
_load_lock = threading.RLock()
_entry_points: dict[str, list[Any]] | None = None

#: How long a thread waits for another one that loads rules. Both may be in the middle of imports that need each other.
_PATIENCE: Final = 30.0


def _load_libraries(cls: type) -> bool:
    """Import the rule modules for the packages that ``cls`` and its bases come from; False: ask again next time."""
    complete = _STDLIB in _loaded or _load(_STDLIB)
    for base in cls.__mro__:
        module = base.__module__
        top = module.partition(".")[0] if isinstance(module, str) else ""
        complete = _load_library(top) and complete
    return complete


def _load_library(top: str) -> bool:
    """Import the rule modules for one package, if there are any; False while it is itself being imported."""
    if not top or top in _loaded or top in sys.stdlib_module_names or top == "__main__" or top not in sys.modules:
        return True
    # Most packages have no rules: what is pickled while such a one is imported need not be looked up each time.
    if _loading(top) and (top in LIBRARIES or top in _foreign_rules()):
        return False
    return _load(top)


def _load(top: str) -> bool:
    """Load the rules for one package; False if another thread is at it and does not come to an end."""
    if not _load_lock.acquire(timeout=_PATIENCE):
        return False
    try:
        if top in _loaded or top in _begun:  # the rules of a library may ask for rules themselves
            return True
        _begun.add(top)
        try:
            _load_module(_STDLIB if top == _STDLIB else LIBRARIES.get(top))
            _load_entry_points(top)
            _loaded.add(top)
        finally:
            _begun.discard(top)
        _notify()
    finally:
        _load_lock.release()
    return True


def _notify() -> None:
    """Tell those who wait until all rules of a library are here."""
    with _lock:
        for notify in on_change:
            notify()


def _load_module(name: str | None) -> None:
    if name is not None and name not in _modules_loaded:  # one module may serve several packages
        reducers = importlib.import_module(name)
        _modules_loaded.add(name)
        reducers.add_rules(builtin_registry)


def load_all_rules() -> None:
    """Load the rules for all libraries that are imported, as if an object of each had turned up."""
    _load(_STDLIB)
    for top in [*LIBRARIES, *_foreign_rules()]:
        if top in sys.modules and not _loading(top):
            _load(top)


def load_rules(top: str) -> None:
    """Load the rules for a package that has just been executed, if there are any."""
    if top in packages_with_rules():
        _load(top)


def packages_with_rules() -> frozenset[str]:
    """The top-level packages that there are rules for here, or in entry points of other distributions."""
    return frozenset({*LIBRARIES, *_foreign_rules()})


def rebind(module_name: str) -> None:
    """Bind the rules for names of a module that has been executed, perhaps for the second time."""
    default_registry.refresh()
    for registry in (default_registry, builtin_registry):
        for name in list(registry._names):
            module, qualname = _parse_name(name)
            if module == module_name and (cls := _resolve_type(module, qualname)) is not None:
                registry._rule_at(cls)


def _foreign_rules() -> dict[str, list[Any]]:
    """The entry points by the package that they have rules for."""
    global _entry_points
    if _entry_points is None:
        from importlib.metadata import entry_points

        table: dict[str, list[Any]] = {}
        for point in entry_points(group=ENTRY_POINT_GROUP):
            table.setdefault(point.name.partition(".")[0], []).append(point)
        _entry_points = table
    return _entry_points


def _load_entry_points(top: str) -> None:
    for point in _foreign_rules().pop(top, ()):
        try:
            point.load()(_ForeignRules(f"entry point {point.name} = {point.value}"))
        except Exception as error:
            warnings.warn(
                f"safepickle: the entry point {point.name} = {point.value} (group {ENTRY_POINT_GROUP}) "
                f"failed: {error!r}; "
                f"objects of {top} are handled without it",
                RuntimeWarning,
                stacklevel=2,
            )


class _ForeignRules:
    """What an entry point is called with: it registers on the built-in layer, so that users' rules stay in front."""

    def __init__(self, origin: str) -> None:
        self._origin = origin

    def register(self, target: type | str, reduce: Reducer | None = None, **options: Any) -> Any:
        if reduce is None and options.get("copy") is None:
            return lambda function: self.register(target, function, **options)
        builtin_registry.add(target, reduce, origin=self._origin, **options)
        return reduce


def refreshed(registry: Registry) -> bool:
    """Bind what waits for a module; whether all that still waits does so for modules that are not here."""
    registry.refresh()
    waits: Registry | None = registry
    while waits is not None:
        if not sys.modules.keys().isdisjoint(waits._pending_modules):
            return False
        waits = waits._parent
    return True


# -- the module-level functions use the default registry ---------------------------------------------------------------


def register(
    target: type | str,
    reduce: Reducer | None = None,
    *,
    copy: Share | Copier | None = None,
    subclasses: bool = False,
    with_pickler: bool = False,
) -> Any:
    """Say how objects of a type are pickled and copied, everywhere in this process. See :meth:`Registry.register`.

    Example:
        >>> import safepickle
        >>> class Handle:
        ...     def __init__(self, path): self.path = path
        >>> @safepickle.register(Handle)
        ... def reduce_handle(handle):
        ...     return Handle, (handle.path,)
        >>> safepickle.deepcopy(Handle("a.bin")).path
        'a.bin'
        >>> safepickle.unregister(Handle)
    """
    return default_registry.register(
        target, reduce, copy=copy, subclasses=subclasses, with_pickler=with_pickler
    )


def unregister(target: type | str) -> None:
    """Take back what :func:`register` was told about a type; a built-in rule for it applies again.

    Raises:
        RegistrationError: nothing was registered for it.
    """
    default_registry.unregister(target)


def rule_for(cls: type, verb: Verb = "pickle") -> Rule | None:
    """The rule that is asked first about objects of a type. See :meth:`Registry.rule_for`.

    Example:
        >>> import safepickle, threading
        >>> safepickle.rule_for(type(threading.Lock())).origin
        'safepickle.reducers.stdlib'
    """
    return default_registry.rule_for(cls, verb)
