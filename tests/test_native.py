"""Does the C core of the copier do what the copier in Python does, and is it safe when Python code interferes?"""

from __future__ import annotations

import collections
import copyreg
import dataclasses
import enum
import gc
import json
import os
import sys
import threading
import types
import weakref
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import safepickle
from safepickle import copier
from safepickle._native import core, why_python
from safepickle.registry import default_registry

from .helpers import run_python
from .native_graphs import (
    REGISTRY,
    SPECS,
    ByReducer,
    ByRule,
    ByRuleInSteps,
    Caught,
    FailingRule,
    Hooked,
    OddReduce,
    Plain,
    Refuses,
    WithNew,
    WithState,
    build,
    outcome,
    pure,
)

__all__: list[str] = []

if copier.core is None:
    pytest.skip(f"the copier in Python serves: {why_python['_core']}", allow_module_level=True)

deepcopy = safepickle.deepcopy
COPIERS = pytest.mark.parametrize("deepcopy", [safepickle.deepcopy, pure], ids=["native", "python"])


# -- the same as the definition ----------------------------------------------------------------------------------------


_THERE = ("Reduced", [0, 10, 9, 8, -7])


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(SPECS)
@example([
    ("Caught", [-7, 10, 2, 3, -1]), ("deque", []), ("Plain", [14]), _THERE, ("set", [7, -7, -4, 9, -11]), _THERE,
    ("deque", []), ("bytearray", []), ("OddReduce", [1]), _THERE,
])  # what one attempt left in the memo must not be found for an object that is made later at the same address
def test_random_graphs_are_copied_as_in_python_to_the_same_shape_or_the_same_error(
    specs: list[tuple[str, list[int]]],
) -> None:
    root = build(specs)
    assert outcome(safepickle.deepcopy, root) == outcome(pure, root)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(SPECS, st.integers(0, 11))
def test_a_memo_of_the_caller_is_asked_and_told_as_in_python(specs: list[tuple[str, list[int]]], at: int) -> None:
    root = build(specs)
    known = root[at % len(root)]
    memos: list[dict[int, Any]] = [{id(known): "from the memo"}, {id(known): "from the memo"}]
    native, python = (
        outcome(copy, root, memo=memo) for copy, memo in zip((safepickle.deepcopy, pure), memos, strict=True)
    )
    assert native == python
    if isinstance(native, list):  # an error may come before or after the last entries
        ids = {id(node) for node in root}
        assert ids & set(memos[0]) == ids & set(memos[1])


# -- the memo ----------------------------------------------------------------------------------------------------------


class Looks:
    """Has a way to some other object, and copies that."""

    def __init__(self, where: Any, look: Any) -> None:
        self.where, self.look = where, look

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return types.SimpleNamespace(found=deepcopy(self.look(self.where), memo))


class Holder:
    pass


def test_a_hook_that_reaches_an_object_by_another_way_gets_the_same_copy() -> None:
    holder = Holder()
    holder.buffer = [[1]]  # nothing else refers to it, so it is in no table
    holder.looks = Looks(holder, lambda holder: holder.buffer)
    copied = deepcopy(holder)
    assert copied.looks.found is copied.buffer


def test_the_same_through_slots_tuples_sets_and_ordered_dicts() -> None:
    class Slotted:
        __slots__ = ("inner", "looks")

    slotted = Slotted()
    slotted.inner = (collections.OrderedDict(a=[{1, 2}]),)
    slotted.looks = [
        Looks(slotted, lambda slotted: slotted.inner),
        Looks(slotted, lambda slotted: slotted.inner[0]["a"]),
    ]
    copied = deepcopy(slotted)
    assert copied.looks[0].found is copied.inner
    assert copied.looks[1].found is copied.inner[0]["a"]


def test_an_object_under_construction_is_found_by_a_hook_below_it() -> None:
    holder = Holder()
    holder.looks = Looks(holder, lambda holder: holder)
    copied = deepcopy(holder)
    assert copied.looks.found is copied


def test_what_a_hook_writes_into_the_memo_counts() -> None:
    class Writes:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            memo[id(later)] = "written"
            return None

    later = [1]
    assert deepcopy([Writes(), later]) == [None, "written"]


def test_attributes_that_a_hook_gives_to_an_unfinished_copy_stay() -> None:
    class Registers:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            memo[id(holder)].seen = True
            return None

    holder = Holder()
    holder.part = Registers()
    copied = deepcopy(holder)
    assert copied.seen and copied.part is None


def test_a_hook_may_empty_the_memo_and_drop_what_is_being_copied() -> None:
    class Drops:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            memo.clear()
            outer.clear()
            gc.collect()
            return None

    outer = [[[Drops(), [1]], {"a": (Drops(), 2)}]]
    assert deepcopy(outer) == [[[None, [1]], {"a": (None, 2)}]]


@COPIERS
def test_the_dictionary_of_an_object_is_not_that_of_its_copy_where_somebody_holds_it(deepcopy: Any) -> None:
    holder = Holder()
    holder.part = []
    attributes, copied = deepcopy([holder.__dict__, holder])
    assert attributes["part"] is copied.part and attributes is not copied.__dict__


