"""Which rule applies to an object of this type, and where does that rule come from?

A *rule* says what happens to objects of one type, for each verb on its own: how they are pickled (``reduce``)
and how they are copied (``copy``). A :class:`Registry` maps types to rules; registries are layered, so that a
user's rule stands before a built-in one and taking it away brings the built-in one back.

The built-in rules live in :mod:`safepickle.reducers`, one module a library. Nobody imports such a module but this one,
and only when a type of a library that is already imported turns up.
"""

from __future__ import annotations

import copyreg
import functools
import importlib
import inspect
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, overload

from .errors import RegistrationError

__all__ = ["SHARE", "Registry", "Rule", "Share", "default_registry", "register", "rule_for", "unregister"]

Reduced = Any
Reducer = Callable[..., Reduced]
Copier = Callable[[Any, dict[Any, Any]], Any]
Verb = Literal["pickle", "copy"]
F = TypeVar("F", bound=Callable[..., Any])

ENTRY_POINT_GROUP: Final = "safepickle.reducers"

#: Top-level package -> the module of ours that holds its rules. The package is never imported for it.
LIBRARIES: Final[dict[str, str]] = {
    "torch": "safepickle.reducers.torch",
    "triton": "safepickle.reducers.triton",
    "tensorflow": "safepickle.reducers.tensorflow",
}

