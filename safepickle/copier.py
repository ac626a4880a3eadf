"""How is an object copied?

This module is the definition of the copier. For each object it asks, in this order:

1. the memo: what was copied before in this call;
2. the user's rules;
3. the built-in rules;
4. what the standard library does: atoms and builtin containers, classes, ``__deepcopy__`` (``__copy__``), ``copyreg``,
   ``__reduce_ex__``.

Exact builtin containers and atoms come before the rules where no user's rule speaks about them; it makes no difference
to what is returned.
"""

from __future__ import annotations

import copy as _stdlib
import operator
import sys
import types
import weakref
from collections.abc import Callable, Generator
from typing import Any, Final

from . import registry as _registry
from ._native import core, why_python
from .entries import foreign_entry
from .errors import CopyError, check_reduced, reducer_failed, translate_copy_error
from .reachability import Plan
from .references import find
from .registry import Registry, Rule, Share, default_registry, is_concerned, known_by_identity, refreshed

__all__ = ["copy", "deepcopy", "replace"] if hasattr(_stdlib, "replace") else ["copy", "deepcopy"]

Memo = dict[Any, Any]
Stack = list[tuple[Any, Generator[Any, Any, Any]]]
_NOTHING: Final = object()

#: The copier that does not recurse gives up at this depth: an object that makes a new part whenever it is asked has no
#: end.
MOST_LEVELS: Final = 200_000

#: Types whose objects are their own copies.
ATOMIC: Final[frozenset[type]] = frozenset(
    {
        type(None), type(Ellipsis), type(NotImplemented), int, float, bool, complex, bytes, str, type, range, slice,
        property,
        types.CodeType, types.BuiltinFunctionType, types.FunctionType, weakref.ref,
    }
)  # fmt: skip
ATOMIC_WHEN_COPIED_ONCE: Final = ATOMIC | {frozenset, tuple}


class _Call:
    """What belongs to one outermost call of :func:`deepcopy`: its rules, and which function copies which type."""

    __slots__ = ("_plan", "before", "deep", "failed", "handlers", "memo", "native", "options", "registry", "root")

    def __init__(self, registry: Registry, memo: Memo, root: Any, options: dict[str, Any]) -> None:
        self.registry = registry
        self.memo = memo
        self.root = root
        self.options = options
        self.handlers = _Handlers(registry)
        self.before: _Call | None = None  # the call around this one that has the same memo
        self.native = False  # True while the C core copies
        self.deep = False  # True once the recursion limit was hit: the rest goes without recursion
        self.failed: Exception | None = None  # what went wrong with a part: no fault of the rules above it
        self._plan: Plan | None = None

    def copy(self, x: Any) -> Any:
        """Copy a part, or the root."""
        if self.native:
            return core.nested(x, self.memo)
        return copy_iteratively(x, self.memo, self.handlers) if self.deep else _copy(x, self.memo, self.handlers)

    @property
    def plan(self) -> Plan:
        """What is copied in this call, and which functions are rebuilt; worked out when it is asked for."""
        if self._plan is None:
            self._plan = Plan(self.root, self.is_shared_type, _has_name)
        return self._plan

    def reaches(self, x: Any) -> bool:
        """Whether ``x`` is part of the object that is being copied, and not only shared by it."""
        return id(x) in self.plan.copied

    def is_shared_type(self, cls: type) -> bool:
        """Whether objects of a type are their own copies."""
        handler = self.handlers[cls]
        if handler is _atomic or handler is _shared:
            return True
        return any(isinstance(rule.copy, Share) for rule in getattr(handler, "rules", ())[:1])


def _has_name(function: Any) -> bool:
    """Whether a function is shared because a name leads to it."""
    return find(function, everywhere=False) is not None


class _Handlers(dict[type, Callable[[Any, Memo, Any], Any]]):
    """Type -> the function that copies its objects, found once a call."""

    __slots__ = ("__weakref__", "registry")

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __missing__(self, cls: type) -> Callable[[Any, Memo, Any], Any]:
        handler = _handler_for(cls, self.registry)
        if known_by_identity(cls):
            self[cls] = handler
        return handler


#: The running calls by the id of their memo: nested calls, from ``__deepcopy__`` methods and rules, find theirs here.
_running: dict[int, _Call] = {}


