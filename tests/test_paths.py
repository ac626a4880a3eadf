"""Does the first line of an error name the culprit, and does the path lead to it?

Each case is a kind of path. It makes an object with something in it that cannot go, and says the path that the error
has to show. The path is an expression, too: it is evaluated, and has to lead to the very object.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import io
import re
import types
import typing

import pytest

import safepickle
from safepickle.path_syntax import Segment, join, path_of, repetition
from safepickle.paths import CopyQuestions, PickleQuestions, Walk

CASES: list[typing.Any] = []


def case(path):
    """Enter a function that returns the object and the culprit into the table."""

    def enter(make):
        CASES.append(pytest.param(make, path, id=make.__name__))
        return make

    return enter


class Bad:
    """Something that can be neither pickled nor copied."""

    def __reduce_ex__(self, protocol):
        raise TypeError("this one stays")


def bad():
    return Bad()


class Box:
    """Any attributes."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Slotted:
    __slots__ = ("first", "second")


class SlottedChild(Slotted):
    """Slots and a dictionary."""


@dataclasses.dataclass
class Record:
    name: str
    payload: object = None


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenRecord:
    payload: object


class Point(typing.NamedTuple):
    x: object
    y: object


class Items(list):
    pass


class Table(dict):
    pass


class Pair(tuple):
    pass


class Failure(Exception):
    pass


class KeptInState:
    """What it pickles is not what it holds."""

    def __init__(self, value):
        self._hidden = [value]

    def __getstate__(self):
        return {"shown": self._hidden[0]}

    def __setstate__(self, state):
        self._hidden = [state["shown"]]


class BareState(KeptInState):
    def __getstate__(self):
        return (len(self._hidden), *self._hidden)


class ByArguments:
    """Rebuilt from arguments that are none of its attributes."""

    def __init__(self, value):
        self._cell = types.MappingProxyType({"value": value})

    def __reduce__(self):
        return rebuild, ("by arguments", self._cell["value"])


class ByNewArguments:
    def __new__(cls, value):
        self = super().__new__(cls)
        self._values = {"only": value}
        return self

    def __getnewargs__(self):
        return (self._values["only"],)


class WithSetter:
    def __init__(self, setter):
        self._setters = types.MappingProxyType({"only": setter})

    def __reduce__(self):
        return object.__new__, (Box,), {"a": 1}, None, None, self._setters["only"]


class Refuses:
    def __reduce_ex__(self, protocol):
        raise ValueError("not this one")


class Hooked:
    """Has hooks, as modules do."""

    def __init__(self):
        self.hooks = collections.OrderedDict()

    def method(self):
        return self


def rebuild(*parts):
    return parts


# -- attributes --------------------------------------------------------------------------------------------------------


@case("obj")
def the_root():
    culprit = bad()
    return culprit, culprit


@case("obj.part")
def an_attribute():
    culprit = bad()
    return Box(part=culprit), culprit


@case("obj.outer.inner.part")
def an_attribute_of_an_attribute_of_an_attribute():
    culprit = bad()
    return Box(outer=Box(inner=Box(part=culprit))), culprit


@case("obj.__dict__['not a name']")
def an_attribute_that_is_no_identifier():
    culprit = bad()
    return Box(**{"not a name": culprit}), culprit


@case("obj.second")
def a_slot():
    culprit, obj = bad(), Slotted()
    obj.first, obj.second = 1, culprit
    return obj, culprit


@case("obj.second")
def an_inherited_slot_beside_a_dictionary():
    culprit, obj = bad(), SlottedChild()
    obj.first, obj.extra, obj.second = 1, 2, culprit
    return obj, culprit


@case("obj.payload")
def a_field_of_a_dataclass():
    culprit = bad()
    return Record("r", culprit), culprit


@case("obj.payload")
def a_field_of_a_frozen_dataclass():
    culprit = bad()
    return FrozenRecord(culprit), culprit


@case("obj.part")
def an_attribute_of_a_simple_namespace():
    culprit = bad()
    return types.SimpleNamespace(part=culprit), culprit


@case("obj.__class__.setting")
def an_attribute_of_a_class_that_goes_by_value():
    culprit = bad()

    class Local:
        setting = culprit

    return Local(), culprit


@case("obj.member")
def a_member_of_a_local_class():
    culprit = bad()

    class Local:
        member = culprit

    return Local, culprit