#: A rule that applies through inheritance yields to one of these defined on a more derived class.
PICKLE_PROTOCOL: Final = frozenset({"__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "__getnewargs_ex__"})
COPY_PROTOCOL: Final = PICKLE_PROTOCOL | {"__copy__", "__deepcopy__"}


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


@dataclass(frozen=True)
class Rule:
    """What happens to objects of one type.

    Attributes:
        target: ``"module:qualname"`` of the type.
        reduce: what ``__reduce__`` would be: a function of the object that returns a string (the name of a global), a tuple of two
            to six, or ``NotImplemented`` to decline. ``None``: the rule says nothing about pickling.
        copy: :data:`SHARE`, a function ``(obj, memo) -> copy``, or ``None``: the copy is rebuilt from ``reduce``.
        subclasses: whether the rule reaches subclasses.
        origin: who registered it: ``"user"``, a module of ours, or an entry point.
        with_pickler: ``reduce`` takes the running pickler as a second argument.
        shallow: what ``copy.copy`` does: :data:`SHARE`, a function ``(obj) -> copy``, or ``None`` for what follows from the rest.
        summary: for each verb one phrase of documentation, as the policy table prints it.
        methods: how a bound method of such an object is pickled: a function of the method, as ``reduce`` is of the object.
        only: for a rule with ``subclasses``, says of a type whether the rule reaches it.
        pickles_only: ``reduce`` does not serve copies.
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

    def covers(self, verb: Verb) -> bool:
        """Whether the rule has anything to say about ``verb``. A reducer serves both; a copy function only copies."""
        if verb == "copy" and (self.copy is not None or self.shallow is not None):
            return True
        return self.reduce is not None and not (verb == "copy" and self.pickles_only)

    @functools.cached_property
    def in_steps(self) -> bool:
        """Whether ``copy`` is a generator function, which yields each part to copy: that works at any depth."""
        return inspect.isgeneratorfunction(self.copy)

    def __str__(self) -> str:
        return f"rule for {self.target} (from {self.origin})"


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
    """The type of that name if its module is imported already; never imports."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        if found is None:
            return None
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def _loading(module_name: str) -> bool:
    """Whether that module is in the middle of its own import, so that its types cannot be asked for yet."""
    module = sys.modules.get(module_name)
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


class _TypeCache:
    """A mapping from types to values that keeps no type alive."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        # Keyed by id, because a weak dictionary hashes its keys, and a metaclass may define its own __hash__ and __eq__.
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
        settings: defaults of the options of :func:`safepickle.deepcopy`, by their names: ``{"nonleaf": "error"}``. What is not set
            here is as the parent says.

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
        self._lock = threading.RLock()
        self.settings: dict[str, Any] = {}
        self._rules: dict[type, Rule] = {}  # an explicit registration of a type keeps that type alive
        self._pending: dict[str, Rule] = {}  # "module:qualname" of types that are not imported yet
        self._pending_modules: frozenset[str] = frozenset()
        self._by_name: dict[str, type] = {}
        self._functions: dict[str, Rule] = {}
        self._made_classes: list[tuple[type, Rule]] = []
        self._cache = _TypeCache()
        self._listeners: weakref.WeakSet[Registry] = weakref.WeakSet()
        self._live: set[Any] = set()  # per-call caches of running picklers, dropped when a rule changes
        if self._parent is not None:
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
            target: the type, or ``"module:qualname"`` of one that may not be imported yet (and never is because of this).
            reduce: function of the object that returns what ``__reduce__`` may return: a string (the qualified name of a
                global), a tuple of two to six items, or ``NotImplemented`` to decline and leave the object to the next rule.
            copy: :data:`SHARE` (the copy is the object itself), a function ``(obj, memo) -> copy``, or ``None``: rebuild the copy
                from ``reduce``, its parts deep-copied. The function copies parts with ``safepickle.deepcopy(part, memo)``;
                or it is a generator that yields each part and is sent the copy, which works at any depth of nesting.
            subclasses: also apply to subclasses, except below a class that defines a protocol method of its own.
            with_pickler: call ``reduce(obj, pickler)`` instead of ``reduce(obj)``; when copying, the second argument is ``None``.

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
    ) -> Rule:
        """As :meth:`register`, with everything a :class:`Rule` may have. Returns the rule."""
        self._check_target(target)
        if reduce is not None and not callable(reduce):
            raise RegistrationError(f"cannot register {target!r}: reduce must be callable, not {reduce!r}")
        for what, value in (("copy", copy), ("shallow", shallow)):
            if value is not None and not isinstance(value, Share) and not callable(value):
                raise RegistrationError(f"cannot register {target!r}: {what} must be SHARE or callable, not {value!r}")
        name = _type_name(target) if isinstance(target, type) else target
        rule = Rule(name, reduce, copy, subclasses, origin, with_pickler, shallow, summary, methods, only, pickles_only)
        with self._lock:
            cls = target if isinstance(target, type) else _resolve_type(*_parse_name(target))
            if cls is not None:
                self._rules[cls] = rule
                self._pending.pop(name, None)
                if not isinstance(target, type):
                    self._by_name[name] = cls
            else:
                self._pending[name] = rule
            self._changed()
        return rule

    def unregister(self, target: type | str) -> None:
        """Take back a registration of this registry; what its parent says applies again.

        Raises:
            RegistrationError: nothing is registered here under ``target``.
        """
        self._check_target(target)
        with self._lock:
            if isinstance(target, type):
                found = self._rules.pop(target, None) or self._pending.pop(_type_name(target), None)
            else:
                cls = self._by_name.pop(target, None) or _resolve_type(*_parse_name(target))
                found = self._pending.pop(target, None) or (self._rules.pop(cls, None) if cls else None)
            if found is None:
                raise RegistrationError(f"nothing is registered for {target!r} in this registry")
            self._changed()

    def add_function(self, name: str, reduce: Reducer, *, origin: str, summary: tuple[str, str] | None = None) -> Rule:
        """Say how functions are pickled that a library makes inside a function of its own and that no name leads to.

        Args:
            name: ``"module:qualname"`` as those functions say of themselves, such as ``"lib.jit:launcher.<locals>.<lambda>"``.
            reduce: as for :meth:`register`.
            origin, summary: as in :class:`Rule`.
        """
        rule = self._functions[name] = Rule(name, reduce, SHARE, origin=origin, summary=summary)
        return rule

    def add_made_classes(self, base: type, only: Callable[[type], bool], reduce: Reducer, **options: Any) -> Rule:
        """Say how objects are handled whose classes a library makes at run time, with protocol methods that refuse.

        The rule is asked before those of the classes, whatever methods they define.

        Args:
            base: what those classes inherit from.
            only: which subclasses of it are meant.
            reduce, options: as for :meth:`add`.
        """
        rule = Rule(_type_name(base), reduce, subclasses=True, only=only, **options)
        with self._lock:
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
        self._pending_modules = frozenset(name.partition(":")[0] for name in self._pending)
        self._cache.clear()
        for live in list(self._live):
            live.clear()
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
            verb: ``"pickle"`` or ``"copy"``: a rule may speak about one of them only.

        Returns:
            The rule; its ``origin`` tells who registered it and its ``target`` for which type.
        """
        rules = self.rules_for(cls, verb)
        return rules[0] if rules else None

    def rules_for(self, cls: type, verb: Verb) -> tuple[Rule, ...]:
        """All rules about objects of ``cls`` in the order in which they are asked; each may decline."""
        self.refresh()
        cached = self._cache.get(cls)
        if cached is None:
            entry, complete = self._lookup(cls)
            if complete:
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
        with self._lock:
            bound = False
            for name, rule in list(self._pending.items()):
                cls = _resolve_type(*_parse_name(name))
                if cls is not None:
                    del self._pending[name]
                    self._rules.setdefault(cls, rule)
                    self._by_name[name] = cls
                    bound = True
            if bound:
                self._changed()

    def _lookup(self, cls: type) -> tuple[dict[Verb, tuple[Rule, ...]], bool]:
        complete = _load_libraries(cls)
        found: dict[Verb, list[Rule]] = {"pickle": [], "copy": []}
        registry: Registry | None = self
        while registry is not None:
            for made, special in registry._made_classes:
                if made in cls.__mro__ and special.only is not None and special.only(cls):
                    for rules in found.values():
                        rules.append(special)
            for base in cls.__mro__:
                rule = registry._rules.get(base)
                if rule is None or not (base is cls or rule.subclasses) or not (rule.only is None or rule.only(cls)):
                    continue
                for verb, rules in found.items():
                    if rule.covers(verb) and not _overruled(cls, base, verb):
                        rules.append(rule)
            registry = registry._parent
        return {verb: tuple(rules) for verb, rules in found.items()}, complete

    def __iter__(self) -> Iterator[Rule]:
        """The rules of this registry, without its parent's."""
        with self._lock:
            made = [rule for _, rule in self._made_classes]
            return iter([*self._rules.values(), *self._pending.values(), *self._functions.values(), *made])


def _overruled(cls: type, registered: type, verb: Verb) -> bool:
    """Whether a class between ``cls`` and the registered one brings a way of its own."""
    names = PICKLE_PROTOCOL if verb == "pickle" else COPY_PROTOCOL
    for base in cls.__mro__:
        if base is registered:
            return False
        if not names.isdisjoint(vars(base)) or base in copyreg.dispatch_table:
            return True
    return False


builtin_registry: Final = Registry.empty()
default_registry: Final = Registry(builtin_registry)


# -- loading the rules that come with safepickle, and those of other packages -------------------------------------------

_loaded: set[str] = set()
_modules_loaded: set[str] = set()
_load_lock = threading.RLock()
_entry_points: dict[str, list[Any]] | None = None


def _load_libraries(cls: type) -> bool:
    """Import the rule modules for the packages that ``cls`` and its bases come from; False: ask again next time."""
    if "stdlib" not in _loaded:
        _load("stdlib", "safepickle.reducers.stdlib")
    complete = True
    for base in cls.__mro__:
        module = base.__module__
        top = module.partition(".")[0] if isinstance(module, str) else ""
        complete = _load_library(top) and complete
    return complete


def _load_library(top: str) -> bool:
    """Import the rule modules for one package; False while the package itself is being imported."""
    if not top or top in _loaded or top in sys.stdlib_module_names or top == "__main__" or top not in sys.modules:
        return True
    if _loading(top):
        return False
    if top in LIBRARIES:
        _load(top, LIBRARIES[top])
    _load_entry_points(top)
    _loaded.add(top)
    return True


def _load(key: str, module: str) -> None:
    with _load_lock:
        if key in _loaded:
            return
        _loaded.add(key)  # before the import: the rules of a library may ask for rules themselves
        try:
            reducers = importlib.import_module(module)
            if module not in _modules_loaded:  # one module may serve several packages
                _modules_loaded.add(module)
                reducers.add_rules(builtin_registry)
        except BaseException:
            _loaded.discard(key)
            raise


def load_all_rules() -> None:
    """Load the rules for all libraries that are imported, as if an object of each had turned up."""
    _load("stdlib", "safepickle.reducers.stdlib")
    for top, module in LIBRARIES.items():
        if top in sys.modules and not _loading(top):
            _load(top, module)


def _load_entry_points(top: str) -> None:
    global _entry_points
    with _load_lock:
        if _entry_points is None:
            from importlib.metadata import entry_points

            table: dict[str, list[Any]] = {}
            for point in entry_points(group=ENTRY_POINT_GROUP):
                table.setdefault(point.name.partition(".")[0], []).append(point)
            _entry_points = table
        points = _entry_points.pop(top, [])
    for point in points:
        try:
            point.load()(_ForeignRules(f"entry point {point.name} = {point.value}"))
        except Exception as error:
            warnings.warn(
                f"safepickle: the entry point {point.name} = {point.value} (group {ENTRY_POINT_GROUP}) failed: {error!r}; "
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


# -- the module-level functions use the default registry ------------------------------------------------------------------


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
