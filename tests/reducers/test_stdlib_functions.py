"""What functools and the builtin descriptors make of functions: by name, or whole, and still working."""

from __future__ import annotations

import functools
import os
import pickle
from pathlib import Path
from typing import Any, ClassVar

import pytest

import safepickle
from tests.helpers import fresh_load, run_python

from .ways import Way, every_way, pickled_ways

__all__: list[str] = []


@functools.lru_cache(maxsize=16)
def doubled(number: int) -> int:
    """Twice."""
    return 2 * number


@functools.singledispatch
def size(thing: Any) -> int:
    return 1


@size.register
def _(thing: list) -> int:  # type: ignore[type-arg]
    return len(thing)


class Shape:
    """Has descriptors of each kind."""

    sides: ClassVar[int] = 4

    @functools.lru_cache  # noqa: B019
    def area(self, scale: int) -> int:
        return self.sides * scale

    @functools.cached_property
    def slow(self) -> list[int]:
        return [self.sides]

    @functools.singledispatchmethod
    def add(self, other: Any) -> str:
        return "anything"

    @add.register
    def _(self, other: int) -> str:
        return "number"

    scaled = functools.partialmethod(area, 10)


class Typed(property):
    """A property with an attribute."""

    kind = "none"


class Marked(staticmethod):  # type: ignore[type-arg]
    """A static method with an attribute."""


# -- caches -----------------------------------------------------------------------------------------------------------


@every_way
def test_a_function_with_a_cache_goes_by_name(way: Way) -> None:
    assert way(doubled) is doubled
    assert way([Shape.area])[0] is Shape.area
    assert b"safepickle" not in safepickle.dumps(doubled)


@pickled_ways
def test_a_local_function_with_a_cache_has_an_empty_one(way: Way) -> None:
    calls: list[int] = []

    @functools.lru_cache(maxsize=2, typed=True)
    def square(number: int) -> int:
        """Squares."""
        calls.append(number)
        return number * number

    square(3)
    square.note = "kept"  # type: ignore[attr-defined]
    twin, twin_calls = way([square, calls])
    assert twin.cache_parameters() == {"maxsize": 2, "typed": True}
    assert twin.cache_info().currsize == 0
    assert [twin(4), twin(4), twin(3)] == [16, 16, 9]
    assert twin_calls == [3, 4, 3]
    assert (twin.__name__, twin.__doc__, twin.__qualname__, twin.note) == (
        "square",
        "Squares.",
        square.__qualname__,
        "kept",
    )
    assert twin.cache_info().hits == 1
    assert square.cache_info().currsize == 1


def test_deepcopy_shares_a_cache() -> None:
    cached = functools.cache(list)
    assert safepickle.deepcopy({"f": cached})["f"] is cached


def test_a_recursive_function_with_a_cache_from_a_script(tmp_path: Path) -> None:
    code = """
        import functools, safepickle
        @functools.cache
        def fib(n):
            return n if n < 2 else fib(n - 1) + fib(n - 2)
        fib(5)
        print(safepickle.dumps(fib).hex())
    """
    data = bytes.fromhex(run_python(code))
    assert fresh_load(data, "print(obj(90), obj.cache_info().misses)", tmp_path).split() == [
        "2880067194370816120",
        "91",
    ]


@every_way
def test_a_cached_property_computes_again_in_the_copy(way: Way) -> None:
    shape = Shape()
    assert shape.slow == [4]
    twin = way(shape)
    assert twin.slow == [4]
    assert twin.slow is not shape.slow
    local = way(functools.cached_property(len))
    assert local.func is len


