"""How does a test module of CPython run against our package instead of against the standard library?

Nothing of CPython's tests is kept here: the modules installed with the running interpreter are executed anew, with
their imports of `pickle`, `_pickle` or `copy` answered by the module under test. So each interpreter brings the tests
that fit it, new classes of a later version included.
"""

from __future__ import annotations

import builtins
import copy
import fnmatch
import importlib
import importlib.util
import os
import pickle
import re
import sys
import traceback
import types
import unittest
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from .differences import Difference, difference_for

__all__ = [
    "ComplianceCase",
    "adapted",
    "copy_facade",
    "copy_modules",
    "load_against",
    "pickle_facade",
    "pickle_module",
    "skip_module_without",
    "suites_of",
]

#: Modules that define the behaviour: against these everything must pass, no difference is granted.
REFERENCES = (pickle, copy)


# ---------------------------------------------------------------------------------------------------------------------
# What is tested
# ---------------------------------------------------------------------------------------------------------------------


def pickle_module() -> types.ModuleType:
    """The module that stands for `pickle`: safepickle, or what SAFEPICKLE_COMPLIANCE_PICKLE names.

    With `SAFEPICKLE_COMPLIANCE_PICKLE=pickle` the standard library is put through the same run, which tells a fault of
    this harness from one of safepickle.
    """
    return importlib.import_module(os.environ.get("SAFEPICKLE_COMPLIANCE_PICKLE") or "safepickle")


def copy_modules() -> list[types.ModuleType]:
    """The modules that stand for `copy`: safepickle, or those that SAFEPICKLE_COMPLIANCE_COPIERS names.

    The variable holds module names with commas between. Any module will do that has `copy` and `deepcopy` (and
    `replace` from Python 3.13 on), so each implementation of the copier can go through the same run.
    """
    names = os.environ.get("SAFEPICKLE_COMPLIANCE_COPIERS") or "safepickle"
    return [importlib.import_module(name.strip()) for name in names.split(",")]


def pickle_facade(target: types.ModuleType) -> types.ModuleType:
    """What the tests get when they import `pickle` or `_pickle`.

    Every public name of `pickle` comes from `target`, and is missing if it is missing there. What is not public
    (`_Pickler`, the pure-Python pickler that some tests read our output with) is the standard library's own.
    """
    facade = types.ModuleType(target.__name__)
    private = {name: value for name, value in vars(pickle).items() if name not in pickle.__all__}
    public = {name: getattr(target, name) for name in pickle.__all__ if hasattr(target, name)}
    vars(facade).update(private)
    vars(facade).update(public)
    return facade


def copy_facade(target: types.ModuleType) -> types.ModuleType:
    """What the tests get when they import `copy`: all that `target` holds, and the standard `Error` if it has none."""
    facade = types.ModuleType(target.__name__)
    vars(facade).update({"Error": copy.Error, "error": copy.Error, **vars(target)})
    return facade


# ---------------------------------------------------------------------------------------------------------------------
# The tests
# ---------------------------------------------------------------------------------------------------------------------


def skip_module_without(*names: str) -> None:
    """Skips the calling test module where the interpreter was installed without its test suite, or without its source.

    Arguments: the modules needed, such as `test.pickletester`.
    """
    for name in names:
        if source_file(name) is None:
            pytest.skip(
                f"this Python ({sys.executable}) was installed without the source of {name}, a part of its own tests",
                allow_module_level=True,
            )