@case("obj.__dict__['shown'].fget.__closure__[0].cell_contents")
def a_closure_in_a_property_of_a_local_class():
    culprit = bad()

    class Local:
        @property
        def shown(self):
            return culprit

    return Local, culprit


@case("obj.__bases__[0].setting")
def an_attribute_of_the_base_of_a_local_class():
    culprit = bad()

    class Base:
        setting = culprit

    class Local(Base):
        pass

    return Local, culprit


# -- items -------------------------------------------------------------------------------------------------------------


@case("obj[3]")
def an_item_of_a_list():
    culprit = bad()
    return [0, 1, 2, culprit], culprit


@case("obj[1][0]")
def an_item_of_a_tuple_in_a_tuple():
    culprit = bad()
    return (0, (culprit,)), culprit


@case("obj['key']")
def a_value_of_a_dict():
    culprit = bad()
    return {"other": 1, "key": culprit}, culprit


@case("obj[2][-1.5][b'x'][None][True]")
def values_under_keys_that_are_no_strings():
    culprit = bad()
    return {2: {-1.5: {b"x": {None: {True: culprit}}}}}, culprit


@case("obj[('layer', 3)]")
def a_value_under_a_tuple():
    culprit = bad()
    return {("layer", 3): culprit}, culprit


@case("list(obj.values())[1]")
def a_value_under_a_key_that_cannot_be_typed():
    culprit = bad()
    return {Box(): 0, Box(): culprit}, culprit


@case("list(obj.table)[1]")
def a_key_of_a_dict():
    culprit = bad()
    return Box(table={"other": 1, culprit: 2}), culprit


@case("list(obj.members)[0]")
def an_element_of_a_set():
    culprit = bad()
    return Box(members={culprit}), culprit


@case("list(obj)[0].part")
def an_attribute_of_an_element_of_a_frozenset():
    culprit = bad()
    return frozenset([Box(part=culprit)]), culprit


@case("obj['inner'][0]")
def an_item_of_an_ordered_dict():
    culprit = bad()
    return collections.OrderedDict(outer=1, inner=[culprit]), culprit


@case("obj['key']")
def an_item_of_a_subclass_of_dict():
    culprit = bad()
    return Table(key=culprit), culprit


@case("obj.extra")
def an_attribute_of_a_subclass_of_dict():
    culprit, obj = bad(), Table(key=1)
    obj.extra = culprit
    return obj, culprit


@case("obj[1]")
def an_item_of_a_subclass_of_list():
    culprit = bad()
    return Items([0, culprit]), culprit


@case("obj[1]")
def an_item_of_a_subclass_of_tuple():
    culprit = bad()
    return Pair((0, culprit)), culprit


@case("obj.y[0]")
def a_field_of_a_named_tuple():
    culprit = bad()
    return Point(0, [culprit]), culprit


@case("obj['key']")
def an_item_of_a_default_dict():
    culprit = bad()
    return collections.defaultdict(list, key=culprit), culprit


@case("obj.default_factory.__closure__[0].cell_contents")
def the_factory_of_a_default_dict():
    culprit = bad()
    return collections.defaultdict(lambda: culprit), culprit


@case("obj[1]")
def an_item_of_a_deque():
    culprit = bad()
    return collections.deque([0, culprit]), culprit


@case("obj['key'][0]")
def an_item_of_a_read_only_view():
    culprit = bad()
    return types.MappingProxyType({"key": [culprit]}), culprit


# -- functions ---------------------------------------------------------------------------------------------------------


@case("obj.__closure__[0].cell_contents")
def a_closure_variable():
    culprit = bad()
    return lambda: culprit, culprit


@case("obj.__closure__[1].cell_contents['log'][0]")
def an_item_of_the_second_closure_variable():
    culprit = bad()
    held, plain = {"log": [culprit]}, 1
    zz = held
    return lambda: (plain, zz), culprit


@case("obj.__closure__[0].cell_contents.__closure__[0].cell_contents")
def a_closure_in_a_closure():
    culprit = bad()

    def inner():
        return culprit

    return lambda: inner(), culprit


@case("obj.__globals__['GLOBAL_CULPRIT']")
def a_global_of_a_function_by_value():
    return lambda: GLOBAL_CULPRIT, GLOBAL_CULPRIT


@case("obj.__globals__['GLOBAL_BOX'].items[0]")
def an_item_below_a_global():
    return lambda: GLOBAL_BOX, GLOBAL_CULPRIT


