"""Does the list of deliberate differences speak of tests that are there?"""

from __future__ import annotations

import fnmatch
import re
import unittest

import pytest

from .differences import DIFFERENCES, differences_here
from .harness import ComplianceCase, skip_module_without

__all__: list[str] = []

skip_module_without("test.pickletester", "test.test_pickle", "test.test_copy")

from . import test_copy_suite, test_pickle_suite  # noqa: E402

pytestmark = pytest.mark.timeout(60)


def names_of_tests_that_run() -> set[tuple[str, str]]:
    """Class and method of each test of CPython that is run here."""
    return {
        (suite.__name__, test)
        for module in (test_copy_suite, test_pickle_suite)
        for suite in vars(module).values()
        if isinstance(suite, type) and issubclass(suite, ComplianceCase) and suite is not ComplianceCase
        for test in unittest.defaultTestLoader.getTestCaseNames(suite)
    }


def test_each_pattern_of_each_entry_meets_a_test_that_is_run() -> None:
    tests = names_of_tests_that_run()
    idle = [
        (entry.test, pattern)
        for entry in differences_here()
        for pattern in entry.suites
        if not any(test == entry.test and fnmatch.fnmatchcase(suite, pattern) for suite, test in tests)
    ]
    assert idle == []


def test_each_entry_says_why_and_what_the_failure_looks_like() -> None:
    wordless = [entry.test for entry in DIFFERENCES if len(entry.reason.split()) < 5]
    assert wordless == []
    fitting_everything = [entry.test for entry in DIFFERENCES if re.search(entry.shows, "")]
    assert fitting_everything == []
    without_a_version = [entry.test for entry in DIFFERENCES if not (3, 10) <= entry.since < entry.before]
    assert without_a_version == []
