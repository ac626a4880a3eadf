"""Are plain instances pickled to the standard library's bytes, whoever reduces them, and whatever has a say in it?

The compiled module reduces them itself; everything that may change how an object is pickled is a trap for it.
"""

from __future__ import annotations

import abc
import collections
import copyreg
import dataclasses
import enum
import functools
import gc
import io
import pickle
import sys
import threading
import tracemalloc
import types
import typing
import weakref

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import safepickle
from safepickle import Registry
from tests.helpers import call_with_timeout, run_python

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)
from_protocol_2 = pytest.mark.parametrize("protocol", PROTOCOLS[2:])


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Derived(Plain):
    kind = "of the class"


class Slots:
    __slots__ = ("a", "b")


class MoreSlots(Slots):
    __slots__ = ("c", "__private")

    def set_private(self, value):
        self.__private = value


class SlotsAndDict(Slots):
    pass


class WeakSlots:
    __slots__ = ("__weakref__", "a", "b")


class DictSlot:
    __slots__ = ("__dict__", "a")


class NoSlots:
    __slots__ = ()


class WithNew:
    def __new__(cls, *args):
        return super().__new__(cls)


class WithSetState:
    def __setstate__(self, state):
        self.__dict__.update(state, loaded=True)


class Abstract(abc.ABC):
    @abc.abstractmethod
    def method(self): ...


class Concrete(Abstract):
    def method(self):
        return 1


T = typing.TypeVar("T")


class Box(typing.Generic[T]):
    pass


class WithProperty:
    @property
    def a(self):
        raise AssertionError("nobody reads it")


class Meta(type):
    pass


class OfMeta(metaclass=Meta):
    pass


@dataclasses.dataclass
class Record:
    a: typing.Any = None
    b: typing.Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: typing.Any = None
    b: typing.Any = None


@dataclasses.dataclass(slots=True)
class SlotRecord:
    a: typing.Any = None
    b: typing.Any = None


class Color(enum.Enum):
    RED = 1


KINDS = [
    Plain, Derived, Slots, MoreSlots, SlotsAndDict, WeakSlots, DictSlot, NoSlots, WithNew, WithSetState, Concrete, Box,
    WithProperty, OfMeta, Record, Frozen, SlotRecord,
]  # fmt: skip


def fill(obj, attributes):
    """Set what the object has room for, past properties and what a frozen class says."""
    for name, value in attributes.items():
        if hasattr(obj, "__dict__") and not isinstance(getattr(type(obj), name, None), types.MemberDescriptorType):
            obj.__dict__[name] = value
        elif hasattr(type(obj), name):
            object.__setattr__(obj, name, value)
    return obj


ATOMS = st.one_of(st.none(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5), st.binary(max_size=5))
SPECS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.dictionaries(st.sampled_from("abcd"), ATOMS | st.integers(0, 9), max_size=4)),
    min_size=1,
    max_size=10,
)


def graph_of(specs):
    """Instances that hold atoms, each other (an attribute ``c``), and dictionaries of each other (``d``)."""
    nodes = [kind.__new__(kind) for kind, _ in specs]
    for node, (_, attributes) in zip(nodes, specs, strict=True):
        named = dict(attributes)
        if isinstance(named.get("c"), int):
            named["c"] = nodes[named["c"] % len(nodes)]
        if isinstance(named.get("d"), int):
            other = nodes[named["d"] % len(nodes)]
            named["d"] = getattr(other, "__dict__", None)
        fill(node, named)
    return nodes


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(SPECS, st.sampled_from(PROTOCOLS))
def test_random_graphs_of_plain_instances_have_the_standard_librarys_bytes(specs, protocol):
    if protocol < 2:  # the standard library refuses slots there
        specs = [(kind, attributes) for kind, attributes in specs if not hasattr(kind, "__slots__")] or [(Plain, {})]
        specs = [(kind, attributes) for kind, attributes in specs if kind not in (SlotsAndDict, SlotRecord)]
    graph = graph_of(specs or [(Plain, {})])
    assert safepickle.dumps(graph, protocol) == pickle.dumps(graph, protocol)


@from_protocol_2
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_instance_comes_back_as_the_standard_library_brings_it(kind, protocol):
    original = fill(kind.__new__(kind), {"a": [1], "b": "text", "c": None})
    expected = pickle.loads(pickle.dumps(original, protocol))
    restored = pickle.loads(safepickle.dumps(original, protocol))
    assert type(restored) is kind
    assert pickle.dumps(restored, protocol) == pickle.dumps(expected, protocol)


