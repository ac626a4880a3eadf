"""Does the pickler ask everybody in the right order, write what the standard library writes, and suit the engines?"""

from __future__ import annotations

import array
import collections
import copyreg
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import gc
import importlib.util
import io
import itertools
import operator
import os
import pathlib
import pickle
import random
import re
import sys
import threading
import types
import uuid
import weakref
from collections import OrderedDict

import pytest

import safepickle
from safepickle import Pickler, Registry
from tests.helpers import call_with_timeout, fresh_load, run_python

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)

#: Levels of nesting that no C pickler goes down, on any version of Python.
DEEP = 20_000


class Thing:
    """Something that rules are registered for."""

    def __init__(self, value="init"):
        self.value = value


class Other:
    def __init__(self, value="init"):
        self.value = value


class Chain:
    def __init__(self, below):
        self.below = below


@dataclasses.dataclass
class Record:
    number: int
    rows: list
    table: dict


@dataclasses.dataclass(frozen=True)
class Frozen:
    number: int
    name: str


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


class SlottedWithDict(Slotted):
    pass


class WithState:
    def __init__(self):
        self.kept, self.dropped = 1, 2

    def __getstate__(self):
        return {"kept": self.kept}

    def __setstate__(self, state):
        self.kept, self.dropped = state["kept"], None


class WithNewArgs(tuple):
    def __new__(cls, *, a, b):
        return super().__new__(cls, (a, b))

    def __getnewargs_ex__(self):
        return (), {"a": self[0], "b": self[1]}


class ListOfOwn(list):
    pass


class DictOfOwn(dict):
    pass


class Color(enum.Enum):
    RED = 1
    GREEN = "green"


class Flag(enum.IntFlag):
    A = 1
    B = 2


Point = collections.namedtuple("Point", "x y")  # noqa: PYI024


def module_function(x):
    return x + 1


def from_rule(value):
    return Thing(("rule", value))


def from_table(value):
    return Thing(("table", value))


def from_override(value):
    return Thing(("override", value))


def from_persistent(value):
    return Thing(("persistent", value))


def by_rule(thing):
    return from_rule, (thing.value,)


def by_table(thing):
    return from_table, (thing.value,)


@pytest.fixture
def registry():
    """A registry with a rule for `Thing`."""
    registry = Registry()
    registry.register(Thing, by_rule)
    return registry


def dumped(pickler_class, obj, protocol=None, prepare=None, **options):
    """What a pickler of that class writes."""
    file = io.BytesIO()
    pickler = pickler_class(file, protocol, **options)
    if prepare is not None:
        prepare(pickler)
    pickler.dump(obj)
    return file.getvalue()


def made_by(data):
    return pickle.loads(data).value[0]


# -- a subclass's reducer_override -----------------------------------------------------------------------------------


class Overriding(Pickler):
    def reducer_override(self, obj):
        if type(obj) is Thing and obj.value == "mine":
            return from_override, (obj.value,)
        return NotImplemented


def test_a_subclasss_own_override_is_asked_before_the_rules(registry):
    assert made_by(dumped(Overriding, Thing("mine"), registry=registry)) == "override"


def test_what_the_override_does_not_implement_falls_through_to_the_rules(registry):
    assert made_by(dumped(Overriding, Thing("other"), registry=registry)) == "rule"


def test_what_neither_implements_falls_through_to_the_standard_library(registry):
    assert pickle.loads(dumped(Overriding, Other(3), registry=registry)).value == 3


def test_the_override_is_asked_about_functions_and_classes_too(registry):
    asked = []

    class Asking(Pickler):
        def reducer_override(self, obj):
            asked.append(obj)
            return NotImplemented

    dumped(Asking, [module_function, Thing, Thing(1)], registry=registry)
    assert module_function in asked and Thing in asked


def test_an_override_may_call_ours_by_super(registry):
    class Calling(Pickler):
        def reducer_override(self, obj):
            reduced = super().reducer_override(obj)
            if reduced is NotImplemented or type(obj) is not Thing:
                return reduced
            return from_override, (reduced[0].__name__,)

    restored = pickle.loads(dumped(Calling, Thing(1), registry=registry))
    assert restored.value == ("override", "from_rule")


class Mixin:
    def reducer_override(self, obj):
        return (from_override, (obj.value,)) if type(obj) is Thing else NotImplemented


class MixinFirst(Mixin, Pickler):
    pass


class MixinLast(Pickler, Mixin):
    pass


class MixinBelow(MixinLast):
    pass


@pytest.mark.parametrize("pickler_class", [MixinFirst, MixinLast, MixinBelow])
def test_a_mixins_override_is_asked_first_wherever_it_stands(pickler_class, registry):
    assert made_by(dumped(pickler_class, Thing(1), registry=registry)) == "override"


def test_the_more_derived_override_counts(registry):
    class Derived(Overriding):
        def reducer_override(self, obj):
            if type(obj) is Other:
                return from_override, ("derived",)
            return super().reducer_override(obj)

    assert pickle.loads(dumped(Derived, Other(), registry=registry)).value == ("override", "derived")
    assert made_by(dumped(Derived, Thing("mine"), registry=registry)) == "override"
    assert made_by(dumped(Derived, Thing("x"), registry=registry)) == "rule"


def test_an_override_on_the_instance_counts(registry):
    def prepare(pickler):
        pickler.reducer_override = lambda obj: (from_override, (1,)) if type(obj) is Thing else NotImplemented

    assert made_by(dumped(Pickler, Thing(1), prepare=prepare, registry=registry)) == "override"


def test_an_override_on_the_instance_survives_a_dump_and_can_be_changed(registry):
    file = io.BytesIO()
    pickler = Pickler(file, registry=registry)

    def override(obj):
        return (from_override, (1,)) if type(obj) is Thing else NotImplemented

    pickler.reducer_override = override
    pickler.dump(Thing(1))
    assert pickler.reducer_override is override
    del pickler.reducer_override
    pickler.dump(Thing(2))
    file.seek(0)
    unpickler = pickle.Unpickler(file)
    assert [unpickler.load().value[0], unpickler.load().value[0]] == ["override", "rule"]


