"""Rules for weak references: weak again, on both verbs, and never the only thing that keeps an object alive.

Pickling: a weak reference leads to the restored referent if that is part of the pickle, and is dead otherwise. A
referent that only weak references lead to is not written. The pickler meets the reference before it can know, so on
the first such question of a dump the object is pickled once more, to nowhere and without following weak references:
what that run meets is part of the pickle. (Where the pickler has written the referent already, as when a child refers
to its parent, nothing is run.) What has a name is alive wherever the name leads to: weak references to classes,
functions and modules stay alive.

Copying: a weak reference leads to the copy if its referent is copied in the same call, else to the original.

In ``WeakKeyDictionary`` a value is written only if its key is, in ``WeakValueDictionary`` a key only if its value is.
The same holds for callbacks and for the calls that a ``weakref.finalize`` waits to make: for its referent's copy it
waits too.
"""

from __future__ import annotations

import copyreg
import functools
import pickle
import sys
import types
import weakref
from collections.abc import Generator
from typing import Any, Final

from .. import restore
from ..copier import deepcopy, running_call
from ..deep import DeepPickler
from ..reachability import reachable_ids
from ..references import find
from ..registry import SHARE, Registry
from ..sources import ByValue
from .parts import ORIGIN, added, bare, state_of

__all__ = ["add_rules"]

Steps = Generator[Any, Any, Any]


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    weak = (
        "weak again, to the restored referent; dead where nothing else in the pickle holds it",
        "to the copy of a referent that is copied",
    )
    entries = ("those entries that something else in the pickle holds", "to the copies of what is copied")

    def add(cls: Any, reduce: Any, copy: Any, summary: tuple[str, str], **options: Any) -> None:
        registry.add(cls, reduce, copy=copy, with_pickler=True, origin=ORIGIN, summary=summary, **options)

    add(weakref.ref, reduce_reference, copy_reference, weak, subclasses=True, shallow=SHARE)
    add(weakref.WeakMethod, reduce_method, copy_method, weak, subclasses=True, shallow=SHARE)
    add(weakref.ProxyType, reduce_proxy, copy_proxy, weak, shallow=SHARE)
    add(weakref.CallableProxyType, reduce_proxy, copy_proxy, weak, shallow=SHARE)
    add(weakref.finalize, reduce_finalizer, copy_finalizer, weak, subclasses=True, shallow=_decline)
    add(weakref.WeakValueDictionary, reduce_weak_values, copy_weak_values, entries, subclasses=True, shallow=_decline)
    add(weakref.WeakKeyDictionary, reduce_weak_keys, copy_weak_keys, entries, subclasses=True, shallow=_decline)
    add(weakref.WeakSet, reduce_weak_set, copy_weak_set, entries, subclasses=True, shallow=_decline)


def _decline(obj: Any) -> Any:
    return NotImplemented  # copy.copy does what it always did


# -- what is part of the pickle ---------------------------------------------------------------------------------------


class Survey:
    """Which referents does one dump write?

    Args:
        pickler: the pickler of that dump; ``None`` for the run to nowhere, which writes none and collects all.
    """

    def __init__(self, pickler: Any) -> None:
        self._pickler = pickler
        #: In the run to nowhere: each referent that was met, and what is written only with it.
        self.met: list[tuple[Any, tuple[Any, ...]]] = []
        self._written: dict[int, int] | None = None  # id -> position, as far as the pickler had come when first asked
        self._found: dict[int, tuple[int, Any]] | None = None  # id -> position and object, as the run to nowhere found

    def writes(self, referent: Any, *with_it: Any) -> bool:
        """Whether the pickle has the referent.

        Args:
            referent: the referent.
            with_it: what else the pickle has in that case.
        """
        if _is_named(referent):
            return True
        if self._pickler is None:
            self.met.append((referent, with_it))
            return False
        return self._position(referent) is not None

    def order(self, referent: Any) -> tuple[int, int, str]:
        """A sort key for referents that the pickle has; the same in every process."""
        found = None if _is_named(referent) else self._position(referent)
        return (0, 0, f"{referent.__module__}:{referent.__qualname__}") if found is None else (1, found, "")

    def _position(self, referent: Any) -> int | None:
        if self._written is None:
            memo = getattr(self._pickler, "memo", None)
            self._written = {} if memo is None else {key: entry[0] for key, entry in memo.copy().items()}
        if id(referent) in self._written:
            return self._written[id(referent)]
        if self._found is None:
            self._found = referents_in(self._pickler)
        entry = self._found.get(id(referent))
        return None if entry is None else len(self._written) + entry[0]


