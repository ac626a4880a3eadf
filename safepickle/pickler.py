"""How does an object become a pickle?

For each object that is no builtin container or scalar the pickler asks, in this order:

1. ``persistent_id`` (the C pickler does, before everything else);
2. a subclass's own ``reducer_override``;
3. the pickler's ``dispatch_table``, if somebody gave it one with an entry for the type;
4. the rules of the registry, the user's before the built-in ones;
5. what the standard library does: classes and functions by name, ``copyreg``, ``__reduce_ex__``.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

from ._native import pickling, why_python
from .entries import Entry, foreign
from .errors import check_reduced, reducer_failed, translate_pickling_error
from .registry import Registry, Rule, default_registry, is_concerned, known_by_identity

if TYPE_CHECKING:
    from .sources import ByValue

__all__ = ["Pickler", "dump", "dumps"]

_dispatch_table_slot: Any = pickle.Pickler.dispatch_table
_UNSET: Final = object()

#: Attributes of a pickler that have their values for the length of one dump.
_OF_ONE_DUMP: Final = ("reducer_override", "_root", "_by_value")


class _Answers:
    """For the length of one dump: which function reduces objects of a type; ``None`` for the standard library's way."""

    __slots__ = ("__weakref__", "known", "pickler")

    def __init__(self, pickler: Pickler) -> None:
        self.pickler = pickler
        self.known: dict[type, Callable[[Any], Any] | None] = {}

    def find(self, cls: type) -> Callable[[Any], Any] | None:
        """The answer for a type that has not come up so far."""
        answer = self.pickler._answer_for(cls)
        if known_by_identity(cls):
            self.known[cls] = answer
        return answer

    def clear(self) -> None:
        """A rule has changed."""
        self.known.clear()


class _Sink:
    """A file that can take back what one dump has written to it, if the file can."""

    __slots__ = ("_file", "_write", "_written")

    def __init__(self, file: Any) -> None:
        self._file = file
        self._write = file.write
        self._written = 0

    def begin(self) -> None:
        """A dump begins here."""
        self._written = 0

    def write(self, data: Any) -> Any:
        self._written += memoryview(data).nbytes
        return self._write(data)

    def rewind(self) -> bool:
        """Take back what was written; False where that cannot be done."""
        if not self._written:
            return True
        try:
            position = self._file.tell()
            at_end = self._file.seek(0, io.SEEK_END) == position
            self._file.seek(position - self._written)
            if at_end:  # a file that appends does so wherever it stands; what is behind us in any other is not ours
                self._file.truncate()
        except Exception:
            return False
        self._written = 0
        return True


class _Buffers:
    """A buffer callback that is asked once about each buffer, even if the dump has to begin again."""

    __slots__ = ("_answers", "_callback", "_next")

    def __init__(self, callback: Callable[[pickle.PickleBuffer], Any]) -> None:
        self._callback = callback
        self.begin()

    def begin(self) -> None:
        """A dump begins here."""
        self._answers: list[Any] = []
        self._next = 0

    def begin_again(self) -> None:
        """The same dump begins again, and the same buffers will come in the same order."""
        self._next = 0

    def __call__(self, buffer: pickle.PickleBuffer) -> Any:
        if self._next == len(self._answers):
            self._answers.append(self._callback(buffer))
        self._next += 1
        return self._answers[self._next - 1]


class KeepsByValue:
    """Something with a dictionary that remembers, for one dump, what goes by value."""

    @property
    def by_value(self) -> ByValue:
        """What this run remembers about functions and classes by value; made when one turns up."""
        found: ByValue | None = self.__dict__.get("_by_value")
        if found is None:
            from .sources import ByValue

            found = self.__dict__["_by_value"] = ByValue()
        return found

    @by_value.setter
    def by_value(self, value: ByValue) -> None:
        self.__dict__["_by_value"] = value


