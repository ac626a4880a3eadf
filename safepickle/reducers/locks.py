"""Rules for locks and what is built on them: fresh, free and usable on both verbs.

Whether a lock is held, and who waits for it, is a fact about the threads of one process. So:

- locks, conditions and barriers: fresh ones, nobody holds them or waits; two objects that shared a lock share the
  fresh one
- a condition: over the copy of its lock, with the methods of that one
- an event: set if it was set
- a semaphore: its current value, but at least one (how many of it are held is not known); a bounded one: its initial
  value
- ``asyncio``'s: the same
- ``threading.local``: the values of this thread, and per thread again
- ``multiprocessing``'s: refused outside spawning, as it refuses them itself
"""

from __future__ import annotations

import _thread
import gc
import sys
import threading
from typing import Any, Final

from .. import restore
from ..registry import Registry
from .parts import ORIGIN, bare, initialized, state_of
from .refusals import Refusal

__all__ = ["add_rules"]

FRESH: Final = ("a fresh one, not held", "a fresh one, not held")

_CONDITION: Final = frozenset({
    "_lock", "acquire", "release", "locked", "_release_save", "_acquire_restore", "_is_owned", "_waiters", "_loop",
})  # fmt: skip
_EVENT: Final = frozenset({"_cond", "_flag", "_waiters", "_value", "_loop"})
_SEMAPHORE: Final = frozenset(
    {"_cond", "_value", "_initial_value", "_bound_value", "_waiters", "_wakeup_scheduled", "_loop"}
)
_BARRIER: Final = frozenset({"_cond", "_action", "_timeout", "_parties", "_state", "_count", "_loop"})
_ASYNC_LOCK: Final = frozenset({"_waiters", "_locked", "_loop"})


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    registry.add(type(threading.Lock()), reduce_lock, origin=ORIGIN, summary=FRESH)
    registry.add(type(threading.RLock()), reduce_rlock, subclasses=True, origin=ORIGIN, summary=FRESH)
    for name, reduce in _REDUCERS.items():
        if name != "asyncio.locks:Barrier" or sys.version_info >= (3, 11):
            registry.add(name, reduce, subclasses=True, origin=ORIGIN, summary=_SUMMARIES.get(reduce, FRESH))
    of_thread = ("this thread's values", "this thread's values, copied")
    registry.add(threading.local, reduce_local, subclasses=True, origin=ORIGIN, summary=of_thread)
    registry.add("_threading_local:local", reduce_local, subclasses=True, origin=ORIGIN)
    error = ("an error, but where a process is being spawned", "an error")
    for name in _SHARED_BETWEEN_PROCESSES:
        registry.add(name, reduce_shared_between_processes, subclasses=True, origin=ORIGIN, summary=error)


# -- locks ------------------------------------------------------------------------------------------------------------


def reduce_lock(lock: Any) -> tuple[Any, ...]:
    """A fresh lock. ``_thread.allocate_lock`` is the one name for it that every version of Python has."""
    return _thread.allocate_lock, ()


def reduce_rlock(lock: Any) -> tuple[Any, ...]:
    """A fresh reentrant lock, or a fresh one of a subclass with its attributes."""
    if type(lock) is type(threading.RLock()):
        return threading.RLock, ()
    return bare(type(lock), state_of(lock), None)


def reduce_python_rlock(lock: Any) -> tuple[Any, ...]:
    """A fresh lock of the class that stands in where there is no reentrant lock in C."""
    return initialized(lock, "threading:_RLock", own={"_block", "_owner", "_count"})


def reduce_condition(condition: Any) -> tuple[Any, ...]:
    """A condition over its lock, which is restored or copied with it."""
    return initialized(condition, _kind(condition, "Condition"), (condition._lock,), own=_CONDITION)


def reduce_event(event: Any) -> tuple[Any, ...]:
    """An event that is set if this one is."""
    flag = "_value" if _is_async(event) else "_flag"
    return initialized(event, _kind(event, "Event"), own=_EVENT, attributes={flag: True} if event.is_set() else None)


def reduce_semaphore(semaphore: Any) -> tuple[Any, ...]:
    """A semaphore with its current value, but at least one."""
    return initialized(semaphore, _kind(semaphore, "Semaphore"), (max(semaphore._value, 1),), own=_SEMAPHORE)