@case("obj.__defaults__[1]")
def a_default():
    culprit = bad()

    def local(a, b=1, c=culprit):
        return a, b, c

    return local, culprit


@case("obj.__kwdefaults__['c']")
def a_default_of_a_keyword():
    culprit = bad()

    def local(*, c=culprit):
        return c

    return local, culprit


@case("obj.cache")
def an_attribute_of_a_function():
    culprit = bad()

    def local():
        pass

    local.cache = culprit
    return local, culprit


@case("obj.args[1]")
def an_argument_of_a_partial():
    culprit = bad()
    return functools.partial(rebuild, 0, culprit), culprit


@case("obj.keywords['key']")
def a_keyword_of_a_partial():
    culprit = bad()
    return functools.partial(rebuild, key=culprit), culprit


@case("obj.func.__closure__[0].cell_contents")
def the_function_of_a_partial():
    culprit = bad()
    return functools.partial(lambda: culprit), culprit


@case("obj.__self__.part")
def the_owner_of_a_bound_method():
    culprit, owner = bad(), Hooked()
    owner.part = culprit
    return owner.method, culprit


@case("obj.__self__[0]")
def the_owner_of_a_builtin_method():
    culprit = bad()
    return [culprit].append, culprit


@case("obj.hooks[7].__closure__[0].cell_contents")
def a_closure_in_a_hook():
    culprit, obj = bad(), Hooked()
    obj.hooks[7] = lambda *arguments: culprit
    return obj, culprit


@case("obj.__func__.__closure__[0].cell_contents")
def a_closure_in_a_method_on_an_instance():
    culprit = bad()

    def forward(self):
        return culprit

    return types.MethodType(forward, Hooked()), culprit


# -- reduce values -----------------------------------------------------------------------------------------------------


@case("obj.__reduce__()[1][1]")
def an_argument_of_a_reduce_value():
    culprit = bad()
    return ByArguments(culprit), culprit


@case("obj.__reduce_ex__(4)[1][1]")
def an_argument_for_new():
    culprit = bad()
    return ByNewArguments(culprit), culprit


@case("obj.__getstate__()['shown']")
def an_entry_of_a_state_of_its_own():
    culprit = bad()
    return KeptInState(culprit), culprit


@case("obj.__getstate__()[1]")
def an_item_of_a_state_that_is_no_dict():
    culprit = bad()
    return BareState(culprit), culprit


@case("obj.__reduce__()[5].__closure__[0].cell_contents")
def a_closure_in_a_state_setter():
    culprit = bad()
    return WithSetter(lambda it, state: culprit), culprit


@case("obj.args[1]")
def an_argument_of_an_exception():
    culprit = bad()
    return Failure("went wrong", culprit), culprit


@case("obj.context")
def an_attribute_of_an_exception():
    culprit, obj = bad(), Failure("went wrong")
    obj.context = culprit
    return obj, culprit


@case("obj.steps[2].start")
def a_bound_of_a_slice():
    culprit = bad()
    return Box(steps=[0, 1, slice(culprit, None)]), culprit


NAME = f"{__name__}.Bad"
GLOBAL_CULPRIT = bad()
GLOBAL_BOX = Box(items=[GLOBAL_CULPRIT])


# -- the table ---------------------------------------------------------------------------------------------------------


def test_there_are_fifty_kinds_of_path():
    assert len({parameters.id for parameters in CASES}) >= 50


def first_line(error):
    return str(error).partition("\n")[0]


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize(("make", "path"), CASES)
def test_the_first_line_names_the_culprit_and_the_path(make, path, protocol):
    obj, culprit = make()
    with pytest.raises(TypeError) as caught:
        safepickle.dumps(obj, protocol)
    assert isinstance(caught.value, safepickle.PicklingError)
    assert first_line(caught.value) == f"cannot pickle {NAME!r} at {path}"
    assert caught.value.path == path
    assert caught.value.type_name == NAME
    assert "TypeError: this one stays" in str(caught.value)
    assert eval(path, {"obj": obj}) is culprit


#: What a copy shares it does not refuse: code with all that it holds, and slices.
SHARED = re.compile("__closure__|__globals__|__defaults__|__kwdefaults__|__class__|__bases__")
SHARED_BY_COPIES = {
    "a_member_of_a_local_class",
    "an_attribute_of_a_function",
    "the_owner_of_a_builtin_method",
    "a_bound_of_a_slice",
}