def test_a_memo_that_is_no_plain_dictionary_is_used_through_its_methods() -> None:
    class Memo(dict[int, Any]):
        def get(self, key: int, default: Any = None) -> Any:
            return "by get" if key == id(part) else super().get(key, default)

    part = [1]
    assert deepcopy([part], Memo()) == ["by get"]


def test_a_call_with_other_options_inside_a_hook_leaves_the_outer_call_as_it_was() -> None:
    class Hook:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            return [deepcopy(shared, memo, nonleaf="error"), deepcopy(shared, memo)]

    shared = [1]
    copied = deepcopy([Hook(), shared])
    assert copied[0][0] is copied[0][1] is copied[1]


# -- state methods and reduce values -----------------------------------------------------------------------------------


class Fresh:
    """Its state is made when it is asked for, and gone after the copy is made."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __getstate__(self) -> Any:
        return {"fresh": [[self.number], {"n": [self.number]}]}


class FreshReduce(Fresh):
    def __reduce__(self) -> Any:
        return type(self), (self.number,), {"fresh": [[self.number]]}, None, None


class FreshItems(list[Any]):
    def __reduce__(self) -> Any:
        return type(self), (), None, iter([[item, [item]] for item in self])


@COPIERS
def test_parts_that_exist_only_for_the_copy_are_not_taken_for_one_another(deepcopy: Any) -> None:
    source = [kind(number) for number in range(3000) for kind in (Fresh, FreshReduce)]
    assert [copied.fresh[0] for copied in deepcopy(source)] == [[number] for number in range(3000) for _ in range(2)]
    assert deepcopy(FreshItems(range(3000))) == [[number, [number]] for number in range(3000)]


@COPIERS
@pytest.mark.parametrize("name", ["__getstate__", "__setstate__", "__reduce__", "__getattr__"])
def test_a_state_method_may_drop_what_is_being_copied(deepcopy: Any, name: str) -> None:
    outer: list[Any] = []

    def drop() -> None:
        outer.clear()
        gc.collect()

    class Drops:
        def __init__(self) -> None:
            self.part = [1]

    def getstate(self: Any) -> Any:
        drop()
        return {"part": self.part}

    def setstate(self: Any, state: Any) -> None:
        drop()
        self.__dict__.update(state)

    def reduce(self: Any) -> Any:
        drop()
        return type(self), (), {"part": self.part}

    def getattr_(self: Any, name: str) -> Any:
        drop()
        raise AttributeError(name)

    methods: dict[str, Any] = {"__getstate__": getstate, "__setstate__": setstate, "__reduce__": reduce}
    setattr(Drops, name, methods.get(name, getattr_))
    outer += [[(1, [2], {"a": ((Drops(),), [3])})], [[4]]]
    copied = deepcopy(outer)
    assert copied[0][0][2]["a"][0][0].part == [1] and copied[0][0][2]["a"][1] == [3]


@COPIERS
def test_a_state_method_finds_its_object_and_its_copy_in_cycles(deepcopy: Any) -> None:
    class Cyclic:
        def __getstate__(self) -> Any:
            return {"me": self, "parts": [self, self.parts]}

    cyclic = Cyclic()
    cyclic.parts = (1, [2])
    copied = deepcopy([cyclic, cyclic.parts])
    assert copied[0].me is copied[0] and copied[0].parts[0] is copied[0]
    assert copied[0].parts[1] is copied[1]


@COPIERS
def test_a_state_that_is_nothing_is_not_restored(deepcopy: Any) -> None:
    class Stateless:
        def __getstate__(self) -> Any:
            return None

        def __setstate__(self, state: Any) -> None:
            raise AssertionError

    one = Stateless()
    one.part = 1
    assert vars(deepcopy(one)) == {}


@COPIERS
def test_a_rule_that_says_what_concerns_it_is_asked_only_then(deepcopy: Any) -> None:
    asked: list[Any] = []

    def reduce(x: Any) -> Any:
        asked.append(x)
        return (Plain, (), {"by": "rule"})

    registry = safepickle.Registry()
    registry.add(Plain, reduce, concerns=("hooks", "extra"))
    without, empty, hooked = Plain(), Plain(), Plain()
    empty.hooks, empty.extra = {}, None
    hooked.hooks = {1: 2}
    empty.me = empty
    copied = deepcopy([without, empty, hooked], registry=registry)
    assert asked == [hooked] and copied[2].by == "rule"
    assert type(copied[0]) is Plain and copied[1].me is copied[1] is not empty and copied[1].hooks is not empty.hooks


# -- plans -------------------------------------------------------------------------------------------------------------


def test_a_hook_that_a_class_gets_later_is_used() -> None:
    class Changed:
        pass

    assert type(deepcopy(Changed())) is Changed
    Changed.__deepcopy__ = lambda self, memo: "hook"
    assert deepcopy(Changed()) == "hook"
    del Changed.__deepcopy__
    assert type(deepcopy(Changed())) is Changed


def test_a_hook_that_a_base_gets_in_the_middle_of_a_copy_is_used() -> None:
    class Base:
        pass

    class Derived(Base):
        pass

    class Changes:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            Base.__reduce_ex__ = lambda self, protocol: (str, ("reduced",))
            return None

    assert deepcopy([Derived(), Changes(), Derived()])[2] == "reduced"


@pytest.mark.parametrize("cls", [type("Registered", (), {}), set, bytearray, collections.OrderedDict])
def test_a_copyreg_entry_that_comes_later_is_used(cls: type) -> None:
    assert type(deepcopy(cls())) is cls
    copyreg.pickle(cls, lambda x: (str, ("registered",)))  # type: ignore[arg-type]
    try:
        assert deepcopy([cls()]) == ["registered"]
    finally:
        del copyreg.dispatch_table[cls]
    assert type(deepcopy(cls())) is cls


@pytest.mark.parametrize("own_registry", [False, True])
def test_a_rule_that_comes_in_the_middle_of_a_copy_is_used(own_registry: bool) -> None:
    class Ruled:
        pass

    registry = safepickle.Registry() if own_registry else default_registry

    class Registers:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            registry.register(Ruled, copy=lambda x, memo: "by rule")
            return None

    try:
        assert deepcopy([Ruled(), Registers(), Ruled()], registry=registry)[2] == "by rule"
    finally:
        registry.unregister(Ruled)
    assert type(deepcopy(Ruled(), registry=registry)) is Ruled


def test_rules_of_one_registry_do_not_leak_into_calls_with_another() -> None:
    mine = safepickle.Registry()
    mine.register(Plain, copy=lambda x, memo: "mine")
    assert deepcopy(Plain(), registry=mine) == "mine"
    assert type(deepcopy(Plain())) is Plain
    assert deepcopy(Plain(), registry=mine) == "mine"


def test_rules_for_builtin_types_are_used_for_keys_values_and_items() -> None:
    mine = safepickle.Registry()
    mine.register(int, copy=lambda x, memo: x + 1)
    mine.register(str, copy=lambda x, memo: x.upper())
    holder = Holder()
    holder.number = 1
    source = {1: [2], "a": (3,), "s": {4}, "o": collections.OrderedDict(k=5), "h": holder}
    copied = deepcopy(source, registry=mine)
    assert copied.pop("H").NUMBER == 2
    assert copied == {2: [3], "A": (4,), "S": {5}, "O": {"K": 6}}


def test_classes_that_come_and_go_at_one_address_are_told_apart() -> None:
    for round_ in range(300):
        plain = type("Gone", (), {})
        assert type(deepcopy(plain())) is plain
        del plain
        hooked = type("Gone", (), {"__deepcopy__": lambda self, memo, round_=round_: round_})
        assert deepcopy(hooked()) == round_
        del hooked
        slotted = type("Gone", (), {"__slots__": ("a",)})
        x = slotted()
        x.a = [round_]
        assert deepcopy(x).a == [round_]
        del slotted, x
        gc.collect(0)


@COPIERS
@pytest.mark.parametrize("name", ["__deepcopy__", "__reduce_ex__"])
def test_a_hook_of_one_instance_is_used(deepcopy: Any, name: str) -> None:
    holder = Holder()
    by_name = {"__deepcopy__": lambda memo: "own", "__reduce_ex__": lambda protocol: (str, ("own",))}
    holder.__dict__["".join(name)] = by_name[name]
    assert deepcopy([holder, Holder()])[0] == "own"


def test_a_hook_of_one_enum_member_is_used() -> None:
    Odd = enum.Enum("Odd", "A B")
    Odd.A.__dict__["__deepcopy__"] = lambda memo: "own"
    assert deepcopy([Odd.A, Odd.B], registry=safepickle.Registry.empty()) == ["own", Odd.B]


@COPIERS
def test_a_shared_object_is_what_the_memo_says(deepcopy: Any) -> None:
    registry = safepickle.Registry()
    registry.register(Plain, copy=safepickle.SHARE)
    plain, Colours = Plain(), enum.Enum("Colours", "A")
    assert deepcopy([plain, Colours.A], {id(plain): 1, id(Colours.A): 2}, registry=registry) == [1, 2]


@COPIERS
def test_a_function_is_shared_where_it_holds_only_atoms(deepcopy: Any) -> None:
    holder = Holder()

    def plain(a: int = 1, *, b: str = "b") -> Any:
        return a, b

    def holding(a: Any = holder, *, b: Any = (holder,)) -> Any:
        return a, b

    copied = deepcopy([holder, plain, holding])
    assert copied[1] is plain and copied[2] is not holding
    assert copied[2]()[0] is copied[0] and copied[2](1)[1][0] is copied[0]
    assert deepcopy([plain], {id(plain): "from the memo"}) == ["from the memo"]
    plain.note = holder  # type: ignore[attr-defined]
    assert deepcopy([holder, plain])[1].note is not holder


@COPIERS
def test_classes_whose_metaclass_makes_them_equal_or_unhashable_are_told_apart(deepcopy: Any) -> None:
    class Same(type):
        def __eq__(cls, other: object) -> bool:
            return True

        def __hash__(cls) -> int:
            return 1

    one = Same("one", (), {"__deepcopy__": lambda self, memo: "one"})
    other = Same("other", (), {})
    assert deepcopy(one()) == "one"
    assert type(deepcopy([other()])[0]) is other


# -- Python code that runs in between ----------------------------------------------------------------------------------


class Key:
    """Its hash drops whatever `drop` says."""

    drop: Any = staticmethod(lambda: None)

    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        Key.drop()
        return 1

    def __eq__(self, other: object) -> bool:
        Key.drop()
        return isinstance(other, Key) and getattr(other, "name", None) == getattr(self, "name", None)


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
def test_the_hash_of_a_key_may_drop_what_is_being_copied(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(50):
        rows: list[Any] = [[[i], {"a": [i]}] for i in range(20)]
        table = kind((Key(str(i)), [i]) for i in range(5))
        source = [rows, table, [1]]

        def drop(source: list[Any] = source, rows: list[Any] = rows) -> None:
            source.clear()
            rows.clear()
            gc.collect(0)

        with monkeypatch.context() as patch:
            patch.setattr(Key, "drop", staticmethod(drop))
            copied = deepcopy(source)
        assert copied[0] == [[[i], {"a": [i]}] for i in range(20)] or copied[0] == []
        assert sorted(copied[1].values()) == [[i] for i in range(5)]


@COPIERS
@pytest.mark.parametrize("change", ["grow", "shrink", "clear"])
@pytest.mark.parametrize("kind", [list, dict, set, collections.OrderedDict, "instance"])
def test_a_container_that_a_hook_changes_gives_what_iterating_over_it_gives(
    deepcopy: Any, change: str, kind: Any
) -> None:
    class Changes:
        __hash__ = object.__hash__

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            if change == "clear":
                target.clear()
            elif isinstance(target, dict):
                target.update({"new": 1}) if change == "grow" else target.popitem()
            elif isinstance(target, set):
                target.add("new") if change == "grow" else target.discard(1)
            else:
                target.append("new") if change == "grow" else target.pop()
            return "copied"

    parts = [1, Changes(), 2, 3]
    if kind == "instance":
        source: Any = Holder()
        source.__dict__.update({f"a{at}": part for at, part in enumerate(parts)})
    else:
        source = kind(parts) if kind in (list, set) else kind(enumerate(parts))
    target = source.__dict__ if kind == "instance" else source
    try:
        said = deepcopy(source)
    except Exception as error:
        said = error
    if kind is list:
        assert said == {"grow": [1, "copied", 2, 3, "new"], "shrink": [1, "copied", 2], "clear": [1, "copied"]}[change]
    elif kind is set:
        assert said == {1, "copied", 2, 3}
    else:
        assert isinstance(said, RuntimeError), said
        assert "during iteration" in str(said)


def test_threads_that_change_what_is_copied_do_no_harm() -> None:
    stop = threading.Event()
    shared: list[Any] = [[[i], {"k": (i, [i])}, Holder()] for i in range(50)]
    failures: list[BaseException] = []

    class Yields:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            stop.wait(0.0001)
            return None

    def change() -> None:
        i = 0
        while not stop.is_set():
            i += 1
            shared[i % len(shared)] = [[i], {"k": (i, [i])}, Holder(), Yields()]
            cls = type("New", (), {})  # its plan has to be asked for in the middle
            shared[(i * 7) % len(shared)] = [cls(), Key("k"), {Key(str(i)): [i]}]

    def copy() -> None:
        try:
            for _ in range(150):
                rows = deepcopy(shared)
                assert len(rows) == len(shared)
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        changer = threading.Thread(target=change)
        copiers = [threading.Thread(target=copy) for _ in range(3)]
        for thread in (changer, *copiers):
            thread.start()
        for thread in copiers:
            thread.join(60)
        stop.set()
        changer.join(60)
    finally:
        sys.setswitchinterval(interval)
        stop.set()
    assert not failures and gc.isenabled()


def test_a_thread_that_a_hook_starts_copies_parts_with_the_memo() -> None:
    class Hands:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            made: list[Any] = []
            thread = threading.Thread(target=lambda: made.append(deepcopy(shared, memo)))
            thread.start()
            thread.join(60)
            return made

    shared: list[Any] = [1]
    copied = deepcopy([Hands(), shared])
    assert copied[0][0] is copied[1]


def test_a_thread_may_still_copy_with_the_memo_when_the_call_has_ended() -> None:
    go, begun = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []
    made: list[Any] = []

    class Waits:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            begun.set()
            go.wait(60)
            return "waited"

    class Hands:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            source = [[Waits(), [1]], [2]]
            threads.append(threading.Thread(target=lambda: made.append(deepcopy(source, memo))))
            threads[0].start()
            begun.wait(60)
            return None

    assert deepcopy([Hands(), 3]) == [None, 3]
    deepcopy([[4]] * 100)
    go.set()
    threads[0].join(60)
    assert made == [[["waited", [1]], [2]]]


def test_calls_that_end_in_another_order_than_they_began_find_their_own_memo() -> None:
    greenlet = pytest.importorskip("greenlet")
    results: dict[str, Any] = {}

    class Switches:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            main.switch()
            return deepcopy(self.part, memo)

    def run(name: str) -> None:
        x = Switches()
        x.part = [name]
        results[name] = deepcopy([[name], x, x.part])

    main = greenlet.getcurrent()
    tasks = [greenlet.greenlet(run) for _ in range(3)]
    for number, task in enumerate(tasks):
        task.switch(str(number))
    for task in tasks:
        task.switch()
    for name, copied in results.items():
        assert copied == [[name], [name], [name]] and copied[1] is copied[2]
    assert len(results) == 3


@pytest.mark.parametrize("collects", [True, False])
def test_the_garbage_collector_is_as_it_was_also_within_hooks_and_after_errors(collects: bool) -> None:
    class Asks:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            return gc.isenabled()

    class Raises:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            raise ValueError

    was = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        assert deepcopy([[1], Asks(), [Asks()]]) == [[1], collects, [collects]]
        with pytest.raises(ValueError):
            deepcopy([[1], Raises()])
        deepcopy([[1]])
        assert gc.isenabled() is collects
    finally:
        (gc.enable if was else gc.disable)()


def test_a_finalizer_of_a_half_made_copy_runs_after_the_error() -> None:
    ended: list[Any] = []

    class Ends:
        def __del__(self) -> None:
            ended.append(deepcopy([1, {2: [3]}]))

    class Raises:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            raise ValueError("no")

    source = [Ends(), Raises()]
    with pytest.raises(ValueError, match="no"):
        deepcopy(source)
    gc.collect()
    assert ended == [[1, {2: [3]}]]


# -- what a hook sees, and what is left behind -------------------------------------------------------------------------


@COPIERS
def test_the_memo_that_a_hook_sees_is_a_dictionary_for_any_key(deepcopy: Any) -> None:
    class Notes:
        def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
            assert type(memo) is dict
            memo.setdefault("library", {})[1] = "noted"
            return memo["library"]

    notes = Notes()
    copied = deepcopy([[1], notes, (notes, [Notes()])])
    assert copied[1] == {1: "noted"} and copied[1] is copied[2][1][0]


class Peeks:
    """Notes what the unfinished copies of some objects look like when its hook is called."""

    def __init__(self, *watched: Any) -> None:
        self.watched = watched
        self.seen: list[Any] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        for x in self.watched:
            copied = memo.get(id(x))
            self.seen.append(vars(copied).copy() if hasattr(copied, "__dict__") else copied.copy() if copied else None)
        return "peeked"


@COPIERS
@pytest.mark.parametrize("size", [3, 40])
def test_a_hook_finds_the_items_that_were_copied_before_it(deepcopy: Any, size: int) -> None:
    outer: Any = {f"k{number}": [number] if number % 2 else number for number in range(size)}
    inner: list[Any] = [[1], 2]
    counted = collections.defaultdict(list, {"a": [1]})
    peeks = Peeks(outer, inner, counted)
    counted["peeks"] = inner
    outer.update(counted=counted, after=[3], end=4)
    inner += [peeks, [5]]
    expected = {name: value for name, value in outer.items() if name not in ("counted", "after", "end")}
    copied = deepcopy(outer)
    assert peeks.seen == [expected, [[1], 2], {"a": [1]}]
    assert list(copied) == list(outer) and copied["after"] == [3] and copied["end"] == 4
    assert copied["counted"]["peeks"] == [[1], 2, "peeked", [5]]
    assert all(copied[name] is not outer[name] for name, value in outer.items() if isinstance(value, list))


@COPIERS
def test_a_hook_finds_an_instance_without_attributes_before_it_has_all(deepcopy: Any) -> None:
    holder = Holder()
    holder.first = [1]
    holder.peeks = Peeks(holder)
    holder.last = [2]
    copied = deepcopy(holder)
    assert holder.peeks.seen == [{}]
    assert list(vars(copied)) == ["first", "peeks", "last"] and copied.last == [2]


@COPIERS
def test_attributes_that_come_and_go_while_they_are_copied(deepcopy: Any) -> None:
    class Changes:
        def __init__(self, change: Any) -> None:
            self.change = change

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            self.change(holder)
            return "copied"

    def rename(holder: Any) -> None:
        del holder.last
        holder.new = [3]

    holder = Holder()
    holder.first, holder.changes, holder.last = [1], Changes(lambda holder: holder.__dict__), [2]
    assert vars(deepcopy(holder)) == {"first": [1], "changes": "copied", "last": [2]}
    holder = Holder()
    holder.first, holder.changes, holder.last = [1], Changes(lambda holder: setattr(holder, "last", [9])), [2]
    assert vars(deepcopy(holder)) == {"first": [1], "changes": "copied", "last": [9]}
    holder = Holder()
    holder.first, holder.changes, holder.last = [1], Changes(rename), [2]
    assert vars(deepcopy(holder)) == {"first": [1], "changes": "copied", "new": [3]}


class Odd:
    """Classes of which something else than attributes decides how instances are copied."""

    class ByGetattr:
        def __getattr__(self, name: str) -> Any:
            if name == "__deepcopy__":
                return lambda memo: "by __getattr__"
            raise AttributeError(name)

    class ByNew:
        def __new__(cls, *arguments: Any) -> Any:
            made = super().__new__(cls)
            made.__dict__["made"] = True
            return made

    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            return super().__getattribute__(name)

    class ByMetaclass(metaclass=Meta):
        pass

    class OtherDict:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            return {"other": [1]}

    class Validated:
        __slots__ = ("part",)

        def __setattr__(self, name: str, value: Any) -> None:
            object.__setattr__(self, name, (value, "set"))

    class Shadowed:
        @property
        def part(self) -> Any:
            return self.__dict__["part"]

        @part.setter
        def part(self, value: Any) -> None:
            raise AssertionError

    class Attribute:
        def __getattribute__(self, name: str) -> Any:
            return super().__getattribute__(name)

    class Pretends:
        @property
        def __class__(self) -> Any:  # type: ignore[override]
            return int

    class Exceptional(Exception):
        pass

    class Listed(list[Any]):
        pass


@pytest.mark.parametrize("name", [name for name in vars(Odd) if not name.startswith("_") and name != "Meta"])
def test_classes_with_a_say_in_how_they_are_copied_have_it(name: str) -> None:
    cls = getattr(Odd, name)
    x = cls()
    for attribute in ("part", "more"):
        try:
            object.__getattribute__(x, "__dict__")[attribute] = [1]
        except AttributeError:
            setattr(x, attribute, [1]) if attribute == "part" else None
    other, mine, theirs = pure([x, [x]]), deepcopy([x, [x]]), __import__("copy").deepcopy([x, [x]])
    for copied in (other, mine):
        assert type(copied[0]) is type(theirs[0]) and copied[1][0] is copied[0]
        slots = getattr(copied[0], "part", None) == getattr(theirs[0], "part", None)
        assert slots and getattr(copied[0], "__dict__", None) == getattr(theirs[0], "__dict__", None)


def test_the_original_is_left_without_a_dictionary_of_its_own() -> None:
    if sys.version_info < (3, 11) or sys.version_info >= (3, 14) or os.environ.get("SAFEPICKLE_PORTABLE"):
        pytest.skip("this is only possible where the layout of instances is known")

    class Leaf:
        def __init__(self, number: int) -> None:
            self.number, self.name, self.parts = number, "n", [number]

    def has_dictionary(x: Any) -> bool:
        return any(type(part) is dict for part in gc.get_referents(x))

    source = [Leaf(number) for number in range(20)]
    copied = deepcopy(source)
    assert [vars(x) for x in copied] == [{"number": n, "name": "n", "parts": [n]} for n in range(20)]
    assert not any(has_dictionary(x) for x in source)
    copied = deepcopy(source)
    assert not any(has_dictionary(x) for x in copied)
    for x in source:
        assert x.__dict__["name"] == "n"
    assert not any(has_dictionary(x) for x in deepcopy(source))


@COPIERS
def test_instances_in_every_state_of_their_dictionary_are_copied(deepcopy: Any) -> None:
    class One:
        pass

    class Other:
        pass

    def make(count: int, cls: type = One) -> Any:
        x = cls()
        for number in range(count):
            setattr(x, f"a{number}", [number])
        return x

    states = [make(count) for count in (0, 1, 5, 29, 30, 31, 40)]
    changed = make(3)
    changed.__class__ = Other
    renamed = make(4)
    del renamed.a1
    renamed.a1 = "last"
    read, replaced, foreign, popped = make(3), make(3), make(3), make(3)
    assert read.__dict__
    replaced.__dict__ = {"b": [1], "a0": [2]}
    foreign.__dict__[1] = [1]
    popped.__dict__.popitem()
    backwards = One()
    backwards.a2, backwards.a0 = [2], [0]
    states += [changed, renamed, read, replaced, foreign, popped, backwards, make(2, Other), One()]
    for _ in range(2):
        copied = deepcopy(states)
        assert [type(x) for x in copied] == [type(x) for x in states]
        assert [list(vars(x).items()) for x in copied] == [list(vars(x).items()) for x in states]
        for old, new in zip(states, copied, strict=True):
            assert not any(vars(new)[name] is value for name, value in vars(old).items() if type(value) is list)
            new.added = 1
            assert not hasattr(old, "added")


@pytest.mark.parametrize("kind", ["text", "numbers", "mixed"])
def test_a_copied_dictionary_takes_no_more_memory_than_the_original(kind: str) -> None:
    keys = {"text": [f"k{n}" for n in range(100)], "numbers": list(range(100)), "mixed": [1, "a", None, 2.5]}[kind]
    source = {key: [1] for key in keys}
    assert sys.getsizeof(deepcopy(source)) <= sys.getsizeof(source.copy())


def test_nothing_is_kept_after_a_large_copy() -> None:
    code = """
        import safepickle, tracemalloc
        shared = [[n] for n in range(50_000)]
        source = [shared, list(shared), [[n] for n in range(50_000)]]
        safepickle.deepcopy([[1], {"a": [2]}])
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        safepickle.deepcopy(source)
        print(tracemalloc.get_traced_memory()[0] - before)
    """
    assert int(run_python(code)) < 20_000


@pytest.mark.parametrize("kind", ["instances", "records"])
def test_a_copy_takes_hardly_more_memory_while_it_is_made_than_afterwards(kind: str) -> None:
    code = f"""
        import safepickle, tracemalloc
        class Leaf:
            def __init__(self, n): self.n, self.name, self.part = n, "n", 1.5
        make = {{"instances": Leaf, "records": lambda n: {{"id": n, "tags": ["a", "b"], "at": {{"x": n}}}}}}
        source = [make[{kind!r}](n) for n in range(20_000)]
        safepickle.deepcopy(source[:3])
        tracemalloc.start()
        copied = safepickle.deepcopy(source)
        size, peak = tracemalloc.get_traced_memory()
        print(peak / size)
    """
    portable = sys.version_info < (3, 11) or bool(os.environ.get("SAFEPICKLE_PORTABLE"))
    assert float(run_python(code)) < (1.6 if portable else 1.16)


def test_deepcopy_looks_like_the_function_that_it_is() -> None:
    import inspect
    import pickle

    assert list(inspect.signature(safepickle.deepcopy).parameters) == list(
        inspect.signature(copier._deepcopy).parameters
    )
    assert safepickle.deepcopy.__module__ == "safepickle.copier" and safepickle.deepcopy.__name__ == "deepcopy"
    assert safepickle.deepcopy.__doc__ == copier._deepcopy.__doc__
    assert pickle.loads(pickle.dumps(safepickle.deepcopy)) is safepickle.deepcopy is copier.deepcopy


def test_a_setting_of_the_default_registry_is_seen_by_the_shortest_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(default_registry.settings, "nonleaf", "nonsense")
    with pytest.raises(ValueError, match="nonleaf"):
        deepcopy([[1]])


def test_plans_by_the_rules_of_another_registry_are_asked_for_once() -> None:
    asked: list[type] = []

    class Watched(safepickle.Registry):
        def rules_for(self, cls: type, verb: Any) -> Any:
            asked.append(cls)
            return super().rules_for(cls, verb)

    registry = Watched()
    source = [[Plain()], {"a": (1, 2.5)}]
    deepcopy(source, registry=registry)
    first = len(asked)
    deepcopy(source, registry=registry)
    assert len(asked) == first > 0
    registry.register(Plain, copy=lambda x, memo: "by rule")
    assert deepcopy(source, registry=registry)[0] == ["by rule"]
    gone = weakref.ref(registry)
    del registry
    gc.collect()
    assert gone() is None


# -- depth -------------------------------------------------------------------------------------------------------------

DEEP = """
    import safepickle, sys, threading
    from safepickle import copier
    assert copier.core is not None

    class Node:
        def __init__(self, next): self.next = next
    class Slotted:
        __slots__ = ("next",)
        def __init__(self, next): self.next = next

    def nested(depth, wrap):
        x = None
        for _ in range(depth):
            x = wrap(x)
        return x

    WAYS = {list: lambda x: [x], dict: lambda x: {"k": x}, tuple: lambda x: (x, []), Node: Node, Slotted: Slotted}

    def inner(x):
        return x[0] if type(x) in (list, tuple) else x["k"] if type(x) is dict else x.next

    def check(depth):
        for wrap in WAYS.values():
            source = nested(depth, wrap)
            copied = safepickle.deepcopy(source)
            for _ in range(depth):
                assert copied is not source and type(copied) is type(source)
                source, copied = inner(source), inner(copied)
            assert copied is None

    def run():
        try:
            check(int(sys.argv[1]))
            done.append(True)
        except BaseException as error:
            done.append(error)

    done = []
    if size := int(sys.argv[2]):
        threading.stack_size(size)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    else:
        run()
    print(done)