def running_call(memo: Memo) -> _Call | None:
    """The outermost call that this memo belongs to."""
    call = _running.get(id(memo))
    return call if call is not None and call.memo is memo else None


def deepcopy(
    x: Any,
    memo: Memo | None = None,
    _nil: Any = _NOTHING,
    *,
    registry: Registry | None = None,
    nonleaf: str | None = None,
) -> Any:
    """A deep copy of an object: kernels and other code shared, locks fresh, everything else copied.

    Args:
        x: the object.
        memo: a dictionary that knows what was copied before; pass on the one that ``__deepcopy__`` received.
        registry: the rules to use; the default registry unless given, or that of the call in progress.
        nonleaf: what becomes of a tensor that a computation with gradients returned, such as a cached activation:
            ``"detach"`` (the
            default) copies its values without the graph, ``"error"`` refuses as ``copy.deepcopy`` does. The registry's
            ``settings["nonleaf"]`` changes the default.

    Returns:
        The copy.

    Raises:
        CopyError: some part of the object cannot be copied; the message says which and where.
        ValueError: ``nonleaf`` is neither of the two.

    Example:
        >>> import safepickle, threading
        >>> state = {"lock": threading.Lock(), "rows": [1, 2]}
        >>> twin = safepickle.deepcopy(state)
        >>> twin["rows"] is state["rows"], twin["lock"].acquire(blocking=False)
        (False, True)
    """
    if memo is not None:
        call = running_call(memo)
        if call is not None and nonleaf is None and (registry is None or registry is call.registry):
            try:
                return call.copy(x)
            except Exception as error:
                call.failed = error
                raise
    rules = default_registry if registry is None else registry
    native = core is not None and (memo is None or type(memo) is dict)
    options = None if native and nonleaf is None and not rules.settings else _options(rules, nonleaf)
    known = None if memo is None else (len(memo), len(memo.get(id(memo), ())))
    try:
        if native:
            return core.copy(x, rules, memo, options)
        rules.refresh()
        return _run(_Call(rules, {} if memo is None else memo, x, options or _options(rules, nonleaf)))
    except Exception as error:
        y = _after_failure(error, sys._getframe(), x, memo, known, rules, nonleaf)
        if y is _NOTHING:
            raise
        return y


def _after_failure(
    error: Exception, frame: types.FrameType, x: Any, memo: Memo | None, known: tuple[int, int] | None,
    rules: Registry, nonleaf: str | None,
) -> Any:  # fmt: skip
    """The copy after all, where there is another way to it; ``_NOTHING`` to raise the error as it is."""
    if isinstance(error, RecursionError):
        from .deep import may_try_again

        if may_try_again(error, frame):
            if memo is not None and known is not None:
                _restore(memo, *known)
            call = _Call(rules, {} if memo is None else memo, x, _options(rules, nonleaf))
            try:
                return _run_deeply(call)
            except Exception as second:
                y = _explained(second, frame, x, memo, rules, nonleaf)
                if y is _NOTHING:
                    raise
                return y
            finally:
                del error, frame, call  # an error holds this frame, which must not hold the error
    return _explained(error, frame, x, memo, rules, nonleaf)


def _explained(
    error: Exception, frame: types.FrameType, x: Any, memo: Memo | None, rules: Registry, nonleaf: str | None
) -> Any:
    """Raise an error that says what could not be copied; or copy with a memo that knows what stood in the way."""
    if isinstance(error, RecursionError):
        from .deep import is_nested

        if is_nested(frame):
            return _NOTHING
    elif memo is None:
        from .foreign import prefilled_memo

        prepared = prefilled_memo(error, x, rules)
        if prepared is not None:
            return deepcopy(x, prepared, registry=rules, nonleaf=nonleaf)
    translated = translate_copy_error(error, x, rules)
    if translated is error:
        return _NOTHING
    try:
        raise translated from translated.__cause__
    finally:
        del translated, error, frame  # an error holds this frame, which must not hold the error


def _options(rules: Registry, nonleaf: str | None) -> dict[str, Any]:
    """The options of a call, with the registry's settings for those that are not given."""
    value = rules.setting("nonleaf", "detach") if nonleaf is None else nonleaf
    if value not in ("detach", "error"):
        raise ValueError(f"nonleaf must be 'detach' or 'error', not {value!r}")
    return {"nonleaf": value}


