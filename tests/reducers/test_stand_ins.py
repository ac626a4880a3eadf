"""Does an object that took a function's place go by that function's name, and any other object as before?"""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import safepickle
from tests.helpers import fresh_load

PROTOCOLS = (2, 4, 5)

MODULE = '''
import functools, threading

class Traced:
    """What a decorator leaves in the place of a function."""

    def __init__(self, function, scale=1):
        functools.update_wrapper(self, function)
        self.function, self.scale, self.calls = function, scale, []

    def __call__(self, x):
        self.calls.append(x)
        return self.scale * self.function(x)

class Hidden:
    """It keeps the function in a private attribute of another object."""

    def __init__(self, function):
        self._task = functools.partial(function)
        self._inner = Traced(function)
        self._lock = threading.Lock()

    def __getitem__(self, x):
        return self._inner(x)

def traced(scale):
    return lambda function: Traced(function, scale)

@traced(scale=10)
def plus_one(x):
    return x + 1

@Hidden
def plus_two(x):
    return x + 2

class Namespace:
    @traced(scale=100)
    def plus_three(x):
        return x + 3

def _plus_four(x):
    return x + 4

plus_four = Traced(_plus_four, 1000)

class Stateful(Traced):
    def __getstate__(self):
        return {"scale": self.scale, "function": None, "calls": []}

@Stateful
def plus_five(x):
    return x + 5
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "stand_in_fixture.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import stand_in_fixture  # type: ignore[import-not-found]

    yield stand_in_fixture
    del sys.modules["stand_in_fixture"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ["plus_one", "plus_two", "Namespace.plus_three"])
def test_it_comes_back_as_itself(module: ModuleType, name: str, protocol: int) -> None:
    obj = functools.reduce(getattr, name.split("."), module)
    data = safepickle.dumps([obj], protocol)
    assert pickle.loads(data)[0] is obj
    assert len(data) < 120


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_it_holds_comes_back_as_itself(module: ModuleType, protocol: int) -> None:
    function = module.plus_one.function
    obj, inner, deep = pickle.loads(
        safepickle.dumps([module.plus_one, function, module.plus_two._inner.function], protocol)
    )
    assert obj is module.plus_one and inner is function and deep is module.plus_two._inner.function


def test_in_a_fresh_process_it_is_the_object_of_that_name_and_works(module: ModuleType, tmp_path: Path) -> None:
    data = safepickle.dumps({"one": module.plus_one, "raw": module.plus_one.function, "two": module.plus_two})
    code = """
        import stand_in_fixture as module
        print(obj["one"] is module.plus_one, obj["raw"] is module.plus_one.function, obj["two"] is module.plus_two)
        print(obj["one"](4), obj["raw"](4), obj["two"][4])
    """
    assert fresh_load(data, code, tmp_path, pythonpath=[tmp_path]) == "True True True\n50 5 6\n"


def test_a_copy_is_an_independent_object_around_the_same_function(module: ModuleType) -> None:
    twin = safepickle.deepcopy(module.plus_one)
    assert twin is not module.plus_one
    assert twin.function is module.plus_one.function
    assert twin(1) == 20 and twin.calls == [1] and module.plus_one.calls == []


def test_an_object_under_another_name_goes_by_value_around_the_function(module: ModuleType) -> None:
    module.plus_four(1)
    loaded = safepickle.loads(safepickle.dumps(module.plus_four))
    assert loaded is not module.plus_four
    assert loaded.function is module._plus_four and loaded.calls == [1]


def test_a_class_that_says_how_it_is_pickled_is_asked(module: ModuleType) -> None:
    loaded = safepickle.loads(safepickle.dumps(module.plus_five))
    assert type(loaded) is module.Stateful and loaded.function is None


def test_a_changed_name_is_no_reference(module: ModuleType) -> None:
    old = module.plus_one
    module.plus_one = None
    loaded = safepickle.loads(safepickle.dumps(old))
    assert loaded is not old and loaded(1) == 20


def test_callable_objects_without_such_a_function_go_as_with_pickle() -> None:
    for obj in (Doubler(3), functools.partial(int, base=2), Doubler):
        assert safepickle.dumps(obj, 4) == pickle.dumps(obj, 4)


class Doubler:
    def __init__(self, factor: int) -> None:
        self.factor = factor
        self.table: dict[str, Any] = {"f": len}

    def __call__(self, x: int) -> int:
        return self.factor * x