def test_a_local_class_with_such_descriptors(tmp_path: Path) -> None:
    class Local:
        factor = 3

        @functools.cached_property
        def tripled(self) -> int:
            """Thrice."""
            return self.factor * 3

        @functools.cache  # noqa: B019
        def times(self, n: int) -> int:
            return self.factor * n

        by_two = functools.partialmethod(times, 2)

        @functools.singledispatchmethod
        def kind(self, value: Any) -> str:
            return "any"

        @kind.register
        def _(self, value: int) -> str:
            return "int"

    data = safepickle.dumps([Local, Local()])
    code = """
        Local, instance = obj
        assert type(instance) is Local
        print(instance.tripled, instance.tripled, instance.times(4), instance.by_two(), instance.kind(1),
        instance.kind(""), Local.tripled.__doc__)
    """
    assert fresh_load(data, code, tmp_path).split() == ["9", "9", "12", "6", "int", "any", "Thrice."]


# -- dispatch ---------------------------------------------------------------------------------------------------------


@every_way
def test_a_dispatching_function_goes_by_name(way: Way) -> None:
    assert way(size) is size
    assert size([1, 2]) == 2


def make_dispatcher() -> Any:
    @functools.singledispatch
    def kind(value: Any) -> str:
        """Which kind?"""
        return "other"

    @kind.register
    def _(value: int) -> str:
        return "whole"

    @kind.register(dict)
    def _(value: Any) -> str:
        return ",".join(kind(part) for part in value.values())

    kind(3)
    kind.note = "kept"  # type: ignore[attr-defined]
    return kind


@pickled_ways
def test_a_local_dispatching_function_is_whole_and_open(way: Way) -> None:
    kind = make_dispatcher()
    twin = way(kind)
    assert [twin(1), twin(True), twin("x"), twin({"a": 1, "b": None})] == ["whole", "whole", "other", "whole,other"]
    assert (twin.__name__, twin.__doc__, twin.note, twin.__qualname__) == (
        "kind",
        "Which kind?",
        "kept",
        kind.__qualname__,
    )
    twin.register(str, lambda value: "text")
    assert twin("x") == "text"
    assert twin.dispatch(bool).__wrapped__ if hasattr(twin.dispatch(bool), "__wrapped__") else True
    assert kind("x") == "other"
    assert str not in kind.registry


def test_a_local_dispatching_function_in_a_fresh_process(tmp_path: Path) -> None:
    code = """
        print(obj({"a": [], "b": 2}))
        obj.register(list, lambda value: "list")
        print(obj({"a": [], "b": 2}))
    """
    assert fresh_load(safepickle.dumps(make_dispatcher()), code, tmp_path).split() == ["other,whole", "list,whole"]


def test_deepcopy_shares_a_dispatching_function() -> None:
    kind = make_dispatcher()
    assert safepickle.deepcopy([kind])[0] is kind


@every_way
def test_an_object_with_a_dispatching_method(way: Way) -> None:
    twin = way(Shape())
    assert (twin.add(1), twin.add("")) == ("number", "anything")
    assert twin.scaled() == 40


@pickled_ways
def test_a_dispatching_method_alone(way: Way) -> None:
    twin = way(vars(Shape)["add"])
    assert twin.dispatcher.dispatch(int)(None, 1) == "number"


# -- partial ----------------------------------------------------------------------------------------------------------


class Named(functools.partial):  # type: ignore[type-arg]
    """A partial with an attribute."""


@every_way
def test_a_partial_of_what_is_in_the_same_object(way: Way) -> None:
    rows: list[Any] = []
    call = Named(rows.append)
    call.label = "add"  # type: ignore[attr-defined]
    twin_rows, twin = way([rows, call])
    assert type(twin) is Named
    assert twin.label == "add"
    twin(1)
    assert twin_rows == [1]
    assert rows == []


@every_way
def test_a_partial_that_holds_itself(way: Way) -> None:
    box: list[Any] = []
    call = functools.partial(max, box, key=len)
    box.append(call)
    twin = way(call)
    assert twin.args[0][0] is twin
    assert twin.keywords == {"key": len}


@every_way
def test_a_sort_key(way: Way) -> None:
    make_key = functools.cmp_to_key(compare)
    assert sorted([1, 3, 2], key=way(make_key)) == [3, 2, 1]
    assert way(make_key(2)) < make_key(1)