def same_bytes(obj):
    for protocol in PROTOCOLS[2:]:
        assert safepickle.dumps(obj, protocol) == pickle.dumps(obj, protocol)
        ours, theirs = io.BytesIO(), io.BytesIO()
        safepickle.dump(obj, ours, protocol)
        pickle.dump(obj, theirs, protocol)
        assert ours.getvalue() == theirs.getvalue()
    return pickle.loads(safepickle.dumps(obj))


# -- the instance has a say ------------------------------------------------------------------------------------------


def rebuilt(*args):
    return Plain(args=args)


@pytest.mark.parametrize("kind", [Plain, SlotsAndDict])
def test_a_reduce_ex_of_the_instance_is_called(kind):
    obj = kind()
    obj.__dict__["__reduce_ex__"] = lambda protocol: (rebuilt, ("by the instance",))
    assert same_bytes([kind(), obj])[1].args == ("by the instance",)


def test_a_reduce_of_the_instance_is_not_called_as_the_standard_library_does_not():
    obj = Plain()
    obj.__dict__["__reduce__"] = functools.partial(rebuilt)
    assert same_bytes(obj).__reduce__ is not rebuilt


def state_of_the_instance():
    return {"state": "of the instance"}


def test_a_getstate_of_the_instance_is_called():
    obj = Plain(x=1)
    obj.__getstate__ = state_of_the_instance
    assert same_bytes([Plain(), obj])[1].state == "of the instance"


def test_somebody_else_refers_to_the_dictionary_of_the_instance():
    obj = Plain(x=[1])
    restored, attributes, again = same_bytes([obj, obj.__dict__, obj])
    assert attributes is restored.__dict__ or attributes == restored.__dict__
    assert again is restored
    attributes, restored = same_bytes([obj.__dict__, obj])
    assert restored.x is attributes["x"]


class OddDict(dict):
    def __contains__(self, key):
        return True


@pytest.mark.parametrize("attributes", [OddDict(x=1), collections.OrderedDict(x=1)])
def test_the_dictionary_of_the_instance_is_of_another_type(attributes):
    obj = Plain()
    obj.__dict__ = attributes
    assert same_bytes(obj).x == 1


def test_a_dictionary_that_became_empty_again():
    obj = Plain(x=1)
    del obj.x
    assert vars(same_bytes(obj)) == {}


def test_a_slot_that_became_empty_again():
    obj = Slots()
    obj.a, obj.b = 1, 2
    del obj.a
    assert not hasattr(same_bytes(obj), "a")


def test_the_names_of_private_slots_and_their_order_are_kept():
    obj = MoreSlots()
    obj.set_private(3)
    obj.a = obj.c = 1
    same_bytes([obj, obj, [obj]])


def test_an_instance_that_changes_its_class_between_dumps():
    obj = Plain(x=1)
    same_bytes(obj)
    obj.__class__ = Derived
    assert type(same_bytes(obj)) is Derived


# -- the class has a say, from some time on ----------------------------------------------------------------------------


def by_method(self, *protocol):
    return rebuilt, (type(self).__name__,)


LATER = {
    "__reduce__": by_method,
    "__reduce_ex__": by_method,
    "__getstate__": lambda self: {"state": 1},
    "__getnewargs__": lambda self: (),
    "__getnewargs_ex__": lambda self: ((), {}),
    "__getattribute__": lambda self, name: by_method.__get__(self) if "reduce" in name else object.__getattribute__(
        self, name
    ),
}  # fmt: skip


class Base:
    pass


class Changing(Base):
    pass


@pytest.mark.parametrize("holder", [Changing, Base])
@pytest.mark.parametrize("name", LATER)
def test_a_method_that_the_class_or_its_base_gets_later_counts_and_so_does_its_going(name, holder, monkeypatch):
    obj = Changing()
    obj.x = 1
    before = safepickle.dumps(obj)
    same_bytes(obj)
    with monkeypatch.context() as patch:
        patch.setattr(holder, name, LATER[name], raising=False)
        try:
            expected = pickle.dumps(obj, 4)
        except pickle.PicklingError:
            with pytest.raises(pickle.PicklingError):
                safepickle.dumps(obj, 4)
        else:
            assert safepickle.dumps(obj, 4) == expected
    assert safepickle.dumps(obj) == before
    same_bytes(obj)


class Posing:
    __class__ = property(lambda self: Plain)


