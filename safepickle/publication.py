"""How do ``pickle`` and ``copy`` themselves come to use the rules of the registry?

Through their own tables, by exact type:

- ``copyreg.dispatch_table``, documented, which all picklers that are derived from the standard library's ask, and the
  tables that an engine has copied from it when it was imported
- ``copy._deepcopy_dispatch`` and ``copy._copy_dispatch``: ``copy`` asks ``copyreg`` too, but does not understand a
  reduce value of six items, and cannot know what a rule says about copies alone. These two are not documented, and are
  what they are today since Python 2; where they are missing, there is ``copyreg``.

Rules of the user reach every type that they are for. Built-in rules leave alone what works without them: types that
somebody else has told ``copyreg`` about, copies of classes with a ``__deepcopy__`` of their own, and what the standard
library pickles: its bytes stay as they are, and load without safepickle.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import sys
import types
import typing
from collections.abc import Iterator, MutableMapping
from typing import Any, Final, NamedTuple

from . import copier, registry
from .changes import Change, Changes
from .entries import Entry, foreign, foreign_entry
from .pickler import reduce_by_rules
from .references import main_is_shared, static_vars, walk
from .registry import Rule, Verb, builtin_registry, default_registry, known_by_identity

__all__ = ["COPIES", "LATER", "Publication"]

#: What the changes are filed under.
COPYREG: Final = "copyreg"

#: Module -> where in it a copy of ``copyreg``'s table is, made when it was imported.
COPIES: Final[dict[str, tuple[str, ...]]] = {
    "torch.distributed.rpc.internal": ("_internal_rpc_pickler", "_dispatch_table"),
}

#: The standard library's picklers write these before they ask ``copyreg``.
_NEVER_ASKED: Final = frozenset({
    type(None), bool, int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset, type,
    types.FunctionType,
})  # fmt: skip

#: Where the standard library pickles, built-in rules stand back for these and what is derived from them: it can do
#: without, and what it writes loads without safepickle.
_KEPT: Final = frozenset({
    "builtins:BaseException",
    "torch:Tensor", "torch.storage:UntypedStorage", "torch.storage:TypedStorage", "torch.fx.graph_module:GraphModule",
    "tensorflow.python.ops.resource_variable_ops:BaseResourceVariable",
    "tensorflow.python.framework.ops:EagerTensor",
    # What is weakly referred to goes along where the whole pickle is known; here a reference would come back dead.
    "weakref:ReferenceType", "weakref:ProxyType", "weakref:CallableProxyType", "weakref:finalize",
    "weakref:WeakValueDictionary", "weakref:WeakKeyDictionary", "_weakrefset:WeakSet",
    "torch.utils.weak:WeakIdKeyDictionary",
    # Ours refuses them, and plain pickle does not: what holds one by the way is pickled and copied as before.
    "tempfile:TemporaryDirectory", "tempfile:SpooledTemporaryFile",
})  # fmt: skip

#: The same, for the very types.
_KEPT_ALONE: Final = frozenset({
    "builtins:method", "enum:Enum", "typing:TypeVar", "typing:ParamSpec", "typing:TypeVarTuple", "typing:NewType",
    "builtins:mappingproxy",  # whose class has no name: to write it takes more than an entry for its objects
    "torch:memory_format", "torch._C:Generator", "torch.nn.modules.module:Module", "torch.optim.optimizer:Optimizer",
    "torch.distributions.transforms:Transform", "torch.fx.graph:Graph", "torch.fx.node:Node",
    "torch.fx.traceback:NodeSource", "torch.fx.traceback:NodeSource.NodeInfo",
    "triton.runtime.autotuner:Config", "triton.language.core:constexpr",
    "tensorflow.python.ops.stateful_random_ops:Generator",
    "tensorflow.python.trackable.data_structures:_DictWrapper",
    "tensorflow.python.trackable.data_structures:_TupleWrapper",
})  # fmt: skip

#: Rules that are published for subclasses as well, of the same package: nobody makes objects of the type itself. Not
#: more of them: an object that is made of others must not go by the rules in one part and by its own way in another.
_WITH_SUBCLASSES: Final = frozenset({
    "logging:Handler",
    "triton.runtime.jit:KernelInterface", "triton.runtime.jit:JITCallable",
    "triton.runtime.interpreter:InterpretedFunction",
    "torch._ops:HigherOrderOperator", "torch:Stream", "torch:Event",
    "torch.distributed.distributed_c10d:Store", "torch.distributed.distributed_c10d:Work",
    "tensorflow.python.data.ops.dataset_ops:DatasetV2", "tensorflow.python.data.ops.iterator_ops:IteratorBase",
    "tensorflow.python.framework.ops:Graph", "tensorflow.python.ops.data_flow_ops:QueueBase",
    "tensorflow.python.ops.resource_variable_ops:BaseResourceVariable",
    "tensorflow.python.distribute.distribute_lib:StrategyBase",
})  # fmt: skip

#: Beginnings of the names of modules that define such subclasses and are not imported with their package.
LATER: Final = ("triton.experimental.gluon.", "tensorflow.python.data.")

_HEAP_TYPE: Final = 1 << 9
_IMMUTABLE: Final = 1 << 8
_BASE_TYPE: Final = 1 << 10


class _Table(NamedTuple):
    """A table by exact type, and which verb it is about."""

    name: str
    entries: MutableMapping[Any, Any]
    verb: Verb


def _tables() -> list[_Table]:
    """The standard library's tables, ``copyreg``'s first, and the copies of that one that are there by now."""
    tables = [_Table("copyreg.dispatch_table", copyreg.dispatch_table, "pickle")]
    for name, verb in (("_deepcopy_dispatch", "copy"), ("_copy_dispatch", "shallow")):
        found = getattr(copy, name, None)
        if isinstance(found, dict):
            tables.append(_Table(f"copy.{name}", found, verb))  # type: ignore[arg-type]
        elif verb == "shallow":
            tables.append(_Table("safepickle.publication.shallow_copies", _shallow_copies.entries, "shallow"))
    for module, path in COPIES.items():
        found = sys.modules.get(module)
        for part in path:
            found = static_vars(found).get(part)
        if isinstance(found, dict):
            tables.append(_Table(".".join((module, *path)), found, "pickle"))
    return tables


class _ShallowCopies:
    """In the place of ``copyreg``'s table in ``copy``, where that module has no table of its own for shallow copies.

    Deep copies ask it too, but for no type that has an entry here: ``copy._deepcopy_dispatch`` comes before, and
    ``__deepcopy__``.
    """

    def __init__(self) -> None:
        self.entries: dict[Any, Any] = {}

    def get(self, cls: Any, default: Any = None) -> Any:
        """What ``copy.copy`` is to call for objects of a type."""
        return _copied_once if cls in self.entries else copyreg.dispatch_table.get(cls, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(copyreg.dispatch_table, name)


def _copied_once(obj: Any) -> Any:
    """A reduce value that is rebuilt as the shallow copy."""
    made = copier.copy(obj)
    return "shared" if made is obj else (_itself, (made,))


def _itself(obj: Any) -> Any:
    return obj


_shallow_copies: Final = _ShallowCopies()


class _StandIn:
    """What a rule gets in the place of a pickler where nobody knows which pickler runs: one that assumes little."""

    canonical = False
    overridden = False
    pin = None
    buffer_callback = None
    protocol = 2
    registry = default_registry

    def __init__(self) -> None:
        from .sources import ByValue

        self.by_value = ByValue()


#: Types whose objects say a name when they are asked, whether or not it leads to them.
_CACHED: Final = functools._lru_cache_wrapper
_NAMED: Final = frozenset({_CACHED, getattr(typing, "TypeAliasType", _CACHED)})


def _has_its_name(obj: Any) -> bool:
    """Whether the name that an object says leads to it in this process, which is all that plain pickle asks."""
    name = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None)
    module = sys.modules.get(getattr(obj, "__module__", None) or "")
    if module is None or not isinstance(name, str):
        return False
    try:
        return walk(module, name) is obj
    except Exception:  # a module may answer with any error
        return False


def _by_rules(obj: Any) -> Any:
    """What the rules make of an object that the standard library pickles."""
    if type(obj) in _NAMED and _has_its_name(obj):
        return NotImplemented
    rules = default_registry.rules_for(type(obj), "pickle")
    if not rules:
        return NotImplemented
    with main_is_shared():  # the standard library writes names of ``__main__`` like all others
        return reduce_by_rules(rules, obj, _StandIn() if any(rule.with_pickler for rule in rules) else None)


def _refuse(self: Any, protocol: Any) -> Any:
    """The ``__reduce_ex__`` of a class whose objects cannot be pickled or copied, nor those of subclasses.

    The locks that they hold have been in the way so far.
    """
    reduced = _by_rules(self)
    return object.__reduce_ex__(self, protocol) if reduced is NotImplemented else reduced


class Publication:
    """The rules of the default registry in the standard library's tables.

    Args:
        changes: where each entry is noted.
    """

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._made: dict[tuple[str, type], Change | None] = {}
        self._entries: dict[type, Entry] = {}

    def __len__(self) -> int:
        return len({cls for _, cls in self._made})

    def update(self) -> None:
        """Publish what has come since the last time, and take back what has gone."""
        with registry._lock:
            if not self._made:
                self._prepare_copy()
            tables = _tables()
            wanted = dict(self._wanted(tables))
            for key in [key for key in self._made if key not in wanted]:
                self._withdraw(key)
            for key, table in wanted.items():
                if key not in self._made:
                    self._publish(key, table)

    def withdraw(self) -> list[Change]:
        """Take everything back. Returns the changes that stay, because somebody else has changed the place since."""
        with registry._lock:
            for entry in self._entries.values():
                entry.close()
            self._made.clear()
            self._entries.clear()
            return self._changes.undo(COPYREG)

    def _prepare_copy(self) -> None:
        """Since Python 3.14 ``copy`` has no table for shallow copies, and knows bound methods before it looks."""
        own_table = isinstance(getattr(copy, "_copy_dispatch", None), dict)
        if not own_table and getattr(copy, "dispatch_table", None) is copyreg.dispatch_table:
            self._changes.set_attribute(COPYREG, copy, "dispatch_table", _shallow_copies, where="copy.dispatch_table")
        atomic = getattr(copy, "_atomic_types", None)
        if isinstance(atomic, (set, frozenset)) and types.BuiltinFunctionType in atomic:
            fewer = atomic - {types.BuiltinFunctionType}
            self._changes.set_attribute(COPYREG, copy, "_atomic_types", fewer, where="copy._atomic_types")

    # -- one entry -----------------------------------------------------------------------------------------------------

    def _publish(self, key: tuple[str, type], table: _Table | None) -> None:
        name, cls = key
        if table is None:
            where = f"{cls.__module__}.{cls.__qualname__}.{name}"
            self._made[key] = self._changes.set_attribute(COPYREG, cls, name, _refuse, where=where)
            return
        value: Any = copier.deepcopy if table.verb == "copy" else copier.copy
        if cls is types.BuiltinFunctionType and table.verb == "copy":
            value = self._copy_builtin_method
        if table.verb == "pickle":
            value = self._entries.get(cls)
            if value is None:
                value = self._entries[cls] = Entry(cls, table.entries.get(cls), _by_rules)
            _forget_old(table.entries, cls)
        where = f"{name}[{cls.__module__}.{cls.__qualname__}]"
        self._made[key] = self._changes.set_item(COPYREG, table.entries, cls, value, where=where)

    def _copy_builtin_method(self, method: Any, memo: dict[Any, Any]) -> Any:
        """``lock.acquire`` goes with the copy of the lock, which may not have been met so far."""
        owner = method.__self__
        if type(owner) is types.ModuleType:  # a function
            return method
        if ("copy._deepcopy_dispatch", type(owner)) not in self._made:
            known = memo.get(id(owner))  # ``results.append`` goes with the list if that has been copied before
            return method if known is None or known is owner else getattr(known, method.__name__)
        copied = copier.deepcopy(owner, memo)
        return method if copied is owner else getattr(copied, method.__name__)

    def _withdraw(self, key: tuple[str, type]) -> None:
        change = self._made.pop(key)
        if change is not None:
            self._changes.take_back(change)
        if key[0] == "copyreg.dispatch_table" and (entry := self._entries.pop(key[1], None)) is not None:
            entry.close()

    # -- which ---------------------------------------------------------------------------------------------------------

    def _wanted(self, tables: list[_Table]) -> Iterator[tuple[tuple[str, type], _Table | None]]:
        """The entries that there should be: table and type."""
        for layer in (default_registry, builtin_registry):
            users = layer is default_registry
            for registered, rule in layer.types():
                refuses = bool(getattr(rule.reduce, "refuses", False))
                if refuses and rule.subclasses and rule.target not in _KEPT and _can_be_told_to_refuse(registered):
                    yield ("__reduce_ex__", registered), None
                for cls in _reached(registered, rule, users):
                    if not known_by_identity(cls) or "__safepickle_mark__" in vars(cls):
                        continue
                    pickled = self._is_pickled(cls, rule, users)
                    for table in tables:
                        if self._belongs(cls, rule, table, users=users, pickled=pickled):
                            yield (table.name, cls), table

    def _is_pickled(self, cls: type, rule: Rule, users: bool) -> bool:
        """Whether ``copyreg`` is told about a type."""
        if not rule.covers("pickle") or cls in _NEVER_ASKED:
            return False
        if users:
            return True
        if foreign_entry(cls) is not None and ("copyreg.dispatch_table", cls) not in self._made:
            return False
        names = [f"{base.__module__}:{base.__qualname__}" for base in cls.__mro__]
        return names[0] not in _KEPT_ALONE and _KEPT.isdisjoint(names)

    def _belongs(self, cls: type, rule: Rule, table: _Table, *, users: bool, pickled: bool) -> bool:
        """Whether a type is to have an entry in a table."""
        if (table.name, cls) in self._made:
            is_theirs = False
        else:
            found = foreign(table.entries.get(cls))
            is_theirs = found is not None and found not in (copier.deepcopy, copier.copy, self._copy_builtin_method)
        if table.verb == "pickle":
            return pickled and (table.entries is copyreg.dispatch_table or not is_theirs)
        if not pickled and (not rule.covers(table.verb) or getattr(rule.reduce, "refuses", False)):
            return False
        if users:
            return True
        if is_theirs:  # a bound method of a lock is the exception: it must lead to the copy of the lock
            return cls is types.BuiltinFunctionType and table.verb == "copy"
        own = "__deepcopy__" if table.verb == "copy" else "__copy__"
        return not any(own in vars(base) for base in cls.__mro__)


def _reached(registered: type, rule: Rule, users: bool) -> Iterator[type]:
    """The types that a rule is published for: the one it is registered for, and known subclasses of some."""
    if rule.only is None or rule.only(registered):
        yield registered
    refuses = bool(getattr(rule.reduce, "refuses", False))
    if not rule.subclasses or registered is object or registered is type:
        return
    if not users and not refuses and rule.target not in _WITH_SUBCLASSES:
        return
    top = registered.__module__.partition(".")[0]
    for cls in _subclasses(registered):
        module = cls.__module__
        if not users and not refuses and (not isinstance(module, str) or module.partition(".")[0] != top):
            continue
        if (rule.only is None or rule.only(cls)) and not registry._overruled(cls, registered, "pickle"):
            yield cls


def _subclasses(cls: type) -> list[type]:
    """All subclasses there are now, of subclasses as well."""
    found: dict[int, type] = {}
    waiting: list[type] = type.__subclasses__(cls)
    for below in waiting:
        if id(below) not in found:
            found[id(below)] = below
            waiting.extend(type.__subclasses__(below))
    return list(found.values())


def _can_be_told_to_refuse(cls: type) -> bool:
    """Whether a class is made in Python and has no say of its own in how its objects are pickled."""
    if cls.__flags__ & (_HEAP_TYPE | _IMMUTABLE | _BASE_TYPE) != _HEAP_TYPE | _BASE_TYPE:
        return False
    ways = registry.PICKLE_PROTOCOL
    return all(
        name not in vars(base) or vars(base)[name] is _refuse for base in cls.__mro__[:-1] for name in ways
    )


def _forget_old(table: MutableMapping[Any, Any], cls: type) -> None:
    """Take away an entry of a former installation that somebody has put back since."""
    old = table.get(cls)
    if type(old) is Entry:
        before = foreign(old)
        if before is None:
            del table[cls]
        else:
            table[cls] = before
