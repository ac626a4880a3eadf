"""How does safepickle get to where pickling and copying is not the user's own call?

:func:`install` publishes the registry to the standard library (:mod:`safepickle.publication`) and lets the adapters in
:mod:`safepickle.engines` change the engines that are named. What is not imported yet follows right after its import.
Everything is noted and can be taken back; nothing of it happens unless it is asked for.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import TracebackType
from typing import Any, Final

from . import registry
from .changes import Change, Changes
from .engines import MODULES, NEEDS
from .imports import Watch
from .publication import COPIES, COPYREG, LATER, Publication

__all__ = [
    "ENGINES_VARIABLE", "INSTALL_VARIABLE", "Installation", "asked_for", "engines_in", "install",
    "install_from_environment", "install_worker", "installed", "uninstall",
]  # fmt: skip

#: Which engines :func:`install_worker` installs into.
ENGINES_VARIABLE: Final = "SAFEPICKLE_ENGINES"
#: What ``safepickle-ml-autoinstall`` looks for when an interpreter starts.
INSTALL_VARIABLE: Final = "SAFEPICKLE_INSTALL"


class Installation:
    """What one call of :func:`install` has asked for. As a context manager it takes that back at the end.

    Attributes:
        engines: the names of the engines.
    """

    def __init__(self, engines: tuple[str, ...]) -> None:
        self.engines = engines

    @property
    def active(self) -> bool:
        """Whether it has not been taken back."""
        return any(one is self for one in _asked)

    @property
    def changes(self) -> tuple[Change, ...]:
        """What is changed outside of safepickle for this call, and perhaps for others; more may follow imports."""
        return tuple(change for change in _changes if change.engine in (COPYREG, *self.engines)) if self.active else ()

    @property
    def waiting(self) -> tuple[str, ...]:
        """The engines whose libraries have not been imported so far."""
        return tuple(engine for engine in self.engines if engine not in _adapted) if self.active else ()

    def uninstall(self) -> list[Change]:
        """Take back what this call has asked for, unless another call has asked for it too.

        Returns:
            The changes that stay, because somebody else has changed the same places since.
        """
        return _take_back([self])

    def __enter__(self) -> Installation:  # noqa: PYI034  typing has no Self in Python 3.10
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.uninstall()

    def __repr__(self) -> str:
        if not self.active:
            return "<safepickle.Installation, taken back>"
        waiting = self.waiting
        engines = [f"{engine} (waits for its import)" if engine in waiting else engine for engine in self.engines]
        return f"<safepickle.Installation: {', '.join([f'copyreg ({len(_publication)} types)', *engines])}>"


_asked: Final[list[Installation]] = []  # the calls that have not been taken back
_adapted: Final[set[str]] = set()  # engines whose adapters have been called
_changes: Final = Changes()
_publication: Final = Publication(_changes)
#: Guards what is above. No import runs under it: another thread may be in the middle of one, and wait for the lock.
_lock = threading.RLock()


def _renew_locks() -> None:
    """In a forked child, where the thread that held them may not be."""
    global _lock
    _lock = threading.RLock()
    _changes.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


def install(*engines: str) -> Installation:
    """Let pickling and copying that is not the user's own call use the registry, in this process.

    The rules for exact types are published to ``copyreg`` and ``copy``, so that ``pickle``, ``copy.deepcopy`` and all
    that is built on them know kernels, locks and what else there are rules for. Later calls of :func:`register` and
    :func:`unregister` follow, and so do types of libraries that are imported later. Calling it again is cheap and
    harmless; it then also finds subclasses that have been defined since.

    Args:
        engines: names of engines to install into as well: ``"multiprocessing"``, ``"joblib"``,
            ``"torch.distributed"``, ``"dask"``, ``"ray"``, ``"pyspark"``. Each has a page in the documentation. An
            engine that is not imported yet follows when it is.

    Returns:
        What was asked for and changed, which can be taken back: ``install().uninstall()``, or as a context manager.

    Raises:
        ValueError: there is no engine of that name.

    Example:
        >>> import pickle, threading, safepickle
        >>> with safepickle.install():
        ...     lock = pickle.loads(pickle.dumps(threading.Lock()))
        >>> lock.acquire(blocking=False)
        True
        >>> pickle.dumps(threading.Lock())
        Traceback (most recent call last):
            ...
        TypeError: cannot pickle '_thread.lock' object
    """
    for engine in engines:
        if engine not in MODULES:
            raise ValueError(f"there is no engine {engine!r}: expected one of {', '.join(map(repr, sorted(MODULES)))}")
    made = Installation(tuple(dict.fromkeys(engines)))
    with _lock:
        _asked.append(made)
    try:
        _bring_about()
    except BaseException:
        made.uninstall()
        raise
    return made


def uninstall() -> list[Change]:
    """Take back all that :func:`install` has changed, whoever has called it.

    Returns:
        The changes that stay, because somebody else has changed the same places since.
    """
    return _take_back(list(_asked))


@contextmanager
def installed(*engines: str) -> Iterator[Installation]:
    """:func:`install` for the length of a ``with`` statement; may be nested.

    Example:
        >>> import copy, threading, safepickle
        >>> with safepickle.installed():
        ...     twin = copy.deepcopy(threading.Condition())
        >>> with twin:
        ...     twin.notify_all()
    """
    made = install(*engines)
    try:
        yield made
    finally:
        made.uninstall()


def install_worker(*args: object) -> None:
    """:func:`install` in a worker process: what engines take as ``initializer=``, ``worker_init_fn=`` or setup hook.

    The engines are those that the environment variable ``SAFEPICKLE_ENGINES`` names, separated by commas, else
    ``"multiprocessing"``.

    Args:
        args: whatever the engine passes to such a function, such as the number of the worker.
    """
    install(*engines_in(os.environ.get(ENGINES_VARIABLE) or "multiprocessing"))


def install_from_environment() -> Installation | None:
    """:func:`install` as the environment variable ``SAFEPICKLE_INSTALL`` says: ``1``, or names of engines.

    Returns:
        The installation; ``None`` where the variable is not set, empty or ``0``.
    """
    value = os.environ.get(INSTALL_VARIABLE, "")
    return None if value.strip() in ("", "0") else install(*engines_in(value))


def engines_in(text: str) -> tuple[str, ...]:
    """The engines that a text names, separated by commas; ``1`` is for none but the standard library's tables."""
    names = (name.strip() for name in text.split(","))
    return tuple(name for name in names if name not in ("", "1"))