def reduce_bounded_semaphore(semaphore: Any) -> tuple[Any, ...]:
    """A bounded semaphore with its initial value."""
    initial = semaphore._bound_value if _is_async(semaphore) else semaphore._initial_value
    return initialized(semaphore, _kind(semaphore, "BoundedSemaphore"), (initial,), own=_SEMAPHORE)


def reduce_barrier(barrier: Any) -> tuple[Any, ...]:
    """A barrier at which nobody waits, whole if this one is broken."""
    arguments = (barrier._parties,) if _is_async(barrier) else (barrier._parties, barrier._action, barrier._timeout)
    return initialized(barrier, _kind(barrier, "Barrier"), arguments, own=_BARRIER)


def reduce_async_lock(lock: Any) -> tuple[Any, ...]:
    """An ``asyncio.Lock`` that is not held and belongs to no event loop yet."""
    return initialized(lock, "asyncio.locks:Lock", own=_ASYNC_LOCK)


def _is_async(obj: Any) -> bool:
    locks = sys.modules.get("asyncio.locks")
    return locks is not None and any(base.__module__ == "asyncio.locks" for base in type(obj).__mro__)


def _kind(obj: Any, name: str) -> str:
    return f"asyncio.locks:{name}" if _is_async(obj) else f"threading:{name}"


_REDUCERS: Final[dict[str, Any]] = {
    "threading:_RLock": reduce_python_rlock,
    "threading:Condition": reduce_condition,
    "threading:Event": reduce_event,
    "threading:Semaphore": reduce_semaphore,
    "threading:BoundedSemaphore": reduce_bounded_semaphore,
    "threading:Barrier": reduce_barrier,
    "asyncio.locks:Lock": reduce_async_lock,
    "asyncio.locks:Condition": reduce_condition,
    "asyncio.locks:Event": reduce_event,
    "asyncio.locks:Semaphore": reduce_semaphore,
    "asyncio.locks:BoundedSemaphore": reduce_bounded_semaphore,
    "asyncio.locks:Barrier": reduce_barrier,
}

_SUMMARIES: Final[dict[Any, tuple[str, str]]] = {
    reduce_condition: ("a fresh one over the restored lock", "a fresh one over the copied lock"),
    reduce_event: ("a fresh one, set if it was set", "a fresh one, set if it was set"),
    reduce_semaphore: (
        "a fresh one with the current value, at least one",
        "a fresh one with the current value, at least one",
    ),
    reduce_bounded_semaphore: ("a fresh one with the initial value", "a fresh one with the initial value"),
}


# -- what each thread has for itself ----------------------------------------------------------------------------------


def reduce_local(local: Any) -> tuple[Any, ...]:
    """The values that this thread has, and the arguments with which other threads initialize theirs."""
    arguments, keywords = _local_arguments(local)
    return restore.make_local, (type(local), arguments, keywords), state_of(local, {"_local__impl", "__dict__"})


def _local_arguments(local: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the constructor; the class in C shows them to the garbage collector alone, first and second."""
    if not isinstance(local, threading.local):
        arguments, keywords = object.__getattribute__(local, "_local__impl").localargs
        return arguments, keywords
    referents = [part for part in gc.get_referents(local) if not isinstance(part, type)]
    found = referents[0] if referents and type(referents[0]) is tuple else ()
    # The dictionary of keywords is missing where there are none; the one of all threads' values has no strings as keys.
    keywords = referents[1] if len(referents) > 1 and type(referents[1]) is dict else {}
    return found, keywords if keywords and all(type(key) is str for key in keywords) else {}


# -- between processes ------------------------------------------------------------------------------------------------

_SHARED_BETWEEN_PROCESSES: Final = (
    "multiprocessing.synchronize:SemLock", "multiprocessing.synchronize:Condition", "multiprocessing.synchronize:Event",
    "multiprocessing.queues:Queue", "multiprocessing.queues:SimpleQueue", "multiprocessing.connection:_ConnectionBase",
    "multiprocessing.sharedctypes:SynchronizedBase", "multiprocessing.heap:Arena",
)  # fmt: skip


def reduce_shared_between_processes(obj: Any) -> Any:
    """An error, as ``multiprocessing`` says itself, unless a process is being spawned."""
    from multiprocessing.context import get_spawning_popen

    if get_spawning_popen() is not None:
        return NotImplemented
    raise Refusal(
        f"a multiprocessing {type(obj).__name__} is shared with child processes by inheritance only: pass it to "
        "Process(args=...) or to a pool's initializer, or use multiprocessing.Manager(), whose proxies can be pickled"
    )
