"""Locks, and what is built on them, come back fresh, free and usable."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import safepickle
from tests.helpers import call_with_timeout, fresh_load

from .ways import Way, every_way

__all__: list[str] = []


class MyRLock(type(threading.RLock())):  # type: ignore[misc]
    """A reentrant lock that knows what it guards."""


class MyCondition(threading.Condition):
    def __init__(self, lock: Any, name: str) -> None:
        super().__init__(lock)
        self.name = name


class MyEvent(threading.Event):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class MySemaphore(threading.BoundedSemaphore):
    def __init__(self, name: str, *, value: int) -> None:
        super().__init__(value)
        self.name = name


class Account:
    """Two objects that share one lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.balance = 0


def is_free(lock: Any) -> bool:
    """Whether another thread can take the lock, and give it back."""

    def take() -> bool:
        taken = bool(lock.acquire(blocking=False))
        if taken:
            lock.release()
        return taken

    return call_with_timeout(take)


@every_way
@pytest.mark.parametrize(
    "make",
    [threading.Lock, threading.RLock, MyRLock, threading._RLock],
    ids=lambda make: make.__qualname__,
)
def test_a_held_lock_comes_back_free(way: Way, make: Callable[[], Any]) -> None:
    lock = make()
    with lock:
        twin = way(lock)
        assert type(twin) is type(lock)
        assert twin is not lock
        assert is_free(twin)
    assert is_free(lock)


@every_way
def test_a_reentrant_lock_is_reentrant_again(way: Way) -> None:
    twin = way(threading.RLock())
    with twin, twin:
        assert not is_free(twin)
    assert is_free(twin)


@every_way
def test_a_subclass_of_a_lock_keeps_its_attributes(way: Way) -> None:
    lock = MyRLock()
    lock.guards = ["cache"]
    twin = way(lock)
    assert twin.guards == ["cache"]
    assert twin.guards is not lock.guards


@every_way
def test_objects_that_share_a_lock_share_the_fresh_one(way: Way) -> None:
    account = Account()
    with account.lock:
        twin = way(account)
    assert twin.changed._lock is twin.lock
    assert twin.lock is not account.lock
    with twin.changed:
        assert not is_free(twin.lock)
        assert is_free(account.lock)


@every_way
@pytest.mark.parametrize("lock", [None, threading.Lock()], ids=["reentrant", "plain"])
def test_a_condition_waits_and_wakes_on_its_own_lock(way: Way, lock: Any) -> None:
    condition = threading.Condition(lock)
    condition.acquire()
    twin = way(condition)

    def notify() -> None:
        with twin:
            twin.notify_all()

    def wait() -> bool:
        with twin:
            threading.Timer(0.01, notify).start()
            return bool(twin.wait(5))

    assert call_with_timeout(wait)
    condition.release()


@every_way
def test_a_copied_condition_has_no_method_of_the_originals_lock(way: Way) -> None:
    condition = threading.Condition(threading.Lock())
    twin = way(condition)
    owners = {value.__self__ for value in vars(twin).values() if hasattr(value, "__self__")}
    assert owners <= {twin._lock, twin}
    twin.acquire()
    assert is_free(condition)


@every_way
def test_a_subclass_of_condition_keeps_its_attributes(way: Way) -> None:
    twin = way(MyCondition(threading.Lock(), "full"))
    assert type(twin) is MyCondition
    assert twin.name == "full"
    assert is_free(twin)


@every_way
@pytest.mark.parametrize("is_set", [True, False])
def test_an_event_keeps_its_flag(way: Way, is_set: bool) -> None:
    event = MyEvent("ready")
    if is_set:
        event.set()
    twin = way(event)
    assert twin.is_set() is is_set
    assert twin.name == "ready"
    twin.set()
    assert call_with_timeout(lambda: twin.wait(5))
    assert event.is_set() is is_set