def _restore(memo: Memo, size: int, kept: int) -> None:
    """Take back what a copy that failed has entered into the caller's memo: it knows unfinished objects."""
    while len(memo) > size:
        memo.popitem()
    if id(memo) in memo:
        del memo[id(memo)][kept:]


def _run_deeply(call: _Call) -> Any:
    """As :func:`_run`, without recursion."""
    from .deep import tried_deeply

    call.deep = True
    try:
        return _run(call)
    except RecursionError as error:
        tried_deeply(error)
        raise


def _run(call: _Call) -> Any:
    """Copy the root, while nested calls find this one by its memo."""
    _enter(call)
    try:
        return call.copy(call.root)
    finally:
        _leave(call)


def _enter(call: _Call) -> None:
    key = id(call.memo)
    call.before = _running.get(key)
    _running[key] = call
    call.registry._live.add(call.handlers)


def _leave(call: _Call) -> None:
    call.failed = None
    call.registry._live.discard(call.handlers)
    if call.before is None:
        _running.pop(id(call.memo), None)
    else:
        _running[id(call.memo)] = call.before


def copied_in_this_call(x: Any, memo: Memo) -> bool:
    """Whether a part is copied in the call that ``memo`` belongs to: was already, or will be."""
    known = memo.get(id(x), _NOTHING)
    if known is not _NOTHING:
        return known is not x
    call = running_call(memo)
    return call is not None and call.reaches(x)


def is_shared_type(memo: Memo) -> Callable[[type], bool]:
    """A function that says whether objects of a type are their own copies in this call."""
    call = running_call(memo)
    return (lambda cls: False) if call is None else call.is_shared_type


def _copy(x: Any, memo: Memo, handlers: _Handlers) -> Any:
    """The heart of :func:`deepcopy`: memo, then the function for the type."""
    handler = handlers[type(x)]
    if handler is _atomic:
        return x
    y = memo.get(id(x), _NOTHING)
    if y is not _NOTHING:
        return y
    try:
        y = handler(x, memo, handlers)
    except BaseException:
        _keep_unfinished(x, memo)
        raise
    if y is not x:
        memo[id(x)] = y
        keep_alive(x, memo)
    return y


def _keep_unfinished(x: Any, memo: Memo) -> None:
    """Keep an original alive whose copy has failed half-way: whoever catches the error goes on with the same memo.

    The state in a reduce value may be gone by then, and another object be where it was, which is not to get its copy.
    """
    if id(x) in memo:
        keep_alive(x, memo)


def keep_alive(x: Any, memo: Memo) -> None:
    """Keep the original alive as long as the memo: it is known by its id."""
    try:
        memo[id(memo)].append(x)
    except KeyError:
        memo[id(memo)] = [x]


# -- one function a kind -----------------------------------------------------------------------------------------------


def _atomic(x: Any, memo: Memo, handlers: _Handlers) -> Any:
    return x


def _shared(x: Any, memo: Memo, handlers: _Handlers) -> Any:
    """As a rule says. Unlike an atom, such an object may stand in the caller's memo with another one in its place."""
    return x


def _list(x: list[Any], memo: Memo, handlers: _Handlers) -> list[Any]:
    y: list[Any] = []
    memo[id(x)] = y
    append = y.append
    for item in x:
        append(item if handlers[type(item)] is _atomic else _copy(item, memo, handlers))
    return y


def _dict(x: dict[Any, Any], memo: Memo, handlers: _Handlers) -> dict[Any, Any]:
    y: dict[Any, Any] = {}
    memo[id(x)] = y
    for key, value in x.items():
        if handlers[type(key)] is not _atomic:
            key = _copy(key, memo, handlers)
        y[key] = value if handlers[type(value)] is _atomic else _copy(value, memo, handlers)
    return y