def asked_for() -> tuple[str, ...]:
    """The engines that calls of :func:`install` have named and that have not been taken back."""
    return tuple(sorted(_wanted_engines()))


# -- making it so ------------------------------------------------------------------------------------------------------


def _wanted_engines() -> set[str]:
    return {engine for one in list(_asked) for engine in one.engines}


def _bring_about() -> None:
    """Make what is asked for so, as far as the libraries are imported, and watch for the others."""
    registry.load_all_rules()
    registry.default_registry.refresh()
    with registry._lock:
        if _follow not in registry.on_change:
            registry.on_change.append(_follow)
    _watch.start()
    _follow()
    for engine in sorted(_wanted_engines()):
        needed = NEEDS[engine]
        if needed in sys.modules and not registry._loading(needed):
            _adapt(engine)


def _follow() -> None:
    """Publish what the registry has now. Called after each change of a rule, under the registry's lock."""
    if registry._begun or not _asked:  # in the middle of a library's rules: called once more at their end
        return
    _publication.update()
    _watch.names = frozenset({
        *registry.packages_with_rules(), *registry.default_registry.modules, *COPIES,
        *(NEEDS[engine] for engine in _wanted_engines()),
    })  # fmt: skip


def _imported(name: str) -> None:
    """Right after a watched module has been executed."""
    if name in _watch.names:
        registry.load_rules(name)
        registry.rebind(name)
    elif name.partition(".")[0] not in registry._loaded:  # imported with its package, whose rules come at the end
        return
    _follow()
    for engine in sorted(_wanted_engines()):
        if NEEDS[engine] == name:
            _adapt(engine)


_watch: Final = Watch(_imported)
_watch.beginnings = LATER


def _adapt(engine: str) -> None:
    """Have an engine's adapter change it, once."""
    with _lock:
        if engine in _adapted or engine not in _wanted_engines():
            return
        _adapted.add(engine)
    try:
        adapter: Any = import_module(MODULES[engine])
        adapter.install(_changes)
    except BaseException:
        with _lock:
            _adapted.discard(engine)
            _changes.undo(engine)
        raise
    with _lock:
        if engine not in _wanted_engines():  # taken back in the meantime, by another thread
            _adapted.discard(engine)
            _changes.undo(engine)


def _take_back(which: list[Installation]) -> list[Change]:
    """Undo what nobody asks for any longer."""
    stay: list[Change] = []
    with _lock:
        _asked[:] = [one for one in _asked if not any(one is gone for gone in which)]
        for engine in sorted(_adapted - _wanted_engines()):
            _adapted.discard(engine)
            stay += _changes.undo(engine)
        if not _asked:
            _watch.stop()
            with registry._lock:
                if _follow in registry.on_change:
                    registry.on_change.remove(_follow)
            stay += _publication.withdraw()
    return stay