class CallableObject:
    def __call__(self, obj):
        return (from_override, (1,)) if type(obj) is Thing else NotImplemented


@pytest.mark.parametrize(
    "override",
    [CallableObject(), functools.partial(CallableObject()), staticmethod(CallableObject())],
    ids=["object", "partial", "staticmethod"],
)
@pytest.mark.filterwarnings("ignore:functools.partial will be a method descriptor")
def test_an_override_that_does_not_bind_is_called_with_the_object_alone(override, registry):
    cls = type("Unbound", (Pickler,), {"reducer_override": override})
    assert made_by(dumped(cls, Thing(1), registry=registry)) == "override"


def test_a_builtin_function_as_override_does_not_bind(registry):
    """It is asked about every object, and answers NotImplemented for those that are not equal to it."""
    cls = type("Unbound", (Pickler,), {"reducer_override": object().__eq__})
    assert made_by(dumped(cls, Thing(1), registry=registry)) == "rule"


def test_a_property_as_override(registry):
    cls = type("Described", (Pickler,), {"reducer_override": property(lambda self: CallableObject())})
    assert made_by(dumped(cls, Thing(1), registry=registry)) == "override"


def test_an_override_that_returns_nonsense_is_an_error(registry):
    class Wrong(Pickler):
        def reducer_override(self, obj):
            return 5

    with pytest.raises(pickle.PicklingError):
        dumped(Wrong, Thing(1), registry=registry)


def test_our_override_can_be_called_from_outside_of_a_dump(registry):
    pickler = Pickler(io.BytesIO(), registry=registry)
    assert pickler.reducer_override(Thing(1)) == (from_rule, (1,))
    assert pickler.reducer_override(Other(1)) is NotImplemented
    assert pickler.reducer_override(lambda: 1) is not NotImplemented


# -- persistent ids --------------------------------------------------------------------------------------------------


class Persistent(Pickler):
    def persistent_id(self, obj):
        return ("thing", obj.value) if type(obj) is Thing else None


class PersistentUnpickler(safepickle.Unpickler):
    def persistent_load(self, pid):
        return from_persistent(pid)


@pytest.mark.parametrize("protocol", PROTOCOLS[1:])
def test_persistent_id_comes_before_everything_else(registry, protocol):
    class All(Persistent, Overriding):
        dispatch_table = {Thing: by_table}

    data = dumped(All, [Thing("mine"), Other(1)], protocol, registry=registry)
    thing, other = PersistentUnpickler(io.BytesIO(data)).load()
    assert thing.value == ("persistent", ("thing", "mine"))
    assert other.value == 1


def test_persistent_id_is_asked_about_what_rules_reduce_to(registry):
    data = dumped(Persistent, Other(Thing("inner")), registry=registry)
    assert PersistentUnpickler(io.BytesIO(data)).load().value.value == ("persistent", ("thing", "inner"))


def test_persistent_id_can_be_assigned_to_the_pickler():
    def prepare(pickler):
        pickler.persistent_id = lambda obj: "pid" if type(obj) is Thing else None

    data = dumped(Pickler, [Thing(1)], prepare=prepare)
    assert PersistentUnpickler(io.BytesIO(data)).load()[0].value == ("persistent", "pid")


def test_persistent_id_assigned_late_works_where_the_standard_library_allows_it():
    def prepare(pickler):
        pickler.persistent_id = lambda obj: "pid" if type(obj) is Thing else None

    expected = dumped(type("Plain", (pickle.Pickler,), {}), [Thing(1)], prepare=prepare)
    assert dumped(type("Ours", (Pickler,), {}), [Thing(1)], prepare=prepare) == expected


def test_persistent_ids_in_an_object_too_deep_for_the_stack():
    chain = Thing("end")
    for _ in range(DEEP):
        chain = Chain(chain)
    data = dumped(Persistent, chain)
    restored = PersistentUnpickler(io.BytesIO(data)).load()
    for _ in range(DEEP):
        restored = restored.below
    assert restored.value == ("persistent", ("thing", "end"))


# -- dispatch tables -------------------------------------------------------------------------------------------------


class WithTable(Pickler):
    dispatch_table = {Thing: by_table}


class WithChainMap(Pickler):
    dispatch_table = collections.ChainMap({Thing: by_table}, copyreg.dispatch_table)


class OnlyGetItem:
    """The least that the C pickler asks of a dispatch table."""

    def __init__(self, entries):
        self.entries = entries

    def __getitem__(self, key):
        return self.entries[key]


TABLES = [
    {Thing: by_table},
    collections.ChainMap({}, {Thing: by_table}),
    collections.UserDict({Thing: by_table}),
    types.MappingProxyType({Thing: by_table}),
    OnlyGetItem({Thing: by_table}),
]


@pytest.mark.parametrize("pickler_class", [WithTable, WithChainMap])
def test_a_dispatch_table_of_the_class_stands_before_the_rules(pickler_class, registry):
    assert made_by(dumped(pickler_class, Thing(1), registry=registry)) == "table"
    assert pickle.loads(dumped(pickler_class, Other(1), registry=registry)).value == 1


@pytest.mark.parametrize("table", TABLES, ids=lambda table: type(table).__name__)
def test_a_dispatch_table_that_is_assigned_late_stands_before_the_rules(table, registry):
    def prepare(pickler):
        pickler.dispatch_table = table

    for pickler_class in (Pickler, WithTable, type("Derived", (WithChainMap,), {})):
        assert made_by(dumped(pickler_class, Thing(1), prepare=prepare, registry=registry)) == "table"
        assert pickle.loads(dumped(pickler_class, [Other(1)], prepare=prepare, registry=registry))[0].value == 1


@pytest.mark.parametrize("table", TABLES, ids=lambda table: type(table).__name__)
def test_a_dispatch_table_that_init_sets_stands_before_the_rules(table, registry):
    class InInit(Pickler):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.dispatch_table = table

    assert made_by(dumped(InInit, Thing(1), registry=registry)) == "table"


