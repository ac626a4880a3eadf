"""How is an object pickled that is nested deeper than the interpreter's stack?

The C pickler recurses and gives up after a few hundred levels. This one writes the same opcodes with a stack of its
own, in Python, to any depth. It is slower, so it runs only after the C pickler has hit the recursion limit.
"""

from __future__ import annotations

import copyreg
import pickle
import types
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final

from ._native import core

__all__ = ["DeepPickler", "is_nested", "may_try_again", "tried_deeply"]

Steps = Generator[Any, Any, None]

_PythonPickler: Any = pickle._Pickler
_BATCH: Final = 1000
#: An object that makes a new part whenever it is asked has no end.
_MOST_LEVELS: Final = 200_000
_CONTAINERS: Final = (tuple, list, dict, set, frozenset)


# -- when to try without recursion -------------------------------------------------------------------------------------
#
# A reducer may call dumps and a __deepcopy__ method deepcopy, with an object that does the same. If each level of such
# a recursion tried everything below it again, the time would double with each level.

_PICKLER: Final = "safepickle.pickler"
_ENTRANCES: Final = {(_PICKLER, "dump"), (_PICKLER, "dumps"), ("safepickle.copier", "deepcopy")}


def is_nested(frame: types.FrameType) -> bool:
    """Whether this frame of a pickler or copier is below another one, which will say what went wrong and where."""
    if core is not None and core.entered():
        return True
    outer = frame.f_back
    if outer is not None and _place(outer) == (_PICKLER, "dumps"):  # that called this one: both are one entrance
        outer = outer.f_back
    while outer is not None:
        if _place(outer) in _ENTRANCES:
            return True
        outer = outer.f_back
    return False


def _place(frame: types.FrameType) -> tuple[Any, str]:
    """The module and the name of the function that a frame runs."""
    return frame.f_globals.get("__name__"), frame.f_code.co_name


def may_try_again(error: RecursionError, frame: types.FrameType) -> bool:
    """Whether it is any use to begin again without recursion: not inside of what has done so already."""
    return not hasattr(error, "tried_deeply") or not is_nested(frame)


def tried_deeply(error: RecursionError) -> None:
    """Note that it came from an attempt without recursion."""
    error.tried_deeply = True  # type: ignore[attr-defined]


# -- the pickler -------------------------------------------------------------------------------------------------------


