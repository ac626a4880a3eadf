"""What was changed outside the package, and how is it put back?

:func:`safepickle.install` and the adapters in :mod:`safepickle.engines` change other modules only through a
:class:`Changes`, so that each change can be listed and undone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Final, NamedTuple

__all__ = ["Change", "Changes"]


class _Missing:
    """The type of the mark for what was not there before."""

    def __repr__(self) -> str:
        return "<nothing>"


MISSING: Final = _Missing()


class Change(NamedTuple):
    """One change.

    Attributes:
        engine: for whom: ``"copyreg"``, or the name of an engine.
        where: what was changed, as one would write it in Python.
        undo: puts back what was there; returns False where somebody else has changed the same place meanwhile, which
            is then left as it is.
    """

    engine: str
    where: str
    undo: Callable[[], bool]


class Changes:
    """A list of changes, in order.

    Example:
        >>> import types
        >>> other = types.SimpleNamespace(pickler="theirs")
        >>> changes = Changes()
        >>> changes.set_attribute("an engine", other, "pickler", "ours", where="other.pickler")
        >>> other.pickler
        'ours'
        >>> changes.undo()
        []
        >>> other.pickler
        'theirs'
    """

    def __init__(self) -> None:
        self._made: list[Change] = []
        self.renew_lock()

    def renew_lock(self) -> None:
        """In a forked child, where the thread that held the lock may not be."""
        self._lock = threading.RLock()

    def __iter__(self) -> Iterator[Change]:
        with self._lock:
            return iter(list(self._made))

    def __len__(self) -> int:
        return len(self._made)

    def add(self, engine: str, where: str, undo: Callable[[], bool]) -> Change:
        """Note a change that has been made. Returns what is noted."""
        change = Change(engine, where, undo)
        with self._lock:
            self._made.append(change)
        return change

    def set_attribute(self, engine: str, owner: Any, name: str, value: Any, *, where: str) -> Change | None:
        """Set an attribute of a module, class or object, unless it has that very value already.

        Args:
            engine, where: as in :class:`Change`.
            owner: whose attribute. What a class inherits is not its own, and comes back on undoing.
            name: of the attribute.
            value: the new value.

        Returns:
            What is noted; ``None`` where there is nothing to change.
        """
        with self._lock:
            before = vars(owner).get(name, MISSING)
            if before is value:
                return None
            setattr(owner, name, value)

            def undo() -> bool:
                if vars(owner).get(name, MISSING) is not value:
                    return False
                if before is MISSING:
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)
                return True

            return self.add(engine, where, undo)

    def set_item(
        self, engine: str, table: MutableMapping[Any, Any], key: Any, value: Any, *, where: str
    ) -> Change | None:
        """Set an item of a mapping, unless it has that very value already. As :meth:`set_attribute`."""
        with self._lock:
            before = table.get(key, MISSING)
            if before is value:
                return None
            table[key] = value

            def undo() -> bool:
                if table.get(key, MISSING) is not value:
                    return False
                if before is MISSING:
                    del table[key]
                else:
                    table[key] = before
                return True

            return self.add(engine, where, undo)

    def take_back(self, change: Change) -> bool:
        """Undo one change.

        Returns:
            False where somebody else has changed the same place since, or it was taken back already.
        """
        with self._lock:
            remaining = [made for made in self._made if made is not change]
            known = len(remaining) < len(self._made)
            self._made = remaining
            return known and change.undo()

    def undo(self, engine: str | None = None) -> list[Change]:
        """Put back what was there, the last change first.

        Args:
            engine: only the changes made for this engine; ``None``: all.

        Returns:
            The changes that could not be undone, because somebody else has changed the same place since.
        """
        with self._lock:
            mine = [change for change in self._made if engine is None or change.engine == engine]
            self._made = [] if engine is None else [change for change in self._made if change.engine != engine]
            return [change for change in reversed(mine) if not change.undo()]