class Pickler(KeepsByValue, pickle.Pickler):
    """A ``pickle.Pickler`` that asks the registry, and writes functions and classes by value that no name leads to.

    Args:
        file: where to write: an object with a ``write`` method that takes bytes.
        protocol: as for :class:`pickle.Pickler`.
        fix_imports: as for :class:`pickle.Pickler`.
        buffer_callback: called with each out-of-band buffer (protocol 5, PEP 574).
        registry: the rules to use; the default registry unless given.
        pin: references to kernels and ``tf.function`` objects carry a hash of their source; loading where the source
            is another one raises, or warns.

    A subclass may define ``persistent_id``, ``reducer_override`` and ``dispatch_table`` as for
    :class:`pickle.Pickler`. Its
    ``reducer_override`` is asked first, and what it answers with ``NotImplemented`` falls through to the registry.

    Attributes:
        protocol: the pickle protocol in use.
        registry: the rules in use.
        by_value: what this run remembers about functions and classes by value.
        overridden: whether a ``reducer_override`` of somebody else is asked before the rules.
    """

    #: True where the output is hashed and not loaded.
    canonical: bool = False

    # For a subclass whose __init__ forgets ours: the C pickler then says so when it is asked to dump.
    registry: Registry = default_registry
    protocol: int = pickle.DEFAULT_PROTOCOL
    pin: Literal["raise", "warn"] | None = None
    overridden: bool = False
    buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None
    _sink: Any = None
    _buffers: _Buffers | None = None
    _fix_imports: bool = True
    _fresh: bool = False

    def __init__(
        self,
        file: Any,
        protocol: int | None = None,
        fix_imports: bool = True,
        buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
        *,
        registry: Registry | None = None,
        pin: Literal["raise", "warn"] | None = None,
    ) -> None:
        if pin not in (None, "raise", "warn"):
            raise ValueError(f"pin must be 'raise', 'warn' or None, not {pin!r}")
        self.pin = pin
        self._sink = _Sink(file) if hasattr(file, "write") else file
        self._buffers = None if buffer_callback is None else _Buffers(buffer_callback)
        super().__init__(self._sink, protocol, fix_imports=fix_imports, buffer_callback=self._buffers)
        self._fix_imports = fix_imports
        self._fresh = True
        self.protocol = _effective_protocol(protocol)
        self.registry = default_registry if registry is None else registry
        self.buffer_callback = buffer_callback

    def dump(self, obj: Any, /) -> None:
        """Write the pickle of an object.

        Raises:
            PicklingError: some part of the object cannot be pickled; the message says which and where.
        """
        registry = self.registry
        registry.refresh()
        table = getattr(self, "dispatch_table", None)
        if table is not None:
            # A class attribute hides the slot that the C pickler reads: whatever Python sees last is what counts.
            _dispatch_table_slot.__set__(self, table)
        if self._sink is not None:
            self._sink.begin()
        if self._buffers is not None:
            self._buffers.begin()
        answers = _Answers(self)
        override = self._override(answers)
        attributes = self.__dict__
        before: dict[str, Any] = {name: attributes[name] for name in _OF_ONE_DUMP if name in attributes}
        try:
            registry._live.add(answers)
            attributes["reducer_override"] = override  # the C pickler reads the attribute once, when the dump begins
            self._root = obj
            attributes.pop("_by_value", None)
            try:
                super().dump(obj)
            except Exception as error:
                self._recover(error, obj, override)
        finally:
            registry._live.discard(answers)
            for name in _OF_ONE_DUMP:
                attributes.pop(name, None)
            attributes.update(before)
        self._fresh = False

    def _recover(self, error: Exception, obj: Any, override: Callable[[Any], Any]) -> None:
        """A dump has raised: do it once more without recursion where that helps, else raise what says where."""
        if isinstance(error, RecursionError):
            from .deep import is_nested, may_try_again

            caller = sys._getframe(1)
            try:
                if may_try_again(error, caller) and self._dump_deeply(obj, override):
                    return
            except Exception as other:
                error = other
            if isinstance(error, RecursionError) and is_nested(caller):
                raise error
        translated = translate_pickling_error(error, obj, self)
        if translated is error:
            raise error
        raise translated from translated.__cause__

    def clear_memo(self) -> None:
        """Forget what was pickled before: the next dump writes everything again."""
        super().clear_memo()
        self._fresh = self._sink is not None

    def _dump_deeply(self, obj: Any, override: Callable[[Any], Any]) -> bool:
        """Once more without recursion, if what is written can be taken back and no earlier dump shares the memo."""
        if not self._fresh or self.fast or not self._sink.rewind():  # without a memo, many an object has no end
            return False
        from .deep import DeepPickler, tried_deeply

        self.clear_memo()
        self.__dict__.pop("_by_value", None)
        if self._buffers is not None:
            self._buffers.begin_again()
        persistent_id = self.persistent_id if hasattr(self, "persistent_id") else None
        deep = DeepPickler(
            self._sink, self.protocol, fix_imports=self._fix_imports, buffer_callback=self._buffers, override=override,
            persistent_id=persistent_id, dispatch_table=getattr(self, "dispatch_table", None),
        )  # fmt: skip
        deep.fast = self.fast
        try:
            deep.dump(obj)
        except BaseException as error:
            self._sink.rewind()  # nothing is left of a small pickle that failed, as with the C pickler
            if isinstance(error, RecursionError):
                tried_deeply(error)
            raise
        self.memo = deep.memo
        return True

    def _override(self, answers: _Answers) -> Callable[[Any], Any]:
        """What the C pickler calls for each object: an override of a subclass or the instance, then the rules."""
        if pickling is None:
            ours = asking(answers.known, answers.find)
        else:
            everybodys = self.registry is default_registry and getattr(self, "dispatch_table", None) is None
            ours = pickling.override(self, everybodys, self.protocol >= 2)
        own = self._own_override()
        self.overridden = own is not _UNSET
        return ours if own is _UNSET else in_turn(own, ours)

    def _own_override(self) -> Any:
        if "reducer_override" in self.__dict__:
            return self.__dict__["reducer_override"]
        # Not by getattr: ours would hide that of a mix-in named after us, which the C pickler in our place would not.
        for cls in type(self).__mro__:
            if cls is not Pickler and "reducer_override" in vars(cls):
                return _bound(vars(cls)["reducer_override"], self)
        return _UNSET

    def reducer_override(self, obj: Any, /) -> Any:
        """Reduce an object by the rules of the registry; ``NotImplemented`` where none applies."""
        if "_root" not in self.__dict__:  # called from outside of a dump
            self.__dict__.pop("_by_value", None)
        answer = self._answer_for(type(obj))
        return NotImplemented if answer is None else answer(obj)

    def _has_own_entry(self, cls: type) -> bool:
        """Whether a dispatch table that somebody gave the pickler speaks about a type."""
        table = getattr(self, "dispatch_table", None)
        return table is not None and _has_entry(table, cls)

    def _way_for(self, cls: type) -> tuple[Any, ...]:
        """What the compiled module asks, which then does as :meth:`_answer_for` says, and reduces plain instances."""
        rules = self.registry.rules_for(cls, "pickle")
        alone = _published(self, cls) is None
        asks = not self._has_own_entry(cls) and (bool(rules) or not alone)
        table = getattr(self, "dispatch_table", None)
        plain = not asks and (table is None or not _is_in(table, cls))  # ``None`` is an entry, and an error
        return way_for(cls, self.registry, _ways, rules if asks else None, plain=plain, alone=alone)

    def _answer_for(self, cls: type) -> Callable[[Any], Any] | None:
        if self._has_own_entry(cls):
            return None
        rules = self.registry.rules_for(cls, "pickle")
        published = _published(self, cls) is not None
        if not rules and not published:
            return None
        reduce = _reduced if published else reduce_by_rules
        return lambda obj: reduce(rules, obj, self)