@pytest.mark.parametrize(
    ("make", "path"), [c for c in CASES if not SHARED.search(c.values[1]) and c.id not in SHARED_BY_COPIES]
)
def test_a_failed_copy_says_the_same(make, path):
    obj, culprit = make()
    with pytest.raises(TypeError) as caught:
        safepickle.deepcopy(obj)
    assert isinstance(caught.value, safepickle.Error)
    assert isinstance(caught.value, safepickle.PicklingError)
    assert first_line(caught.value) == f"cannot copy {NAME!r} at {caught.value.path}"
    assert eval(caught.value.path, {"obj": obj}) is culprit


# -- long paths --------------------------------------------------------------------------------------------------------


def steps(*texts):
    return [Segment(text) for text in texts]


def test_a_short_path_is_written_in_full():
    assert join(steps(".a", "[0]", "['k']")) == "obj.a[0]['k']"


def test_a_step_in_front_goes_around_what_is_there():
    assert join([Segment(".a"), Segment(")[2]", "list("), Segment(".b")]) == "list(obj.a)[2].b"


def test_the_repeating_part_of_a_long_path_is_counted():
    assert join(steps(".head", *[".left", "[0]"] * 50, ".value")) == "obj.head(.left[0] × 50).value"


def test_two_repeating_parts_are_both_counted():
    assert join(steps(*[".a"] * 40, ".x", *[".b", ".c"] * 30)) == "obj(.a × 40).x(.b.c × 30)"


def test_the_middle_of_a_long_path_that_does_not_repeat_is_left_out():
    path = join(steps(*(f".a{number}" for number in range(100))))
    assert path.startswith("obj.a0.a1.a2")
    assert "(… 76 more …)" in path
    assert path.endswith(".a98.a99")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([".a"], None),
        ([".a", ".b", ".a", ".b"], None),
        ([".x", ".a", ".a", ".a"], (1, 1, 3)),
        ([".a", ".b"] * 3, (0, 2, 3)),
        ([".x", *[".a", ".b", ".c"] * 4, ".a", ".y"], (1, 3, 4)),
    ],
)
def test_repetition_is_found_where_it_is_longest(texts, expected):
    assert repetition(steps(*texts)) == expected


# -- the walk ----------------------------------------------------------------------------------------------------------


def questions(protocol=5):
    pickler = safepickle.Pickler(io.BytesIO(), protocol)
    return PickleQuestions(pickler, override=lambda obj: NotImplemented)


def test_a_walk_goes_on_after_a_finding():
    culprits = [bad(), bad()]
    walk = Walk({"a": culprits[0], "b": [1, culprits[1]]}, questions())
    found = list(walk)
    assert [finding.node.obj for finding in found] == culprits
    assert [path_of(finding.node) for finding in found] == ["obj['a']", "obj['b'][1]"]
    assert not walk.gave_up


def test_a_walk_meets_a_shared_object_once():
    culprit = bad()
    assert len(list(Walk([culprit, culprit, [culprit]], questions()))) == 1


def test_a_walk_needs_no_recursion():
    obj = culprit = bad()
    for _ in range(50_000):
        obj = [obj]
    walk = Walk(obj, questions())
    finding = walk.first()
    assert finding.node.obj is culprit
    assert path_of(finding.node) == "obj([0] × 50000)"


def test_a_walk_says_how_deep_it_went():
    walk = Walk([[[[], 1]], 2], questions())
    assert walk.first() is None
    assert walk.depth == 4
    assert path_of(walk.deepest) == "obj[0][0][0]"


def test_a_walk_consumes_no_iterator_that_an_object_holds():
    numbers = iter([1, 2, 3])
    list(Walk([numbers, map(str, [1]), zip([1], [2], strict=False)], questions()))
    assert next(numbers) == 1


def test_a_walk_does_not_copy_arrays():
    numpy = pytest.importorskip("numpy")

    plain, objects = numpy.zeros(3), numpy.array([bad()], dtype=object)
    assert Walk(plain, questions()).first() is None
    assert Walk(objects, questions()).first().node.obj is objects[0]


def test_a_walk_for_copies_stops_at_what_is_shared():
    registry = safepickle.Registry()
    registry.register(Box, copy=safepickle.SHARE)
    shared = Box(part=bad())
    assert Walk([shared], CopyQuestions(registry)).first() is None
    finding = Walk([shared], CopyQuestions(safepickle.Registry())).first()
    assert path_of(finding.node) == "obj[0].part"
