"""Which living object has this identity, and which identity has this object?"""

from __future__ import annotations

import threading
import weakref
from typing import Any

__all__ = [
    "Identities",
    "identities",
]


class Identities:
    """Which living object has this identity, and which identity has this object?

    An identity is made from content, never at random, so that equal programs write equal bytes. Loading what this
    process
    knows gives the living object: the class at home, the kernel that is compiled already. Nothing is kept alive or
        hashed.
    """

    def __init__(self) -> None:
        self._objects: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self.lock = threading.RLock()

    def object_of(self, identity: str) -> Any | None:
        """The living object of that identity."""
        return self._objects.get(identity)

    def identity_of(self, obj: Any) -> str | None:
        """The identity under which the object was pickled or loaded here before."""
        entry = self._names.get(id(obj))
        return entry[1] if entry is not None and entry[0]() is obj else None

    def remember(self, obj: Any, identity: str) -> str:
        """Give an object its identity; one that is taken by another living object gets a number behind it."""
        with self.lock:
            number, unique = 0, identity
            while self._objects.get(unique, obj) is not obj:
                number += 1
                unique = f"{identity}-{number}"
            key, names = id(obj), self._names
            self._objects[unique] = obj
            names[key] = (weakref.ref(obj, lambda _: names.pop(key, None)), unique)
            return unique


#: Classes, type variables, kernels and compiled functions that travelled by value.
identities = Identities()