@every_way
def test_a_bounded_semaphore_comes_back_with_its_initial_value(way: Way) -> None:
    semaphore = MySemaphore("gpus", value=2)
    semaphore.acquire()
    semaphore.acquire()
    twin = way(semaphore)
    assert twin.name == "gpus"
    assert [twin.acquire(blocking=False) for _ in range(3)] == [True, True, False]
    twin.release(2)
    with pytest.raises(ValueError, match="released too many"):
        twin.release()


@every_way
@pytest.mark.parametrize(("value", "expected"), [(3, 3), (1, 1), (0, 1)])
def test_a_semaphore_comes_back_with_its_value_but_at_least_one(way: Way, value: int, expected: int) -> None:
    twin = way(threading.Semaphore(value))
    assert [twin.acquire(blocking=False) for _ in range(expected + 1)] == [True] * expected + [False]


@every_way
def test_a_broken_barrier_comes_back_whole(way: Way) -> None:
    barrier = threading.Barrier(2, timeout=5)
    barrier.abort()
    twin = way(barrier)
    turns: list[int] = []
    threads = [threading.Thread(target=lambda: turns.append(twin.wait()), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(turns) == [0, 1]
    assert barrier.broken


@every_way
def test_a_lock_inside_a_cycle(way: Way) -> None:
    condition = threading.Condition()
    condition.owner = condition  # type: ignore[attr-defined]
    twin = way(condition)
    assert twin.owner is twin
    assert is_free(twin)


def test_locks_are_usable_in_a_fresh_process(tmp_path: Path) -> None:
    parts = [
        threading.Lock(),
        threading.RLock(),
        threading.Condition(),
        threading.Event(),
        threading.Semaphore(2),
        queue.Queue(),
    ]
    data = safepickle.dumps(parts, 2)
    code = """
        lock, rlock, condition, event, semaphore, queue = obj
        for part in (lock, rlock, condition, semaphore):
            assert part.acquire(timeout=5)
            part.release()
        event.set()
        assert event.wait(5)
        queue.put(1)
        assert queue.get(timeout=5) == 1
        print("used")
    """
    assert fresh_load(data, code, tmp_path, loader="pickle").strip() == "used"


def test_a_plain_lock_needs_no_safepickle_to_load() -> None:
    for lock in (threading.Lock(), threading.RLock()):
        data = safepickle.dumps(lock)
        assert b"safepickle" not in data
        assert is_free(pickle.loads(data))


@pytest.mark.parametrize(
    "make",
    [threading.Lock, threading.RLock, threading.Condition, threading.Event],
    ids=lambda make: make.__qualname__,
)
def test_copy_gives_a_fresh_lock_too(make: Callable[[], Any]) -> None:
    lock = make()
    twin = safepickle.copy(lock)
    assert twin is not lock
    assert type(twin) is type(lock)


# -- asyncio ----------------------------------------------------------------------------------------------------------


@every_way
def test_asyncio_primitives_work_in_another_loop(way: Way) -> None:
    async def hold() -> Any:
        lock, event, semaphore, bounded = (
            asyncio.Lock(),
            asyncio.Event(),
            asyncio.Semaphore(2),
            asyncio.BoundedSemaphore(2),
        )
        condition = asyncio.Condition(lock)
        await lock.acquire()
        await semaphore.acquire()
        await bounded.acquire()
        event.set()
        return way([lock, event, semaphore, bounded, condition])

    async def use(parts: Any) -> None:
        lock, event, semaphore, bounded, condition = parts
        assert condition._lock is lock
        assert not lock.locked()
        async with asyncio_timeout(5):
            async with condition:
                assert lock.locked()
            await event.wait()
            async with semaphore, bounded, bounded:
                pass

    asyncio.run(use(asyncio.run(hold())))


@every_way
def test_an_asyncio_queue_keeps_its_items(way: Way) -> None:
    async def fill() -> Any:
        items: asyncio.PriorityQueue[int] = asyncio.PriorityQueue(5)
        for number in (3, 1, 2):
            items.put_nowait(number)
        return items

    twin = way(asyncio.run(fill()))

    async def drain() -> list[int]:
        return [await asyncio.wait_for(twin.get(), 5) for _ in range(3)]

    assert twin.maxsize == 5
    assert asyncio.run(drain()) == [1, 2, 3]


def asyncio_timeout(seconds: float) -> Any:
    if sys.version_info >= (3, 11):
        return asyncio.timeout(seconds)
    return _NoTimeout()


class _NoTimeout:
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *details: object) -> None: ...


# -- threading.local --------------------------------------------------------------------------------------------------


class Settings(threading.local):
    """Other threads begin with what the constructor was given."""

    def __init__(self, level: int, *, name: str = "none") -> None:
        self.level = level
        self.name = name


class Slotted(threading.local):
    __slots__ = ("shared",)


def in_another_thread(function: Callable[[], Any]) -> Any:
    return call_with_timeout(function)


@every_way
def test_a_thread_local_has_this_threads_values_and_is_per_thread(way: Way) -> None:
    local = threading.local()
    local.stack = ["outer"]
    twin = way(local)
    assert type(twin) is threading.local
    assert twin.stack == ["outer"]
    assert twin.stack is not local.stack
    assert in_another_thread(lambda: vars(twin).copy()) == {}


@every_way
def test_other_threads_initialize_a_restored_subclass_as_ever(way: Way) -> None:
    settings = Settings(1, name="main")
    settings.level = 5
    settings.extra = [settings]  # type: ignore[attr-defined]
    twin = way(settings)
    assert (twin.level, twin.name, twin.extra) == (5, "main", [twin])
    assert in_another_thread(lambda: vars(twin).copy()) == {"level": 1, "name": "main"}


@every_way
def test_a_thread_local_without_keywords_and_used_in_many_threads(way: Way) -> None:
    settings = Settings(7)
    threads = [threading.Thread(target=lambda: setattr(settings, "level", 0)) for _ in range(3)]
    for thread in threads:
        thread.start()
        thread.join()
    twin = way(settings)
    assert twin.level == 7
    assert in_another_thread(lambda: vars(twin).copy()) == {"level": 7, "name": "none"}


@every_way
def test_slots_of_a_thread_local(way: Way) -> None:
    local = Slotted()
    local.shared = 3
    twin = way(local)
    assert twin.shared == 3
    assert in_another_thread(lambda: twin.shared) == 3


@every_way
def test_the_python_version_of_thread_local(way: Way) -> None:
    from _threading_local import local as PythonLocal

    local = PythonLocal()
    local.value = 4
    twin = way(local)
    assert type(twin) is PythonLocal
    assert twin.value == 4
    assert in_another_thread(lambda: hasattr(twin, "value")) is False


def test_copy_of_a_thread_local_shares_the_values() -> None:
    local = threading.local()
    local.stack = []
    twin = safepickle.copy(local)
    assert twin is not local
    assert twin.stack is local.stack


# -- multiprocessing --------------------------------------------------------------------------------------------------

SPAWN = multiprocessing.get_context("spawn")


@pytest.mark.parametrize(
    "name", ["Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition", "Event", "Queue", "SimpleQueue"]
)
@pytest.mark.parametrize("verb", ["dumps", "deepcopy"])
def test_what_processes_share_goes_by_inheritance_only(name: str, verb: str) -> None:
    shared = getattr(SPAWN, name)()
    with pytest.raises(safepickle.PicklingError, match="inheritance") as caught:
        getattr(safepickle, verb)({"shared": [shared]})
    assert "'shared'" in str(caught.value)


def test_a_pipe_is_refused() -> None:
    one, other = SPAWN.Pipe()
    with one, other, pytest.raises(safepickle.PicklingError, match="inheritance"):
        safepickle.dumps(one)


def _use(lock: Any, numbers: Any) -> None:
    with lock:
        numbers.put(41 + 1)


def test_spawning_still_passes_them_on() -> None:
    lock, numbers = SPAWN.Lock(), SPAWN.SimpleQueue()
    child = SPAWN.Process(target=_use, args=(lock, numbers))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert numbers.get() == 42
