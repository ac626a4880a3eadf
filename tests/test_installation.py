"""Do pickle and copy themselves use the rules while safepickle is installed, and is everything as before afterwards?

What comes back is used, under a timeout: a lock that is never free passes every other test.
"""

from __future__ import annotations

import collections
import copy
import copyreg
import decimal
import enum
import functools
import importlib
import io
import json
import logging
import os
import pickle
import platform
import queue
import re
import sys
import tempfile
import textwrap
import threading
import types
import typing
import weakref

import pytest

import safepickle
from safepickle import installation
from safepickle.engines import HOOKS, MODULES, NEEDS
from safepickle.entries import Entry

from .helpers import call_with_timeout, run_python

TABLES = (copyreg.dispatch_table, copy._deepcopy_dispatch, getattr(copy, "_copy_dispatch", {}))


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Every test begins and ends with nothing installed, and the standard library as it was."""
    assert not installation._asked
    before = [dict(table) for table in TABLES]
    yield
    safepickle.uninstall()
    assert [dict(table) for table in TABLES] == before
    assert not len(installation._changes)
    assert not any(type(finder).__module__.startswith("safepickle") for finder in sys.meta_path)
    assert "__reduce_ex__" not in vars(threading.Thread)


@pytest.fixture
def installed():
    with safepickle.installed() as made:
        yield made


def ways():
    yield "deepcopy", copy.deepcopy
    for protocol in (0, 2, 4, 5):
        yield f"protocol {protocol}", lambda obj, protocol=protocol: pickle.loads(pickle.dumps(obj, protocol))
    yield "in Python", lambda obj: pickle._loads(pickle._dumps(obj))


every_way = pytest.mark.parametrize("way", [way for _, way in ways()], ids=[name for name, _ in ways()])


# -- what comes back works ---------------------------------------------------------------------------------------------


@every_way
def test_a_held_lock_comes_back_free(installed, way):
    for make in (threading.Lock, threading.RLock):
        lock = make()
        with lock:
            fresh = way(lock)
            assert fresh is not lock
            assert call_with_timeout(lambda fresh=fresh: fresh.acquire(timeout=5))


@every_way
def test_a_condition_works_on_the_lock_that_came_with_it(installed, way):
    lock = threading.RLock()
    condition = threading.Condition(lock)
    pair = way([condition, lock])

    def use():
        with pair[0]:
            return threading_cannot_take(pair[1])

    with condition:  # the original is held, by this thread
        assert call_with_timeout(use)
    assert not threading_cannot_take(lock)


def threading_cannot_take(lock):
    """Whether another thread finds the lock held."""
    result = []

    def attempt():
        taken = lock.acquire(blocking=False)
        if taken:
            lock.release()
        result.append(not taken)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join(10)
    return result[0]


@every_way
@pytest.mark.parametrize("base", [threading.Condition, threading.Event, threading.Semaphore, queue.Queue])
def test_what_is_built_on_a_lock_works_while_the_original_is_held(installed, way, base):
    original = base()
    held = original.mutex if base is queue.Queue else getattr(original, "_cond", original)

    def use():
        made = way(original)
        if base is threading.Condition:
            with made:
                made.notify_all()
        elif base is threading.Event:
            made.set()
            return made.wait(5)
        elif base is threading.Semaphore:
            return made.acquire(timeout=5)
        else:
            made.put("item", timeout=5)
            return made.get(timeout=5) == "item"
        return True

    held.acquire()
    try:
        assert call_with_timeout(use)
    finally:
        held.release()


class Gate(threading.Condition):
    """A subclass: the rules do not reach it through copyreg, and it must not end in a deadlock for that."""


class Line(queue.Queue):
    pass


@every_way
def test_a_condition_of_a_subclass_locks_its_own_lock(installed, way):
    original = Gate(threading.Lock())

    def use():
        made = way(original)
        with made:
            made.notify_all()
        return made.acquire(timeout=5)

    with original:
        assert call_with_timeout(use)


@every_way
def test_a_queue_of_a_subclass_works_while_the_original_is_held(installed, way):
    original = Line()
    original.put(1)

    def use():
        made = way(original)
        made.put(2, timeout=5)
        return [made.get(timeout=5), made.get(timeout=5)]

    with original.mutex:
        assert call_with_timeout(use) == [1, 2]


@every_way
def test_a_barrier_lets_as_many_through_as_the_original(installed, way):
    made = way(threading.Barrier(2))
    threads = [threading.Thread(target=made.wait, args=(5,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not made.broken


class Holder:
    """As models are: a lock among other things, and one thing twice."""

    def __init__(self):
        self.lock = threading.Lock()
        self.rows = [1, 2]
        self.again = self.rows
        self.module = collections
        self.acquire = self.lock.acquire


@every_way
def test_objects_that_hold_a_lock_keep_what_they_share(installed, way):
    made = way(Holder())
    assert made.rows == [1, 2] and made.again is made.rows
    assert made.module is collections
    assert call_with_timeout(lambda: made.acquire(timeout=5))
    assert made.lock.locked()


def test_a_shallow_copy_uses_the_rules(installed):
    made = copy.copy(threading.Lock())
    assert call_with_timeout(lambda: made.acquire(timeout=5))
    assert copy.copy(collections) is collections
    items = queue.Queue()
    items.put(1)
    assert copy.copy(items).get(timeout=5) == 1


def test_modules_are_shared_by_copies_and_go_by_name(installed):
    assert copy.deepcopy([collections])[0] is collections
    assert b"collections" in pickle.dumps(collections)
    assert pickle.loads(pickle.dumps(collections)) is collections


@pytest.mark.parametrize("order", [0, 1])
def test_a_method_of_a_lock_goes_with_the_copy_of_the_lock_whichever_comes_first(installed, order):
    for lock in (threading.Lock(), threading.RLock()):
        parts = [lock, lock.acquire][:: 1 - 2 * order]
        twin = copy.deepcopy(parts)[:: 1 - 2 * order]
        with lock:
            assert call_with_timeout(lambda twin=twin: twin[1](timeout=5) and threading_cannot_take(twin[0]))
        assert not threading_cannot_take(lock)


def test_a_builtin_method_goes_with_what_has_been_copied_before_it_and_functions_are_shared(installed):
    rows = [1]
    twin = copy.deepcopy([rows, rows.append, len, dict.fromkeys])
    twin[1](2)
    assert twin[0] == [1, 2] and rows == [1]
    assert twin[2] is len and twin[3] == dict.fromkeys
    assert copy.deepcopy(rows.append).__self__ is rows is copy.copy(rows.append).__self__


def test_weak_references_are_refused_by_pickle_as_before_and_shared_by_copies(installed):
    class Target:
        pass

    target = Target()
    assert copy.deepcopy(weakref.ref(target))() is target
    for weak in (weakref.ref(target), weakref.WeakValueDictionary(a=target), weakref.proxy(target)):
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
            pickle.dumps({"target": 1, "weak": weak})


def test_generators_are_refused_with_advice(installed):
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="a generator is running code"):
            attempt(item for item in [])


class Worker(threading.Thread):
    """Its locks have been in the way of pickling it so far; now they are not, and half a thread is no thread."""


class PortableWorker(threading.Thread):
    def __reduce__(self):
        return PortableWorker, ()


@pytest.mark.parametrize("cls", [threading.Thread, threading.Timer, Worker])
def test_threads_are_refused_though_their_locks_are_not(installed, cls):
    class Local(cls):
        pass

    arguments = (1, print) if cls is threading.Timer else ()
    for kind in (cls, Local):
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="a thread is at work in this process"):
                attempt(kind(*arguments))


def test_a_thread_that_says_how_it_is_pickled_is_asked(installed):
    assert type(pickle.loads(pickle.dumps(PortableWorker()))) is PortableWorker


# -- rules of the user -------------------------------------------------------------------------------------------------


class Point:
    def __init__(self, x):
        self.x = x
        self.cache = object()


class Point3(Point):
    pass


def test_a_rule_that_is_registered_later_applies_and_ends_with_its_registration(installed):
    safepickle.register(Point, lambda point: (Point, (point.x + 1,)))
    assert pickle.loads(pickle.dumps(Point(1))).x == 2
    assert copy.deepcopy(Point(1)).x == 2
    safepickle.unregister(Point)
    assert pickle.loads(pickle.dumps(Point(1))).x == 1
    assert Point not in copyreg.dispatch_table and Point not in copy._deepcopy_dispatch


def test_a_rule_about_copies_alone_leaves_pickles_alone(installed):
    safepickle.register(Point, copy=safepickle.SHARE)
    point = Point(1)
    assert copy.deepcopy([point])[0] is copy.copy(point) is point
    assert pickle.loads(pickle.dumps(point)) is not point
    safepickle.unregister(Point)


def test_a_rule_whose_copies_differ_from_its_pickles_has_both(installed):
    safepickle.register(Point, lambda point: (Point, ("pickled",)), copy=lambda point, memo: Point("copied"))
    assert pickle.loads(pickle.dumps(Point(1))).x == "pickled"
    assert copy.deepcopy(Point(1)).x == "copied"
    safepickle.unregister(Point)


def test_parts_of_a_copy_by_a_rule_are_in_the_memo_of_the_whole(installed):
    safepickle.register(Point, copy=lambda point, memo: Point(safepickle.deepcopy(point.x, memo)))
    rows = []
    made = copy.deepcopy([rows, Point(rows)])
    assert made[1].x is made[0] is not rows
    made = copy.deepcopy([Point(rows), rows])
    assert made[0].x is made[1] is not rows
    safepickle.unregister(Point)


def test_a_rule_that_declines_leaves_an_object_to_its_own_way(installed):
    safepickle.register(Point, lambda point: NotImplemented)
    assert pickle.loads(pickle.dumps(Point(1))).x == 1
    assert copy.deepcopy(Point(1)).x == 1
    assert safepickle.loads(safepickle.dumps(Point(1))).x == 1
    assert safepickle.deepcopy(Point(1)).x == 1
    safepickle.unregister(Point)


def test_a_rule_gets_a_pickler_that_assumes_little(installed):
    seen = []

    def reduce(point, pickler):
        seen.append((pickler.protocol, pickler.buffer_callback, pickler.pin, pickler.registry.rule_for(Point).origin))
        return Point, (point.x,)

    safepickle.register(Point, reduce, with_pickler=True)
    pickle.dumps(Point(1), 5)
    assert seen == [(2, None, None, "user")]
    safepickle.unregister(Point)


def test_a_rule_for_subclasses_reaches_those_that_are_known(installed):
    safepickle.register(Point, lambda point: (type(point), ("by rule",)), subclasses=True)
    assert pickle.loads(pickle.dumps(Point3(1))).x == "by rule"

    class Later(Point):
        pass

    assert Later not in copyreg.dispatch_table
    with safepickle.install():
        assert Later in copyreg.dispatch_table
    safepickle.unregister(Point)


def test_a_rule_for_a_metaclass_that_declines_leaves_classes_to_their_names(installed):
    class Meta(type):
        pass

    global OfMeta
    OfMeta = Meta("OfMeta", (), {"__module__": __name__})
    safepickle.register(Meta, lambda cls: NotImplemented)
    assert pickle.loads(pickle.dumps(OfMeta)) is OfMeta
    safepickle.unregister(Meta)


def test_a_type_that_cannot_be_hashed_is_left_out(installed):
    class Unhashable(type):
        __hash__ = None

    class Odd(metaclass=Unhashable):
        pass

    safepickle.register(Odd, lambda odd: (object, ()))
    pickle.dumps([1])
    safepickle.unregister(Odd)


# -- what is there stays in its place ----------------------------------------------------------------------------------


def test_an_entry_of_somebody_else_is_not_replaced_by_a_rule_of_ours():
    copyreg.pickle(type(threading.Lock()), reduce_to_text)
    try:
        with safepickle.installed():
            assert pickle.loads(pickle.dumps(threading.Lock())) == "theirs"
        assert copyreg.dispatch_table[type(threading.Lock())] is reduce_to_text
    finally:
        del copyreg.dispatch_table[type(threading.Lock())]


def reduce_to_text(obj):
    return str, ("theirs",)


def test_an_entry_of_somebody_else_is_replaced_by_a_rule_of_the_user_and_comes_back():
    copyreg.pickle(Point, reduce_to_text)
    safepickle.register(Point, lambda point: (str, ("mine",)) if point.x else NotImplemented)
    try:
        with safepickle.installed():
            assert pickle.loads(pickle.dumps([Point(1), Point(0)])) == ["mine", "theirs"]
        assert copyreg.dispatch_table[Point] is reduce_to_text
    finally:
        safepickle.unregister(Point)
        del copyreg.dispatch_table[Point]


def test_an_entry_that_somebody_else_makes_meanwhile_stays_and_is_reported():
    made = safepickle.install()
    lock = type(threading.Lock())
    ours = copyreg.dispatch_table[lock]
    copyreg.pickle(lock, reduce_to_text)
    try:
        safepickle.register(Point, reduce_to_text)  # published anew: not what is theirs
        safepickle.unregister(Point)
        assert [change.where for change in made.uninstall()] == ["copyreg.dispatch_table[_thread.lock]"]
        assert copyreg.dispatch_table[lock] is reduce_to_text
        copyreg.pickle(lock, ours)  # who puts ours back has put back nothing
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(threading.Lock())
        with safepickle.installed():
            pickle.dumps(threading.Lock())
        assert lock not in copyreg.dispatch_table
    finally:
        copyreg.dispatch_table.pop(lock, None)


def test_a_picklers_own_table_comes_first(installed):
    class Theirs(pickle.Pickler):
        dispatch_table = {**copyreg.dispatch_table, type(threading.Lock()): reduce_to_text}

    file = io.BytesIO()
    Theirs(file).dump([threading.Lock(), threading.RLock()])
    text, lock = pickle.loads(file.getvalue())
    assert text == "theirs" and lock.acquire(blocking=False)


def test_our_own_pickler_does_not_take_our_entry_in_a_table_for_somebody_elses(installed):
    seen = []

    def reduce(point, pickler):
        seen.append(pickler)
        return NotImplemented if point.x else (Point, (9,))

    safepickle.register(Point, reduce, with_pickler=True)

    class Engine(safepickle.Pickler):
        pass

    file = io.BytesIO()
    pickler = Engine(file, 5)
    pickler.dispatch_table = copyreg.dispatch_table.copy()
    pickler.dump([Point(1), Point(0)])
    assert seen == [pickler, pickler]
    assert [point.x for point in pickle.loads(file.getvalue())] == [1, 9]
    safepickle.unregister(Point)


def test_our_own_copies_and_pickles_are_as_without_an_installation():
    holder = Holder()
    bytes_before, digest = safepickle.dumps(holder), safepickle.digest(holder)
    with safepickle.installed():
        assert safepickle.dumps(holder) == bytes_before
        assert safepickle.digest(holder) == digest
        assert safepickle.deepcopy(holder).rows == [1, 2]
        with pytest.raises(TypeError):
            safepickle.deepcopy(threading.Lock(), registry=safepickle.Registry.empty())


def test_a_table_that_was_copied_while_installed_gives_nothing_of_ours_afterwards():
    with safepickle.installed():
        copied = dict(copyreg.dispatch_table)

    class Theirs(pickle.Pickler):
        dispatch_table = copied

    assert isinstance(copied[type(threading.Lock())], Entry)
    with pytest.raises(TypeError, match="cannot pickle"):
        Theirs(io.BytesIO()).dump(threading.Lock())


def what_plain_pickle_knows():
    error = KeyError("missing")
    error.__cause__ = ValueError("cause")
    return [
        Point(1).__init__, Gate.notify, [].append, Color.RED, Pair(1, "x"), collections.OrderedDict(a=1),
        functools.partial(print, 1), functools.lru_cache, logging.getLogger("safepickle.test"), typing.AnyStr, error,
        collections.deque([1], 3), range(3), re.compile("a+"), decimal.Decimal("1.5"), Ellipsis, json.dumps,
    ]  # fmt: skip


class Color(enum.Enum):
    RED = 1


class Pair(typing.NamedTuple):
    left: int
    right: str


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_what_plain_pickle_can_write_is_written_as_before(protocol):
    samples = what_plain_pickle_knows()
    for sample in samples:
        pickle.dumps(sample, protocol)  # errors get a dictionary when tblib, which Dask imports, asks for it
    before = [pickle.dumps(sample, protocol) for sample in samples]
    with safepickle.installed():
        assert [pickle.dumps(sample, protocol) for sample in samples] == before
        assert not any(b"safepickle.restore" in data for data in before)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_what_has_a_name_in_this_process_alone_goes_by_it_as_before(protocol, monkeypatch):
    module = types.ModuleType("made_on_the_fly")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    source = "import functools\n@functools.cache\ndef kept(x):\n    return [x]\n"
    source += "class Model:\n    @functools.lru_cache\n    def method(self):\n        return 1\n"
    if sys.version_info >= (3, 12):
        source += "type Alias = list[int]\n"
    exec(source, vars(module))
    samples = [module.kept, module.Model.method, functools.partial(module.kept, 1)]
    samples += [module.Alias] if sys.version_info >= (3, 12) else []
    before = [pickle.dumps(sample, protocol) for sample in samples]
    with safepickle.installed():
        assert [pickle.dumps(sample, protocol) for sample in samples] == before
        assert pickle.loads(before[0]) is module.kept is copy.deepcopy(module.kept)
        replaced, module.kept = module.kept, None
        with pytest.raises(pickle.PicklingError, match="kept"):
            pickle.dumps(replaced, protocol)  # its function has no name either
        assert pickle.loads(pickle.dumps(functools.cache(len), protocol))((1, 2)) == 2


@pytest.mark.parametrize("make", [tempfile.TemporaryDirectory, tempfile.SpooledTemporaryFile])
def test_what_holds_a_temporary_by_the_way_is_pickled_and_copied_as_before(make):
    temporary = make()
    try:
        before = pickle.dumps(["scratch", temporary], 4)
        with safepickle.installed():
            assert pickle.dumps(["scratch", temporary], 4) == before
            assert type(copy.deepcopy([temporary])[0]) is type(copy.copy(temporary)) is type(temporary)
            with pytest.raises(safepickle.PicklingError, match="temporary"):
                safepickle.dumps(temporary)
    finally:
        (temporary.cleanup if hasattr(temporary, "cleanup") else temporary.close)()


def test_exceptions_are_left_to_the_standard_library(installed):
    for cls in (ValueError, OSError, AttributeError):
        assert type(copyreg.dispatch_table.get(cls)) is not Entry  # tblib, which Dask imports, has entries
        assert str(pickle.loads(pickle.dumps(cls("text")))) == "text"


# -- copy since Python 3.14 --------------------------------------------------------------------------------------------


def copy_of_today(x):
    """In the order in which ``copy.copy`` asks since Python 3.14."""
    cls = type(x)
    if cls in (int, str, tuple):
        return x
    own = getattr(cls, "__copy__", None)
    if own is not None:
        return own(x)
    reducer = copy.dispatch_table.get(cls)
    reduced = x.__reduce_ex__(4) if reducer is None else reducer(x)
    return x if isinstance(reduced, str) else copy._reconstruct(x, None, *reduced)


@pytest.fixture
def newer_copy(monkeypatch):
    """The module as it is since Python 3.14, as far as it is asked here."""
    if sys.version_info < (3, 14):
        monkeypatch.delattr(copy, "_copy_dispatch")
        monkeypatch.setattr(copy, "copy", copy_of_today)
        atomic = {int, str, types.BuiltinFunctionType, types.FunctionType}
        monkeypatch.setattr(copy, "_atomic_types", atomic, raising=False)
    before = copy.dispatch_table, copy._atomic_types
    yield
    assert (copy.dispatch_table, copy._atomic_types) == before and copy.dispatch_table is copyreg.dispatch_table


def test_shallow_copies_use_the_rules_where_copy_has_no_table_for_them(newer_copy):
    with safepickle.installed() as made:
        assert "copy.dispatch_table" in [change.where for change in made.changes]
        assert types.BuiltinFunctionType not in copy._atomic_types
        event = threading.Event()
        event.set()
        assert copy.copy(event).is_set() and copy.copy(event) is not event
        items = queue.Queue()
        items.put(1)
        twin = copy.copy(items)
        assert twin.get(timeout=5) == 1 and items.qsize() == 1
        assert copy.copy(collections) is collections
        safepickle.register(Point, lambda point: (Point, (point.x + 1,)))
        assert copy.copy(Point(1)).x == 2
        safepickle.unregister(Point)
        assert copy.copy(Point(1)).x == 1 and copy.copy(collections.deque([1])) == collections.deque([1])
        with pytest.raises(TypeError, match="a generator is running code"):
            copy.copy(item for item in [])


# -- installing and taking back ----------------------------------------------------------------------------------------


def can_be_pickled():
    try:
        pickle.dumps(threading.Lock())
    except TypeError:
        return False
    return True


def test_importing_safepickle_installs_nothing():
    run_python("""
        import copy, copyreg, sys
        tables = copyreg.dispatch_table, copy._deepcopy_dispatch, copy._copy_dispatch
        before = [dict(table) for table in tables], list(sys.meta_path)
        import safepickle, safepickle.installation
        safepickle.dumps([print]); safepickle.deepcopy([print])
        for table, old in zip(tables, before[0]):
            new = {cls: value for cls, value in table.items() if old.get(cls) is not value}  # by imports, such as re's
            assert not any("safepickle" in f"{type(made).__module__} {made.__module__}" for made in new.values()), new
        assert sys.meta_path == before[1]
    """)


def test_what_is_asked_for_twice_stays_until_both_take_it_back():
    first, second = safepickle.install(), safepickle.install()
    first.uninstall()
    assert can_be_pickled() and not first.active and second.active
    assert first.uninstall() == []
    assert can_be_pickled()
    second.uninstall()
    assert not can_be_pickled()


def test_a_with_statement_inside_of_another_does_not_end_that_one():
    with safepickle.installed():
        with safepickle.installed():
            assert can_be_pickled()
        assert can_be_pickled()
    assert not can_be_pickled()


def test_uninstall_takes_back_whatever_was_asked_for():
    handles = [safepickle.install() for _ in range(3)]
    assert safepickle.uninstall() == []
    assert not can_be_pickled() and not any(handle.active for handle in handles)
    assert safepickle.uninstall() == []


def test_installing_again_changes_nothing_more():
    first = safepickle.install()
    changes = first.changes
    assert len(changes) > 100
    assert safepickle.install().changes == first.changes == changes


def test_the_changes_are_told():
    with safepickle.install() as made:
        places = [change.where for change in made.changes]
        assert "copyreg.dispatch_table[_thread.lock]" in places
        assert "copy._deepcopy_dispatch[threading.Condition]" in places
        assert {change.engine for change in made.changes} == {"copyreg"}
        assert repr(made).startswith("<safepickle.Installation: copyreg (")
    assert repr(made) == "<safepickle.Installation, taken back>"
    assert made.changes == ()


def test_an_engine_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match="there is no engine 'spork': expected one of 'dask', "):
        safepickle.install("spork")
    assert not installation._asked


def test_threads_that_install_and_uninstall_at_once_leave_nothing_behind():
    failures = []

    def work(number):
        try:
            for _ in range(20):
                with safepickle.installed():
                    assert can_be_pickled()
                    if number == 0:
                        safepickle.register(Point, reduce_to_text)
                        safepickle.unregister(Point)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == [] and not any(thread.is_alive() for thread in threads)
    assert not can_be_pickled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_can_install_while_the_parents_threads_do():
    run_python("""
        import os, threading, pickle
        import safepickle
        safepickle.install().uninstall()
        stop = False
        def work():
            while not stop:
                safepickle.install().uninstall()
        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(5):
                child = os.fork()
                if child == 0:
                    safepickle.uninstall()
                    with safepickle.installed():
                        pickle.dumps(threading.Lock())
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
        finally:
            stop = True
            thread.join()
    """, timeout=60)


def test_a_worker_installs_what_the_environment_names(monkeypatch):
    monkeypatch.setenv("SAFEPICKLE_ENGINES", "")
    names = []
    monkeypatch.setattr(installation, "install", lambda *engines: names.append(engines))
    safepickle.install_worker()
    safepickle.install_worker(3)
    monkeypatch.setenv("SAFEPICKLE_ENGINES", "ray, joblib")
    safepickle.install_worker()
    assert names == [("multiprocessing",), ("multiprocessing",), ("ray", "joblib")]


@pytest.mark.parametrize(
    ("value", "engines"),
    [("1", ()), ("multiprocessing,ray", ("multiprocessing", "ray")), ("1, ray", ("ray",)), ("0", None), ("", None)],
)
def test_the_environment_says_what_to_install(monkeypatch, value, engines):
    monkeypatch.setenv("SAFEPICKLE_INSTALL", value)
    monkeypatch.setattr(installation, "install", lambda *engines: engines)
    assert installation.install_from_environment() == engines


# -- what is imported later --------------------------------------------------------------------------------------------


def test_types_of_modules_that_are_imported_later_follow(tmp_path):
    (tmp_path / "later_module.py").write_text("class Thing:\n    x = 1\n")
    run_python("""
        import copy, pickle, importlib, safepickle
        safepickle.register("later_module:Thing", lambda thing: (dict, ()))
        safepickle.install()
        import later_module
        assert pickle.loads(pickle.dumps(later_module.Thing())) == {}
        assert copy.deepcopy(later_module.Thing()) == {}
        first = later_module.Thing
        importlib.reload(later_module)
        assert later_module.Thing is not first
        assert pickle.loads(pickle.dumps(later_module.Thing())) == {}
        safepickle.uninstall()
        assert type(copy.deepcopy(later_module.Thing())) is later_module.Thing
    """, pythonpath=[tmp_path])


def test_types_of_the_standard_library_that_are_imported_later_follow():
    run_python("""
        import copy, sys, safepickle
        safepickle.install()
        assert "asyncio" not in sys.modules and "sqlite3" not in sys.modules
        import asyncio, sqlite3
        assert copy.deepcopy(asyncio.Lock()).locked() is False
        try:
            copy.deepcopy(sqlite3.connect(":memory:"))
        except TypeError as error:
            assert "an SQLite connection is a connection of this process" in str(error), error
        else:
            raise AssertionError
    """)


def test_rules_of_other_distributions_follow_the_import_of_their_package(tmp_path):
    (tmp_path / "far_library.py").write_text("class Handle:\n    pass\n")
    (tmp_path / "far_rules.py").write_text(
        "def add(registry):\n    registry.register('far_library:Handle', lambda handle: (str, ('by entry point',)))\n"
    )
    info = tmp_path / "far-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: far\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[safepickle.reducers]\nfar_library = far_rules:add\n")
    run_python("""
        import pickle, sys, safepickle
        safepickle.install()
        assert "far_rules" not in sys.modules
        import far_library, importlib
        assert pickle.loads(pickle.dumps(far_library.Handle())) == "by entry point"
        importlib.reload(far_library)
        assert pickle.loads(pickle.dumps(far_library.Handle())) == "by entry point"
    """, pythonpath=[tmp_path])


# -- engines -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """An engine that is not imported yet, and its adapter."""
    (tmp_path / "safepickle_test_engine.py").write_text("pickler = 'theirs'\n")
    (tmp_path / "safepickle_test_adapter.py").write_text(textwrap.dedent("""
        calls, error = [], None
        def install(changes):
            import safepickle_test_engine
            calls.append(safepickle_test_engine.pickler)
            changes.set_attribute("test", safepickle_test_engine, "pickler", "ours", where="engine.pickler")
            if error is not None:
                raise error
    """))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(MODULES, "test", "safepickle_test_adapter")
    monkeypatch.setitem(NEEDS, "test", "safepickle_test_engine")
    yield importlib.import_module("safepickle_test_adapter")
    safepickle.uninstall()
    for name in ("safepickle_test_engine", "safepickle_test_adapter"):
        sys.modules.pop(name, None)


def test_an_engine_follows_its_import_and_is_changed_once(engine):
    made = safepickle.install("test")
    assert made.waiting == ("test",) and engine.calls == [] and "test (waits for its import)" in repr(made)
    import safepickle_test_engine

    assert engine.calls == ["theirs"] and safepickle_test_engine.pickler == "ours" and made.waiting == ()
    safepickle.install("test", "test")
    assert engine.calls == ["theirs"]
    assert [change.where for change in made.changes if change.engine == "test"] == ["engine.pickler"]
    assert not any(change.engine == "test" for change in safepickle.install().changes)


def test_an_engine_is_as_before_once_nobody_asks_for_it(engine):
    import safepickle_test_engine

    with safepickle.installed():
        with safepickle.installed("test"):
            with safepickle.installed("test"):
                assert safepickle_test_engine.pickler == "ours"
            assert safepickle_test_engine.pickler == "ours"
        assert safepickle_test_engine.pickler == "theirs" and can_be_pickled()
    assert not can_be_pickled()


def test_what_somebody_else_has_set_in_an_engine_since_stays_and_is_reported(engine):
    import safepickle_test_engine

    made = safepickle.install("test")
    safepickle_test_engine.pickler = "somebody else's"
    assert [(change.engine, change.where) for change in made.uninstall()] == [("test", "engine.pickler")]
    assert safepickle_test_engine.pickler == "somebody else's"


def test_an_adapter_that_fails_leaves_nothing_and_says_so(engine):
    import safepickle_test_engine

    engine.error = LookupError("another version")
    with pytest.raises(LookupError, match="another version"):
        safepickle.install("test")
    assert safepickle_test_engine.pickler == "theirs" and not can_be_pickled()


def test_an_adapter_that_fails_after_an_import_leaves_the_engine_as_it_was(engine):
    engine.error = LookupError("another version")
    with safepickle.installed("test") as made:
        with pytest.warns(RuntimeWarning, match="another version"):
            import safepickle_test_engine
        assert safepickle_test_engine.pickler == "theirs" and made.waiting == ("test",) and can_be_pickled()


# -- what is told about it ---------------------------------------------------------------------------------------------


def doctor(before, **environment):
    rows = run_python(
        before + "\nfrom safepickle.__main__ import main\nmain(['doctor', '--json'])\n",
        env={"SAFEPICKLE_INSTALL": None, "SAFEPICKLE_ENGINES": None, **environment},
    )
    return {row["what"]: row for row in json.loads(rows)}


def test_doctor_says_that_nothing_is_installed_and_how_it_would_be():
    rows = doctor("")
    assert rows["install()"]["version"] == "no"
    engine = rows["engine multiprocessing"]
    assert engine["version"] == platform.python_version()
    assert engine["rules"].startswith('safepickle.install("multiprocessing"): multiprocessing.reduction.ForkingPickler')
    assert {name.removeprefix("engine ") for name in rows if name.startswith("engine ")} == MODULES.keys()


def test_doctor_says_what_is_installed_and_what_the_environment_asks_for():
    rows = doctor(
        "import multiprocessing, safepickle; safepickle.install('multiprocessing', 'ray')",
        SAFEPICKLE_ENGINES="joblib,ray", SAFEPICKLE_INSTALL="1",
    )  # fmt: skip
    assert rows["install()"]["version"] == "yes"
    assert "multiprocessing, ray (waits for its import)" in rows["install()"]["rules"]
    assert rows["engine multiprocessing"]["rules"].startswith("installed: ")
    assert not rows["engine ray"]["rules"].startswith("installed: ")
    assert rows["install_worker"]["version"] == "joblib,ray"
    assert "SAFEPICKLE_INSTALL" in rows["autoinstall"]["rules"]


def test_every_engine_has_a_module_to_wait_for_and_a_hook():
    assert MODULES.keys() == NEEDS.keys() == HOOKS.keys()
