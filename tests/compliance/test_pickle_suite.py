"""Does CPython's own test suite of `pickle` pass with safepickle in its place?

The classes are those of `test.test_pickle`, under their own names; those that run the C pickler there run
`safepickle.Pickler` here. Which there are depends on the Python version.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from typing import Any

import pytest

from .harness import adapted, load_against, pickle_facade, pickle_module, skip_module_without, suites_of

__all__: list[str] = []

skip_module_without("test.pickletester", "test.test_pickle")

from test import pickletester

pytestmark = pytest.mark.timeout(120)

#: Classes of `test.test_pickle` that are not run, by pattern, and why.
EXCLUDED = {
    "Py*": "about the pure-Python pickler of the standard library; CPython derives from them the classes that are run",
    "CompatPickleTests": "about the tables of names in _compat_pickle: no pickler takes part",
    "SizeofTests": "about the bytes that the C types take: an instance of a subclass takes more",
    "HeapTypesTests": "about the C types of _pickle themselves, which safepickle leaves as they are",
}

#: Tests of these names are left out: each builds objects of 2 to 4 GiB, and needs up to 17 GiB of memory to do it.
NEEDING_HUGE_MEMORY = {name: None for name in vars(pickletester.BigmemPickleTests) if name.startswith("test_")}

TARGET = pickle_module()
FACADE = pickle_facade(TARGET)
CPYTHON = load_against("test.test_pickle", {"pickle": FACADE, "_pickle": FACADE})


def dumps_to_file(obj: Any, protocol: int | None = None, **options: Any) -> bytes:
    """Dumps with `dump` into a file on disk, and returns what that then holds."""
    with tempfile.NamedTemporaryFile(dir=os.curdir) as file:
        TARGET.dump(obj, file, protocol, **options)
        file.seek(0)
        return file.read()


def loads_from_file(data: bytes, **options: Any) -> Any:
    """Loads with `load` from a file on disk that holds `data`."""
    with tempfile.NamedTemporaryFile(dir=os.curdir) as file:
        file.write(data)
        file.seek(0)
        return TARGET.load(file, **options)


class HookFirst(pickletester.AbstractCustomPicklerClass, TARGET.Pickler):
    """A user's pickler with a hook in front of ours. CPython names the pickler first: its own has no such method."""


#: What some classes need besides: attributes by class name.
ATTRIBUTES: dict[str, dict[str, Any]] = {"InMemoryPickleTests": NEEDING_HUGE_MEMORY}

for suite in suites_of(CPYTHON, EXCLUDED):
    globals()[suite.__name__] = adapted(suite, TARGET, module=__name__, **ATTRIBUTES.get(suite.__name__, {}))
del suite  # or pytest would take it for one more class of tests

# What `dumps` and `loads` have to do, done by `dump` and `load` on files on disk.
FileTests = adapted(
    CPYTHON.InMemoryPickleTests,
    TARGET,
    module=__name__,
    name="FileTests",
    dumps=staticmethod(dumps_to_file),
    loads=staticmethod(loads_from_file),
    **NEEDING_HUGE_MEMORY,
)

# What `safepickle.dumps` writes, read by plain `pickle.loads`.
PlainReaderTests = adapted(
    CPYTHON.CPicklerTests,
    TARGET,
    module=__name__,
    name="PlainReaderTests",
    dumps=staticmethod(TARGET.dumps),
    loads=staticmethod(pickle.loads),
)

# A hook whose class stands before the pickler's instead of behind it.
HookFirstTests = adapted(
    CPYTHON.CPicklerHookTests,
    TARGET,
    module=__name__,
    name="HookFirstTests",
    pickler_class=HookFirst,
)