def test_a_late_table_hides_that_of_the_class(registry):
    def prepare(pickler):
        pickler.dispatch_table = {Other: by_table}

    assert made_by(dumped(WithTable, Thing(1), prepare=prepare, registry=registry)) == "rule"
    assert made_by(dumped(WithTable, Other(1), prepare=prepare, registry=registry)) == "table"


def test_a_dispatch_table_replaces_copyreg_as_in_the_standard_library(monkeypatch):
    monkeypatch.setitem(copyreg.dispatch_table, Other, by_table)
    assert made_by(dumped(Pickler, Other(1))) == "table"
    assert pickle.loads(dumped(WithTable, Other(1))).value == 1


def test_a_dispatch_table_that_is_a_property(registry):
    cls = type("Described", (Pickler,), {"dispatch_table": property(lambda self: {Thing: by_table})})
    assert made_by(dumped(cls, Thing(1), registry=registry)) == "table"


def test_a_dispatch_table_may_change_between_dumps(registry):
    file = io.BytesIO()
    pickler = Pickler(file, registry=registry)
    pickler.dispatch_table = {}
    pickler.dump(Thing(1))
    pickler.dispatch_table[Thing] = by_table
    pickler.dump(Thing(2))
    del pickler.dispatch_table[Thing]
    pickler.dump(Thing(3))
    pickler.dispatch_table = {Thing: by_table}
    pickler.dump(Thing(4))
    file.seek(0)
    unpickler = pickle.Unpickler(file)
    assert [unpickler.load().value[0] for _ in range(4)] == ["rule", "table", "rule", "table"]


def test_a_type_that_the_table_does_not_know_goes_by_the_rules(registry):
    def prepare(pickler):
        pickler.dispatch_table = copyreg.dispatch_table.copy()
        pickler.dispatch_table[Other] = by_table

    restored = pickle.loads(dumped(Pickler, [Thing(1), Other(2)], prepare=prepare, registry=registry))
    assert [part.value[0] for part in restored] == ["rule", "table"]


def test_the_override_comes_before_the_dispatch_table():
    class Both(Overriding):
        dispatch_table = {Thing: by_table}

    assert made_by(dumped(Both, Thing("mine"))) == "override"
    assert made_by(dumped(Both, Thing("other"))) == "table"


def test_a_dispatch_table_speaks_about_types_with_built_in_rules_too():
    lock_type = type(threading.Lock())

    def prepare(pickler):
        pickler.dispatch_table = {lock_type: lambda lock: (str, ("the engine's",))}

    assert pickle.loads(dumped(Pickler, [threading.Lock()], prepare=prepare)) == ["the engine's"]


def test_a_dispatch_table_is_honoured_in_an_object_too_deep_for_the_stack(registry):
    chain = Thing("end")
    for _ in range(DEEP):
        chain = [chain]
    restored = pickle.loads(dumped(WithChainMap, chain, registry=registry))
    while type(restored) is list:
        restored = restored[0]
    assert restored.value == ("table", "end")


def test_a_dispatch_table_that_raises_is_no_reason_to_go_on(registry):
    class Broken:
        def __getitem__(self, key):
            raise ZeroDivisionError

    def prepare(pickler):
        pickler.dispatch_table = Broken()

    with pytest.raises(ZeroDivisionError):
        dumped(Pickler, Thing(1), prepare=prepare, registry=registry)


# -- as engines do it ------------------------------------------------------------------------------------------------


def test_as_torch_rpc_does_it(registry):
    """The table is a copy of copyreg's, assigned after construction; its reducers fill a table beside the pickle."""
    table = []

    def reduce_to_index(thing):
        table.append(thing)
        return from_table, (len(table) - 1,)

    file = io.BytesIO()
    pickler = Pickler(file, registry=registry)
    pickler.dispatch_table = copyreg.dispatch_table.copy()
    pickler.dispatch_table[Thing] = reduce_to_index
    things = [Thing("a"), Thing("b")]
    pickler.dump({"things": things, "again": things[0], "pattern": re.compile("x")})
    restored = pickle.loads(file.getvalue())
    assert table == things
    assert restored["again"] is restored["things"][0]
    assert [thing.value for thing in restored["things"]] == [("table", 0), ("table", 1)]
    assert restored["pattern"] == re.compile("x")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_in_the_place_of_the_pickler_of_torch_rpc():
    """Its own code, with our pickler where it takes cloudpickle's: tensors go beside the pickle, functions in it."""
    printed = run_python("""
        import safepickle, torch
        import torch.distributed.rpc.internal as internal

        internal._pickler, internal._unpickler = safepickle.Pickler, safepickle.Unpickler
        rpc = internal._internal_rpc_pickler
        call = internal.PythonUDF(lambda x, y: x + y, (torch.ones(2), 1), {})
        data, tensors = rpc.serialize(call)
        print(len(tensors))
        restored = rpc.deserialize(data, [tensors[0] * 5])
        print(restored.func(*restored.args).tolist())
    """)
    assert printed == "1\n[6.0, 6.0]\n"


class LokyLike(Pickler):
    """Writes its table into the slot that the C pickler reads, as loky does with whatever pickler it is given."""

    _reducers = {Thing: by_table}

    def __init__(self, writer, reducers=None, protocol=pickle.HIGHEST_PROTOCOL):
        Pickler.__init__(self, writer, protocol=protocol)
        table = dict(self.dispatch_table) if hasattr(self, "dispatch_table") else copyreg.dispatch_table.copy()
        table.update(self._reducers)
        for ancestor in Pickler.mro():
            slot = getattr(ancestor, "dispatch_table", None)
            if isinstance(slot, types.MemberDescriptorType):
                slot.__set__(self, table)
                break
        for cls, reducer in (reducers or {}).items():
            self.register(cls, reducer)

    def register(self, cls, reducer):
        self.dispatch_table[cls] = reducer


