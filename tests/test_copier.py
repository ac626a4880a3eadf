"""Does deepcopy do what copy.deepcopy does, to the last detail that a program can see, in Python and in C?"""

from __future__ import annotations

import abc
import array
import collections
import copy
import copyreg
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import gc
import operator
import random
import re
import sys
import threading
import types
import uuid
import weakref

import pytest
from hypothesis import given, settings

import safepickle
from safepickle import Registry, copier
from safepickle.registry import default_registry
from tests import graphs
from tests.helpers import call_with_timeout


@pytest.fixture(autouse=True, params=["python", "native"] if copier.core is not None else ["python"])
def implementation(request, monkeypatch):
    """Every test runs on the copier in Python, which is the definition, and on its twin in C where that is built."""
    if request.param == "python":
        monkeypatch.setattr(copier, "core", None)


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """Whatever happened in a test, no call is thought to be running after it."""
    yield
    assert copier._running == {}
    assert default_registry._live == set()


# -- the zoo ---------------------------------------------------------------------------------------------------------


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Slots:
    __slots__ = ("a", "b")


class SlotsWithDict(Slots):
    pass


class SlotsWithWeak:
    __slots__ = ("a", "__weakref__")


class MangledSlots:
    __slots__ = ("__a",)

    def __init__(self):
        self.__a = [1]

    def value(self):
        return self.__a


class SlotsWithSetattr:
    __slots__ = ("a", "log")

    def __setattr__(self, name, value):
        object.__setattr__(self, name, ("set", value) if name == "a" else value)


class WithSetattr:
    """Attributes are put into the dictionary of a copy, past this."""

    def __setattr__(self, name, value):
        object.__setattr__(self, name, ("set", value))


class WithProperty:
    def __init__(self):
        self.__dict__["value"] = [1]

    @property
    def value(self):
        return ("property", self.__dict__["value"])


@dataclasses.dataclass
class Data:
    a: int = 1
    b: list = dataclasses.field(default_factory=lambda: [1])


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: object = None
    b: object = None


class WithGetattr:
    """As `torch.nn.Module` and many proxies."""

    def __init__(self):
        self.values = {"x": [1]}

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.values[name]


class GetattrBringsTheHook:
    """Finds `__deepcopy__` through `__getattr__`, as mocks do."""

    def __getattr__(self, name):
        if name == "__deepcopy__":
            return lambda memo: "by __getattr__"
        raise AttributeError(name)


class WithGetattribute:
    def __init__(self):
        self.a = [1]

    def __getattribute__(self, name):
        return object.__getattribute__(self, name)


class WithReduce:
    def __init__(self, a=1):
        self.a, self.made = a, "init"

    def __reduce__(self):
        return WithReduce, (self.a,), {"made": "state"}


class WithReduceEx:
    def __init__(self, a=1):
        self.a = a

    def __reduce_ex__(self, protocol):
        return WithReduceEx, (protocol,)


class WithGetstate:
    def __init__(self):
        self.a, self.b = [1], [2]

    def __getstate__(self):
        return {"a": self.a}


class WithFalseState:
    def __init__(self):
        self.a = [1]

    def __getstate__(self):
        return False

    def __setstate__(self, state):
        self.state = state


class WithSetstate:
    def __init__(self):
        self.a = [1]

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.restored = True


class WithSlotState(Slots):
    def __getstate__(self):
        return {"x": 1}, {"a": [2]}


class WithNewArgs(str):
    def __new__(cls, a):
        self = super().__new__(cls, a)
        self.made_with = a
        return self

    def __getnewargs__(self):
        return (str(self),)


class WithNewArgsEx:
    def __new__(cls, *, a):
        self = super().__new__(cls)
        self.a = a
        return self

    def __getnewargs_ex__(self):
        return (), {"a": self.a}


class WithNew:
    def __new__(cls):
        self = super().__new__(cls)
        self.made = "new"
        return self


class WithInit:
    calls = 0

    def __init__(self):
        type(self).calls += 1


class WithDictProperty:
    """Shows another dictionary than it has."""

    def __init__(self):
        object.__getattribute__(self, "__dict__")["a"] = [1]

    @property
    def __dict__(self):
        return {"shown": True}


class WithDeepcopy:
    def __init__(self):
        self.a = [1]

    def __deepcopy__(self, memo):
        made = WithDeepcopy()
        made.a = ("hook", copy.deepcopy(self.a, memo))
        return made


class WithCopy:
    """What `__copy__` does is of no concern to deepcopy."""

    def __init__(self):
        self.a = [1]

    def __copy__(self):
        return "by __copy__"


class NoHook:
    __deepcopy__ = None

    def __init__(self):
        self.a = [1]


class Abstract(abc.ABC):
    @abc.abstractmethod
    def method(self):
        pass


class Concrete(Abstract):
    def __init__(self):
        self.a = [1]

    def method(self):
        return self.a


