"""Our rules in picklers that are not ours: what they are asked about, and when they stand back."""

from __future__ import annotations

import copyreg
import gc
import io
import pickle
import threading
import weakref

import pytest

import safepickle
from safepickle.changes import Changes
from safepickle.engines.foreign_picklers import adopt, override
from tests.helpers import run_python


class Point:
    def __init__(self, x):
        self.x = x


def from_table(x):
    return ("the engine's", x)


def by_table(point):
    return from_table, (point.x,)


class Foreign(pickle.Pickler):
    """A pickler with a table of its own, as engines have them."""

    entries = {}

    def __init__(self, *args):
        super().__init__(*args)
        self.dispatch_table = {**copyreg.dispatch_table, **self.entries}


class ForeignInPython(pickle._Pickler):
    pass


def adopted(base, changes=None, entries=(), **options):
    cls = type("Adopted", (base,), {"entries": dict(entries)})
    adopt(Changes() if changes is None else changes, "an engine", cls, where="Adopted", **options)
    return cls


def sent(cls, obj):
    file = io.BytesIO()
    cls(file).dump(obj)
    return pickle.loads(file.getvalue())


def counter():
    count = 0

    def up():
        nonlocal count
        count += 1
        return count

    def get():
        return count

    return up, get


@pytest.mark.parametrize("base", [Foreign, ForeignInPython])
def test_functions_locks_and_local_classes_go_through(base):
    class Local:
        def __init__(self):
            self.lock = threading.Lock()
            self.twice = lambda x: 2 * x

    obj = sent(adopted(base), Local())
    assert obj.twice(21) == 42
    assert obj.lock.acquire(timeout=1)


@pytest.mark.parametrize("base", [Foreign, ForeignInPython])
def test_functions_that_share_a_cell_still_do(base):
    up, get = sent(adopted(base), counter())
    up()
    assert get() == 1


def test_the_function_for_a_class_written_by_hand_remembers_shared_cells_too():
    class ByHand(pickle.Pickler):
        reducer_override = override

    up, get = sent(ByHand, counter())
    up()
    assert get() == 1


def test_a_type_that_the_engine_registered_is_left_to_it():
    def ours(point):
        return Point, ("ours",)

    safepickle.register(Point, ours)
    try:
        assert sent(adopted(Foreign), Point(1)).x == "ours"
        assert sent(adopted(Foreign, entries={Point: by_table}), Point(1)) == ("the engine's", 1)
    finally:
        safepickle.unregister(Point)


def test_an_entry_that_the_engine_only_copied_from_copyreg_is_not_its_own():
    copyreg.pickle(Point, by_table)
    try:
        safepickle.register(Point, lambda point: (Point, ("ours",)))
        try:
            assert sent(adopted(Foreign), Point(1)).x == "ours"
        finally:
            safepickle.unregister(Point)
        assert sent(adopted(Foreign), Point(1)) == ("the engine's", 1)
    finally:
        del copyreg.dispatch_table[Point]


def test_types_for_which_ours_goes_first():
    cls = adopted(Foreign, entries={Point: by_table}, ours_first=frozenset({Point}))
    safepickle.register(Point, lambda point: (Point, ("ours",)))
    try:
        assert sent(cls, Point(1)).x == "ours"
    finally:
        safepickle.unregister(Point)
    assert sent(cls, Point(1)) == ("the engine's", 1)


def test_the_override_that_the_class_had_is_asked_where_our_rules_decline():
    class WithOverride(Foreign):
        def reducer_override(self, obj):
            return (from_table, (obj.x,)) if isinstance(obj, Point) else NotImplemented

    point, double = sent(adopted(WithOverride), [Point(1), lambda x: 2 * x])
    assert point == ("the engine's", 1)
    assert double(21) == 42


def test_a_subclass_with_an_override_of_its_own_keeps_it_and_reaches_ours():
    class Derived(adopted(Foreign)):
        def reducer_override(self, obj):
            if isinstance(obj, Point):
                return from_table, (obj.x,)
            return super().reducer_override(obj)

    point, (up, get) = sent(Derived, [Point(1), counter()])
    up()
    assert point == ("the engine's", 1)
    assert get() == 1


def test_the_error_names_the_path():
    with pytest.raises(pickle.PicklingError, match=r"obj\['model'\]\.x") as caught:
        sent(adopted(Foreign), {"model": Point(threading.current_thread())})
    assert caught.value.path == "obj['model'].x"