def test_an_instance_that_poses_as_one_of_another_class():
    for dumps in (pickle.dumps, safepickle.dumps):
        with pytest.raises(pickle.PicklingError):
            dumps(Posing())


class OddMeta(type):
    @property
    def __reduce__(cls):
        return None


class OfOddMeta(metaclass=OddMeta):
    pass


def test_a_metaclass_that_says_that_the_class_has_another_reduce_method():
    assert OfOddMeta().__reduce_ex__(4)[0] is not copyreg.__newobj__
    same_bytes(OfOddMeta())


class EqualMeta(type):
    def __eq__(cls, other):
        return isinstance(other, EqualMeta)

    def __hash__(cls):
        return 1


class OneEqual(metaclass=EqualMeta):
    pass


class OtherEqual(metaclass=EqualMeta):
    __slots__ = ("a",)


def test_classes_that_say_they_are_equal_are_told_apart():
    other = OtherEqual()
    other.a = 1
    assert [type(part) for part in same_bytes([OneEqual(), other])] == [OneEqual, OtherEqual]


class WithGetAttr:
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return "made up"


class SlotsWithGetAttr(WithGetAttr):
    __slots__ = ("a", "b")


@pytest.mark.parametrize("kind", [WithGetAttr, SlotsWithGetAttr])
def test_a_class_that_makes_up_attributes_is_asked_for_them(kind):
    same_bytes(kind())


class OwnSlotNames:
    __slotnames__ = ["made_up"]
    made_up = 5


def test_names_of_slots_that_the_class_claims_to_have():
    same_bytes(OwnSlotNames())


class FromC(types.SimpleNamespace):
    pass


class FromList(list):
    pass


class FromException(Exception):
    pass


@pytest.mark.parametrize("obj", [FromC(x=1), FromList([1, 2]), collections.deque([1]), Color.RED])
def test_instances_of_classes_with_a_base_in_c(obj):
    same_bytes([obj, obj])


class Undumpable(threading.local):
    pass


def test_what_the_standard_library_refuses_because_of_its_base_is_refused_or_has_a_rule():
    with pytest.raises(TypeError):
        pickle.dumps(Undumpable())
    assert type(pickle.loads(safepickle.dumps(Undumpable()))) is Undumpable


# -- copyreg, extensions, rules, the pickler ---------------------------------------------------------------------------


class Entered:
    pass


def test_an_entry_of_copyreg_that_comes_later_counts_and_so_does_its_going(monkeypatch):
    same_bytes(Entered())
    with monkeypatch.context() as patch:
        patch.setitem(copyreg.dispatch_table, Entered, by_method)
        assert same_bytes(Entered()).args == ("Entered",)
    assert type(same_bytes(Entered())) is Entered


def test_an_entry_of_copyreg_that_comes_within_a_dump_counts(monkeypatch):
    class Enters:
        def __reduce__(self):
            copyreg.pickle(Entered, by_method)
            return int, ()

    monkeypatch.setattr(copyreg, "dispatch_table", copyreg.dispatch_table)  # what is entered is taken out again
    try:
        first, _, second = pickle.loads(safepickle.dumps([Entered(), Enters(), Entered()]))
        assert type(first) is Entered and second.args == ("Entered",)
    finally:
        copyreg.dispatch_table.pop(Entered, None)


def test_an_extension_code_that_comes_later_is_used():
    obj = Entered()
    same_bytes(obj)
    copyreg.add_extension(__name__, "Entered", 240)
    try:
        same_bytes(obj)
        assert len(safepickle.dumps(obj)) < 20
    finally:
        copyreg.remove_extension(__name__, "Entered", 240)
    same_bytes(obj)


def test_a_rule_that_comes_later_counts_and_so_does_its_going():
    before = safepickle.dumps(Entered())
    safepickle.register(Entered, by_method)
    try:
        assert pickle.loads(safepickle.dumps(Entered())).args == ("Entered",)
        assert pickle.loads(safepickle.dumps([Entered()], 2))[0].args == ("Entered",)
    finally:
        safepickle.unregister(Entered)
    assert safepickle.dumps(Entered()) == before


def test_a_rule_that_declines_leaves_the_instance_to_the_standard_library():
    registry = Registry()
    registry.register(Plain, lambda obj: NotImplemented)
    assert safepickle.dumps(Plain(x=1), registry=registry) == pickle.dumps(Plain(x=1))


def test_a_rule_of_another_registry_is_its_own():
    registry = Registry()
    registry.register(Entered, by_method)
    assert pickle.loads(safepickle.dumps(Entered(), registry=registry)).args == ("Entered",)
    assert type(pickle.loads(safepickle.dumps(Entered()))) is Entered