#: One survey a dump, known by what the pickler makes anew for each dump.
_surveys: weakref.WeakKeyDictionary[ByValue, Survey] = weakref.WeakKeyDictionary()


def _survey(pickler: Any) -> Survey:
    found = _surveys.get(pickler.by_value)
    if found is None:
        found = _surveys[pickler.by_value] = Survey(pickler)
    return found


def _is_named(referent: Any) -> bool:
    """Whether a name leads to the referent, so that no pickle needs to hold it."""
    if issubclass(type(referent), types.ModuleType):
        return True
    return issubclass(type(referent), _CODE) and find(referent, everywhere=False) is not None


_CODE: Final = (type, types.FunctionType, types.BuiltinFunctionType)


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


class _Scout:
    """Pickles objects as the running pickler would, and writes to nowhere.

    The arrays of numpy and others go out of band, so that their contents are not even read; not so where objects have
    persistent ids: there the protocol may be part of a format.
    """

    def __init__(self, pickler: Any) -> None:
        self._persistent_id = _persistent_id(pickler)
        self._protocol = 5 if self._persistent_id is None else pickler.protocol
        self._override = getattr(pickler, "reducer_override", None) or _rules_of(pickler)
        self._table = getattr(pickler, "dispatch_table", None)
        self._run: Any = self._make_pickler()

    def scout(self, obj: Any) -> dict[int, Any]:
        """Pickle one more object. Returns the memo: id -> position and object, of all objects so far."""
        try:
            self._run.dump(obj)
        except RecursionError:
            if isinstance(self._run, DeepPickler):
                raise
            self._run = self._make_deep_pickler()
            self._run.dump(obj)
        memo: dict[int, Any] = self._run.memo.copy()
        return memo

    def _callback(self) -> Any:
        return (lambda buffer: None) if self._protocol == 5 else None

    def _make_pickler(self) -> Any:
        names: dict[str, Any] = {"reducer_override": staticmethod(self._override)}
        if self._persistent_id is not None:
            names["persistent_id"] = staticmethod(self._persistent_id)
        run = type("_Run", (pickle.Pickler,), names)(_Nowhere(), self._protocol, buffer_callback=self._callback())
        if self._table is not None:
            run.dispatch_table = self._table
        return run

    def _make_deep_pickler(self) -> DeepPickler:
        return DeepPickler(
            _Nowhere(), self._protocol, buffer_callback=self._callback(), override=self._override,
            persistent_id=self._persistent_id, dispatch_table=self._table,
        )  # fmt: skip


def _persistent_id(pickler: Any) -> Any:
    found = getattr(pickler, "persistent_id", None)
    return None if isinstance(found, types.BuiltinMethodType) else found  # that of the C pickler, since 3.13, says None


def _rules_of(pickler: Any) -> Any:
    """The rules alone, where there is no pickler that has an override: a digest asks."""
    from ..pickler import reduce_by_rules

    def override(obj: Any) -> Any:
        rules = pickler.registry.rules_for(type(obj), "pickle")
        return reduce_by_rules(rules, obj, pickler) if rules else NotImplemented

    return override


