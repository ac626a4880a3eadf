"""Does a name that a pickle holds lead somewhere in this environment?"""

from __future__ import annotations

import _compat_pickle
import importlib
import os
import sys
from typing import Any

__all__ = ["find", "resolves", "split"]


def split(name: str) -> list[tuple[str, str]]:
    """The ways to read ``module.qualname`` (or ``module:qualname``), the longest module first."""
    if ":" in name:
        module, _, qualname = name.partition(":")
        return [(module, qualname)]
    parts = name.split(".")
    return [(".".join(parts[:i]), ".".join(parts[i:])) for i in range(len(parts) - 1, 0, -1)]


def find(name: str) -> Any:
    """The object of that name. Imports its module.

    Raises:
        ImportError: no such module.
        AttributeError: no such name in it.
    """
    if sys.modules.get("tensorflow") is None and name.startswith(("tensorflow", "keras", "tf")):
        _triton_first()
    error: Exception = ImportError(f"{name!r} is not a module and a name")
    for module, qualname in map(_modern, split(name)):
        try:
            found: Any = importlib.import_module(module)
        except ImportError as failure:
            error = failure
            continue
        for part in qualname.split("."):
            found = getattr(found, part) if hasattr(found, part) else _own(found, part)
        return found
    raise error


def _modern(name: tuple[str, str]) -> tuple[str, str]:
    """Up to protocol 2 the names of Python 2 are written (``__builtin__.set``)."""
    if name in _compat_pickle.NAME_MAPPING:
        return _compat_pickle.NAME_MAPPING[name]
    return _compat_pickle.IMPORT_MAPPING.get(name[0], name[0]), name[1]


def _own(found: Any, part: str) -> Any:
    attributes = getattr(found, "__dict__", {})
    if part not in attributes:
        raise AttributeError(f"{type(found).__name__} has no attribute {part!r}")
    return attributes[part]


def _triton_first() -> None:
    """Both register LLVM's options, and only this order works."""
    import contextlib

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with contextlib.suppress(Exception):
        importlib.import_module("triton")


def resolves(name: str) -> bool:
    """Whether the name leads somewhere here. Imports its module."""
    try:
        find(name)
    except Exception:
        return False
    return True