def in_turn(first: Callable[[Any], Any], second: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that reduces an object as the first of two does, or as the second where the first declines."""

    def both(obj: Any) -> Any:
        reduced = first(obj)
        return second(obj) if reduced is NotImplemented else reduced

    return both


def asking(known: dict[type, Any], find: Callable[[type], Any]) -> Callable[[Any], Any]:
    """A function that reduces an object as is known, or found out now, of its type. Its twin is in C."""
    if pickling is not None:
        return pickling.asking(known, find)  # type: ignore[no-any-return]

    def ask(part: Any) -> Any:
        try:
            answer = known[type(part)]
        except KeyError:
            answer = find(type(part))
        if answer is None:
            return NotImplemented
        return answer(part)

    return ask


def _bound(attribute: Any, instance: Any) -> Any:
    """What reading a class attribute from an instance gives; a builtin function or a callable object does not bind."""
    bind = getattr(type(attribute), "__get__", None)
    return attribute if bind is None else bind(attribute, instance, type(instance))


def _is_in(table: Any, cls: type) -> bool:
    try:
        table[cls]
    except KeyError:
        return False
    return True


def _has_entry(table: Any, cls: type) -> bool:
    """Whether somebody else has an entry for a type in a table, which may be a copy of ``copyreg``'s with ours."""
    try:
        return foreign(table[cls]) is not None
    except KeyError:
        return False


def _reduced(rules: tuple[Rule, ...], obj: Any, pickler: Pickler) -> Any:
    """What the rules say; where they decline, what would be asked without our own entry, which asks them again."""
    reduced = reduce_by_rules(rules, obj, pickler)
    if reduced is NotImplemented:
        published = _published(pickler, type(obj))
        if published is not None:
            return published.otherwise(obj, pickler.protocol)
    return reduced


def _published(pickler: Pickler, cls: type) -> Entry | None:
    """Our own entry for a type, if it is the one that the C pickler would ask where the rules decline."""
    table = getattr(pickler, "dispatch_table", None)
    try:
        entry = (copyreg.dispatch_table if table is None else table)[cls]
    except (KeyError, TypeError):
        return None
    return entry if type(entry) is Entry else None


def reduce_by_rules(rules: tuple[Rule, ...], obj: Any, pickler: Any) -> Any:
    """What the first rule that does not decline says about an object.

    Raises:
        PicklingError: a rule raised, or returned something that ``__reduce__`` may not return.
    """
    for rule in rules:
        assert rule.reduce is not None
        if rule.concerns and not is_concerned(obj, rule.concerns):
            continue
        try:
            reduced = rule.reduce(obj, pickler) if rule.with_pickler else rule.reduce(obj)
        except Exception as error:
            failed = reducer_failed(rule, obj, error)
            if failed is error:
                raise
            raise failed from error
        if reduced is not NotImplemented:
            check_reduced(rule, obj, reduced)
            return reduced
    return NotImplemented


def _effective_protocol(protocol: int | None) -> int:
    if protocol is None:
        return pickle.DEFAULT_PROTOCOL
    return pickle.HIGHEST_PROTOCOL if protocol < 0 else int(protocol)


def dump(
    obj: Any,
    file: Any,
    protocol: int | None = None,
    *,
    fix_imports: bool = True,
    buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
    registry: Registry | None = None,
    pin: Literal["raise", "warn"] | None = None,
) -> None:
    """Write the pickle of an object to a file. Arguments as for :func:`pickle.dump`; others as for :class:`Pickler`.

    Raises:
        PicklingError: some part of the object cannot be pickled; the message says which and where.
    """
    Pickler(file, protocol, fix_imports, buffer_callback, registry=registry, pin=pin).dump(obj)


def dumps(
    obj: Any,
    protocol: int | None = None,
    *,
    fix_imports: bool = True,
    buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
    registry: Registry | None = None,
    pin: Literal["raise", "warn"] | None = None,
) -> bytes:
    """The pickle of an object as bytes. Arguments as for :func:`pickle.dumps`; the others as for :class:`Pickler`.

    Raises:
        PicklingError: some part of the object cannot be pickled; the message says which and where.

    Example:
        >>> import safepickle
        >>> double = safepickle.loads(safepickle.dumps(lambda x: 2 * x))
        >>> double(21)
        42
    """
    if buffer_callback is None and registry is None and pin is None and fix_imports and pickling is not None:
        data: bytes = pickling.dumps(obj, protocol)
        if data is not NotImplemented:
            return data
    sink = io.BytesIO()
    Pickler(sink, protocol, fix_imports, buffer_callback, registry=registry, pin=pin).dump(obj)
    return sink.getvalue()


# -- the compiled module -----------------------------------------------------------------------------------------------


def _spare(sink: Any, protocol: int) -> Pickler:
    """A pickler that serves many calls of :func:`dumps`, one after the other."""
    pickler = Pickler.__new__(Pickler)
    pickle.Pickler.__init__(pickler, sink, protocol)
    pickler._sink, pickler._fresh, pickler.protocol = sink, True, protocol
    return pickler


def _failed(pickler: Pickler, error: Exception, obj: Any) -> None:
    """The dump of such a pickler has raised. Its sink has the pickle if this returns."""
    try:
        raise error
    except Exception:
        pickler._recover(error, obj, pickler.reducer_override)


if pickling is not None:
    from . import registry as _registry
    from ._native.ways import way_for

    try:
        _ways: dict[str, int] = pickling.setup(sys.modules[__name__], _registry)
    except ImportError as error:  # a second copy of this package in one process
        pickling, why_python["_pickling"] = None, str(error)
    else:
        _registry.on_change.append(pickling.invalidate)