def referents_in(pickler: Any) -> dict[int, tuple[int, Any]]:
    """The referents that the pickler will write: id -> position in what the run to nowhere wrote, and referent."""
    if not hasattr(pickler, "_root"):
        return {}
    survey = Survey(None)
    before = pickler.by_value
    pickler.by_value = ByValue()
    _surveys[pickler.by_value] = survey
    try:
        scout = _Scout(pickler)
        memo = scout.scout(pickler._root)
        waiting = list(survey.met)
        while True:
            # What is written only with a referent may lead to more of them.
            ready = [with_it for referent, with_it in waiting if id(referent) in memo]
            waiting = [entry for entry in waiting if id(entry[0]) not in memo]
            if not any(ready):
                break
            known = len(survey.met)
            memo = scout.scout(ready)
            waiting += survey.met[known:]
    finally:
        pickler.by_value = before
    return {id(referent): (memo[id(referent)][0], referent) for referent, _ in survey.met if id(referent) in memo}


# -- what is copied in the same call ----------------------------------------------------------------------------------


def is_copied(referent: Any, memo: dict[Any, Any]) -> bool:
    """Whether a referent is copied in the call that ``memo`` belongs to.

    What plain data leads to is copied. Where the only way leads through an object that says itself how it is copied,
    and may share what it holds, the answer is in a copy of the whole, made on trial.
    """
    call = running_call(memo)
    if call is None or call.is_shared_type(type(referent)):
        return False
    if id(referent) in memo or id(memo) in _trials:
        return memo.get(id(referent), referent) is not referent
    if not call.reaches(referent):
        return False
    certain = call.options.get(_CERTAIN)
    if certain is None:
        closed = functools.partial(_may_share, call)
        certain = call.options[_CERTAIN] = reachable_ids([call.root], closed)
    return id(referent) in certain or _is_copied_on_trial(referent, call)


#: The memos of copies on trial, by their ids: there weak references wait for no answer.
_trials: set[int] = set()
_CERTAIN: Final = "objects that plain data leads to"
_ON_TRIAL: Final = "objects that were copied on trial"


def _may_share(call: Any, cls: type) -> bool:
    """Whether objects of a type are shared, or may share with their copies what they hold."""
    if call.is_shared_type(cls):
        return True
    if call.registry.rules_for(cls, "copy") or cls.__module__.partition(".")[0] in sys.stdlib_module_names:
        return False
    ways = ("__deepcopy__", "__reduce_ex__", "__reduce__", "__getstate__")
    own = any(getattr(cls, way, None) is not getattr(object, way, None) for way in ways)
    return own or cls in copyreg.dispatch_table


def _is_copied_on_trial(referent: Any, call: Any) -> bool:
    copied = call.options.get(_ON_TRIAL)
    if copied is None:
        memo: dict[Any, Any] = {}
        _trials.add(id(memo))
        try:
            deepcopy(call.root, memo, registry=call.registry, nonleaf=call.options["nonleaf"])
            copied = set(memo)
        except Exception:  # it will be raised again where it belongs
            copied = None
        finally:
            _trials.discard(id(memo))
        call.options[_ON_TRIAL] = copied = _Everything() if copied is None else copied
    return id(referent) in copied


class _Everything:
    """Has all objects."""

    def __contains__(self, item: object) -> bool:
        return True


# -- references -------------------------------------------------------------------------------------------------------


def reduce_reference(reference: weakref.ref[Any], pickler: Any) -> tuple[Any, ...]:
    """A reference to the restored referent, or a dead one; with its callback and, for a subclass, its attributes."""
    referent, callback = weakref.ref.__call__(reference), reference.__callback__
    arguments = _target_and_callback(referent, callback, pickler)
    return restore.make_weak_reference, (type(reference), *arguments), state_of(reference)


def _target_and_callback(referent: Any, callback: Any, pickler: Any) -> tuple[Any, ...]:
    if referent is None or not _survey(pickler).writes(referent, callback):
        return ((),)
    return ((referent,),) if callback is None else ((referent,), callback)