def source_file(name: str) -> Path | None:
    """The file with the source of a module, which is not imported for that; None if there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except ImportError:  # the package that it would be in is missing
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


def load_against(name: str, substitutes: Mapping[str, types.ModuleType]) -> types.ModuleType:
    """Executes a module once more, under another name, with some of its imports answered differently.

    Arguments: the module's name; for each module whose import is to be replaced, what to give instead. The module
    itself and those replaced stay as they are in `sys.modules`; imports made by other modules are not affected. The new
    one is entered there under a name of its own.
    Returns: the new module.
    Raises: ModuleNotFoundError if there is no such module, or not its source.
    """
    file = source_file(name)
    if file is None:
        raise ModuleNotFoundError(f"no source of {name}", name=name)

    def substituting_import(wanted: str, *rest: Any, **options: Any) -> types.ModuleType:
        return substitutes.get(wanted) or builtins.__import__(wanted, *rest, **options)

    new_name = "_against_".join([name, *sorted({module.__name__ for module in substitutes.values()})]).replace(".", "_")
    module = types.ModuleType(new_name)
    module.__file__ = str(file)
    sys.modules[new_name] = module  # dataclasses look up the module of a class there
    # An import statement calls the __import__ of its own module's __builtins__, inside functions too.
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": substituting_import}
    exec(compile(file.read_bytes(), file, "exec"), vars(module))
    return module


def suites_of(module: types.ModuleType, excluded: Mapping[str, str]) -> Iterator[type[unittest.TestCase]]:
    """The test classes that a module defines, but for those that match a pattern in `excluded`."""
    for name, value in vars(module).items():
        if not (isinstance(value, type) and issubclass(value, unittest.TestCase)):
            continue
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in excluded):
            yield value


def adapted(
    suite: type[unittest.TestCase],
    target: types.ModuleType,
    *,
    module: str,
    name: str | None = None,
    **attributes: Any,
) -> type[ComplianceCase]:
    """A subclass of a CPython test class that reports to pytest what `ComplianceCase` says.

    Arguments: the class; the module under test; the name of the test module that will hold the result; a name, if not
    the original's; attributes to set on it (a test set to None is left out).
    Returns: the new class.
    """
    # CPython keeps built-in functions such as `_pickle.dumps` in its classes; a Python function would turn into a
    # method there and be given the test as its first argument.
    functions = {
        attribute: staticmethod(value)
        for attribute, value in inherited_attributes(suite).items()
        if isinstance(value, types.FunctionType) and value is getattr(target, attribute, None)
    }
    namespace = {"__module__": module, "target": target, **functions, **attributes}
    return type(name or suite.__name__, (ComplianceCase, suite), namespace)


def inherited_attributes(cls: type) -> dict[str, Any]:
    """What can be found on a class, without asking descriptors."""
    return {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}


# ---------------------------------------------------------------------------------------------------------------------
# The verdict
# ---------------------------------------------------------------------------------------------------------------------


class ComplianceCase(unittest.TestCase):
    """Runs one test of CPython and weighs the outcome against the list of deliberate differences.

    Each failing sub-test counts, however the runner treats sub-tests. A listed test must fail, and only in the way that
    the list describes: passing is a failure too, so that the list stays true.
    """

    target: types.ModuleType

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        outcome = _Outcome(self)
        super().run(outcome)
        if outcome.skipped is not None:
            pytest.skip(outcome.skipped)
        difference = None
        if self.target not in REFERENCES:
            difference = difference_for(type(self).__name__, self._testMethodName)
        if difference is not None:
            _judge_listed(difference, outcome.problems)
        elif outcome.problems:
            _raise_all("", outcome.problems)
        return result


class _Outcome(unittest.TestResult):
    """Collects everything that goes wrong in one test, sub-tests included."""

    def __init__(self, case: unittest.TestCase) -> None:
        super().__init__()
        self.case = case
        self.problems: list[tuple[str, BaseException]] = []
        self.skipped: str | None = None  # type: ignore[assignment]

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self.problems.append((str(test), err[1]))

    addFailure = addError

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.problems.append((str(subtest), err[1]))

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        if test is self.case:  # a skipped sub-test does not make the whole test a skipped one
            self.skipped = reason

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        pass

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.problems.append((str(test), AssertionError("CPython marks this test as failing, and it passed")))


def _judge_listed(difference: Difference, problems: list[tuple[str, BaseException]]) -> None:
    """Reports a test that is in the list: expected to fail, in the described way, and in no other."""
    if not problems:
        pytest.fail(f"is listed as a deliberate difference and passes: take it from the list ({difference.reason})")
    strangers = [(where, error) for where, error in problems if not re.search(difference.shows, _summary(error))]
    if strangers:
        _raise_all(f"is listed to fail with {difference.shows!r}, and failed in other ways\n", strangers)
    pytest.xfail(difference.reason)


def _raise_all(preface: str, problems: list[tuple[str, BaseException]]) -> None:
    """Raises a single problem as it is, and several as one error: the first in full, a line for each of the others."""
    if len(problems) == 1 and not preface:
        raise problems[0][1]
    first = "".join(traceback.format_exception(problems[0][1]))
    others = [f"{where}\n    {_summary(error)}" for where, error in problems[1:]]
    text = "\n".join([f"{preface}{len(problems)} problem(s). {problems[0][0]}", first, *others])
    pytest.fail(text, pytrace=False)


def _summary(error: BaseException) -> str:
    """The last lines of a traceback: the error's type and message."""
    return "".join(traceback.format_exception_only(error)).rstrip()