def compare(one: int, other: int) -> int:
    return other - one


# -- builtin methods --------------------------------------------------------------------------------------------------


@every_way
def test_a_builtin_method_follows_its_owner(way: Way) -> None:
    results: list[int] = []
    twin = way({"add": results.append, "results": results})
    twin["add"](1)
    assert twin["results"] == [1]
    assert results == []


def test_a_builtin_method_of_an_object_outside_of_the_copy_is_shared() -> None:
    results: list[int] = []
    safepickle.deepcopy({"add": results.append})["add"](1)
    assert results == [1]


@every_way
@pytest.mark.parametrize(
    "function",
    [len, os.getpid, dict.fromkeys, str.join, object.__init__, bytes.fromhex, type.__call__],
    ids=lambda function: function.__qualname__,
)
def test_builtin_functions_and_methods_of_types(way: Way, function: Any) -> None:
    assert way([function])[0] == function


# -- descriptors ------------------------------------------------------------------------------------------------------


@pickled_ways
def test_descriptors_of_subclasses_keep_their_attributes(way: Way) -> None:
    prop = Typed(lambda self: 7, doc="Seven.")
    prop.kind = "int"
    method = Marked(lambda: 3)
    method.note = "n"  # type: ignore[attr-defined]
    twin, twin_method = way([prop, method])
    assert (type(twin), twin.kind, twin.fget(None), twin.__doc__) == (Typed, "int", 7, prop.__doc__)
    assert (type(twin_method), twin_method.note, twin_method.__func__()) == (Marked, "n", 3)


@every_way
@pytest.mark.parametrize("name", ["__dict__", "real", "fromkeys", "__name__"])
def test_descriptors_made_in_c(way: Way, name: str) -> None:
    owner = {"__dict__": Shape, "real": int, "fromkeys": dict, "__name__": type}[name]
    descriptor = type.__dict__["__dict__"].__get__(owner)[name]
    assert way(descriptor) is descriptor


@every_way
def test_super_is_that_of_the_copy(way: Way) -> None:
    shape = Shape()
    twin, bound = way([shape, super(Shape, shape)])
    assert type(bound) is super
    assert bound.__self__ is twin
    assert bound.__thisclass__ is Shape


def test_what_has_a_name_loads_without_safepickle() -> None:
    for obj in (doubled, size, functools.partial(doubled, 2)):
        assert b"safepickle" not in safepickle.dumps(obj)
        pickle.loads(safepickle.dumps(obj))


# -- what holds the object that is copied -----------------------------------------------------------------------------


class Model:
    """Makes functions of its own methods."""

    def __init__(self) -> None:
        self.scale = 2
        self.results: list[int] = []
        self.cached = functools.lru_cache(maxsize=4)(self._scaled)
        self.by_kind = functools.singledispatch(self._any)
        self.by_kind.register(int, self._whole)
        self.later = functools.cache(lambda x: self.scale * x)
        add = self.results.append
        self.note = lambda x: add(x)

    def _scaled(self, x: int) -> int:
        return self.scale * x

    def _any(self, x: Any) -> str:
        return f"any {self.scale}"

    def _whole(self, x: int) -> str:
        return f"whole {self.scale}"


@every_way
def test_functions_over_methods_of_an_object_are_those_of_the_new_one(way: Way) -> None:
    model = Model()
    assert (model.cached(1), model.later(1)) == (2, 2)
    twin = way(model)
    twin.scale = 5
    assert (twin.cached(1), twin.later(1)) == (5, 5)
    assert (twin.by_kind(""), twin.by_kind(1)) == ("any 5", "whole 5")
    assert twin.cached.cache_parameters() == {"maxsize": 4, "typed": False}
    twin.note(7)
    assert twin.results == [7]
    assert model.results == []
    assert (model.cached(1), model.by_kind(1)) == (2, "whole 2")
    assert model.cached.cache_info().hits == 1
