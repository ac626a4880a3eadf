"""Does the list of deliberate differences speak of tests that are there, and is it true what it says instead?"""

from __future__ import annotations

import copyreg
import re
import sys
import unittest
from typing import Any

import pytest

import safepickle

from .differences import DIFFERENCES
from .harness import ComplianceCase, skip_module_without

__all__: list[str] = []

skip_module_without("test.pickletester", "test.test_pickle", "test.test_copy")

from . import test_copy_suite, test_pickle_suite

pytestmark = pytest.mark.timeout(60)

protocols = pytest.mark.parametrize("protocol", range(safepickle.HIGHEST_PROTOCOL + 1))


# -- the list ----------------------------------------------------------------------------------------------------------


def names_of_tests_that_run() -> set[tuple[str, str]]:
    """Class and method of each test of CPython that is run here."""
    return {
        (suite.__name__, test)
        for module in (test_copy_suite, test_pickle_suite)
        for suite in vars(module).values()
        if isinstance(suite, type) and issubclass(suite, ComplianceCase) and suite is not ComplianceCase
        for test in unittest.defaultTestLoader.getTestCaseNames(suite)
    }


def test_each_entry_speaks_of_a_test_that_is_run() -> None:
    running = names_of_tests_that_run()
    expected_here = [entry for entry in DIFFERENCES if sys.version_info >= entry.since]
    assert [entry.test for entry in expected_here if not any(entry.is_about(*names) for names in running)] == []


def test_each_entry_says_why_and_what_the_failure_looks_like() -> None:
    assert [entry.test for entry in DIFFERENCES if len(entry.reason.split()) < 5] == []
    assert [entry.test for entry in DIFFERENCES if re.search(entry.shows, "")] == []


# -- what happens instead ----------------------------------------------------------------------------------------------


class Tool:
    """A class that a name leads to."""

    @staticmethod
    def double(number: int) -> int:
        return 2 * number

    @classmethod
    def name(cls) -> str:
        return cls.__name__


@protocols
def test_a_local_function_goes_by_value(protocol: int) -> None:
    factor = 3

    def multiply(number: int) -> int:
        return factor * number

    assert safepickle.loads(safepickle.dumps(multiply, protocol))(14) == 42


@protocols
def test_a_function_without_a_module_goes_by_value(protocol: int) -> None:
    def answer() -> int:
        return 42

    del answer.__module__
    assert safepickle.loads(safepickle.dumps(answer, protocol))() == 42


@protocols
@pytest.mark.parametrize("maker", ["__newobj__", "__newobj_ex__"])
def test_an_object_of_a_local_class_goes_with_its_class(protocol: int, maker: str) -> None:
    class Local:
        def __reduce_ex__(self, protocol: Any) -> Any:
            arguments = (Local,) if maker == "__newobj__" else (Local, (), {})
            return getattr(copyreg, maker), arguments, {"number": 42}

    restored = safepickle.loads(safepickle.dumps(Local(), protocol))
    assert type(restored).__name__ == "Local"
    assert restored.number == 42


@protocols
def test_a_bare_static_method_goes_as_what_it_wraps(protocol: int) -> None:
    restored = safepickle.loads(safepickle.dumps(vars(Tool)["double"], protocol))
    assert type(restored) is staticmethod
    assert restored.__func__ is Tool.double


@protocols
def test_a_bare_static_method_around_a_builtin_goes_as_what_it_wraps(protocol: int) -> None:
    restored = safepickle.loads(safepickle.dumps(vars(str)["maketrans"], protocol))
    assert type(restored) is staticmethod
    assert restored.__func__ is str.maketrans


@protocols
def test_a_bare_class_method_goes_as_what_it_wraps(protocol: int) -> None:
    restored = safepickle.loads(safepickle.dumps(vars(Tool)["name"], protocol))
    assert type(restored) is classmethod
    assert restored.__get__(None, Tool)() == "Tool"


class WithSetter:
    """An object whose state is put back by a function of somebody else's choice."""

    def __init__(self) -> None:
        self.numbers = [1, 2]

    def __reduce__(self) -> Any:
        return object.__new__, (WithSetter,), {"numbers": self.numbers}, None, None, set_state_and_mark


def set_state_and_mark(obj: Any, state: dict[str, Any]) -> None:
    obj.__dict__.update(state, marked=True)


@pytest.mark.parametrize("verb", [safepickle.copy, safepickle.deepcopy])
def test_the_copier_calls_a_state_setter_as_the_pickler_has_it_called(verb: Any) -> None:
    original = WithSetter()
    twin = verb(original)
    unpickled = safepickle.loads(safepickle.dumps(original))
    assert vars(twin) == vars(unpickled) == {"numbers": [1, 2], "marked": True}
    assert (twin.numbers is original.numbers) == (verb is safepickle.copy)