def asked_for_ids(base, obj, protocol):
    asked = []

    class Asking(base):
        def persistent_id(self, part):
            asked.append((type(part), repr(part) if type(part) in (str, int, dict, tuple, list) else None))

    Asking(io.BytesIO(), protocol).dump(obj)
    return asked


@from_protocol_2
def test_persistent_ids_are_asked_of_the_same_parts(protocol):
    obj = [fill(Plain(), {"a": 1}), fill(Slots(), {"a": 1}), fill(SlotsAndDict(), {"a": 1, "d": (2,)})]
    ours = asked_for_ids(safepickle.Pickler, obj, protocol)
    assert ours == asked_for_ids(pickle.Pickler, obj, protocol)
    assert (dict, "{'a': 1}") in ours


def test_a_dispatch_table_of_the_pickler_comes_first():
    class WithTable(safepickle.Pickler):
        dispatch_table = {Plain: by_method}

    file = io.BytesIO()
    WithTable(file).dump([Plain(), Slots()])
    file.seek(0)
    plain, slots = pickle.load(file)
    assert plain.args == ("Plain",) and type(slots) is Slots


def test_a_dispatch_table_that_holds_none_is_an_error_where_it_is_one_to_the_standard_library():
    def outcome(base):
        try:
            type("WithTable", (base,), {"dispatch_table": {Plain: None}})(io.BytesIO()).dump(Plain())
        except Exception as error:
            return TypeError if isinstance(error, TypeError) else type(error)
        return None

    assert outcome(safepickle.Pickler) is outcome(pickle.Pickler)


def test_an_override_of_a_subclass_comes_first():
    class Overriding(safepickle.Pickler):
        def reducer_override(self, obj):
            return by_method(obj) if type(obj) is Plain else NotImplemented

    file = io.BytesIO()
    Overriding(file).dump([Plain(), Slots()])
    file.seek(0)
    plain, slots = pickle.load(file)
    assert plain.args == ("Plain",) and type(slots) is Slots


# -- names, which may lead elsewhere at any time -----------------------------------------------------------------------