def _tuple(x: tuple[Any, ...], memo: Memo, handlers: _Handlers) -> tuple[Any, ...]:
    y = [item if handlers[type(item)] is _atomic else _copy(item, memo, handlers) for item in x]
    # An item may lead back to the tuple, which is then finished already.
    known = memo.get(id(x), _NOTHING)
    if known is not _NOTHING:
        return known  # type: ignore[no-any-return]
    for old, new in zip(x, y, strict=True):
        if old is not new:
            return tuple(y)
    return x


def _by_protocol(x: Any, memo: Memo, handlers: _Handlers) -> Any:
    cls = type(x)
    if issubclass(cls, type):
        return x
    own = getattr(x, "__deepcopy__", None)
    if own is not None:
        return own(memo)
    reduced = reduce_by_protocol(x, cls)
    return x if isinstance(reduced, str) else _reconstruct(x, memo, handlers, *_six(reduced))


def reduce_by_protocol(x: Any, cls: type) -> Any:
    """What the standard library's protocols say about an object."""
    reducer = foreign_entry(cls)
    if reducer is not None:
        return reducer(x)
    reducer = getattr(x, "__reduce_ex__", None)
    if reducer is not None:
        return reducer(4)
    reducer = getattr(x, "__reduce__", None)
    if reducer is not None:
        return reducer()
    raise CopyError(f"un(deep)copyable object of type {cls}")


def _reconstruct(
    x: Any, memo: Memo, handlers: _Handlers, func: Callable[..., Any], args: tuple[Any, ...],
    state: Any = None, listiter: Any = None, dictiter: Any = None, setter: Any = None,
) -> Any:  # fmt: skip
    """The copy that a reduce value describes, with deep copies of its parts."""
    if args and (len(args) > 1 or handlers[type(args[0])] is not _shared):  # most often the class alone
        args = tuple([_copy(arg, memo, handlers) for arg in args])
        # As with a tuple, an argument may lead back to the object. (The standard library then makes it a second time.)
        known = memo.get(id(x), _NOTHING)
        if known is not _NOTHING:
            return known
    y = func(*args)
    memo[id(x)] = y
    if state is not None:
        set_state(y, _copy(state, memo, handlers), setter)
    if listiter is not None:
        for item in listiter:
            y.append(_copy(item, memo, handlers))
    if dictiter is not None:
        for key, value in dictiter:
            key = _copy(key, memo, handlers)
            y[key] = _copy(value, memo, handlers)
    return y


def set_state(y: Any, state: Any, setter: Any) -> None:
    """Give a new object its state, as the last steps of ``copy._reconstruct`` do."""
    if setter is not None:
        setter(y, state)
        return
    if hasattr(y, "__setstate__"):
        y.__setstate__(state)
        return
    slots = None
    if isinstance(state, tuple) and len(state) == 2:
        state, slots = state
    if state is not None:
        y.__dict__.update(state)
    if slots is not None:
        for key, value in slots.items():
            setattr(y, key, value)


_BUILTIN: Final[dict[type, Callable[[Any, Memo, _Handlers], Any]]] = {
    **dict.fromkeys(ATOMIC, _atomic),
    list: _list,
    dict: _dict,
    tuple: _tuple,
}


# -- rules -------------------------------------------------------------------------------------------------------------


def _handler_for(cls: type, registry: Registry) -> Callable[[Any, Memo, Any], Any]:
    rules = registry.rules_for(cls, "copy")
    if not rules:
        return _BUILTIN.get(cls, _by_protocol)
    if isinstance(rules[0].copy, Share) and rules[0].copy.unless is None:
        return _shared

    def by_rules(x: Any, memo: Memo, handlers: _Handlers) -> Any:
        for rule in rules:
            if rule.concerns and not is_concerned(x, rule.concerns):
                continue
            if rule.holding and not _holds_objects(x, handlers):
                continue
            y = _apply(rule, x, memo, handlers)
            if y is not NotImplemented:
                return y
        return _BUILTIN.get(cls, _by_protocol)(x, memo, handlers)

    by_rules.rules = rules  # type: ignore[attr-defined]
    return by_rules


def _holds_objects(function: types.FunctionType, handlers: _Handlers) -> bool:
    """Whether a function has cells or attributes, or a default that is no atom."""
    if function.__closure__ or function.__dict__:
        return True
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return any(handlers[type(value)] is not _atomic for value in defaults)


