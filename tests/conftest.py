"""What must hold in every test process: where compiled kernels go, and which framework is imported first."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from types import ModuleType

import pytest

__all__ = ["pytest_configure", "pytest_unconfigure"]


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
