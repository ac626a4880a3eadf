"""Where does safepickle deliberately not do what a test of CPython demands, and why?

This is the whole list. A test in it has to fail, with the error described; `tests/compliance/harness.py` sees to it.
"""

from __future__ import annotations

import fnmatch
import sys
from dataclasses import dataclass

__all__ = ["DIFFERENCES", "Difference", "difference_for", "differences_here"]


@dataclass(frozen=True)
class Difference:
    """One test that fails because safepickle means to do something else.

    Attributes:
        test: the test method's name.
        shows: a regular expression that the type and message of each of its failures match.
        reason: what safepickle does instead, and why.
        suites: patterns for the names of the classes in which the test fails.
        since: the first Python version on which it fails.
        before: the first Python version on which it no longer does, if there is one.
    """

    test: str
    shows: str
    reason: str
    suites: tuple[str, ...] = ("*",)
    since: tuple[int, int] = (3, 10)
    before: tuple[int, int] = (4, 0)

    def is_about(self, suite: str, test: str) -> bool:
        """Whether this entry speaks of that test of that class."""
        return test == self.test and any(fnmatch.fnmatchcase(suite, pattern) for pattern in self.suites)


DIFFERENCES: tuple[Difference, ...] = ()


def differences_here() -> list[Difference]:
    """The entries that apply to the running Python."""
    return [entry for entry in DIFFERENCES if entry.since <= sys.version_info[:2] < entry.before]


def difference_for(suite: str, test: str) -> Difference | None:
    """The entry for one test of one class on the running Python, or None if it has to pass.

    Raises: LookupError if more than one entry applies.
    """
    entries = [entry for entry in differences_here() if entry.is_about(suite, test)]
    if len(entries) > 1:
        raise LookupError(f"{suite}.{test} is listed {len(entries)} times")
    return entries[0] if entries else None