def copy_reference(reference: weakref.ref[Any], memo: dict[Any, Any]) -> Steps:
    """The reference itself, or one to the copy of the referent."""
    referent = weakref.ref.__call__(reference)
    if referent is None or not is_copied(referent, memo):
        return reference
    copied = yield referent
    if copied is referent:
        return reference
    callback = yield reference.__callback__
    made = restore.make_weak_reference(type(reference), (copied,), callback)
    yield from _copy_attributes(reference, made)
    return made


def reduce_method(reference: weakref.WeakMethod[Any], pickler: Any) -> tuple[Any, ...]:
    """As :func:`reduce_reference`: the referent is the owner of the method."""
    method, callback = reference(), _callback_of_method(reference)
    target: tuple[Any, ...] = ()
    if method is not None and _survey(pickler).writes(method.__self__, (method, callback)):
        target = (method,)
    arguments = (type(reference), target) if callback is None or not target else (type(reference), target, callback)
    return restore.make_weak_method, arguments, state_of(reference, _WEAK_METHOD)


_WEAK_METHOD: Final = frozenset(weakref.WeakMethod.__slots__)


def _callback_of_method(reference: weakref.WeakMethod[Any]) -> Any:
    """The callback that was given to a ``WeakMethod``; it is in a cell of the function that stands in for it."""
    inner = getattr(reference, "__callback__", None)
    closure = getattr(inner, "__closure__", None) or ()
    names = inner.__code__.co_freevars if inner is not None and closure else ()
    return next((cell.cell_contents for name, cell in zip(names, closure, strict=True) if name == "callback"), None)


def copy_method(reference: weakref.WeakMethod[Any], memo: dict[Any, Any]) -> Steps:
    """The reference itself, or one to the method of the copy."""
    method = reference()
    if method is None or not is_copied(method.__self__, memo):
        return reference
    copied = yield method
    if copied.__self__ is method.__self__:
        return reference
    callback = yield _callback_of_method(reference)
    made = restore.make_weak_method(type(reference), (copied,), callback)
    yield from _copy_attributes(reference, made, _WEAK_METHOD)
    return made


def reduce_proxy(proxy: Any, pickler: Any) -> tuple[Any, ...]:
    """As :func:`reduce_reference`."""
    arguments = _target_and_callback(_referent_of_proxy(proxy), _callback_of_proxy(proxy), pickler)
    if arguments == ((),) and type(proxy) is weakref.CallableProxyType:
        return restore.make_weak_proxy, ((), None, True)
    return restore.make_weak_proxy, arguments


def _referent_of_proxy(proxy: Any) -> Any:
    """The object behind a proxy: methods that it passes on know their owner, and the owner knows its proxies."""
    for name in ("__sizeof__", "__dir__", "__reduce_ex__", "__format__", "__repr__"):
        try:
            found = getattr(proxy, name).__self__
        except ReferenceError:
            return None
        except AttributeError:
            continue
        if any(reference is proxy for reference in weakref.getweakrefs(found)):
            return found
    from .refusals import Refusal

    raise Refusal("this weakref.proxy hides its referent behind methods of its own: keep a weakref.ref")


def _callback_of_proxy(proxy: Any) -> Any:
    import gc

    return next(iter(gc.get_referents(proxy)), None)


def copy_proxy(proxy: Any, memo: dict[Any, Any]) -> Steps:
    """The proxy itself, or one of the copy."""
    referent = _referent_of_proxy(proxy)
    if referent is None or not is_copied(referent, memo):
        return proxy
    copied = yield referent
    if copied is referent:
        return proxy
    callback = yield _callback_of_proxy(proxy)
    return restore.make_weak_proxy((copied,), callback)