def _apply(rule: Rule, x: Any, memo: Memo, handlers: _Handlers) -> Any:
    """The copy that a rule makes; ``NotImplemented`` if it declines."""
    if isinstance(rule.copy, Share):
        return rule.copy(x)
    if callable(rule.copy):
        try:
            made = rule.copy(x, memo)
            return _drive(made, memo, handlers) if rule.in_steps else made
        except Exception as error:
            _blame(rule, x, error, memo)
            raise
    reduced = _reduced(rule, x)
    if reduced is NotImplemented:
        return NotImplemented
    return x if isinstance(reduced, str) else _reconstruct(x, memo, handlers, *reduced)


def _reduced(rule: Rule, x: Any) -> Any:
    """What the reducer of a rule says about an object that is copied."""
    if rule.reduce is None or rule.pickles_only:
        return NotImplemented
    try:
        reduced = rule.reduce(x, None) if rule.with_pickler else rule.reduce(x)
    except Exception as error:
        _blame(rule, x, error)
        raise
    if reduced is not NotImplemented:
        check_reduced(rule, x, reduced)
    return reduced


def _blame(rule: Rule, x: Any, error: Exception, memo: Memo | None = None) -> None:
    """Raise the error of a rule's function with the rule's name, unless a part that it had copied failed."""
    call = None if memo is None else running_call(memo)
    if call is not None and call.failed is error:
        return
    named = reducer_failed(rule, x, error)
    if named is not error:
        raise named from error


def _drive(steps: Generator[Any, Any, Any], memo: Memo, handlers: _Handlers) -> Any:
    """Run a copy function that yields each part it wants copied, and is told what goes wrong with one."""
    resume: Callable[[Any], Any] = steps.send
    value: Any = None
    traceback = None
    try:
        while True:
            try:
                part = resume(value)
            except StopIteration as stop:
                return stop.value
            except Exception as error:
                raise error.with_traceback(traceback) if error is value else error  # noqa: B904  the same error
            try:
                resume, value = steps.send, _copy(part, memo, handlers)
            except Exception as error:
                resume, value, traceback = steps.throw, error, error.__traceback__
                if (call := running_call(memo)) is not None:
                    call.failed = error
    finally:
        value = traceback = None  # an error holds this frame, which must not hold the error


# -- without recursion -------------------------------------------------------------------------------------------------
#
# The same once more, for objects nested deeper than the interpreter's stack: each kind is a generator that yields the
# parts that it wants copied. Slower, so it runs only after the recursion limit was hit.


def copy_iteratively(x: Any, memo: Memo, handlers: _Handlers) -> Any:
    """As :func:`_copy`, to any depth."""
    stack: Stack = []
    failure: Exception | None = None
    result: Any = x
    pending = True
    while True:
        if pending:
            handler = handlers[type(x)]
            known = x if handler is _atomic else memo.get(id(x), _NOTHING)
            if known is _NOTHING:
                if len(stack) >= MOST_LEVELS:
                    raise RecursionError(f"objects are nested more than {MOST_LEVELS:,} deep, or without an end")
                stack.append((x, _steps(x, handler, memo, handlers)))
                result = None
            else:
                result = known
        if not stack:
            return result
        owner, steps = stack[-1]
        try:
            x = steps.send(result) if failure is None else steps.throw(failure)
            pending, failure = True, None
        except StopIteration as stop:
            stack.pop()
            result, pending, failure = stop.value, False, None
            if result is not owner:
                memo[id(owner)] = result
                keep_alive(owner, memo)
        except Exception as error:
            below = _below_that_may_catch(stack, handlers)
            for unfinished, _ in stack[len(below or ()) :]:
                _keep_unfinished(unfinished, memo)
            if below is None:
                failure = None
                raise
            stack, pending, failure = below, False, error
            if (call := running_call(memo)) is not None:
                call.failed = error


def _below_that_may_catch(stack: Stack, handlers: _Handlers) -> Stack | None:
    """The part of a stack that is below its top and ends with a user's copy function, which yields its parts."""
    for size in range(len(stack) - 1, 0, -1):
        rules = getattr(handlers[type(stack[size - 1][0])], "rules", ())
        if any(rule.in_steps and rule.origin == "user" for rule in rules):
            return stack[:size]
    return None