def test_as_loky_does_it():
    file = io.BytesIO()
    LokyLike(file, {Other: by_table}).dump([Thing(1), Other(2), lambda: 3, threading.Lock()])
    thing, other, function, lock = pickle.loads(file.getvalue())
    assert (thing.value, other.value) == (("table", 1), ("table", 2))
    assert function() == 3 and lock.acquire(blocking=False)


class JoblibLike(Pickler):
    def __init__(self, writer, reducers=None, protocol=pickle.HIGHEST_PROTOCOL):
        Pickler.__init__(self, writer, protocol=protocol)
        if hasattr(Pickler, "dispatch"):
            raise AssertionError("the Python pickler's attribute; joblib takes another way where it is there")
        self.dispatch_table = copyreg.dispatch_table.copy()
        for cls, reducer in (reducers or {}).items():
            self.dispatch_table[cls] = reducer


def test_as_joblib_does_it():
    file = io.BytesIO()
    JoblibLike(file, {Thing: by_table}).dump([Thing(1), lambda: 3])
    thing, function = pickle.loads(file.getvalue())
    assert thing.value == ("table", 1)
    assert function() == 3


class ForkingLike(Pickler):
    """As `multiprocessing.reduction.ForkingPickler`."""

    _extra_reducers = {}
    _copyreg_dispatch = copyreg.dispatch_table

    def __init__(self, *args):
        super().__init__(*args)
        self.dispatch_table = self._copyreg_dispatch.copy()
        self.dispatch_table.update(self._extra_reducers)

    @classmethod
    def register(cls, kind, reduce):
        cls._extra_reducers[kind] = reduce

    @classmethod
    def dumps(cls, obj, protocol=None):
        buffer = io.BytesIO()
        cls(buffer, protocol).dump(obj)
        return buffer.getbuffer()


def test_as_multiprocessing_does_it():
    ForkingLike.register(Thing, by_table)
    thing, function = pickle.loads(ForkingLike.dumps([Thing(1), lambda: 3]))
    assert thing.value == ("table", 1)
    assert function() == 3


def test_as_torch_save_does_it():
    """A class made in a function, `persistent_id` as a method, protocol 2."""

    class PyTorchPickler(Pickler):
        def persistent_id(self, obj):
            return ("storage", obj.value) if type(obj) is Thing else None

    data = dumped(PyTorchPickler, {"weight": Thing(1), "hook": lambda: 3}, 2)
    restored = PersistentUnpickler(io.BytesIO(data)).load()
    assert restored["weight"].value == ("persistent", ("storage", 1))
    assert restored["hook"]() == 3


def test_as_the_library_cookbook_does_it():
    """`pickle.Pickler` handed on as a class by a module that is configured with one."""
    namespace = types.SimpleNamespace(Pickler=Pickler, Unpickler=safepickle.Unpickler, load=safepickle.load)
    file = io.BytesIO()
    namespace.Pickler(file, protocol=2).dump([1, lambda: 2])
    file.seek(0)
    assert namespace.load(file)[1]() == 2


# -- construction ----------------------------------------------------------------------------------------------------


def test_a_subclass_that_forgets_to_call_init_gets_the_standard_librarys_error():
    class Forgets(Pickler):
        def __init__(self):
            pass

    with pytest.raises(pickle.PicklingError, match=r"__init__\(\) was not called"):
        Forgets().dump([1])
    with pytest.raises(pickle.PicklingError, match=r"__init__\(\) was not called"):
        Forgets().dump(lambda: 1)


def test_a_subclass_may_call_init_of_the_standard_librarys_pickler():
    class Bypasses(Pickler):
        def __init__(self, file):
            pickle.Pickler.__init__(self, file, 4)

    file = io.BytesIO()
    Bypasses(file).dump([1, threading.Lock()])
    assert pickle.loads(file.getvalue())[1].acquire(blocking=False)
    chain = None
    for _ in range(DEEP):
        chain = [chain]
    with pytest.raises(RecursionError):
        Bypasses(io.BytesIO()).dump(chain)


def test_a_subclass_may_have_attributes_of_its_own():
    """Names that a pickler may well use for itself mean during a dump what they mean before it."""

    class Own(Pickler):
        def __init__(self, file):
            super().__init__(file)
            self.root, self.file, self.memo_size, self.objects, self.table, self.sink = "mine", file, 1, [], {}, None

        def persistent_id(self, obj):
            assert (self.root, self.memo_size, self.table, self.sink) == ("mine", 1, {}, None)
            self.objects.append(obj)

    file = io.BytesIO()
    pickler = Own(file)
    pickler.dump([1, lambda: 2, threading.Lock()])
    assert pickle.loads(file.getvalue())[1]() == 2
    assert pickler.root == "mine" and len(pickler.objects) > 3


def test_init_may_be_called_again():
    first, second = io.BytesIO(), io.BytesIO()
    pickler = Pickler(first, 2)
    pickler.dump([1])
    pickler.__init__(second, 4)
    pickler.dump([2])
    assert pickle.loads(first.getvalue()) == [1]
    assert second.getvalue() == pickle.dumps([2], 4)


@pytest.mark.parametrize("file", [None, 5, "name", object()])
def test_what_cannot_be_written_to_is_a_type_error(file):
    with pytest.raises(TypeError, match="write"):
        Pickler(file)
    with pytest.raises(TypeError, match="write"):
        safepickle.dump([1], file)


@pytest.mark.parametrize("protocol", [pickle.HIGHEST_PROTOCOL + 1, 99])
def test_a_protocol_of_the_future_is_a_value_error(protocol):
    with pytest.raises(ValueError, match="pickle protocol must be <="):
        Pickler(io.BytesIO(), protocol)
    with pytest.raises(ValueError, match="pickle protocol must be <="):
        safepickle.dumps([1], protocol)


@pytest.mark.parametrize(
    ("given", "in_use"), [(None, pickle.DEFAULT_PROTOCOL), (-1, pickle.HIGHEST_PROTOCOL), (0, 0), (2, 2)]
)
def test_the_protocol_in_use_is_an_attribute(given, in_use):
    assert Pickler(io.BytesIO(), given).protocol == in_use