@pytest.fixture
def module(monkeypatch, tmp_path):
    """A module that can be imported, with a class and a function in it."""
    (tmp_path / "plain_names.py").write_text("class Named:\n    x = 1\n\ndef named():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import plain_names

    yield plain_names
    del sys.modules["plain_names"]


def is_by_name(obj):
    return b"plain_names" in safepickle.dumps(obj) and len(safepickle.dumps(obj)) < 60


@pytest.mark.parametrize("name", ["Named", "named"])
def test_what_a_name_leads_to_goes_by_name_until_it_leads_elsewhere(module, name):
    obj = getattr(module, name)
    assert is_by_name(obj) and is_by_name(obj)
    setattr(module, name, None)
    assert not is_by_name(obj)
    setattr(module, name, obj)
    assert is_by_name(obj)
    obj.__qualname__ = "elsewhere"
    assert b"elsewhere" not in safepickle.dumps(obj) and pickle.loads(safepickle.dumps(obj)) is obj


@pytest.mark.parametrize("name", ["Named", "named"])
def test_a_module_that_another_one_has_replaced(module, name):
    obj = getattr(module, name)
    assert is_by_name(obj)
    twin = types.ModuleType("plain_names")
    setattr(twin, name, obj)
    sys.modules["plain_names"] = twin
    try:
        assert is_by_name(obj) is safepickle.references.importable("plain_names")
    finally:
        sys.modules["plain_names"] = module


@pytest.mark.parametrize("name", ["Named", "named"])
def test_a_module_that_the_user_wants_by_value_from_some_time_on(module, name):
    cloudpickle = pytest.importorskip("cloudpickle")
    obj = getattr(module, name)
    assert is_by_name(obj)
    cloudpickle.register_pickle_by_value(module)
    try:
        assert not is_by_name(obj)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert is_by_name(obj)


def test_an_instance_of_a_class_that_lost_its_name_goes_with_its_class(module):
    obj = module.Named()
    assert len(safepickle.dumps(obj)) < 60
    del module.Named
    data = safepickle.dumps(obj)
    assert len(data) > 60
    assert pickle.loads(data).x == 1


# -- the pickler that dumps keeps --------------------------------------------------------------------------------------


class Calling:
    """Pickles something while it is pickled."""

    def __init__(self, inner, protocol=None):
        self.inner, self.protocol = inner, protocol

    def __reduce__(self):
        return pickle.loads, (safepickle.dumps(self.inner, self.protocol),)


@every_protocol
def test_a_reducer_may_call_dumps(protocol):
    inner = Calling([Plain(x=1), "inner"], protocol)
    shared = Plain(y=2)
    first, (plain, text), last = pickle.loads(safepickle.dumps([shared, inner, shared], protocol))
    assert (first.y, plain.x, text) == (2, 1, "inner")
    assert first is last


def test_nothing_of_one_dump_is_in_the_next():
    shared = Plain(x=1)
    assert safepickle.dumps([shared, shared]) == pickle.dumps([shared, shared])
    assert safepickle.dumps([shared]) == pickle.dumps([shared])


@pytest.mark.parametrize("count", [1, 50, 5000])
def test_what_was_dumped_is_let_go(count):
    objects = [Plain(x=Plain()) for _ in range(count)]
    gone = weakref.ref(objects[0]), weakref.ref(objects[-1].x)
    safepickle.dumps(objects)
    del objects
    assert [ref() for ref in gone] == [None, None]


class Failing:
    def __reduce__(self):
        raise ValueError("not today")


@every_protocol
def test_a_dump_that_fails_leaves_no_trace(protocol):
    obj = Plain(x=1)
    gone = weakref.ref(obj)
    with pytest.raises(ValueError, match="not today"):
        safepickle.dumps([obj, Failing()], protocol)
    assert safepickle.dumps(5, protocol) == pickle.dumps(5, protocol)
    del obj
    gc.collect()
    assert gone() is None


class Interrupting:
    def __reduce__(self):
        raise KeyboardInterrupt


def test_a_dump_that_is_interrupted_leaves_no_trace():
    with pytest.raises(KeyboardInterrupt):
        safepickle.dumps([Plain(), Interrupting()])
    assert safepickle.dumps([1]) == pickle.dumps([1])


def test_a_rule_may_keep_the_pickler_and_what_it_leaves_there_stays_there():
    kept = []

    def rule(obj, pickler):
        kept.append(pickler)
        assert "note" not in vars(pickler)
        pickler.note = "of this dump"
        return int, (pickler.protocol,)

    safepickle.register(Entered, rule, with_pickler=True)
    try:
        assert pickle.loads(safepickle.dumps(Entered(), 2)) == 2
        assert pickle.loads(safepickle.dumps(Entered(), 2)) == 2
        assert kept[0] is not kept[1]
        assert type(kept[0]) is safepickle.Pickler and kept[0].registry is safepickle.registry.default_registry
    finally:
        safepickle.unregister(Entered)


def test_a_dump_knows_nothing_of_what_an_earlier_one_sent_by_value():
    def local():
        return 1

    first = safepickle.dumps(local)
    assert safepickle.dumps([local, local]).count(b"return 1") == 1
    assert safepickle.dumps(local) == first


class Dying:
    """Pickles something when it goes, which may be when the memo is cleared."""

    written: typing.ClassVar[list[bytes]] = []

    def __reduce__(self):
        return rebuilt, ([Dying.Last()],)

    class Last:
        def __del__(self):
            Dying.written.append(safepickle.dumps([Plain(x=1)]))


def test_a_finalizer_that_runs_as_the_memo_is_cleared_may_call_dumps():
    Dying.written.clear()
    safepickle.dumps([Dying()])
    safepickle.dumps([Dying()] * 3 + ["long" * 100])
    gc.collect()
    assert Dying.written and set(Dying.written) == {pickle.dumps([Plain(x=1)])}


def test_dumps_in_many_threads():
    class Slow:
        def __reduce__(self):
            threading.Event().wait(0.0005)
            return int, ()

    def work(number):
        for turn in range(30):
            obj = [Plain(x=(number, turn)), Slow(), Plain(y=[number])]
            first, _, last = pickle.loads(safepickle.dumps(obj))
            assert (first.x, last.y) == ((number, turn), [number])
        return True

    def all_of_them():
        done = []
        threads = [threading.Thread(target=lambda n=n: done.append(work(n))) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return done

    assert call_with_timeout(all_of_them, 60) == [True] * 8


@pytest.mark.parametrize("protocol", [None, -1, -5, 0, 2, 5, True, 6, 2**70, "4", 2.0])
@pytest.mark.parametrize("options", [{}, {"fix_imports": False}, {"fix_imports": 1}])
def test_the_protocol_is_read_as_the_standard_library_reads_it(protocol, options):
    def outcome(dumps):
        try:
            return dumps([Plain(x=1)], protocol, **options)
        except Exception as error:
            return type(error)

    assert outcome(safepickle.dumps) == outcome(pickle.dumps)


# -- plain data --------------------------------------------------------------------------------------------------------

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.complex_numbers(allow_nan=False),
    st.text(max_size=3), st.binary(max_size=3), st.sampled_from([500, 5_000, 70_000]).map(lambda size: "x" * size),
    st.sampled_from([500, 70_000]).map(bytes), st.binary(max_size=3).map(bytearray),
)  # fmt: skip
DATA = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.lists(parts),
        st.lists(parts).map(tuple),
        st.dictionaries(st.text(max_size=2), parts),
        st.lists(parts, max_size=3).map(lambda items: items * 30),
        st.frozensets(st.integers(), max_size=3),
        st.sets(st.text(max_size=1), max_size=3),
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(DATA, st.sampled_from(PROTOCOLS))
def test_plain_data_has_the_standard_librarys_bytes(data, protocol):
    assert safepickle.dumps(data, protocol) == pickle.dumps(data, protocol)


@pytest.mark.parametrize("before", [[], ["x" * 1000] * 200, [1] * 200, {"a": ("x" * 70_000, [])}])
def test_an_object_with_a_rule_is_found_among_plain_data(before):
    safepickle.register(Entered, by_method)
    try:
        for data in ([before, Entered()], (before, {"it": Entered()}), {Entered(): before}):
            assert b"rebuilt" in safepickle.dumps(data)
    finally:
        safepickle.unregister(Entered)


def test_plain_data_too_deep_for_the_stack():
    data = []
    for _ in range(20_000):
        data = [data]
    assert pickle.loads(safepickle.dumps(data)) is not None


# -- memory ------------------------------------------------------------------------------------------------------------


def test_no_class_is_kept_alive():
    made = type("Made", (), {"__module__": "plain_made"})
    module = types.ModuleType("plain_made")
    module.Made, sys.modules["plain_made"] = made, module
    try:
        safepickle.dumps([made(), made])
    finally:
        del sys.modules["plain_made"]
    gone = weakref.ref(made)
    del made, module
    gc.collect()
    assert gone() is None


def test_classes_that_take_the_place_of_others_in_memory_are_told_apart():
    for turn in range(300):
        slots = ("a", "b")[: turn % 3]
        cls = type("Made", (), {"__slots__": slots} if turn % 2 else {})
        obj = cls()
        for name in slots:
            setattr(obj, name, turn)
        reduced = []

        class Listening(safepickle.Pickler):
            def persistent_id(self, part, cls=cls, reduced=reduced):
                if part is cls:
                    return "cls"
                reduced.append(part)
                return None

        Listening(io.BytesIO(), 4).dump(obj)
        expected = obj.__reduce_ex__(4)[2]
        assert (expected in reduced) if expected is not None else reduced == [obj, ()]


def test_memory_stays_flat():
    code = """
        import gc, tracemalloc, pickle, safepickle
        from tests.test_plain_instances import Failing, Frozen, Plain, Slots, SlotsAndDict, fill
        obj = [fill(kind.__new__(kind), {"a": [1], "b": "x"}) for kind in (Plain, Slots, SlotsAndDict, Frozen)] * 20
        def turn():
            for protocol in range(2, 6):
                for _ in range(50):
                    safepickle.dumps(obj, protocol), safepickle.dumps(1, protocol)
                try: safepickle.dumps([obj, Failing()], protocol)
                except ValueError: pass
            gc.collect()
        tracemalloc.start()
        turn(); turn()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(5): turn()
        print(tracemalloc.get_traced_memory()[0] - before)
    """
    assert int(run_python(code)) < 20_000


@every_protocol
def test_a_small_dump_takes_little_memory_after_a_large_one(protocol):
    safepickle.dumps([Plain(x="x" * 10_000_000), Plain()], protocol)
    tracemalloc.start()
    try:
        safepickle.dumps([Plain(x=1)], protocol)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


def test_a_large_dump_leaves_little_behind():
    tracemalloc.start()
    try:
        safepickle.dumps([1])
        before = tracemalloc.get_traced_memory()[0]
        objects = [[number] for number in range(50_000)]
        safepickle.dumps(objects)
        del objects
        assert tracemalloc.get_traced_memory()[0] - before < 100_000
    finally:
        tracemalloc.stop()