def test_a_reducer_of_the_engine_is_not_called_again_to_find_the_path():
    calls = []

    def with_effect(point):
        calls.append(point)
        return from_table, (point.x,)

    cls = adopted(Foreign, entries={Point: with_effect})
    with pytest.raises(pickle.PicklingError, match=r"obj\[1\]"):
        sent(cls, [Point(1), threading.current_thread()])
    assert len(calls) == 1


def test_an_object_that_the_engines_reducer_refuses_is_found():
    def refuse(point):
        if point.x == 2:
            raise RuntimeError("not this point")
        return from_table, (point.x,)

    with pytest.raises(RuntimeError, match="not this point") as caught:
        sent(adopted(Foreign, entries={Point: refuse}), {"points": [Point(1), Point(2), Point(3)]})
    assert isinstance(caught.value, pickle.PicklingError)
    assert caught.value.path == "obj['points'][1]"


def test_a_weak_reference_leads_to_the_copy_of_what_is_in_the_same_pickle():
    calls = []

    def with_effect(point):
        calls.append(point)
        return from_table, (point.x,)

    class Node:
        pass

    node, tail = Node(), Point(1)
    node.me, node.tail = weakref.ref(node), tail
    arrived = sent(adopted(Foreign, entries={Point: with_effect}), [weakref.ref(node), node])
    assert arrived[0]() is arrived[1]
    assert arrived[1].me() is arrived[1]
    assert calls == [tail]


def test_persistent_ids_come_first():
    class Persistent(Foreign):
        def persistent_id(self, obj):
            return ("point", obj.x) if type(obj) is Point else None

    class Reader(pickle.Unpickler):
        def persistent_load(self, pid):
            return pid

    file = io.BytesIO()
    adopted(Persistent)(file).dump([Point(1), lambda: 42])
    pid, function = Reader(io.BytesIO(file.getvalue())).load()
    assert pid == ("point", 1)
    assert function() == 42
    with pytest.raises(pickle.PicklingError, match=r"obj\[1\]"):
        adopted(Persistent)(io.BytesIO()).dump([Point(1), threading.current_thread()])


def test_one_class_is_adopted_once_and_given_back():
    changes = Changes()
    before = dict(vars(Foreign))
    adopt(changes, "an engine", Foreign, where="Foreign")
    adopt(changes, "an engine", Foreign, where="Foreign")
    assert [change.where for change in changes] == ["Foreign.reducer_override", "Foreign.dump"]
    assert sent(Foreign, lambda: 1)() == 1
    assert changes.undo() == []
    assert dict(vars(Foreign)) == before
    with pytest.raises((pickle.PicklingError, AttributeError)):
        sent(Foreign, lambda: 1)


def test_nothing_of_a_dump_is_kept():
    class Held:
        pass

    def use():
        held = Held()
        pickler = cls(io.BytesIO())
        pickler.dump([held, lambda: held])
        return weakref.ref(held)

    cls = adopted(Foreign)
    gc.collect()
    gc.disable()
    try:
        assert use()() is None
    finally:
        gc.enable()


def test_the_pickler_of_cloudpickle_takes_our_rules():
    cloudpickle = pytest.importorskip("cloudpickle")
    changes = Changes()
    adopt(changes, "an engine", cloudpickle.Pickler, where="cloudpickle.Pickler")
    try:
        up, get, lock, method = cloudpickle.loads(cloudpickle.dumps((*counter(), threading.Lock(), Point.fromkeys)))
        up()
        assert get() == 1
        assert lock.acquire(timeout=1)
        assert method(7).x == 7
    finally:
        changes.undo()
    with pytest.raises(TypeError):
        cloudpickle.dumps(threading.Lock())


Point.fromkeys = classmethod(lambda cls, x: cls(x)).__get__(None, Point)


MAIN = """
import io, pickle
from safepickle.changes import Changes
from safepickle.engines.foreign_picklers import adopt

class Pickler(pickle.Pickler):
    pass

adopt(Changes(), "an engine", Pickler, where="Pickler", main=lambda: SHARED)

def function():
    return Thing

class Thing:
    pass

file = io.BytesIO()
Pickler(file).dump([function, Thing, Thing()])
restored = pickle.loads(file.getvalue())
print(restored[0] is function, restored[1] is Thing, b"make_function" in file.getvalue())
"""


def test_names_of_main_are_written_where_the_reader_has_it():
    assert run_python(MAIN.replace("SHARED", "True")) == "True True False\n"


def test_names_of_main_are_not_written_elsewhere():
    assert run_python(MAIN.replace("SHARED", "False")) == "False True True\n"