def _steps(x: Any, handler: Any, memo: Memo, handlers: _Handlers) -> Generator[Any, Any, Any]:
    rules = getattr(handler, "rules", ())
    for rule in rules:
        y = yield from _steps_by_rule(rule, x, memo)
        if y is not NotImplemented:
            return y
    cls = type(x)
    if cls in ATOMIC:
        return x
    if cls is list:
        y = memo[id(x)] = []
        for item in x:
            y.append((yield item))
        return y
    if cls is dict:
        y = memo[id(x)] = {}
        for key, value in x.items():
            key = yield key
            y[key] = yield value
        return y
    if cls is tuple:
        return (yield from _tuple_steps(x, memo))
    return (yield from _protocol_steps(x, cls, memo))


def _tuple_steps(x: tuple[Any, ...], memo: Memo) -> Generator[Any, Any, Any]:
    parts = []
    for item in x:
        parts.append((yield item))
    known = memo.get(id(x), _NOTHING)
    if known is not _NOTHING:
        return known
    return x if all(map(operator.is_, x, parts)) else tuple(parts)


def _protocol_steps(x: Any, cls: type, memo: Memo) -> Generator[Any, Any, Any]:
    if issubclass(cls, type):
        return x
    own = getattr(x, "__deepcopy__", None)
    if own is not None:
        return own(memo)
    reduced = reduce_by_protocol(x, cls)
    return x if isinstance(reduced, str) else (yield from _reconstruct_steps(x, memo, reduced))


def _reconstruct_steps(x: Any, memo: Memo, reduced: tuple[Any, ...]) -> Generator[Any, Any, Any]:
    func, args, state, items, pairs, setter = _six(reduced)
    parts = []
    for arg in args:
        parts.append((yield arg))
    known = memo.get(id(x), _NOTHING)
    if known is not _NOTHING:
        return known
    y = func(*parts)
    memo[id(x)] = y
    if state is not None:
        set_state(y, (yield state), setter)
    for item in items if items is not None else ():
        y.append((yield item))
    for key, value in pairs if pairs is not None else ():
        key = yield key
        y[key] = yield value
    return y


def _six(reduced: Any) -> tuple[Any, ...]:
    """A reduce value with ``None`` for the items that it leaves out."""
    if not 2 <= len(reduced) <= 6:
        raise TypeError(f"a reduce value of {len(reduced)} items cannot be copied from: expected two to six")
    return (*reduced, *[None] * (6 - len(reduced)))


def _steps_by_rule(rule: Rule, x: Any, memo: Memo) -> Generator[Any, Any, Any]:
    if isinstance(rule.copy, Share):
        return rule.copy(x)
    if callable(rule.copy):
        try:
            made = rule.copy(x, memo)
            return (yield from made) if rule.in_steps else made
        except Exception as error:
            _blame(rule, x, error, memo)
            raise
    reduced = _reduced(rule, x)
    if reduced is NotImplemented:
        return NotImplemented
    return x if isinstance(reduced, str) else (yield from _reconstruct_steps(x, memo, reduced))


# -- shallow copies ----------------------------------------------------------------------------------------------------

_SHALLOW: Final[dict[type, Callable[[Any], Any]]] = {
    list: list.copy,
    dict: dict.copy,
    set: set.copy,
    bytearray: bytearray.copy,
}


#: What to do with objects of builtin types that the default registry has no rules for, found out so far.
_unruled: Final[dict[type, Callable[[Any], Any]]] = {}
_registry.on_change.append(_unruled.clear)


def _itself(x: Any) -> Any:
    return x


def _remember(cls: type, copier: Callable[[Any], Any], version: int) -> None:
    """The answer of :func:`copy` for a type, unless a rule has come meanwhile, or may come."""
    with _registry._lock:
        if version == default_registry._version and default_registry._cache.get(cls) is not None:
            _unruled[cls] = copier


def copy(x: Any, *, registry: Registry | None = None) -> Any:
    """A shallow copy of an object.

    Args:
        x: the object.
        registry: the rules to use; the default registry unless given.

    Raises:
        CopyError: the object cannot be copied.
    """
    cls = type(x)
    if registry is None and type(cls) is type and (known := _unruled.get(cls)) is not None:
        return known(x)
    rules = default_registry if registry is None else registry
    rules.refresh()
    try:
        return _shallow(x, rules)
    except Exception as error:
        translated = translate_copy_error(error, x, rules, deep=False)
        if translated is error:
            raise
        raise translated from translated.__cause__


