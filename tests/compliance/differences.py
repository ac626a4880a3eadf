"""Where does safepickle deliberately not do what a test of CPython demands, and why?

This is the whole list. A test in it has to fail, with the error described; `tests/compliance/harness.py` sees to it.
"""

from __future__ import annotations

import fnmatch
import sys
from dataclasses import dataclass

__all__ = ["DIFFERENCES", "Difference", "difference_for"]


@dataclass(frozen=True)
class Difference:
    """One test that fails because safepickle means to do something else, wherever the test exists.

    Attributes:
        test: the test method's name.
        suites: patterns for the names of the classes in which the test fails.
        shows: a regular expression that the type and message of each of its failures match.
        reason: what safepickle does instead, and why.
        since: the first Python version of which every release has the test.
    """

    test: str
    suites: tuple[str, ...]
    shows: str
    reason: str
    since: tuple[int, int] = (3, 10)

    def is_about(self, suite: str, test: str) -> bool:
        """Whether this entry speaks of that test of that class."""
        return test == self.test and any(fnmatch.fnmatchcase(suite, pattern) for pattern in self.suites)


#: The classes in which safepickle's pickler writes. Newer releases of Python have the tests of what cannot be pickled
#: in a class of their own, older ones in each of the others.
WRITERS = (
    "CPicklingErrorTests",
    "CPicklerTests",
    "InMemoryPickleTests",
    "CDumpPickle_LoadPickle",
    "FileTests",
    "PlainReaderTests",
)

NOT_REFUSED = r"AssertionError: .*PicklingError.* not raised"

SAYS_MORE = "the message says where the object is and what to do, and has the standard library's sentence inside"

#: Before 3.13 the test looks at the type of the error only, and passes.
WHOLE_MESSAGES = (
    Difference(
        test="test_protocol0_is_ascii_only",
        suites=("CIdPersPicklerTests",),
        shows=r"AssertionError: .*cannot pickle 'str' at obj",
        reason=SAYS_MORE,
        since=(3, 13),
    ),
)

DIFFERENCES: tuple[Difference, ...] = (
    *(WHOLE_MESSAGES if sys.version_info >= (3, 13) else ()),
    Difference(
        test="test_picklebuffer_error",
        suites=("CPicklingErrorTests",),
        shows=r"AssertionError: .*cannot pickle .*PickleBuffer",
        reason=SAYS_MORE,
        since=(3, 13),
    ),
    Difference(
        test="test_local_lookup_error",
        suites=WRITERS,
        shows=NOT_REFUSED,
        reason="a function that no name leads to goes by value instead of being refused",
    ),
    Difference(
        test="test_unpickleable_newobj_class",
        suites=WRITERS,
        shows=NOT_REFUSED,
        reason="a class that no name leads to goes by value instead of being refused",
        since=(3, 13),
    ),
    Difference(
        test="test_unpickleable_newobj_ex_class",
        suites=WRITERS,
        shows=NOT_REFUSED,
        reason="a class that no name leads to goes by value instead of being refused",
        since=(3, 13),
    ),
    Difference(
        test="test_c_methods",
        suites=WRITERS,
        shows="AssertionError: TypeError not raised by dumps",
        reason="a bare staticmethod goes as what it wraps: classes that go by value hold them",
    ),
    Difference(
        test="test_py_methods",
        suites=WRITERS,
        shows="AssertionError: TypeError not raised by dumps",
        reason="a bare staticmethod or classmethod goes as what it wraps: classes that go by value hold them",
    ),
    Difference(
        test="test_newobj_proxies",
        suites=WRITERS,
        shows="AssertionError: <class 'weak(ref.ProxyType|proxy)'> != ",
        reason="a weakref.proxy stays a weak proxy; the standard library pickles the object behind it in its place",
    ),
    Difference(
        test="test_reduce_6tuple",
        suites=("TestCopy_*",),
        shows="AssertionError: (shouldn't call this|TypeError not raised)",
        reason="the sixth item of a reduce value, a state setter, is honoured by the copier as it is by every pickler",
    ),
    Difference(
        test="test_reduce_6tuple_none",
        suites=("TestCopy_*",),
        shows="AssertionError: TypeError not raised",
        reason="the copier takes a reduce value of six items, as every pickler does",
    ),
)


def difference_for(suite: str, test: str) -> Difference | None:
    """The entry for one test of one class, or None if it has to pass.

    Raises: LookupError if more than one entry speaks of it.
    """
    entries = [entry for entry in DIFFERENCES if entry.is_about(suite, test)]
    if len(entries) > 1:
        raise LookupError(f"{suite}.{test} is listed {len(entries)} times")
    return entries[0] if entries else None
