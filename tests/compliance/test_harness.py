"""Would the compliance run notice a failure, and a list of differences that has gone stale?"""

from __future__ import annotations

import copy
import pickle
import pprint
import re
import sys
import types
import unittest
from pathlib import Path

import pytest

from . import differences
from .differences import Difference
from .harness import adapted, copy_facade, load_against, pickle_facade, skip_module_without

__all__: list[str] = []

pytestmark = pytest.mark.timeout(60)

TARGET = types.ModuleType("safepickle_like")


def outcome_of(method: str, target: types.ModuleType = TARGET) -> BaseException | None:
    """Runs one test of `Samples` as the compliance run would; what it tells pytest (None: it passed)."""

    class Samples(unittest.TestCase):
        def test_passing(self) -> None:
            pass

        def test_failing(self) -> None:
            self.fail("wrong answer")

        def test_two_failing_subtests(self) -> None:
            for number in range(3):
                with self.subTest(number=number):
                    assert number not in (0, 2)

        def test_skipped(self) -> None:
            self.skipTest("no such platform")

        def test_with_a_skipped_subtest(self) -> None:
            with self.subTest():
                self.skipTest("not this one")
            self.fail("but the rest counts")

    case = adapted(Samples, target, module=__name__)(method)
    try:
        case.run(unittest.TestResult())
    except BaseException as error:  # pytest's outcomes are not Exceptions
        return error
    return None


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[Difference]:
    """The list of differences, for one test: empty, and open to entries."""
    entries: list[Difference] = []
    monkeypatch.setattr(differences, "DIFFERENCES", entries)
    return entries


def entry(test: str, *, shows: str, suites: tuple[str, ...] = ("*",)) -> Difference:
    return Difference(test, suites, shows, reason="on purpose")


def test_a_passing_test_passes() -> None:
    assert outcome_of("test_passing") is None


def test_a_failing_test_fails_with_its_own_error() -> None:
    error = outcome_of("test_failing")
    assert isinstance(error, AssertionError)
    assert str(error) == "wrong answer"


def test_each_failing_subtest_is_reported() -> None:
    error = outcome_of("test_two_failing_subtests")
    assert isinstance(error, pytest.fail.Exception)
    assert "(number=0)" in str(error)
    assert "(number=1)" not in str(error)
    assert "(number=2)" in str(error)


def test_a_skipped_test_is_skipped_with_its_reason() -> None:
    error = outcome_of("test_skipped")
    assert isinstance(error, pytest.skip.Exception)
    assert str(error) == "no such platform"


def test_a_skipped_subtest_does_not_hide_a_failure() -> None:
    error = outcome_of("test_with_a_skipped_subtest")
    assert isinstance(error, AssertionError)
    assert str(error) == "but the rest counts"


def test_a_listed_test_that_fails_as_described_is_expected_to(listed: list[Difference]) -> None:
    listed.append(entry("test_failing", shows="wrong answer"))
    error = outcome_of("test_failing")
    assert isinstance(error, pytest.xfail.Exception)
    assert str(error) == "on purpose"


def test_a_listed_test_that_fails_in_another_way_fails(listed: list[Difference]) -> None:
    listed.append(entry("test_failing", shows="no answer"))
    error = outcome_of("test_failing")
    assert isinstance(error, pytest.fail.Exception)
    assert "wrong answer" in str(error)


def test_a_listed_test_with_one_stray_subtest_fails(listed: list[Difference]) -> None:
    listed.append(entry("test_two_failing_subtests", shows="assert 0 "))
    error = outcome_of("test_two_failing_subtests")
    assert isinstance(error, pytest.fail.Exception)
    assert "(number=2)" in str(error)
    assert "(number=0)" not in str(error)


def test_a_listed_test_that_passes_fails(listed: list[Difference]) -> None:
    listed.append(entry("test_passing", shows="."))
    error = outcome_of("test_passing")
    assert isinstance(error, pytest.fail.Exception)
    assert "take it from the list" in str(error)


def test_an_entry_for_another_class_is_not_applied(listed: list[Difference]) -> None:
    listed.append(entry("test_failing", shows="wrong answer", suites=("Other*",)))
    assert isinstance(outcome_of("test_failing"), AssertionError)


def test_a_test_that_is_listed_twice_is_an_error(listed: list[Difference]) -> None:
    listed.append(entry("test_failing", shows="wrong answer"))
    listed.append(entry("test_failing", shows="wrong", suites=("Sam*",)))
    assert isinstance(outcome_of("test_failing"), LookupError)


def test_against_the_standard_library_nothing_is_granted(listed: list[Difference]) -> None:
    listed.append(entry("test_failing", shows="wrong answer"))
    assert isinstance(outcome_of("test_failing", target=pickle), AssertionError)


def test_a_module_under_test_is_given_only_to_the_module_that_is_loaded() -> None:
    substitute = types.ModuleType("substitute")
    loaded = load_against("pprint", {"re": substitute})
    assert loaded.re is substitute
    assert pprint.re is re
    assert loaded is not sys.modules["pprint"]


def test_an_import_inside_a_function_is_answered_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imports_late.py").write_text("def late():\n    from re import sub\n    return sub\n")
    monkeypatch.syspath_prepend(tmp_path)
    substitute = types.ModuleType("substitute")
    substitute.sub = "the substitute"
    assert load_against("imports_late", {"re": substitute}).late() == "the substitute"


@pytest.mark.parametrize("name", ["test.there_is_no_such_module", "there_is_no_such_package.test_pickle", "zlib"])
def test_a_python_without_the_source_of_its_tests_skips_with_a_reason(name: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=f"installed without the source of {name}"):
        skip_module_without(name)


def test_a_public_name_that_is_missing_stays_missing() -> None:
    target = types.ModuleType("incomplete")
    target.loads = pickle.loads
    facade = pickle_facade(target)
    assert facade.loads is pickle.loads
    assert not hasattr(facade, "dumps")
    assert facade._Pickler is pickle._Pickler


def test_a_copier_without_an_error_type_of_its_own_gets_the_standard_one() -> None:
    target = types.ModuleType("bare_copier")
    target.deepcopy = copy.deepcopy
    facade = copy_facade(target)
    assert facade.deepcopy is copy.deepcopy
    assert facade.Error is facade.error is copy.Error
    assert not hasattr(facade, "copy")
