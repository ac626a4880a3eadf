"""What do our rules say to the picklers of other libraries?

Engines bring picklers of their own, whose reducers must go on working: shared memory for tensors, connections, object
references. So our rules are asked through the hook that such a pickler has, ``reducer_override``, and stand back for
every type that the engine has registered itself.

:func:`adopt` gives the hook to a pickler class, together with errors that name the path to the culprit.
:func:`override` is for who writes a ``reducer_override`` by hand.
"""

from __future__ import annotations

import copyreg
import pickle
import types
import weakref
from collections.abc import Callable
from typing import Any, Final

from ..changes import Changes
from ..entries import foreign, foreign_entry
from ..errors import translate_pickling_error
from ..pickler import KeepsByValue, asking, in_turn, reduce_by_rules
from ..references import main_is_shared
from ..registry import default_registry, known_by_identity

__all__ = ["Run", "adopt", "dump_deeply", "override"]

#: The attribute of a pickler that has its run, for the length of a dump.
_RUN: Final = "_safepickle_run"

#: Modules whose reducers are for everybody's code and not for an engine's own types: ours do the same and go together.
_GENERAL: Final = frozenset(
    {"cloudpickle.cloudpickle", "ray.cloudpickle.cloudpickle", "pyspark.cloudpickle.cloudpickle"}
)

_NONE: Final = object()


def _never() -> bool:
    return False


class _Leaf:
    """Stands for an object that the engine itself takes care of, where somebody only wants to know what is in a pickle.

    Its reducer may have effects (memory that becomes shared) and must run once.
    """


def _as_leaf(obj: Any) -> tuple[Any, ...]:
    return _Leaf, ()


class _LookOnly:
    """The engine's table, its own entries without their effects.

    After a failure the first object that the pickler has not got behind it may be the culprit, and is asked once more.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._done: Any = None

    def failed(self) -> None:
        """The dump has failed: what follows looks for the culprit."""
        memo = self._run.memo
        self._done = {} if memo is None else memo.copy()

    def __getitem__(self, cls: type) -> Any:
        reducer = self._run.table[cls]
        if not self._run.is_engines_own(cls):
            return reducer
        done = self._done
        return _as_leaf if done is None else lambda obj: (_as_leaf if id(obj) in done else reducer)(obj)


class Run(KeepsByValue):
    """One dump of a pickler that is not ours, as rules see it: in the place of the pickler.

    Args:
        pickler: the other library's pickler.
        root: what it dumps, if that is known: weak references ask what else is in the pickle.
        ours_first: types that our rules are asked about although the engine has registered them.
        main: says whether the reader has the same ``__main__``, so that names in it can be written.
        fallback: the pickler's own ``reducer_override``, asked where our rules decline.
    """

    canonical = False
    pin = None
    overridden = True
    buffer_callback = None

    def __init__(
        self,
        pickler: Any,
        root: Any = _NONE,
        *,
        ours_first: frozenset[type] = frozenset(),
        main: Callable[[], bool] = _never,
        fallback: Callable[[Any], Any] | None = None,
    ) -> None:
        self._pickler = weakref.ref(pickler)
        self._ours_first = ours_first
        self._main = main
        self._shared: bool | None = None
        self.known: dict[type, Callable[[Any], Any] | None] = {}
        self.registry = default_registry
        self.registry.refresh()
        # Unknown but for cloudpickle's. What is written for protocol 4 can be written by every later one.
        self.protocol: int = getattr(pickler, "proto", 4)
        table = getattr(pickler, "dispatch_table", None)
        self.table: Any = copyreg.dispatch_table if table is None else table
        self.dispatch_table = _LookOnly(self)
        if (persistent_id := _persistent_id(pickler)) is not None:
            self.persistent_id = persistent_id
        if root is not _NONE:
            self._root = root
        ours = asking(self.known, self.find)
        self.reducer_override = ours if fallback is None else in_turn(ours, fallback)

    @property
    def memo(self) -> Any:
        """What has been written so far."""
        return getattr(self._pickler(), "memo", None)

    def is_engines_own(self, cls: type) -> bool:
        """Whether the engine has a reducer of its own for the type."""
        if cls in self._ours_first:
            return False
        try:
            reducer = foreign(self.table[cls])
        except KeyError:
            return False
        if reducer is None or reducer is foreign_entry(cls):
            return False
        return getattr(reducer, "__module__", None) not in _GENERAL

    def clear(self) -> None:
        """A rule has changed."""
        self.known.clear()

    def close(self) -> None:
        """The dump is over: what it remembers is let go at once, not when the garbage collector finds the circle."""
        self.__dict__.clear()

    def find(self, cls: type) -> Callable[[Any], Any] | None:
        """The answer for a type that has not come up so far."""
        answer = self._answer_for(cls)
        if known_by_identity(cls):
            self.known[cls] = answer
        return answer

    def _answer_for(self, cls: type) -> Callable[[Any], Any] | None:
        rules = () if known_by_identity(cls) and self.is_engines_own(cls) else self.registry.rules_for(cls, "pickle")
        if not rules:
            return None

        def answer(obj: Any) -> Any:
            if self._shared is None:
                self._shared = self._main()
            with main_is_shared(self._shared):
                return reduce_by_rules(rules, obj, self)

        return answer


def _persistent_id(pickler: Any) -> Any:
    """The pickler's ``persistent_id``, unless it is that of the standard library, which always says ``None``."""
    found = getattr(pickler, "persistent_id", None)
    if isinstance(found, types.BuiltinMethodType) or getattr(found, "__func__", None) is _NO_PERSISTENT_ID:
        return None
    return found