def test_a_buffer_callback_needs_protocol_5():
    with pytest.raises(ValueError, match="protocol >= 5"):
        Pickler(io.BytesIO(), 4, buffer_callback=[].append)


def test_attributes_of_the_standard_pickler_are_here():
    pickler = Pickler(io.BytesIO(), 4)
    assert pickler.bin == 1
    assert pickler.fast == 0
    assert dict(pickler.memo.copy()) == {}
    pickler.dump([1])
    assert len(pickler.memo.copy()) == 1


def test_a_pickler_that_cannot_be_written_to_passes_the_error_on():
    class Full:
        def write(self, data):
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        safepickle.dump([1], Full())
    assert caught.value.errno == 28


# -- several dumps on one pickler ------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_several_dumps_on_one_pickler_share_the_memo(protocol):
    shared = ["shared"]
    ours, theirs = io.BytesIO(), io.BytesIO()
    pickler, expected = Pickler(ours, protocol), pickle.Pickler(theirs, protocol)
    for obj in ([shared, 1], {"again": shared}, shared):
        pickler.dump(obj)
        expected.dump(obj)
    assert ours.getvalue() == theirs.getvalue()
    ours.seek(0)
    unpickler = safepickle.Unpickler(ours)
    first, second, third = (unpickler.load() for _ in range(3))
    assert first[0] is second["again"] is third


def test_functions_by_value_are_shared_between_dumps_on_one_pickler():
    def counter():
        count = 0

        def increment():
            nonlocal count
            count += 1
            return count

        return increment, lambda: count

    increment, read = counter()
    file = io.BytesIO()
    pickler = Pickler(file)
    for function in (increment, read, increment):
        pickler.dump(function)
    file.seek(0)
    unpickler = safepickle.Unpickler(file)
    loaded, reader, again = (unpickler.load() for _ in range(3))
    assert loaded is again
    loaded()
    loaded()
    assert reader() == 2


@pytest.mark.parametrize(
    "clear", [Pickler.clear_memo, lambda pickler: pickler.memo.clear()], ids=["clear_memo", "memo.clear"]
)
def test_a_cleared_memo_makes_the_next_dump_whole(clear):
    def function(value=[1]):  # noqa: B006
        return value, captured

    captured = ["captured"]
    file = io.BytesIO()
    pickler = Pickler(file)
    pickler.dump(function)
    first = file.tell()
    clear(pickler)
    pickler.dump(function)
    second = file.getvalue()[first:]
    assert pickle.loads(second)() == ([1], ["captured"])