"""


@pytest.mark.parametrize("depth", [3_000, 40_000])
@pytest.mark.parametrize("stack", [0, 512 << 10, 256 << 10])
def test_nesting_of_any_depth_is_copied_on_any_stack(depth: int, stack: int) -> None:
    assert run_python(DEEP, args=[str(depth), str(stack)]).strip() == "[True]"


def test_an_object_without_an_end_is_an_error_and_no_crash() -> None:
    class Endless:
        def __reduce_ex__(self, protocol: int) -> Any:
            return Endless, (), {"next": [Endless()]}

    memo: dict[int, Any] = {}
    with pytest.raises(RecursionError):
        deepcopy(Endless(), memo)


# -- nothing is left over ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class Row:
    name: str
    cells: list[int]


def sources() -> dict[str, Any]:
    """One of each way through the core, errors included."""
    holder = Holder()
    holder.me, holder.row = holder, Row("r", [1])
    many = type("Many", (), {"__slots__": tuple(f"s{i}" for i in range(20))})()
    for i in range(20):
        setattr(many, f"s{i}", [i])
    by_kind = {}
    for kind in (ByRule, ByRuleInSteps, ByReducer, Caught, Hooked, WithNew, WithState):
        by_kind[kind.__name__] = kind()
        by_kind[kind.__name__].parts = [[1], holder, Row("x", [])]
    by_kind["Caught"].parts.append(Refuses())
    failing = {kind.__name__: [[1], {"a": kind()}] for kind in (OddReduce, Refuses, FailingRule)}
    failing["FailingRule"][1]["a"].parts = [1]  # type: ignore[index]
    return {
        "builtins": [1, [2], {"a": (3, [4])}, {5, (6, 7)}, frozenset([8]), bytearray(b"9")],
        "ordered": collections.OrderedDict(a=[1], b={2: (3, [4])}),
        "keys": {Key("a"): [1], (1, "b"): {Key("c"): 2}, None: {Key("d")}},
        "instances": [holder, many, [Row("a", [1]), Row("b", [2])]],
        **by_kind, **failing,
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(sources()))
def test_no_object_and_no_reference_is_left_over(name: str) -> None:
    source = sources()[name]
    marker = object()
    holding = [source, marker]

    def copy_it() -> None:
        try:
            deepcopy(holding, registry=REGISTRY)
        except Exception:
            pass

    for _ in range(20):
        copy_it()
    watched = [source, type(source), None, 1, "a", Row, Holder, Plain, REGISTRY, *(gc.get_referents(source))]
    gc.collect()
    before, objects = [sys.getrefcount(x) for x in watched], len(gc.get_objects())
    for _ in range(200):
        copy_it()
    gc.collect()
    after, objects_after = [sys.getrefcount(x) for x in watched], len(gc.get_objects())
    assert all(abs(new - old) < 50 for old, new in zip(before, after, strict=True)), (before, after)
    assert abs(objects_after - objects) < 50


def test_a_copy_is_freed_with_its_last_reference() -> None:
    holder = Holder()
    holder.row = [Row("a", [1])]
    copied = deepcopy([holder, {"h": holder}])
    gone = weakref.ref(copied[0])
    del copied
    gc.collect()
    assert gone() is None


def test_the_memory_of_the_process_stays_flat() -> None:
    code = """
        import resource, safepickle
        from tests.test_native import sources
        from tests.native_graphs import REGISTRY
        source = list(sources().values())[:3] + [[[i] for i in range(60_000)], {str(i): [i] for i in range(20_000)}]
        rss = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(5): safepickle.deepcopy(source, registry=REGISTRY)
        before = rss()
        for _ in range(30): safepickle.deepcopy(source, registry=REGISTRY)
        print(rss() - before)
    """
    pytest.importorskip("resource")
    assert int(run_python(code)) < 4_000  # kB; one copy is 10 MB


@COPIERS
def test_a_second_attempt_does_not_keep_what_is_copied(deepcopy: Any) -> None:
    bottom = Holder()
    gone = weakref.ref(bottom)
    root: list[Any] = [bottom]
    for _ in range(60_000):
        root = [root]
    gc.collect()
    gc.disable()
    try:
        deepcopy(root)
        del bottom, root
        assert gone() is None
    finally:
        gc.enable()


def test_what_is_copied_is_collected_and_tracked_like_any_object() -> None:
    cycle: list[Any] = [(), {}]
    cycle[0] = (cycle, [1])
    copied = deepcopy(cycle)
    assert gc.is_tracked(copied) and gc.is_tracked(copied[0])
    holder = Holder()
    holder.cycle = copied
    gone = weakref.ref(holder)
    copied.append(holder)
    del copied, holder
    gc.collect()
    assert gone() is None


def test_the_core_is_refused_to_a_second_copy_of_the_package() -> None:
    with pytest.raises(ImportError, match="another copy"):
        core.setup(copier, sys.modules["safepickle.registry"])


@pytest.mark.parametrize("pure_only", [False, True])
def test_the_environment_keeps_to_python(pure_only: bool) -> None:
    code = """
        import safepickle
        from safepickle import copier
        from safepickle.__main__ import main
        print(copier.core is None, safepickle.deepcopy([[1]]))
        main(["doctor", "--json"])
    """
    said, doctor = run_python(code, env={"SAFEPICKLE_PURE": "1" if pure_only else None}).split("\n", 1)
    assert said == f"{pure_only} [[1]]"
    used = next(row["version"] for row in json.loads(doctor) if row["what"] == "copier")
    assert used == ("python" if pure_only else "native")