_NO_PERSISTENT_ID: Final = pickle._Pickler.persistent_id


def override(pickler: Any, obj: Any) -> Any:
    """What our rules reduce an object to, for the ``reducer_override`` of a pickler that dumps once.

    Args:
        pickler: the running pickler, of any kind.
        obj: what it asks about.

    Returns:
        A reduce value; ``NotImplemented`` where no rule applies, or the type is in the pickler's own table.

    Example:
        >>> import io, pickle
        >>> class Pickler(pickle.Pickler):
        ...     reducer_override = override
        >>> file = io.BytesIO()
        >>> Pickler(file).dump(lambda x: 2 * x)
        >>> pickle.loads(file.getvalue())(21)
        42
    """
    attributes = vars(pickler)
    run = attributes.get(_RUN)
    if run is None:
        run = attributes[_RUN] = Run(pickler)
    return run.reducer_override(obj)


# -- a class of picklers -----------------------------------------------------------------------------------------------


class _Override:
    """The attribute ``reducer_override`` of a pickler class: reading it begins a run, unless one is on.

    The C pickler reads it once a dump, the Python one for each object.
    """

    def __init__(self, make: Callable[..., Run]) -> None:
        self.make = make

    def __get__(self, pickler: Any, owner: type | None = None) -> Any:
        if pickler is None:
            return self
        run = vars(pickler).get(_RUN)
        return (self.make(pickler) if run is None else run).reducer_override


def adopt(
    changes: Changes,
    engine: str,
    cls: type,
    *,
    where: str,
    ours_first: frozenset[type] = frozenset(),
    main: Callable[[], bool] = _never,
) -> None:
    """Let a pickler class of another library ask our rules, and name the path to what cannot be pickled.

    Nothing happens where that has been done before. A subclass with a ``reducer_override`` of its own keeps that, and
    reaches ours through ``super()``.

    Args:
        changes: notes what is changed.
        engine: for whom.
        cls: the class; its own ``reducer_override``, if it has one, is asked where our rules decline.
        where: the class as one would write it.
        ours_first, main: as for :class:`Run`.
    """
    own = getattr(cls, "reducer_override", None)
    if isinstance(own, _Override):
        return

    def make(pickler: Any, root: Any = _NONE) -> Run:
        fallback = None if own is None else types.MethodType(own, pickler)
        return Run(pickler, root, ours_first=ours_first, main=main, fallback=fallback)

    theirs = cls.dump  # type: ignore[attr-defined]
    changes.set_attribute(engine, cls, "reducer_override", _Override(make), where=f"{where}.reducer_override")
    changes.set_attribute(engine, cls, "dump", _dump(theirs, make, lazily=own is None), where=f"{where}.dump")


def dump_deeply(pickler: Any, obj: Any, file: Any, protocol: int) -> None:
    """Pickle what is nested too deep for the C pickler, as a pickler of an adopted class would.

    Args:
        pickler: a fresh one of that class: its rules and its table are used.
        obj: what to pickle.
        file: where to write.
        protocol: the pickle protocol.
    """
    from ..deep import DeepPickler

    adopted = next(vars(cls)["reducer_override"] for cls in type(pickler).__mro__ if "reducer_override" in vars(cls))
    run = vars(pickler)[_RUN] = adopted.make(pickler, obj)
    try:
        DeepPickler(file, protocol, override=pickler.reducer_override, dispatch_table=run.table).dump(obj)
    finally:
        run.close()


class _Waiting:
    """A run that begins with the first object that our rules are asked about: most messages have none.

    Args:
        make: makes the run.
        pickler, root: what of.
        lazily: unless the run has more to ask than our rules.
    """

    __slots__ = ("_known", "_make", "_pickler", "_root", "_run", "reducer_override")

    def __init__(self, make: Callable[..., Run], pickler: Any, root: Any, lazily: bool) -> None:
        self._make, self._pickler, self._root = make, pickler, root
        self._run: Run | None = None
        self._known: dict[type, Callable[[Any], Any] | None] = {}
        self.reducer_override: Any = asking(self._known, self._find) if lazily else None
        if not lazily:
            self.reducer_override = self.begin().reducer_override

    def begin(self) -> Run:
        """The run."""
        if self._run is None:
            run = self._run = self._make(self._pickler, self._root)
            run.registry._live.add(run)
            if self.reducer_override is not None:
                run.known, run.reducer_override = self._known, self.reducer_override
        return self._run

    def _find(self, cls: type) -> Callable[[Any], Any] | None:
        return self.begin().find(cls)

    def end(self) -> None:
        """The dump is over."""
        self.reducer_override = None
        if self._run is not None:
            self._run.registry._live.discard(self._run)
            self._run.close()


def _dump(theirs: Callable[[Any, Any], Any], make: Callable[..., Run], *, lazily: bool) -> Callable[[Any, Any], Any]:
    def dump(self: Any, obj: Any) -> Any:
        """As the pickler's own method, with the rules of safepickle and its errors."""
        attributes = vars(self)
        before = attributes.get(_RUN)
        waiting = attributes[_RUN] = _Waiting(make, self, obj, lazily)
        try:
            return theirs(self, obj)
        except RecursionError:
            raise
        except Exception as error:
            run = waiting.begin()
            run.dispatch_table.failed()
            translated = translate_pickling_error(error, obj, run)
            if translated is error:
                raise
            raise translated from translated.__cause__
        finally:
            waiting.end()
            if before is None:
                del attributes[_RUN]
            else:
                attributes[_RUN] = before

    return dump