class _Untracked:
    """A request to save an object without asking for its persistent id."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any) -> None:
        self.obj = obj


class DeepPickler(_PythonPickler):  # type: ignore[misc]
    """A pickler without recursion.

    Each kind of object is a generator that writes opcodes and yields the parts that must be saved in between.

    Args:
        file: where to write.
        protocol: the pickle protocol.
        override: what the C pickler would call as ``reducer_override``.
        persistent_id: what it would call as ``persistent_id``.
        dispatch_table: as for the C pickler; ``copyreg``'s if ``None``.
    """

    def __init__(
        self,
        file: Any,
        protocol: int,
        *,
        fix_imports: bool = True,
        buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
        override: Callable[[Any], Any] | None = None,
        persistent_id: Callable[[Any], Any] | None = None,
        dispatch_table: Any = None,
    ) -> None:
        super().__init__(file, protocol, fix_imports=fix_imports, buffer_callback=buffer_callback)
        self._override = override
        self._persistent_id = persistent_id
        self._table = copyreg.dispatch_table if dispatch_table is None else dispatch_table

    #: Made anew, from the methods: dill replaces entries of the standard library's table when it is imported.
    dispatch = {
        type(None): _PythonPickler.save_none,
        bool: _PythonPickler.save_bool,
        int: _PythonPickler.save_long,
        float: _PythonPickler.save_float,
        bytes: _PythonPickler.save_bytes,
        bytearray: _PythonPickler.save_bytearray,
        str: _PythonPickler.save_str,
        pickle.PickleBuffer: _PythonPickler.save_picklebuffer,
        types.FunctionType: _PythonPickler.save_global,
        type: _PythonPickler.save_type,
    }

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        """Save an object and all below it."""
        stack: list[Steps] = [self._steps(obj if save_persistent_id else _Untracked(obj))]
        while stack:
            try:
                stack.append(self._steps(next(stack[-1])))
            except StopIteration:
                stack.pop()
            if len(stack) > _MOST_LEVELS:
                raise RecursionError(f"objects are nested more than {_MOST_LEVELS:,} deep, or without an end")

    # -- one object ----------------------------------------------------------------------------------------------------

    def _steps(self, obj: Any) -> Steps:
        self.framer.commit_frame()
        if type(obj) is _Untracked:
            obj = obj.obj
        elif self._persistent_id is not None and (pid := self._persistent_id(obj)) is not None:
            return self._persistent(pid)
        known = self.memo.get(id(obj))
        if known is not None:
            self.write(self.get(known[0]))
            return _nothing()
        kind = type(obj)
        if kind in _CONTAINERS:
            return self._container(obj, kind)
        if kind is str and not self.bin:
            self._text(obj)
            return _nothing()
        if kind in _LEAVES:
            self.dispatch[kind](self, obj)
            return _nothing()
        return self._by_reduction(obj, kind)

    def _text(self, text: str) -> None:
        """A string at protocol 0. (The standard library's Python pickler memoizes the escaped one, before 3.13.)"""
        escaped = text.translate(_ESCAPES).encode("raw-unicode-escape")
        self.write(pickle.UNICODE + escaped + b"\n")
        self.memoize(text)

    def _persistent(self, pid: Any) -> Steps:
        if self.bin:
            yield _Untracked(pid)
            self.write(pickle.BINPERSID)
            return
        try:
            self.write(pickle.PERSID + str(pid).encode("ascii") + b"\n")
        except UnicodeEncodeError:
            raise pickle.PicklingError("persistent IDs in protocol 0 must be ASCII strings") from None

    def _by_reduction(self, obj: Any, kind: type) -> Steps:
        reduced = NotImplemented if self._override is None else self._override(obj)
        if reduced is NotImplemented:
            special = self.dispatch.get(kind)
            if special is not None:  # functions and classes: by name
                special(self, obj)
                return _nothing()
            reduced = self._standard_reduction(obj, kind)
        if reduced is _BY_NAME or isinstance(reduced, str):
            self.save_global(obj, None if reduced is _BY_NAME else reduced)
            return _nothing()
        if not isinstance(reduced, tuple) or not 2 <= len(reduced) <= 6:
            raise pickle.PicklingError(f"__reduce__ must return a string or a tuple of two to six, not {reduced!r}")
        return self._reduction(obj, *reduced)

    def _standard_reduction(self, obj: Any, kind: type) -> Any:
        try:
            reducer = self._table[kind]
        except KeyError:
            reducer = None
        if reducer is not None:
            return reducer(obj)
        if issubclass(kind, type):
            return _BY_NAME
        reducer = getattr(obj, "__reduce_ex__", None)
        if reducer is not None:
            return reducer(self.proto)
        reducer = getattr(obj, "__reduce__", None)
        if reducer is not None:
            return reducer()
        raise pickle.PicklingError(f"cannot pickle {kind.__name__!r} object: {obj!r}")

    # -- containers ----------------------------------------------------------------------------------------------------

    def _container(self, obj: Any, kind: type) -> Steps:
        if kind is tuple:
            return self._tuple(obj)
        if kind is list:
            self.write(pickle.EMPTY_LIST if self.bin else pickle.MARK + pickle.LIST)
            self.memoize(obj)
            return self._list(obj) if self.bin else self._items(iter(obj))
        if kind is dict:
            self.write(pickle.EMPTY_DICT if self.bin else pickle.MARK + pickle.DICT)
            self.memoize(obj)
            return self._dict(obj) if self.bin else self._pairs(iter(obj.items()))
        return self._set(obj) if kind is set else self._frozenset(obj)

    def _tuple(self, obj: tuple[Any, ...]) -> Steps:
        if not obj:
            self.write(pickle.EMPTY_TUPLE if self.bin else pickle.MARK + pickle.TUPLE)
            return
        short = len(obj) <= 3 and self.proto >= 2
        if not short:
            self.write(pickle.MARK)
        yield from obj
        known = self.memo.get(id(obj))
        if known is not None:  # an item led back to the tuple, which is written by now
            if short:
                self.write(pickle.POP * len(obj))
            else:
                self.write(pickle.POP_MARK if self.bin else pickle.POP * (len(obj) + 1))
            self.write(self.get(known[0]))
            return
        code = (pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)[len(obj) - 1] if short else pickle.TUPLE
        self.write(code)
        self.memoize(obj)

    # The C pickler has its batches in three ways: it counts a list, goes on behind a dictionary or a set until a batch
    # is not full (so
    # that a full last one is followed by an empty one), and looks one item ahead in an iterator.

    def _list(self, obj: list[Any]) -> Steps:
        if len(obj) == 1:
            yield obj[0]
            self.write(pickle.APPEND)
            return
        done = 0
        while done < len(obj):
            self.write(pickle.MARK)
            end = done + _BATCH
            while done < end and done < len(obj):
                yield obj[done]
                done += 1
            self.write(pickle.APPENDS)

    def _dict(self, obj: dict[Any, Any]) -> Steps:
        if len(obj) == 1:
            for pair in obj.items():
                yield from pair
            self.write(pickle.SETITEM)
        elif obj:
            yield from self._until_not_full(obj.items(), pickle.SETITEMS)

    def _set(self, obj: Any) -> Steps:
        if self.proto < 4:
            yield from self._reduction(obj, set, (list(obj),))
            return
        self.write(pickle.EMPTY_SET)
        self.memoize(obj)
        if obj:
            yield from self._until_not_full(((element,) for element in obj), pickle.ADDITEMS)

    def _until_not_full(self, groups: Iterable[tuple[Any, ...]], code: bytes) -> Steps:
        iterator = iter(groups)
        full = True
        while full:
            self.write(pickle.MARK)
            count = 0
            for group in islice(iterator, _BATCH):
                yield from group
                count += 1
            self.write(code)
            full = count == _BATCH

    def _items(self, items: Iterator[Any]) -> Steps:
        return self._looking_ahead(((item,) for item in items), pickle.APPEND, pickle.APPENDS)

    def _pairs(self, pairs: Iterator[Any]) -> Steps:
        return self._looking_ahead((_pair(pair) for pair in pairs), pickle.SETITEM, pickle.SETITEMS)

    def _looking_ahead(self, groups: Iterator[tuple[Any, ...]], single: bytes, several: bytes) -> Steps:
        if not self.bin:
            for group in groups:
                yield from group
                self.write(single)
            return
        for first in groups:
            second = next(groups, None)
            if second is None:
                yield from first
                self.write(single)
                return
            self.write(pickle.MARK)
            for group in chain((first, second), islice(groups, _BATCH - 2)):
                yield from group
            self.write(several)

    def _frozenset(self, obj: Any) -> Steps:
        if self.proto < 4:
            yield from self._reduction(obj, frozenset, (list(obj),))
            return
        self.write(pickle.MARK)
        yield from obj
        known = self.memo.get(id(obj))
        if known is not None:
            self.write(pickle.POP_MARK + self.get(known[0]))
            return
        self.write(pickle.FROZENSET)
        self.memoize(obj)

    # -- reduce values -------------------------------------------------------------------------------------------------

    def _reduction(
        self,
        obj: Any,
        func: Any,
        args: Any,
        state: Any = None,
        items: Any = None,
        pairs: Any = None,
        setter: Any = None,
    ) -> Steps:
        if not callable(func):
            raise pickle.PicklingError("first item of the tuple returned by __reduce__ must be callable")
        if not isinstance(args, tuple):
            raise pickle.PicklingError("second item of the tuple returned by __reduce__ must be a tuple")
        for which, iterator in (("fourth", items), ("fifth", pairs)):
            if iterator is not None and not hasattr(type(iterator), "__next__"):
                raise pickle.PicklingError(f"{which} item of the tuple returned by __reduce__ must be an iterator")
        if setter is not None and not callable(setter):
            raise pickle.PicklingError("sixth item of the tuple returned by __reduce__ must be a function")
        yield from self._construction(obj, func, args)
        known = self.memo.get(id(obj))
        if known is not None:  # an argument led back to the object, which is written by now
            self.write(pickle.POP + self.get(known[0]))
        else:
            self.memoize(obj)
        if items is not None:
            yield from self._items(items)
        if pairs is not None:
            yield from self._pairs(pairs)
        if state is None:
            return
        if setter is None:
            yield state
            self.write(pickle.BUILD)
            return
        yield setter
        yield obj
        yield state
        self.write(pickle.TUPLE2 + pickle.REDUCE + pickle.POP)

    def _construction(self, obj: Any, func: Any, args: tuple[Any, ...]) -> Steps:
        name = getattr(func, "__name__", "")
        if self.proto >= 2 and name == "__newobj_ex__":
            if len(args) != 3:
                raise pickle.PicklingError("__newobj_ex__ needs three arguments")
            cls, positional, keywords = args
            if not (isinstance(cls, type) and isinstance(positional, tuple) and isinstance(keywords, dict)):
                raise pickle.PicklingError("the arguments of __newobj_ex__ must be a class, a tuple and a dict")
            if self.proto >= 4:
                yield cls
                yield positional
                yield keywords
                self.write(pickle.NEWOBJ_EX)
                return
            from functools import partial

            func, args = partial(cls.__new__, cls, *positional, **keywords), ()
        elif self.proto >= 2 and name == "__newobj__":
            if not args or not isinstance(args[0], type):
                raise pickle.PicklingError("args[0] from __newobj__ args is not a class")
            cls = args[0]
            if cls is not obj.__class__:
                raise pickle.PicklingError("args[0] from __newobj__ args has the wrong class")
            yield cls
            yield args[1:]
            self.write(pickle.NEWOBJ)
            return
        yield func
        yield args
        self.write(pickle.REDUCE)


def _nothing() -> Steps:
    return
    yield


def _pair(pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError("dict items iterator must return 2-tuples")
    return pair


#: What a class is reduced to.
_BY_NAME: Final = object()

_ESCAPES: Final = {ord(char): f"\\u{ord(char):04x}" for char in "\\\0\n\r\x1a"}

_LEAVES: Final = frozenset({type(None), bool, int, float, bytes, str, bytearray, pickle.PickleBuffer})