def _shallow(x: Any, registry: Registry) -> Any:
    cls, version = type(x), registry._version
    rules = registry.rules_for(cls, "shallow")
    for rule in rules:
        y = _apply_shallow(rule, x)
        if y is not NotImplemented:
            return y
    copier = _itself if cls in ATOMIC_WHEN_COPIED_ONCE else _SHALLOW.get(cls)
    if copier is not None:
        if not rules and registry is default_registry:
            _remember(cls, copier, version)
        return copier(x)
    if issubclass(cls, type):
        return x
    own = getattr(cls, "__copy__", None)
    if own is not None:
        return own(x)
    return _rebuild_once(x, _reduce_once(x, cls))


def _reduce_once(x: Any, cls: type) -> Any:
    try:
        return reduce_by_protocol(x, cls)
    except CopyError:
        raise CopyError(f"un(shallow)copyable object of type {cls}") from None


def _rebuild_once(x: Any, reduced: Any) -> Any:
    """The shallow copy that a reduce value describes."""
    if isinstance(reduced, str):
        return x
    func, args, state, items, pairs, setter = _six(reduced)
    y = func(*args)
    if state is not None:
        set_state(y, state, setter)
    for item in items if items is not None else ():
        y.append(item)
    for key, value in pairs if pairs is not None else ():
        y[key] = value
    return y


def _apply_shallow(rule: Rule, x: Any) -> Any:
    if callable(rule.shallow):  # SHARE is a function of the object, too
        return rule.shallow(x)
    if isinstance(rule.copy, Share):
        return rule.copy(x)
    reduced = _reduced(rule, x)
    return NotImplemented if reduced is NotImplemented else _rebuild_once(x, reduced)


if hasattr(_stdlib, "replace"):

    def replace(obj: Any, /, **changes: Any) -> Any:
        """A new object of the same type with some fields changed, as :func:`copy.replace` (Python 3.13)."""
        return vars(_stdlib)["replace"](obj, **changes)


# -- the C core --------------------------------------------------------------------------------------------------------


def _native_plan(cls: type, registry: Registry) -> tuple[Any, ...]:
    """How the C core copies objects of a type."""
    return plan_for(cls, registry, _kinds, ATOMIC)


def _expose(registry: Registry, memo: Memo, root: Any, options: dict[str, Any] | None) -> _Call:
    """The C core lets Python code see its memo: nested calls find the run by it."""
    call = _Call(registry, memo, root, _options(registry, None) if options is None else options)
    call.native = True
    _enter(call)
    return call


def _applied(rule: Rule, x: Any, memo: Memo) -> Any:
    """What the copy function of a rule returns."""
    if isinstance(rule.copy, Share):
        return rule.copy(x)
    try:
        return rule.copy(x, memo)  # type: ignore[misc]
    except Exception as error:
        _blame(rule, x, error, memo)
        raise


def _native_failed(x: Any, error: Exception) -> Any:
    """What becomes of a ``deepcopy(x)`` that has failed in the C core."""
    try:
        raise error
    except Exception:
        y = _after_failure(error, sys._getframe(), x, None, None, default_registry, None)
        if y is _NOTHING:
            raise
        return y
    finally:
        del error  # it holds this frame, which must not hold the error


def _called(func: Callable[..., Any], args: Any) -> Any:
    return func(*args)


def _pair(item: Any) -> tuple[Any, Any]:
    key, value = item
    return key, value


if core is not None:
    from . import entries as _entries
    from ._native.plans import plan_for

    _Entry, _foreign = _entries.Entry, _entries.foreign

    _forget, _refreshed = _leave, refreshed
    try:
        _kinds: dict[str, int] = core.setup(sys.modules[__name__], _registry)
    except ImportError as error:  # a second copy of this package in one process
        core, why_python["_core"] = None, str(error)
    else:
        _registry.on_change.append(core.invalidate)
        _deepcopy = deepcopy
        deepcopy = core.entry(_deepcopy)