def test_a_memo_can_be_handed_on():
    shared = ["shared"]
    first, second = io.BytesIO(), io.BytesIO()
    one, two = Pickler(first), Pickler(second)
    one.dump(shared)
    two.memo = one.memo
    two.dump([shared])
    unpickler = safepickle.Unpickler(io.BytesIO(first.getvalue() + second.getvalue()))
    assert unpickler.load() is unpickler.load()[0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_fast_mode_writes_what_the_standard_library_writes(protocol):
    def prepare(pickler):
        pickler.fast = True

    shared = ["shared"]
    obj = [shared, shared, Other(shared), {"a": (1, shared)}]
    assert dumped(Pickler, obj, protocol, prepare) == dumped(pickle.Pickler, obj, protocol, prepare)


def test_fast_mode_gives_up_at_once_where_nothing_ends_without_a_memo():
    """A function by value is finished after it was made: the pickler names it again, and has no memo to know it by."""

    def prepare(pickler):
        pickler.fast = True

    with pytest.raises(RecursionError):
        call_with_timeout(lambda: dumped(Pickler, lambda: 1, prepare=prepare), 5)


def test_fast_mode_refuses_cycles_as_the_standard_library_does():
    def prepare(pickler):
        pickler.fast = True

    cycle = []
    cycle.append(cycle)
    with pytest.raises(ValueError, match="fast mode: can't pickle cyclic objects"):
        dumped(Pickler, cycle, prepare=prepare)


def test_a_pickler_can_be_used_after_a_dump_that_failed():
    file = io.BytesIO()
    pickler = Pickler(file)
    with pytest.raises(pickle.PicklingError):
        pickler.dump([lambda: 1, sys._getframe()])
    assert file.getvalue() == b""
    pickler.clear_memo()
    pickler.dump([threading.Lock(), lambda: 2])
    assert pickle.loads(file.getvalue())[1]() == 2


# -- reentrancy and threads ------------------------------------------------------------------------------------------


def test_a_reducer_may_call_dumps(registry):
    def reduce(thing):
        return from_rule, (safepickle.dumps([Other(thing.value), lambda: 1], registry=registry),)

    registry.register(Thing, reduce)
    restored = pickle.loads(safepickle.dumps([Thing("a"), Thing("b"), threading.Lock()], registry=registry))
    assert [pickle.loads(part.value[1])[0].value for part in restored[:2]] == ["a", "b"]


def test_a_method_of_the_object_may_call_dumps():
    class Nested:
        def __init__(self, depth):
            self.depth = depth

        def __reduce__(self):
            return bytes, (safepickle.dumps(Nested(self.depth - 1)),) if self.depth else ()

    data = safepickle.dumps(Nested(3))
    for _ in range(3):
        data = pickle.loads(data)
    assert pickle.loads(data) == b""


def test_a_reducer_may_use_another_pickler_with_another_registry(registry):
    inner = Registry()
    inner.register(Thing, by_table)

    def reduce(other):
        return Other, (safepickle.dumps(Thing("inner"), registry=inner),)

    registry.register(Other, reduce)
    before, other, after = pickle.loads(safepickle.dumps([Thing(1), Other(), Thing(2)], registry=registry))
    assert (before.value[0], made_by(other.value), after.value[0]) == ("rule", "table", "rule")


def test_threads_with_picklers_of_their_own_do_not_disturb_each_other(registry):
    failures = []

    def work(number):
        try:
            for _ in range(200):
                captured = [number]
                obj = [Thing(number), lambda captured=captured: captured, Other(threading.Lock())]
                thing, function, other = pickle.loads(safepickle.dumps(obj, registry=registry))
                assert thing.value == ("rule", number)
                assert function() == [number]
                assert other.value.acquire(blocking=False)
        except BaseException as error:
            failures.append(error)

    def run():
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    call_with_timeout(run, 60)
    assert failures == []


# -- the same bytes --------------------------------------------------------------------------------------------------


def cyclic():
    items = [1]
    table = {"items": items}
    items.append(table)
    thing = Other(items)
    items.append(thing)
    items.append((items, thing))
    return items


def shared():
    part = ["part"]
    return [part, (part, part), {"a": part}, Other(part), Other(part)]


PLAIN = {
    "atoms": [
        None,
        True,
        False,
        0,
        -1,
        255,
        256,
        65535,
        65536,
        2**31,
        -(2**31),
        2**63,
        -(2**64),
        10**50,
        1.5,
        float("inf"),
        2 + 3j,
    ],
    "text": ["", "a", "ä" * 300, "\ud800", "a\nb\\", "x" * 70000, b"", b"b" * 300, b"c" * 70000, bytearray(b"d" * 300)],
    "containers": [
        [],
        (),
        {},
        set(),
        frozenset(),
        [1],
        (1,),
        (1, 2),
        (1, 2, 3),
        (1, 2, 3, 4),
        {1: 2},
        {1},
        frozenset({1}),
    ],
    "long list": list(range(2001)),
    "list of batches and one": [None] * 1001,
    "long dict": {number: str(number) for number in range(2001)},
    "long set": set(range(2001)),
    "big": [b"x" * 70000, "y" * 200000, ["z" * 100] * 10, [str(n) * 10 for n in range(5000)]],
    "cyclic": cyclic(),
    "shared": shared(),
    "instances": [
        Other(1),
        Record(1, [2], {"a": 3}),
        Frozen(1, "a"),
        Slotted(1, 2),
        SlottedWithDict(1, [2]),
        WithState(),
    ],
    "subclasses": [ListOfOwn([1, 2]), DictOfOwn(a=1), WithNewArgs(a=1, b=2), Point(1, 2), ListOfOwn(range(1001))],
    "collections": [
        collections.OrderedDict(a=1),
        collections.defaultdict(list, a=[1]),
        collections.Counter("abca"),
        collections.deque([1, 2], 5),
        collections.ChainMap({"a": 1}),
        collections.UserDict(a=1),
        collections.UserList([1]),
    ],
    "enums": [Color.RED, Color.GREEN, Flag.A | Flag.B, re.IGNORECASE],
    "numbers": [decimal.Decimal("1.5"), fractions.Fraction(1, 3), random.Random(1)],
    "times": [
        datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc),
        datetime.timedelta(1),
        datetime.date(2024, 1, 1),
    ],
    "stdlib": [
        uuid.UUID(int=1),
        pathlib.PurePosixPath("/a/b"),
        re.compile("a+"),
        range(1, 10, 2),
        slice(1, 2),
        array.array("d", [1.0, 2.0]),
        types.SimpleNamespace(a=1),
        operator.itemgetter(1),
        operator.attrgetter("a.b"),
        operator.methodcaller("a", 1),
        functools.partial(module_function, 1),
    ],
    "exceptions": [ValueError("a"), KeyError("k"), OSError(2, "no"), StopIteration(1)],
    "names": [
        int,
        Thing,
        module_function,
        len,
        os.path.join,
        Color,
        Point,
        collections.OrderedDict,
        ValueError,
        Ellipsis,
        NotImplemented,
    ],
    "types of constants": [type(None), type(Ellipsis), type(NotImplemented)],
    "nested class attributes": [datetime.datetime.now, dict.fromkeys, int.from_bytes, str.join, Other.__init__],
    "methods": [[1].append, "a".join, Other(1).__init__, collections.OrderedDict(a=1).pop],
    "iterators": [
        iter([1, 2]),
        iter((1,)),
        iter("ab"),
        iter({1: 2}),
        iter(range(3)),
        reversed([1, 2]),
        enumerate("ab"),
        zip("ab", "cd"),  # noqa: B905
    ],
    "itertools": [itertools.count(3)] if sys.version_info < (3, 12) else [],
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", PLAIN)
def test_what_the_standard_library_can_write_is_written_the_same(name, protocol):
    for obj in [
        PLAIN[name],
        *(PLAIN[name] if type(PLAIN[name]) is list and name not in ("cyclic", "long list") else ()),
    ]:
        try:
            expected = pickle.dumps(obj, protocol)
        except Exception:
            continue
        assert safepickle.dumps(obj, protocol) == expected


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("fix_imports", [True, False])
def test_fix_imports_writes_the_old_names_at_old_protocols(protocol, fix_imports):
    obj = [range(3), map, ValueError("a"), collections.OrderedDict(), collections.UserDict]
    assert safepickle.dumps(obj, protocol, fix_imports=fix_imports) == pickle.dumps(
        obj, protocol, fix_imports=fix_imports
    )


def test_the_same_bytes_go_to_a_file_as_to_memory(tmp_path):
    obj = PLAIN["big"] + PLAIN["instances"]
    with open(tmp_path / "ours", "wb") as file:
        safepickle.dump(obj, file)
    with open(tmp_path / "theirs", "wb") as file:
        pickle.dump(obj, file)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes() == safepickle.dumps(obj)


def test_a_subclass_writes_the_same_bytes(registry):
    for pickler_class in (Overriding, MixinLast, type("Plain", (Pickler,), {})):
        assert dumped(pickler_class, PLAIN["instances"]) == pickle.dumps(PLAIN["instances"])


# -- buffers ---------------------------------------------------------------------------------------------------------


class Zero:
    """Holds a buffer that travels out of band."""

    def __init__(self, data):
        self.data = data

    def __reduce_ex__(self, protocol):
        if protocol >= 5:
            return Zero, (pickle.PickleBuffer(self.data),)
        return Zero, (bytes(self.data),)


def test_buffers_travel_out_of_band():
    buffers = []
    obj = [Zero(bytearray(b"first buffer")), Zero(b"second buffer"), lambda: 1]
    data = safepickle.dumps(obj, 5, buffer_callback=buffers.append)
    assert b"buffer" not in data.partition(b"lambda")[0]
    first, second, function = safepickle.loads(data, buffers=buffers)
    assert (bytes(first.data), bytes(second.data), function()) == (b"first buffer", b"second buffer", 1)
    memoryview(first.data)[0:1] = b"F"
    assert obj[0].data == b"First buffer", "without a copy"


@pytest.mark.parametrize("protocol", [4, 5])
def test_buffers_travel_in_band_without_a_callback(protocol):
    restored = safepickle.loads(safepickle.dumps([Zero(bytearray(b"abc"))], protocol))
    assert bytes(restored[0].data) == b"abc"


def test_a_callback_that_returns_something_true_keeps_the_buffer_in_band():
    data = safepickle.dumps([Zero(b"abc")], 5, buffer_callback=lambda buffer: True)
    assert b"abc" in data
    assert data == pickle.dumps([Zero(b"abc")], 5, buffer_callback=lambda buffer: True)


def test_every_buffer_of_an_object_too_deep_for_the_stack_is_handed_out_once():
    chain = None
    for _ in range(DEEP):
        chain = [chain]
    buffers = []
    obj = [Zero(b"one"), Zero(b"two"), chain, Zero(b"three")]
    data = safepickle.dumps(obj, 5, buffer_callback=buffers.append)
    assert [bytes(buffer) for buffer in buffers] == [b"one", b"two", b"three"]
    restored = safepickle.loads(data, buffers=buffers)
    assert [bytes(part.data) for part in (restored[0], restored[1], restored[3])] == [b"one", b"two", b"three"]


def test_the_callback_of_the_pickler_is_the_callers_own():
    callback = [].append
    assert Pickler(io.BytesIO(), 5, buffer_callback=callback).buffer_callback is callback


# -- deep objects and files ------------------------------------------------------------------------------------------


def deep_list(levels):
    chain = []
    for _ in range(levels):
        chain = [chain]
    return chain


def depth_of(chain):
    depth = 0
    while chain:
        (chain,) = chain
        depth += 1
    return depth


def test_a_deep_pickle_overwrites_what_the_first_attempt_wrote(tmp_path):
    """Large parts go to the file at once, before the recursion limit is hit."""
    obj = [b"x" * 1_000_000, deep_list(DEEP), "end"]
    with open(tmp_path / "file", "wb") as file:
        file.write(b"before")
        safepickle.dump(obj, file)
        safepickle.dump("after", file)
    with open(tmp_path / "file", "rb") as file:
        assert file.read(6) == b"before"
        large, chain, end = pickle.load(file)
        assert pickle.load(file) == "after"
        assert file.read() == b""
    assert (len(large), depth_of(chain), end) == (1_000_000, DEEP, "end")


def test_a_deep_pickle_in_the_middle_of_a_file_leaves_what_is_behind_it(tmp_path):
    obj = [b"x" * 100_000, deep_list(DEEP)]
    size = len(safepickle.dumps(obj))
    path = tmp_path / "file"
    path.write_bytes(b"a" * 10 + b"b" * size + b"c" * 10)
    with open(path, "r+b") as file:
        file.seek(10)
        safepickle.dump(obj, file)
    data = path.read_bytes()
    assert data[:10] == b"a" * 10
    assert data[10 + size :] == b"c" * 10
    assert depth_of(pickle.loads(data[10:])[1]) == DEEP


def test_a_deep_pickle_is_appended_to_a_file_that_appends(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with open(path, "ab") as file:
        safepickle.dump([b"x" * 100_000, deep_list(DEEP)], file)
    data = path.read_bytes()
    assert data[:6] == b"before"
    assert data[6:] == safepickle.dumps([b"x" * 100_000, deep_list(DEEP)])


class Pipe:
    """Takes bytes and gives nothing back."""

    def __init__(self):
        self.data = b""

    def write(self, data):
        self.data += bytes(data)


def test_a_small_deep_pickle_goes_to_a_file_that_cannot_seek():
    pipe = Pipe()
    safepickle.dump(deep_list(DEEP), pipe)
    assert depth_of(pickle.loads(pipe.data)) == DEEP


def test_a_large_deep_pickle_cannot_go_to_a_file_that_cannot_seek():
    with pytest.raises(RecursionError):
        safepickle.dump([b"x" * 1_000_000, deep_list(DEEP)], Pipe())


def test_a_pickler_goes_on_after_a_deep_dump():
    file = io.BytesIO()
    pickler = Pickler(file)
    chain = deep_list(DEEP)
    pickler.dump(chain)
    pickler.dump([chain, 1])
    file.seek(0)
    unpickler = safepickle.Unpickler(file)
    first = unpickler.load()
    second = unpickler.load()
    assert second[0] is first and second[1] == 1


def test_a_cleared_pickler_writes_deep_objects_again():
    file = io.BytesIO()
    pickler = Pickler(file)
    pickler.dump([1])
    pickler.clear_memo()
    pickler.dump(deep_list(DEEP))
    file.seek(0)
    assert pickle.load(file) == [1]
    assert depth_of(pickle.load(file)) == DEEP


def test_a_deep_dump_that_fails_leaves_a_file_as_it_was():
    file = io.BytesIO(b"before")
    file.seek(0, io.SEEK_END)
    with pytest.raises(pickle.PicklingError):
        safepickle.dump([deep_list(DEEP), sys._getframe()], file)
    assert file.getvalue() == b"before"


class Endless:
    """Makes a new part whenever it is asked."""

    def __reduce__(self):
        return Other, (Endless(),)


def test_an_object_without_an_end_is_a_recursion_error(monkeypatch):
    from safepickle import deep, paths

    monkeypatch.setattr(deep, "_MOST_LEVELS", 20_000)
    monkeypatch.setattr(paths.Walk.__init__, "__kwdefaults__", {"objects": 2_000, "seconds": 5.0})
    with pytest.raises(RecursionError):
        safepickle.dumps(Endless())


# -- rules inside picklers -------------------------------------------------------------------------------------------


def test_a_rule_sees_the_pickler(registry):
    seen = []

    def reduce(thing, pickler):
        seen.append((pickler.protocol, pickler.registry, pickler.canonical, pickler.buffer_callback))
        return from_rule, (1,)

    registry.register(Thing, reduce, with_pickler=True)
    callback = [].append
    Pickler(io.BytesIO(), 5, buffer_callback=callback, registry=registry).dump([Thing(1)])
    assert seen == [(5, registry, False, callback)]


def test_an_error_of_a_rule_that_is_one_of_pickling_is_passed_on_as_it_is(registry):
    def reduce(thing):
        raise safepickle.PicklingError("say this")

    registry.register(Thing, reduce)
    with pytest.raises(safepickle.PicklingError, match="say this") as caught:
        safepickle.dumps([Thing(1)], registry=registry)
    error = caught.value
    seen = []
    while error is not None:
        assert not any(error is other for other in seen), "no error is its own cause"
        seen.append(error)
        error = error.__cause__


def test_an_exception_that_is_not_about_pickling_keeps_its_type():
    class Custom(Exception):
        pass

    class Raises:
        def __reduce__(self):
            raise Custom("text")

    with pytest.raises(Custom, match="text") as caught:
        safepickle.dumps([Raises()])
    assert isinstance(caught.value, pickle.PicklingError)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_exception_passes_through(kind):
    class Raises:
        def __reduce__(self):
            raise kind

    with pytest.raises(kind):
        safepickle.dumps([Raises()])


# -- memory ----------------------------------------------------------------------------------------------------------


def test_no_cycle_keeps_a_pickler_alive(registry):
    gc.collect()
    gc.disable()
    try:
        for obj in ([Thing(1), lambda: 2, Record(1, [], {})], deep_list(DEEP)):
            pickler = Overriding(io.BytesIO(), registry=registry)
            pickler.dump(obj)
            reference = weakref.ref(pickler)
            del pickler
            assert reference() is None
    finally:
        gc.enable()


def test_a_held_pickler_keeps_nothing_alive_beyond_its_memo(registry):
    def make():
        cls = type("Local", (), {})
        captured = cls()

        def function():
            return captured

        return cls, function

    cls, function = make()
    pickler = Pickler(io.BytesIO(), registry=registry)
    pickler.dump([cls(), function])
    pickler.clear_memo()
    references = [weakref.ref(cls), weakref.ref(function)]
    del cls, function
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_the_object_is_not_kept_by_the_pickler_once_the_memo_is_cleared():
    pickler = Pickler(io.BytesIO())
    thing = Thing([1])
    reference = weakref.ref(thing)
    pickler.dump(thing)
    pickler.clear_memo()
    del thing
    assert reference() is None


def test_dumps_keeps_nothing_alive():
    gc.collect()
    gc.disable()
    try:
        thing = Thing([1])
        reference = weakref.ref(thing)
        safepickle.dumps([thing, lambda: 1])
        del thing
        assert reference() is None
    finally:
        gc.enable()


# -- methods ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_class_method_of_an_importable_class_is_no_byte_code(protocol):
    data = safepickle.dumps(pathlib.Path.cwd, protocol)
    assert len(data) < 120
    assert pickle.loads(data) == pathlib.Path.cwd


def test_a_closure_over_self_is_bound_to_the_restored_object(tmp_path):
    thing = Thing([1])
    thing.read = lambda: thing.value
    thing.method = thing.read.__get__
    restored = safepickle.loads(safepickle.dumps(thing))
    restored.value = "changed"
    assert restored.read() == "changed"
    assert thing.read() == [1]
    fresh_load(safepickle.dumps([lambda: 5]), "assert obj[0]() == 5", tmp_path)


def ordered_examples():
    """Ordered dictionaries with and without items and attributes, and one that holds itself."""
    marked, circular = OrderedDict(), OrderedDict(a=1)
    marked.note = "set from outside"
    circular["me"] = circular
    shared = OrderedDict()
    some = [OrderedDict(), OrderedDict(a=1, b=[2]), [shared, shared, OrderedDict()]]
    return [*some, marked, {"hooks": OrderedDict()}, circular]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_ordered_dictionaries_are_written_as_the_standard_library_does(protocol):
    for example in ordered_examples():
        assert safepickle.dumps(example, protocol) == pickle.dumps(example, protocol)


def test_an_entry_of_copyreg_for_ordered_dictionaries_is_used():
    copyreg.pickle(OrderedDict, lambda mapping: (dict, (list(mapping.items()),)))
    try:
        assert type(safepickle.loads(safepickle.dumps(OrderedDict(a=1)))) is dict
    finally:
        del copyreg.dispatch_table[OrderedDict]
    assert type(safepickle.loads(safepickle.dumps(OrderedDict(a=1)))) is OrderedDict


class Marked:
    """Has a rule that waits for a mark."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


def test_a_rule_that_waits_for_attributes_is_asked_where_they_are_set():
    rules = safepickle.Registry()
    rules.add(Marked, lambda obj: (Marked, (), {"by": "rule"}), concerns=("mark",))
    for attributes, by in (({}, None), ({"mark": None}, None), ({"mark": {}}, None), ({"mark": 1}, "rule")):
        back = pickle.loads(safepickle.dumps(Marked(**attributes), registry=rules))
        assert getattr(back, "by", None) == by


def test_what_goes_by_value_is_let_go_of_at_once() -> None:
    class Data:
        pass

    def made():
        data = Data()
        return (lambda: data), weakref.ref(data)

    function, alive = made()
    gc.collect()
    gc.disable()
    try:
        safepickle.dumps(function)
        del function
        assert alive() is None, "kept until the next collection"
    finally:
        gc.enable()
