"""What must hold in every test process: where compiled kernels go, and which framework is imported first."""

from __future__ import annotations

import copyreg
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from types import ModuleType

import pytest

__all__ = ["pytest_collection_finish", "pytest_configure", "pytest_unconfigure", "what_importing_registers"]


class TritonBeforeTensorflow:
    """A finder that finds nothing: at the first import of TensorFlow it imports Triton, if that is installed.

    Each brings its own LLVM, and a process that loads them in the other order aborts. Waiting until TensorFlow is
    really asked for keeps both out of the runs that need neither.
    """

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /) -> None:
        if fullname == "tensorflow":
            sys.meta_path.remove(self)
            try:
                import triton  # noqa: F401
            except ImportError:
                pass


TRITON_FIRST = TritonBeforeTensorflow()
CACHE = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[CACHE] = tempfile.mkdtemp(prefix="safepickle-triton-cache-")
    os.environ["TRITON_CACHE_DIR"] = config.stash[CACHE]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.meta_path.insert(0, TRITON_FIRST)


def pytest_unconfigure(config: pytest.Config) -> None:
    if TRITON_FIRST in sys.meta_path:
        sys.meta_path.remove(TRITON_FIRST)
    shutil.rmtree(config.stash[CACHE], ignore_errors=True)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Modules are imported when tests are collected, long before most tests run."""
    forget_entries_of_tblib(set())


@pytest.fixture(autouse=True, scope="module")
def what_importing_registers() -> Iterator[None]:
    """What importing Dask registers for all exceptions, and Keras imports it, does not reach the next module's tests.

    So that no result depends on the order of tests; those that are about it put the entries there themselves.
    """
    before = set(copyreg.dispatch_table)
    yield
    forget_entries_of_tblib(before)


def forget_entries_of_tblib(besides: set[type]) -> None:
    for cls in copyreg.dispatch_table.keys() - besides:
        reducer = copyreg.dispatch_table[cls]
        if str(getattr(getattr(reducer, "func", reducer), "__module__", "")).startswith("tblib."):
            del copyreg.dispatch_table[cls]
