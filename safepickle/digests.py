"""A hash of what an object holds, the same in every process.

The pickle of an object depends on more than its value: on which equal strings are one object, and on the hash seed where there
are sets. The canonical form here does not. It is only ever hashed, never loaded.
"""

from __future__ import annotations

import hashlib
import pickle
import types
from typing import Any

from .sources import ByValue

__all__ = ["content_digest"]

_python_pickler: Any = pickle._Pickler  # type: ignore[attr-defined]


class _Hash:
    """A file that hashes what is written to it."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return memoryview(data).nbytes


class CanonicalPickler(_python_pickler):  # type: ignore[misc]
    """Writes sets sorted and strings always in full."""

    canonical = True
    protocol = 4

    def __init__(self, file: Any, registry: Any) -> None:
        super().__init__(file, 4)
        self.registry = registry
        self.by_value = ByValue()
        self.framer.start_framing = lambda: None  # frames depend on sizes only, but a hash needs none
        self.kept: list[Any] = []

    def memoize(self, obj: Any) -> None:
        # Whether two equal strings are one object is an accident of the process.
        if type(obj) not in (str, bytes, int, float):
            super().memoize(obj)

    def reducer_override(self, obj: Any) -> Any:
        for rule in self.registry.rules_for(type(obj), "pickle"):
            reduced = rule.reduce(obj, self) if rule.with_pickler else rule.reduce(obj)
            if reduced is not NotImplemented:
                self.kept.append(reduced)
                return reduced
        return NotImplemented

    def save_set(self, obj: Any) -> None:
        self._save_unordered(obj, "set")

    def save_frozenset(self, obj: Any) -> None:
        self._save_unordered(obj, "frozenset")

    def _save_unordered(self, obj: Any, kind: str) -> None:
        parts = sorted(content_digest(item, self.registry) for item in obj)
        self.save((kind, parts))
        self.memoize(obj)

    # Not a copy of the table in pickle: dill, once imported, has put its own functions into that.
    dispatch = {
        type(None): _python_pickler.save_none,
        bool: _python_pickler.save_bool,
        int: _python_pickler.save_long,
        float: _python_pickler.save_float,
        bytes: _python_pickler.save_bytes,
        bytearray: _python_pickler.save_bytearray,
        pickle.PickleBuffer: _python_pickler.save_picklebuffer,
        str: _python_pickler.save_str,
        tuple: _python_pickler.save_tuple,
        list: _python_pickler.save_list,
        dict: _python_pickler.save_dict,
        set: save_set,
        frozenset: save_frozenset,
        types.FunctionType: _python_pickler.save_global,
        type: _python_pickler.save_type,
    }


def content_digest(obj: Any, registry: Any) -> str:
    """The SHA-256 of the canonical form of an object, in hexadecimal.

    Raises:
        PicklingError: some part of the object cannot be pickled.
    """
    sink = _Hash()
    CanonicalPickler(sink, registry).dump(obj)
    return sink.hash.hexdigest()