def reduce_finalizer(finalizer: weakref.finalize[Any, Any], pickler: Any) -> tuple[Any, ...]:
    """A finalizer that waits for the restored referent, or one that was called already."""
    waiting = finalizer.peek()
    if waiting is None or not _survey(pickler).writes(waiting[0], waiting[1:]):
        return restore.make_finalizer, (type(finalizer), (), ())
    return restore.make_finalizer, (type(finalizer), waiting[:1], (*waiting[1:], finalizer.atexit))


def copy_finalizer(finalizer: weakref.finalize[Any, Any], memo: dict[Any, Any]) -> Steps:
    """The finalizer itself, or one that waits for the copy of its referent."""
    waiting = finalizer.peek()
    if waiting is None or not is_copied(waiting[0], memo):
        return finalizer
    copied = yield waiting[0]
    call = yield (*waiting[1:], finalizer.atexit)
    return restore.make_finalizer(type(finalizer), (copied,), call)


# -- containers -------------------------------------------------------------------------------------------------------

_VALUES: Final = frozenset(vars(weakref.WeakValueDictionary()))
_KEYS: Final = frozenset(vars(weakref.WeakKeyDictionary()))
_SET: Final = frozenset(vars(weakref.WeakSet()))


def reduce_weak_values(mapping: Any, pickler: Any) -> tuple[Any, ...]:
    """The items whose values are part of the pickle."""
    survey = _survey(pickler)
    items = [(key, value) for key, value in list(mapping.items()) if survey.writes(value, key)]
    return bare(
        type(mapping), ("weakref:WeakValueDictionary", items, *added(mapping, _VALUES)), restore.fill_weak_mapping
    )


def reduce_weak_keys(mapping: Any, pickler: Any) -> tuple[Any, ...]:
    """The items whose keys are part of the pickle."""
    survey = _survey(pickler)
    items = [(key, value) for key, value in list(mapping.items()) if survey.writes(key, value)]
    return bare(type(mapping), ("weakref:WeakKeyDictionary", items, *added(mapping, _KEYS)), restore.fill_weak_mapping)


def reduce_weak_set(members: Any, pickler: Any) -> tuple[Any, ...]:
    """The members that are part of the pickle, in the order in which it has them."""
    survey = _survey(pickler)
    items = sorted([member for member in list(members) if survey.writes(member)], key=survey.order)
    return bare(type(members), (items, *added(members, _SET)), restore.fill_weak_set)


def copy_weak_values(mapping: Any, memo: dict[Any, Any]) -> Steps:
    """The same keys, copied; the values are the copies of those that are copied."""
    made = memo[id(mapping)] = _new(mapping, weakref.WeakValueDictionary)
    yield from _copy_attributes(mapping, made, _VALUES)
    for key, value in list(mapping.items()):
        key = yield key
        made[key] = (yield value) if is_copied(value, memo) else value
    return made


def copy_weak_keys(mapping: Any, memo: dict[Any, Any]) -> Steps:
    """The same values, copied; the keys are the copies of those that are copied."""
    made = memo[id(mapping)] = _new(mapping, weakref.WeakKeyDictionary)
    yield from _copy_attributes(mapping, made, _KEYS)
    for key, value in list(mapping.items()):
        key = (yield key) if is_copied(key, memo) else key
        made[key] = yield value
    return made


def copy_weak_set(members: Any, memo: dict[Any, Any]) -> Steps:
    """The copies of the members that are copied, and the others."""
    made = memo[id(members)] = _new(members, weakref.WeakSet)
    yield from _copy_attributes(members, made, _SET)
    for member in list(members):
        made.add((yield member) if is_copied(member, memo) else member)
    return made


def _new(obj: Any, base: Any) -> Any:
    cls: Any = type(obj)
    made = cls.__new__(cls)
    base.__init__(made)
    return made


def _copy_attributes(obj: Any, made: Any, own: frozenset[str] = frozenset()) -> Steps:
    attributes, slots = added(obj, own)
    if attributes or slots:
        attributes, slots = (yield attributes), (yield slots)
        restore.set_attributes(made, attributes, slots)