class MetaGetattr(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class OfMetaGetattr(metaclass=MetaGetattr):
    def __init__(self):
        self.a = [1]


class MetaDeepcopy(type):
    def __deepcopy__(cls, memo):
        raise AssertionError("classes are their own copies")


class OfMetaDeepcopy(metaclass=MetaDeepcopy):
    def __init__(self):
        self.a = [1]


class MyList(list):
    pass


class MyDict(dict):
    pass


class MySet(set):
    pass


class MyFrozenSet(frozenset):
    pass


class MyTuple(tuple):
    pass


class MyInt(int):
    pass


class MyStr(str):
    pass


class MyBytearray(bytearray):
    pass


class MyDeque(collections.deque):
    pass


class MyOrderedDict(collections.OrderedDict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.attribute = [1]


class MyException(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} {b}")
        self.a, self.b = a, b

    def __reduce__(self):
        return MyException, (self.a, self.b)


class Point(collections.namedtuple("Point", "x y")):  # noqa: PYI024
    __slots__ = ()


class Color(enum.Enum):
    RED = [1]


class OfCopyreg:
    def __init__(self, a=1):
        self.a = a


class AsOther:
    """Says that it is of another class."""

    def __init__(self):
        self.a = [1]

    @property
    def __class__(self):
        return Plain


class Node:
    def __init__(self):
        self.next = self


def with_attributes(obj, **attributes):
    obj.__dict__.update(attributes)
    return obj


def slots(cls, **attributes):
    obj = cls()
    for name, value in attributes.items():
        setattr(obj, name, value)
    return obj


def list_cycle():
    items = [1]
    items.append(items)
    return items


def dict_cycle():
    table = {"a": 1}
    table["self"] = table
    return table


def tuple_cycle():
    inner = []
    outer = (inner, 1)
    inner.append(outer)
    return outer


def mixed_cycle():
    node, table, items = Node(), {}, []
    node.next, table["items"] = table, items
    items.extend([node, (node, table), Point(items, node)])
    return node


def frozen_cycle():
    box = []
    it = Frozen(box)
    box.append(it)
    return it


def deque_cycle():
    it = collections.deque([1])
    it.append(it)
    return it


def shared():
    part = [1]
    return [part, part, (part,), {"a": part}, Plain(a=part), part]


def shared_tuple():
    part = ([1], 2)
    return [part, part, [part]]


ZOO = {
    "None": lambda: None,
    "numbers": lambda: [1, 2.5, 3j, True, 10**30],
    "text": lambda: ["a", b"b", "ä"],
    "constants": lambda: [Ellipsis, NotImplemented, range(3), slice(1, [2])],
    "classes and functions": lambda: [int, Plain, len, with_attributes, Color, type, object],
    "list": lambda: [[1], [2, [3]]],
    "dict": lambda: {"a": [1], (1, 2): {"b": 2}, 3: (4, [5])},
    "tuple": lambda: ((1, 2), ([1], 2), ()),
    "immutable tuple": lambda: ((1, "a"), (2, (3, None))),
    "set": lambda: {1, "a", (1, 2)},
    "frozenset": lambda: frozenset({1, frozenset({2})}),
    "bytearray": lambda: bytearray(b"abc"),
    "array": lambda: array.array("i", [1, 2]),
    "deque": lambda: collections.deque([[1], 2], 5),
    "OrderedDict": lambda: collections.OrderedDict(a=[1], b=2),
    "defaultdict": lambda: collections.defaultdict(list, a=[1]),
    "Counter": lambda: collections.Counter("abca"),
    "ChainMap": lambda: collections.ChainMap({"a": [1]}, {"b": 2}),
    "UserDict": lambda: collections.UserDict(a=[1]),
    "SimpleNamespace": lambda: types.SimpleNamespace(a=[1]),
    "enum": lambda: [Color.RED, re.IGNORECASE],
    "numbers of the library": lambda: [decimal.Decimal("1.5"), fractions.Fraction(1, 3)],
    "times": lambda: [datetime.datetime(2024, 1, 1), datetime.timedelta(1)],
    "others of the library": lambda: [uuid.UUID(int=1), re.compile("a"), operator.itemgetter(1)],
    "partial": lambda: functools.partial(with_attributes, [1], a=[2]),
    "random": lambda: random.Random(1),
    "exception": lambda: ValueError([1]),
    "own exception": lambda: MyException([1], 2),
    "Plain": lambda: Plain(a=[1], b=Plain()),
    "empty instance": lambda: Plain(),
    "odd attribute names": lambda: with_attributes(Plain(), **{"a b": [1], "": 2}),
    "attribute names that are no text": lambda: _with_odd_keys(),
    "Slots": lambda: slots(Slots, a=[1]),
    "all slots": lambda: slots(Slots, a=[1], b=(2,)),
    "no slots": lambda: Slots(),
    "SlotsWithDict": lambda: slots(SlotsWithDict, a=[1], c=[2]),
    "SlotsWithWeak": lambda: slots(SlotsWithWeak, a=[1]),
    "MangledSlots": lambda: MangledSlots(),
    "SlotsWithSetattr": lambda: slots(SlotsWithSetattr, a=[1]),
    "WithSetattr": lambda: slots(WithSetattr, a=[1]),
    "WithProperty": lambda: WithProperty(),
    "Data": lambda: Data(),
    "Frozen": lambda: Frozen([1], Frozen()),
    "WithGetattr": lambda: WithGetattr(),
    "GetattrBringsTheHook": lambda: GetattrBringsTheHook(),
    "WithGetattribute": lambda: WithGetattribute(),
    "WithReduce": lambda: WithReduce([1]),
    "WithReduceEx": lambda: WithReduceEx([1]),
    "WithGetstate": lambda: WithGetstate(),
    "WithFalseState": lambda: WithFalseState(),
    "WithSetstate": lambda: WithSetstate(),
    "WithSlotState": lambda: WithSlotState(),
    "WithNewArgs": lambda: WithNewArgs("a"),
    "WithNewArgsEx": lambda: WithNewArgsEx(a=[1]),
    "WithNew": lambda: with_attributes(WithNew(), made="changed"),
    "WithDictProperty": lambda: WithDictProperty(),
    "WithDeepcopy": lambda: WithDeepcopy(),
    "WithCopy": lambda: WithCopy(),
    "NoHook": lambda: NoHook(),
    "Concrete": lambda: Concrete(),
    "OfMetaGetattr": lambda: OfMetaGetattr(),
    "OfMetaDeepcopy": lambda: [OfMetaDeepcopy(), OfMetaDeepcopy],
    "OfCopyreg": lambda: OfCopyreg([1]),
    "AsOther": lambda: AsOther(),
    "MyList": lambda: with_attributes(MyList([[1], 2]), a=[1]),
    "MyDict": lambda: with_attributes(MyDict(a=[1]), a=[1]),
    "MySet": lambda: with_attributes(MySet([1, (2,)]), a=[1]),
    "MyFrozenSet": lambda: with_attributes(MyFrozenSet([1]), a=[1]),
    "MyTuple": lambda: with_attributes(MyTuple(([1], 2)), a=[1]),
    "MyInt": lambda: with_attributes(MyInt(5), a=[1]),
    "MyStr": lambda: with_attributes(MyStr("s"), a=[1]),
    "MyBytearray": lambda: with_attributes(MyBytearray(b"b"), a=[1]),
    "MyDeque": lambda: with_attributes(MyDeque([[1]], 3), a=[1]),
    "MyOrderedDict": lambda: MyOrderedDict(a=[1]),
    "Point": lambda: Point([1], 2),
    "instance with its own __deepcopy__": lambda: with_attributes(Plain(), __deepcopy__=lambda memo: "own"),
    "instance with its own __reduce_ex__": lambda: with_attributes(
        Plain(), __reduce_ex__=lambda p: (Plain, (), {"p": p})
    ),
    "instance with its own __reduce__": lambda: with_attributes(Plain(), __reduce__=lambda: (Plain, (), {"own": 1})),
    "instance with its own __class__": lambda: with_attributes(Plain(), __class__=Data),
    "instance with its own __setstate__": lambda: with_attributes(Plain(), __setstate__=None),
    "list cycle": list_cycle,
    "dict cycle": dict_cycle,
    "tuple cycle": tuple_cycle,
    "mixed cycle": mixed_cycle,
    "frozen cycle": frozen_cycle,
    "deque cycle": deque_cycle,
    "ring": Node,
    "shared": shared,
    "shared tuple": shared_tuple,
    "an object and its dictionary": lambda: (lambda it: [it, it.__dict__])(Plain(a=[1])),
    "a dictionary and its object": lambda: (lambda it: [it.__dict__, it])(Plain(a=[1])),
    "a view of a dictionary": lambda: [{"a": [1]}.items()],
    "iterators": lambda: [iter([[1], 2]), iter((1, 2)), iter("ab"), reversed([1, 2]), enumerate("ab")],
    "methods": lambda: [Plain(a=[1]).__repr__, [1].append],
}


def _with_odd_keys():
    obj = Plain()
    obj.__dict__[1] = [1]
    obj.__dict__[(2, 3)] = "x"
    return obj


@pytest.fixture(autouse=True)
def copyreg_entry(monkeypatch):
    monkeypatch.setitem(copyreg.dispatch_table, OfCopyreg, lambda obj: (OfCopyreg, (("copyreg", obj.a),)))


def shape(obj):
    """What a program can see of an object and all below it, identities included. Looking uses iterators up."""
    numbers, keep = {}, []

    def seen(x):
        if isinstance(
            x, (type, types.FunctionType, types.BuiltinFunctionType, enum.Enum, int, float, complex, str, bytes)
        ):
            if type(x) in (int, float, complex, str, bytes, bool):
                return repr(x)
            if isinstance(x, (type, types.FunctionType, enum.Enum)):
                return getattr(x, "__qualname__", x)
        if x is None or x is Ellipsis or x is NotImplemented or x == ():
            return repr(x)
        if id(x) in numbers:
            return numbers[id(x)]
        numbers[id(x)] = number = len(numbers)
        keep.append(x)
        return number, type(x), [seen(part) for part in parts(x)]

    def parts(x):
        found = []
        if isinstance(x, dict):
            found += [part for pair in dict.items(x) for part in pair]
        elif isinstance(x, (set, frozenset)):
            found += sorted(x, key=repr)
        elif isinstance(x, (list, tuple, collections.deque, array.array)):
            found += list(x)
        elif isinstance(x, (bytearray, int, str)):
            found.append(repr(x))
        elif isinstance(x, BaseException):
            found.append(x.args)
        elif isinstance(x, functools.partial):
            found += [x.func, x.args, x.keywords]
        elif isinstance(x, types.MethodType):
            found += [x.__func__, x.__self__]
        elif isinstance(x, types.BuiltinFunctionType):
            found.append(x.__self__)
        elif hasattr(x, "__next__"):
            found += list(x)
        elif isinstance(x, random.Random):
            found.append(x.getstate())
        elif type(x).__module__ not in (__name__, "builtins", "collections", "types"):
            found.append(repr(x))
        for cls in type(x).__mro__:
            for name, value in vars(cls).items():
                if type(value) is types.MemberDescriptorType and cls.__module__ == __name__:
                    found += [name, value.__get__(x)] if _has(value, x) else []
        try:
            attributes = object.__getattribute__(x, "__dict__")
        except AttributeError:
            attributes = {}
        if not isinstance(x, functools.partial):
            found += [part for pair in attributes.items() for part in pair]
        return found

    return seen(obj)


def _has(member, obj):
    try:
        member.__get__(obj)
    except AttributeError:
        return False
    return True


@pytest.mark.parametrize("name", ZOO)
def test_a_deep_copy_looks_like_that_of_the_standard_library(name):
    try:
        expected = shape(copy.deepcopy(ZOO[name]()))
    except Exception:
        assert name in BETTER, "the standard library copies all others"
        expected = None
    found = shape(safepickle.deepcopy(ZOO[name]()))
    assert found == expected or name in BETTER


#: Where a copy differs on purpose: what leads back to itself through an argument is made once; views can be copied.
BETTER = {"frozen cycle", "mixed cycle", "a view of a dictionary"}


@pytest.mark.parametrize("name", ZOO)
def test_a_shallow_copy_looks_like_that_of_the_standard_library(name):
    obj = ZOO[name]()
    try:
        expected = copy.copy(obj)
    except Exception:
        return
    found = safepickle.copy(obj)
    assert (found is obj) == (expected is obj)
    assert type(found) is type(expected)
    assert shape([found, obj]) == shape([expected, obj]) or name == "iterators"


@pytest.mark.parametrize("name", ZOO)
def test_copying_leaves_the_original_as_it_was(name):
    if name == "iterators":
        pytest.skip("looking at them uses them up")
    obj = ZOO[name]()
    before = shape(obj)
    safepickle.deepcopy(obj)
    assert shape(obj) == before


def test_the_constructor_is_not_called():
    WithInit.calls = 0
    obj = WithInit()
    assert type(safepickle.deepcopy(obj)) is WithInit
    assert WithInit.calls == 1


@given(graph=graphs.graphs())
@settings(max_examples=150, deadline=None)
def test_any_graph_is_copied_with_its_shape_and_shares_nothing_that_can_change(graph):
    expected = graphs.shape(graph)
    twin = safepickle.deepcopy(graph)
    assert graphs.shape(twin) == expected
    assert graphs.shape(graph) == expected
    assert not graphs.mutable_ids(graph).keys() & graphs.mutable_ids(twin).keys()


# -- the memo --------------------------------------------------------------------------------------------------------


def test_hooks_get_a_real_dictionary_that_takes_any_key():
    seen = []

    class Hooked:
        def __deepcopy__(self, memo):
            seen.append(type(memo))
            memo.setdefault("torch", {})[1] = 2
            memo["torch"][3] = 4
            assert memo.get("torch") == {1: 2, 3: 4}
            return Hooked()

    safepickle.deepcopy([Hooked(), [Hooked()]])
    assert seen == [dict, dict]


def test_all_hooks_of_a_call_get_the_same_memo():
    memos = []

    class Hooked:
        def __deepcopy__(self, memo):
            memos.append(memo)
            return Hooked()

    safepickle.deepcopy([Hooked(), {"a": Hooked()}, Plain(a=Hooked())])
    assert memos[0] is memos[1] is memos[2]


def test_the_callers_memo_is_used_and_knows_the_copies_afterwards():
    memo = {}
    part = [1]
    obj = [part, Plain(a=part)]
    twin = safepickle.deepcopy(obj, memo)
    assert memo[id(obj)] is twin
    assert memo[id(part)] is twin[0]
    assert safepickle.deepcopy(part, memo) is twin[0]
    assert any(kept is part for kept in memo[id(memo)]), "the originals are kept alive"


def test_what_the_callers_memo_knows_is_not_copied():
    part, other = [1], ["other"]
    twin = safepickle.deepcopy([part, {"a": part}, Plain(a=part), (part,)], {id(part): other})
    assert twin[0] is twin[1]["a"] is twin[2].a is twin[3][0] is other


def test_the_callers_memo_may_share_an_object():
    part = Plain(a=[1])
    twin = safepickle.deepcopy([part], {id(part): part})
    assert twin[0] is part


def test_the_memo_comes_before_a_rule_that_shares():
    registry = Registry()
    registry.register(Plain, copy=safepickle.SHARE)
    part, other = Plain(), Plain()
    assert safepickle.deepcopy([part], {id(part): other}, registry=registry)[0] is other
    assert safepickle.deepcopy([part], registry=registry)[0] is part
    lambda_, replacement = (lambda: 1), (lambda: 2)
    assert safepickle.deepcopy([lambda_], {id(lambda_): replacement})[0] is replacement
    assert safepickle.deepcopy([sys], {id(sys): replacement})[0] is replacement


def test_a_memo_may_be_a_subclass_of_dict_or_any_mapping():
    class MyMemo(dict):
        pass

    for memo in (MyMemo(), collections.OrderedDict(), collections.UserDict()):
        part = [1]
        twin = safepickle.deepcopy([part, part, Plain(a=part)], memo)
        assert twin[0] is twin[1] is twin[2].a is not part
        assert memo[id(part)] is twin[0]


def test_the_third_parameter_is_that_of_the_standard_library():
    assert safepickle.deepcopy([1], {}, None) == [1]
    assert safepickle.deepcopy([1], None, []) == [1]


def test_a_hook_that_copies_something_elsewhere_in_the_object_finds_its_copy():
    """The refcount of `buf` is 1, and still it must be one object in the copy, whoever comes first."""

    class Owner:
        def __init__(self):
            self.buf = [1]

    class Hooked:
        def __init__(self, owner):
            self.owner = owner
            self.buf = None

        def __deepcopy__(self, memo):
            made = Hooked(None)
            memo[id(self)] = made
            made.buf = safepickle.deepcopy(self.owner.buf, memo)
            made.owner = safepickle.deepcopy(self.owner, memo)
            return made

    owner = Owner()
    for order in ([owner, Hooked(owner)], [Hooked(owner), owner]):
        twin = safepickle.deepcopy(order)
        twin_owner = next(part for part in twin if type(part) is Owner)
        hooked = next(part for part in twin if type(part) is Hooked)
        assert hooked.owner is twin_owner
        assert hooked.buf is twin_owner.buf is not owner.buf


@pytest.mark.parametrize(
    "method", ["__reduce_ex__", "__setstate__", "__getstate__", "__hash__", "__eq__", "append", "__setitem__"]
)
def test_any_method_that_runs_during_the_copy_finds_what_was_copied_before(method):
    """Through a memo that an earlier hook has put aside."""
    aside, buf, found = [], [1], []

    class Keeps:
        def __deepcopy__(self, memo):
            aside.append(memo)
            return Keeps()

    def look():
        found.append(safepickle.deepcopy(buf, aside[0]))

    if method in ("append", "__setitem__"):
        base = list if method == "append" else dict

        class Looks(base):
            def append(self, item):
                look()
                super().append(item)

            def __setitem__(self, key, value):
                look()
                super().__setitem__(key, value)

        obj = Looks([1]) if base is list else Looks(a=1)
    elif method in ("__hash__", "__eq__"):

        class Looks:
            def __hash__(self):
                if aside:
                    look()
                return 1

            def __eq__(self, other):
                if aside:
                    look()
                return self is other

        obj = {Looks(): 1, Looks(): 2}
    else:

        class Looks:
            def __init__(self):
                self.a = 1

            def method(self, *args):
                look()
                if method == "__reduce_ex__":
                    return object.__reduce_ex__(self, *args)
                if method == "__setstate__":
                    self.__dict__.update(args[0])
                return self.__dict__

        setattr(Looks, method, Looks.method)
        obj = Looks()
    twin = safepickle.deepcopy([Keeps(), buf, obj])
    assert found, "the method has run"
    assert all(part is twin[1] for part in found)


def test_temporaries_are_kept_alive_until_the_end_of_the_call():
    """The memo knows objects by their addresses: one that was let go would pass its address on."""

    class Makes:
        def __init__(self, number):
            self.number = number

        def __reduce__(self):
            return Takes, ([self.number], {"n": [self.number]})

    twins = safepickle.deepcopy([Makes(number) for number in range(500)])
    assert [twin.first for twin in twins] == [[number] for number in range(500)]
    assert [twin.second for twin in twins] == [{"n": [number]} for number in range(500)]
    assert len({id(twin.first) for twin in twins}) == 500


class Takes:
    def __init__(self, first, second):
        self.first, self.second = first, second


# -- hooks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 5, NotImplemented, "self"])
def test_what_a_deepcopy_method_returns_is_the_copy(value):
    class Hooked:
        def __deepcopy__(self, memo):
            return self if value == "self" else value

    obj = Hooked()
    twin = safepickle.deepcopy([obj, obj])
    assert twin[0] is twin[1] is (obj if value == "self" else value)


def test_a_deepcopy_method_runs_once_for_an_object_that_is_held_twice():
    calls = []

    class Hooked:
        def __deepcopy__(self, memo):
            calls.append(self)
            return Hooked()

    obj = Hooked()
    twin = safepickle.deepcopy([obj, {"a": obj}, (obj,)])
    assert len(calls) == 1
    assert twin[0] is twin[1]["a"] is twin[2][0]


def test_a_hook_may_use_the_standard_librarys_deepcopy_with_our_memo():
    class Hooked:
        def __init__(self, part):
            self.part = part

        def __deepcopy__(self, memo):
            return Hooked(copy.deepcopy(self.part, memo))

    part = [1]
    for order in ([part, Hooked(part)], [Hooked(part), part]):
        twin = safepickle.deepcopy(order)
        plain, hooked = sorted(twin, key=lambda it: type(it) is Hooked)
        assert hooked.part is plain is not part


def test_the_standard_librarys_deepcopy_may_call_ours_with_its_memo():
    class Hooked:
        def __init__(self, part):
            self.part = part

        def __deepcopy__(self, memo):
            return Hooked(safepickle.deepcopy(self.part, memo))

    part = [threading.Lock()]
    with pytest.raises(TypeError):
        copy.deepcopy([part, Hooked(part)])
    twin = copy.deepcopy([Hooked(part), part])
    assert twin[0].part is twin[1] is not part
    assert twin[1][0].acquire(blocking=False)


def test_a_hook_may_copy_something_in_a_call_of_its_own():
    class Hooked:
        def __init__(self, part):
            self.part = part

        def __deepcopy__(self, memo):
            return Hooked(safepickle.deepcopy(self.part))

    part = [1]
    twin = safepickle.deepcopy([part, Hooked(part), part])
    assert twin[0] is twin[2] is not twin[1].part
    assert twin[1].part == [1]


def test_a_hook_may_change_the_object_that_is_copied():
    """As the standard library: a list goes on to its end, wherever that is by then."""

    class Appends:
        def __deepcopy__(self, memo):
            items.append("appended")
            return "copied"

    class Removes:
        def __deepcopy__(self, memo):
            items.pop()
            return "copied"

    for hook, deepcopy in ((Appends, copy.deepcopy), (Appends, safepickle.deepcopy)):
        items = [hook(), 1, 2]
        assert deepcopy(items) == ["copied", 1, 2, "appended"]
    for deepcopy in (copy.deepcopy, safepickle.deepcopy):
        items = [1, Removes(), 2]
        assert deepcopy(items) == [1, "copied"]


def test_a_dictionary_that_changes_while_it_is_copied_is_an_error_as_in_the_standard_library():
    class Adds:
        def __deepcopy__(self, memo):
            table["added"] = 1
            return "copied"

    for deepcopy in (copy.deepcopy, safepickle.deepcopy):
        table = {"a": Adds(), "b": 1}
        with pytest.raises(RuntimeError, match="changed size"):
            deepcopy(table)


def test_a_hook_in_a_cycle_sees_what_the_standard_library_shows():
    states = []

    class Looks:
        def __init__(self, parent):
            self.parent = parent

        def __deepcopy__(self, memo):
            parent = memo.get(id(self.parent))
            states.append(list(parent) if parent is not None else None)
            return "looked"

    for deepcopy in (copy.deepcopy, safepickle.deepcopy):
        items = [1, [2]]
        items.append(Looks(items))
        items.append(3)
        deepcopy(items)
    assert states[0] == states[1] == [1, [2]]


def test_a_dictionary_keyed_by_an_object_that_is_not_finished():
    """Its hash needs an attribute that it does not have yet. The standard library fails; we may, but not silently."""

    class Keyed:
        def __init__(self):
            self.number = 1
            self.table = {self: 1}

        def __hash__(self):
            return hash(self.number)

        def __eq__(self, other):
            return self.number == other.number

    with pytest.raises(AttributeError):
        copy.deepcopy(Keyed())
    try:
        twin = safepickle.deepcopy(Keyed())
    except AttributeError:
        return
    assert twin.table[twin] == 1


# -- later changes ---------------------------------------------------------------------------------------------------


def test_a_class_that_gets_a_method_later_is_copied_by_it():
    class Later:
        def __init__(self):
            self.a = [1]

    assert safepickle.deepcopy(Later()).a == [1]
    Later.__deepcopy__ = lambda self, memo: "by hook"
    assert safepickle.deepcopy([Later()]) == ["by hook"]
    del Later.__deepcopy__
    Later.__reduce__ = lambda self: (str, ("by reduce",))
    assert safepickle.deepcopy([Later()]) == ["by reduce"]
    del Later.__reduce__
    Later.__getstate__ = lambda self: {"a": "by state"}
    assert safepickle.deepcopy(Later()).a == "by state"
    del Later.__getstate__
    assert safepickle.deepcopy(Later()).a == [1]


def test_a_base_class_that_gets_a_method_later_counts():
    class Base:
        pass

    class Derived(Base):
        pass

    assert type(safepickle.deepcopy(Derived())) is Derived
    Base.__deepcopy__ = lambda self, memo: "by hook"
    assert safepickle.deepcopy(Derived()) == "by hook"


def test_a_copyreg_entry_that_comes_later_counts(monkeypatch):
    class Later:
        pass

    assert type(safepickle.deepcopy(Later())) is Later
    monkeypatch.setitem(copyreg.dispatch_table, Later, lambda obj: (str, ("by copyreg",)))
    assert safepickle.deepcopy([Later()]) == ["by copyreg"]
    monkeypatch.delitem(copyreg.dispatch_table, Later)
    assert type(safepickle.deepcopy(Later())) is Later


def test_an_object_that_changes_its_class_is_copied_as_what_it_is():
    obj = Plain(a=[1])
    assert type(safepickle.deepcopy(obj)) is Plain
    obj.__class__ = WithSetstate
    twin = safepickle.deepcopy(obj)
    assert type(twin) is WithSetstate and twin.restored


def test_a_method_that_appears_during_the_call_counts():
    class Later:
        pass

    class Adds:
        def __deepcopy__(self, memo):
            Later.__deepcopy__ = lambda self, memo: "by hook"

    twin = safepickle.deepcopy([Later(), Adds(), Later()])
    assert type(twin[0]) is Later
    assert twin[2] == "by hook"


# -- errors ----------------------------------------------------------------------------------------------------------


class Custom(Exception):
    pass


def raises(error):
    class Raises:
        def __deepcopy__(self, memo):
            raise error

    return Raises()


@pytest.mark.parametrize("error", [Custom("text"), ValueError("text"), TypeError("text"), KeyError("text")], ids=repr)
def test_the_error_of_a_hook_keeps_its_type(error):
    for obj in (raises(error), [raises(error)], Plain(a={"b": (raises(error),)})):
        with pytest.raises(type(error), match="text") as caught:
            safepickle.deepcopy(obj)
        assert isinstance(caught.value, safepickle.CopyError)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
def test_what_is_not_about_the_object_passes_through_as_it_is(error):
    with pytest.raises(error) as caught:
        safepickle.deepcopy([raises(error)])
    assert type(caught.value) is error


@pytest.mark.parametrize("error", [StopIteration(5), StopAsyncIteration, GeneratorExit, RuntimeError("x")], ids=repr)
def test_errors_that_mean_something_to_generators_are_not_taken_for_it(error):
    """In a part of something that is copied by a generator: a bound method, a cell, a closure."""
    refuses = raises(error)
    cell = types.CellType(refuses)
    for obj in (types.MethodType(len, refuses), cell):
        with pytest.raises(BaseException) as caught:
            safepickle.deepcopy(obj)
        if isinstance(error, StopIteration):
            assert "StopIteration" in str(caught.value)  # no generator lets it pass
        else:
            assert isinstance(caught.value, type(error) if isinstance(error, BaseException) else error)


def test_a_failed_copy_can_be_tried_again():
    class Once:
        failed = False

        def __deepcopy__(self, memo):
            if not Once.failed:
                Once.failed = True
                raise Custom("first time")
            return "second time"

    part = [1]
    obj = [part, Once(), part]
    with pytest.raises(Custom):
        safepickle.deepcopy(obj)
    assert safepickle.deepcopy(obj) == [[1], "second time", [1]]


def test_a_hook_may_catch_what_a_nested_call_raises():
    class Catches:
        def __deepcopy__(self, memo):
            try:
                safepickle.deepcopy(raises(Custom("no")), memo)
            except Custom:
                return safepickle.deepcopy([1], memo)

    assert safepickle.deepcopy([Catches(), [2]]) == [[1], [2]]


def test_an_object_that_cannot_be_copied_is_a_copy_error_and_a_type_error():
    for obj in (sys._getframe(), (n for n in ()), Plain(a=[sys._getframe()])):
        with pytest.raises(TypeError) as caught:
            safepickle.deepcopy(obj)
        assert isinstance(caught.value, safepickle.CopyError)
        assert isinstance(caught.value, copy.Error)
        assert isinstance(caught.value, safepickle.PicklingError)


def test_a_failed_copy_keeps_no_part_alive():
    class Weak:
        pass

    part = Weak()
    reference = weakref.ref(part)
    with pytest.raises(Custom):
        safepickle.deepcopy([part, raises(Custom("no"))])
    del part
    gc.collect()
    assert reference() is None


# -- memory ----------------------------------------------------------------------------------------------------------


def test_a_copy_keeps_nothing_of_the_original_alive():
    class Weak:
        pass

    part = Weak()
    reference = weakref.ref(part)
    twin = safepickle.deepcopy([part, Plain(a=part), (lambda it: lambda: it)(part)])
    del part
    gc.collect()
    assert twin is not None
    assert reference() is None


def test_a_copy_is_freed_without_the_garbage_collector():
    class Weak:
        pass

    gc.collect()
    gc.disable()
    try:
        twin = safepickle.deepcopy([Weak(), {"a": Weak()}, Plain(a=Weak())])
        references = [weakref.ref(part) for part in (twin[0], twin[1]["a"], twin[2].a)]
        del twin
        assert [reference() for reference in references] == [None] * 3
    finally:
        gc.enable()


def test_objects_do_not_pile_up_over_repeated_copies():
    obj = [Plain(a=[number], b={"c": (number, [])}) for number in range(200)]

    def objects():
        gc.collect()
        return len(gc.get_objects())

    safepickle.deepcopy(obj)
    before = objects()
    for _ in range(20):
        safepickle.deepcopy(obj)
    assert objects() - before < 50


def test_the_garbage_collector_is_as_it_was_after_a_copy():
    for state in (gc.enable, gc.disable):
        state()
        enabled = gc.isenabled()
        safepickle.deepcopy([Plain(a=[1])])
        with pytest.raises(Custom):
            safepickle.deepcopy([raises(Custom("no"))])
        assert gc.isenabled() == enabled
    gc.enable()


# -- threads ---------------------------------------------------------------------------------------------------------


def test_threads_may_copy_the_same_object_at_once():
    registry = Registry()
    registry.register(Slots, lambda obj: (str, ("by rule",)))
    obj = [ZOO[name]() for name in ("Plain", "Slots", "WithDeepcopy", "mixed cycle", "shared", "partial")]
    expected = shape(safepickle.deepcopy(obj))
    by_rule = shape(safepickle.deepcopy(obj, registry=registry))
    failures = []

    def work(number):
        try:
            for _ in range(100):
                if number % 2:
                    assert shape(safepickle.deepcopy(obj)) == expected
                else:
                    assert shape(safepickle.deepcopy(obj, registry=registry)) == by_rule
        except BaseException as error:
            failures.append(error)

    def run():
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    call_with_timeout(run, 100)
    assert failures == []


def test_a_hook_may_copy_in_another_thread_with_the_same_memo():
    class Hooked:
        def __init__(self, part):
            self.part = part

        def __deepcopy__(self, memo):
            return Hooked(call_with_timeout(lambda: safepickle.deepcopy(self.part, memo)))

    part = [1]
    twin = safepickle.deepcopy([part, Hooked(part)])
    assert twin[1].part is twin[0]


# -- what the standard library cannot copy ---------------------------------------------------------------------------


def test_modules_and_code_are_shared():
    code = shape.__code__
    assert safepickle.deepcopy([sys, code]) == [sys, code]
    assert safepickle.copy(sys) is sys


def test_a_lock_is_copied_as_a_fresh_one():
    lock = threading.Lock()
    lock.acquire()
    for twin in (safepickle.deepcopy([lock])[0], safepickle.copy(lock)):
        assert twin is not lock
        assert twin.acquire(blocking=False)


@pytest.mark.skipif(not hasattr(copy, "replace"), reason="since Python 3.13")
def test_replace_is_that_of_the_standard_library():
    assert safepickle.replace(Data(), a=5) == Data(a=5)
    assert safepickle.replace(Point(1, 2), x=3) == Point(3, 2)
    with pytest.raises(TypeError):
        safepickle.replace(object())


# -- the other ways of copying ---------------------------------------------------------------------------------------


def test_a_shallow_copy_shares_the_parts():
    part = [1]
    for obj in (
        [part],
        {"a": part},
        Plain(a=part),
        slots(Slots, a=part),
        (part,),
        collections.deque([part]),
        MyList([part]),
    ):
        twin = safepickle.copy(obj)
        assert any(it is part for it in gc.get_referents(twin) + gc.get_referents(getattr(twin, "__dict__", 0)))


@pytest.mark.parametrize("obj", [[1], {1: 2}, {1}, bytearray(b"x"), 5, "text", (1, 2)], ids=lambda x: type(x).__name__)
def test_a_rule_for_a_builtin_type_that_comes_later_counts_in_shallow_copies_and_so_does_its_going(obj):
    assert safepickle.copy(obj) == safepickle.copy(obj) == obj
    safepickle.register(type(obj), lambda x: (complex, ("1j",)))
    try:
        assert safepickle.copy(obj, registry=Registry.empty()) == obj
        assert safepickle.copy(obj) == 1j
    finally:
        safepickle.unregister(type(obj))
    assert safepickle.copy(obj) == obj
    assert (safepickle.copy(obj) is obj) is (copy.copy(obj) is obj)


def test_a_shallow_copy_asks_the_methods_of_the_class_in_the_order_of_the_standard_library(monkeypatch):
    class All:
        def __copy__(self):
            return "copy"

        def __reduce_ex__(self, protocol):
            return str, ("reduce_ex",)

        def __deepcopy__(self, memo):
            raise AssertionError

    assert safepickle.copy(All()) == "copy"
    del All.__copy__
    monkeypatch.setitem(copyreg.dispatch_table, All, lambda obj: (str, ("copyreg",)))
    assert safepickle.copy(All()) == "copyreg"
    monkeypatch.delitem(copyreg.dispatch_table, All)
    assert safepickle.copy(All()) == "reduce_ex"


def test_a_deep_copy_asks_the_methods_of_the_class_in_the_order_of_the_standard_library(monkeypatch):
    class All:
        def __deepcopy__(self, memo):
            return "deepcopy"

        def __reduce_ex__(self, protocol):
            return str, (f"reduce_ex {protocol}",)

        def __copy__(self):
            raise AssertionError

    assert safepickle.deepcopy(All()) == "deepcopy"
    del All.__deepcopy__
    monkeypatch.setitem(copyreg.dispatch_table, All, lambda obj: (str, ("copyreg",)))
    assert safepickle.deepcopy(All()) == "copyreg"
    monkeypatch.delitem(copyreg.dispatch_table, All)
    assert safepickle.deepcopy(All()) == "reduce_ex 4"
    registry = Registry()
    registry.register(All, lambda obj: (str, ("rule",)))
    assert safepickle.deepcopy(All(), registry=registry) == "rule"


# -- after an error that somebody has caught ---------------------------------------------------------------------------


class OfNewState:
    """Its reduce value holds a dictionary that nobody else has: the next one may be where this one was."""

    def __init__(self, *parts):
        self.parts = parts

    def __reduce_ex__(self, protocol):
        return OfNewState, (), {"parts": self.parts}


class Unwilling:
    def __reduce_ex__(self, protocol):
        raise ValueError("not this one")


class Forgiving:
    def __init__(self, *parts):
        self.parts = parts

    def __deepcopy__(self, memo):
        copies = []
        for part in self.parts:
            try:
                copies.append(safepickle.deepcopy(part, memo))
            except ValueError:
                copies.append(None)
        return Forgiving(*copies)


def forgiving_in_steps(x, memo):
    copies = []
    for part in x.parts:
        try:
            copies.append((yield part))
        except ValueError:
            copies.append(None)
    return Forgiving(*copies)


@pytest.mark.parametrize("by", ["its method", "a rule in steps", "a rule in steps, deep down"])
def test_what_a_failed_attempt_left_in_the_memo_is_not_found_for_another_object(by):
    registry = safepickle.Registry()
    if by != "its method":
        registry.register(Forgiving, copy=forgiving_in_steps)
    parts = [part for number in range(50) for part in (OfNewState(Unwilling()), OfNewState(number))]
    root = [Forgiving(*parts)]
    for _ in range(3000 if by.endswith("deep down") else 0):
        root = [root]
    twin = safepickle.deepcopy(root, registry=registry)
    for _ in range(3000 if by.endswith("deep down") else 0):
        twin = twin[0]
    copies = twin[0].parts
    assert copies[::2] == (None,) * 50
    assert [c.parts for c in copies[1::2]] == [(number,) for number in range(50)]
