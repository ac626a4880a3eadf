"""What does it cost to ask the rules? Counted in calls, which do not depend on the machine or on who else uses it."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
import threading

import pytest

import safepickle
from safepickle import Registry, copier, pickler, reachability
from tests import counting
from tests.helpers import run_python

COUNT = 500


@dataclasses.dataclass
class Record:
    number: int
    rows: list
    table: dict


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


def records(count=COUNT):
    return [Record(number, [number], {"a": number}) for number in range(count)]


def plain(count=COUNT):
    return [
        {"id": number, "name": str(number), "tags": ("a", [number]), "more": {1.5, None}} for number in range(count)
    ]


def python_calls(function):
    """How many Python functions a call runs."""
    return counting.calls(function).python


def calls_for_each(make, function):
    """How many more Python functions run for each object more."""
    return counting.for_each(make, lambda objects: python_calls(lambda: function(objects)), COUNT)


@pytest.fixture
def python_copier(monkeypatch):
    """The copier in Python, whether or not its twin in C is built."""
    monkeypatch.setattr(copier, "core", None)


@pytest.fixture(params=["python", "native"] if pickler.pickling is not None else ["python"])
def asking(request, monkeypatch):
    """How many Python functions run for an object that is asked about: none where the C core asks."""
    if request.param == "python":
        monkeypatch.setattr(pickler, "pickling", None)
        return 1
    return 0


# -- pickling --------------------------------------------------------------------------------------------------------


def test_pickling_plain_data_runs_no_python_code_for_the_parts():
    assert calls_for_each(plain, safepickle.dumps) == 0


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_pickling_an_instance_runs_at_most_one_python_function(protocol, asking):
    standard = calls_for_each(records, lambda obj: pickle.dumps(obj, protocol))
    assert calls_for_each(records, lambda obj: safepickle.dumps(obj, protocol)) == standard + asking


def test_pickling_an_instance_with_slots_runs_at_most_one_python_function_more_than_the_standard_library(asking):
    def make(count):
        return [Slots(number, [number]) for number in range(count)]

    assert calls_for_each(make, safepickle.dumps) == calls_for_each(make, pickle.dumps) + asking


def test_the_rules_are_looked_up_once_a_type_and_not_once_an_object(monkeypatch):
    asked = []
    original = Registry.rules_for

    def rules_for(self, cls, verb):
        asked.append(cls)
        return original(self, cls, verb)

    monkeypatch.setattr(Registry, "rules_for", rules_for)
    safepickle.dumps([records(), [Slots(1, 2)] * 3], registry=Registry())  # nobody has asked this one before
    assert asked.count(Record) == 1
    assert asked.count(Slots) == 1
    assert list not in asked and dict not in asked and int not in asked


def test_a_small_dump_costs_the_same_after_a_large_one():
    small = {"a": [1, 2]}
    before = python_calls(lambda: safepickle.dumps(small))
    safepickle.dumps([*records(5000), lambda: 1, threading.Lock()])
    assert python_calls(lambda: safepickle.dumps(small)) == before


def calls_in_a_fresh_process(code):
    """As `python_calls`, where no other test has imported libraries whose rules wait for something."""
    head = "import safepickle\nfrom safepickle.registry import default_registry\n"
    head += "from tests.test_overhead import python_calls\n"
    return int(run_python(f"{head}class Unknown:\n    pass\n\nprint(python_calls(lambda: {code}))\n"))


def test_a_small_dump_runs_few_python_functions():
    assert calls_in_a_fresh_process('safepickle.dumps({"a": [1, 2]})') <= 16


def test_a_small_dump_does_not_slow_down_with_the_number_of_rules():
    registry = Registry()
    before = python_calls(lambda: safepickle.dumps(records(1), registry=registry))
    for number in range(200):
        registry.register(type(f"Type{number}", (), {}), lambda obj: (str, ()))
        registry.register(f"absent_{number}:Type", lambda obj: (str, ()))
    assert python_calls(lambda: safepickle.dumps(records(1), registry=registry)) == before


def test_an_override_of_a_subclass_costs_its_own_call_and_no_more():
    class Overriding(safepickle.Pickler):
        def reducer_override(self, obj):
            return NotImplemented

    def dump(obj):
        Overriding(io.BytesIO()).dump(obj)

    assert calls_for_each(records, dump) == calls_for_each(records, safepickle.dumps) + 2


def test_a_dispatch_table_costs_nothing_for_objects_that_it_knows_nothing_of():
    class WithTable(safepickle.Pickler):
        dispatch_table = {Slots: lambda obj: (Slots, (1, 2))}

    def dump(obj):
        WithTable(io.BytesIO()).dump(obj)

    assert calls_for_each(records, dump) == calls_for_each(records, safepickle.dumps)


class Sink:
    def __init__(self):
        self.writes = 0

    def write(self, data):
        self.writes += 1


@pytest.mark.parametrize(
    "make", [records, plain, lambda count: [b"x" * 100_000] * 3 + [str(n) * 50 for n in range(5000)]]
)
def test_as_many_writes_reach_the_file_as_with_the_standard_library(make):
    obj = make(5000)
    ours, theirs = Sink(), Sink()
    safepickle.dump(obj, ours)
    pickle.dump(obj, theirs)
    assert ours.writes == theirs.writes


def test_a_rule_costs_its_own_call_and_a_fixed_number_more():
    registry = Registry()
    registry.register(Slots, lambda obj: (Slots, (obj.a, obj.b)))

    def make(count):
        return [Slots(number, [number]) for number in range(count)]

    assert calls_for_each(make, lambda obj: safepickle.dumps(obj, registry=registry)) <= 5


def test_loading_runs_no_python_code_for_the_parts():
    def make(count):
        return safepickle.dumps(records(count))

    assert calls_for_each(make, safepickle.loads) == calls_for_each(make, pickle.loads) == 0


# -- copying ---------------------------------------------------------------------------------------------------------


def test_copying_runs_fewer_python_functions_than_the_standard_library(python_copier):
    for make in (records, plain, lambda count: [Slots(number, [number]) for number in range(count)]):
        assert calls_for_each(make, safepickle.deepcopy) < calls_for_each(make, copy.deepcopy)


@pytest.mark.skipif(copier.core is None, reason="the C core is not built")
def test_the_c_core_runs_no_python_code_for_the_parts():
    for make in (records, plain, lambda count: [Slots(number, [number]) for number in range(count)]):
        assert calls_for_each(make, safepickle.deepcopy) == 0


def test_copying_a_list_of_atoms_runs_no_python_code_for_them(python_copier):
    assert calls_for_each(lambda count: list(range(count)), safepickle.deepcopy) == 0
    assert calls_for_each(lambda count: tuple(map(str, range(count))), safepickle.deepcopy) == 0
    assert calls_for_each(lambda count: dict.fromkeys(range(count)), safepickle.deepcopy) == 0


def test_the_copier_looks_the_rules_up_once_a_type(monkeypatch, python_copier):
    asked = []
    original = Registry.rules_for

    def rules_for(self, cls, verb):
        asked.append(cls)
        return original(self, cls, verb)

    monkeypatch.setattr(Registry, "rules_for", rules_for)
    safepickle.deepcopy([records(), [Slots(1, 2)] * 3])
    assert {cls: asked.count(cls) for cls in asked} == dict.fromkeys(asked, 1)


def test_a_small_copy_runs_few_python_functions(python_copier):
    assert python_calls(lambda: safepickle.deepcopy({"a": [1, 2]})) <= 48


def test_a_small_copy_costs_the_same_after_a_large_one():
    small = {"a": [1, 2]}
    before = python_calls(lambda: safepickle.deepcopy(small))
    safepickle.deepcopy([*records(5000), lambda: 1, threading.Lock()])
    assert python_calls(lambda: safepickle.deepcopy(small)) == before


def test_the_graph_is_not_walked_for_functions_that_hold_only_values(monkeypatch):
    """Most transforms and keys: a closure over a number, a default. Unless somebody else has the same variable."""

    def scaled_by(factor):
        return lambda x, offset=1: x * factor + offset

    def walked(self, root):
        raise AssertionError("nobody has asked what is copied")

    monkeypatch.setattr(reachability.Plan, "_walk_data", walked)
    safepickle.deepcopy([records(), plain(), len, Record, records, threading.Lock(), lambda: 1, scaled_by(2)])


def test_the_graph_is_walked_once_however_many_closures_ask(monkeypatch):
    walks = []
    original = reachability.Plan._walk_data

    def walked(self, root):
        walks.append(root)
        return original(self, root)

    monkeypatch.setattr(reachability.Plan, "_walk_data", walked)
    model = Record(1, [], {})
    safepickle.deepcopy([model, [lambda: model for _ in range(100)]])
    assert len(walks) == 1


def test_closures_over_the_same_large_object_do_not_walk_it_again():
    config = {number: [number] for number in range(2000)}
    model = Record(1, [], {})

    def make(count):
        return [model, [lambda: (config, 1) for _ in range(count)], [lambda: model]]

    many, few = make(40), make(20)
    steps = []
    for obj in (few, many):
        steps.append(python_calls(lambda obj=obj: safepickle.deepcopy(obj)))
    assert (steps[1] - steps[0]) / 20 < 60


# -- what is imported ------------------------------------------------------------------------------------------------


def test_plain_use_imports_nothing_that_only_failures_and_code_need():
    printed = run_python("""
        import sys, safepickle
        data = [{"a": [1, 2.5], "b": ("x", {3})}, object()]
        safepickle.loads(safepickle.dumps(data))
        safepickle.deepcopy(data)
        safepickle.copy(data)
        late = ("paths", "diagnosis", "loading", "digests")
        print([name for name in late if "safepickle." + name in sys.modules])
    """)
    assert printed == "[]\n"


def test_a_failed_lookup_is_cached_like_any_other():
    assert calls_in_a_fresh_process("default_registry.rule_for(Unknown)") <= 6
