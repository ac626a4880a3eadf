"""How does an object travel through a program that pickles with something else, with nothing installed on either side?

It carries its own pickle, which safepickle has written, inside of whatever the program writes: ``seal(obj)`` arrives as
the object itself, ``seal(obj, lazy=True)`` as something that still holds the bytes, for programs that pickle again what
they have received.

Loading a sealed object loads the pickle inside. Nothing in :mod:`safepickle.restore` does such a thing; that is why the
functions that pickles of sealed objects call are here: who lets those names through does not let these through.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from typing import Any, Final

from .errors import PicklingError

__all__ = ["LazySeal", "Seal", "seal", "sealed", "unseal"]

#: Up to this size copying bytes costs less than making a buffer of them.
_SMALL: Final = 1 << 14

#: The seals that this thread is writing, by their ids.
_being_written: Final = threading.local()


def seal(obj: Any, lazy: bool = False) -> Any:
    """An object that carries itself through any pickler, by the rules of safepickle.

    Args:
        obj: anything that safepickle can pickle.
        lazy: pickle it now, and unpickle it when :meth:`LazySeal.get` is called. Brokers and schedulers in between
            neither need what it needs nor do its work again. Large arrays and tensors are not copied: what is changed
            in them before the seal is sent is sent changed.

    Returns:
        A :class:`Seal`, which arrives as ``obj`` itself wherever it is unpickled, or a :class:`LazySeal`.

    Raises:
        PicklingError: with ``lazy``, some part of the object cannot be pickled; else pickling the seal raises that.

    Example:
        >>> import pickle, safepickle
        >>> double = pickle.loads(pickle.dumps(safepickle.seal(lambda x: 2 * x)))
        >>> double(21)
        42
        >>> parcel = pickle.loads(pickle.dumps(safepickle.seal(lambda x: 2 * x, lazy=True)))
        >>> parcel.get()(21)
        42
    """
    if not lazy:
        return Seal(obj)
    data, buffers = _written(obj, 5)
    return LazySeal(data, buffers, _label(obj))


def _label(obj: Any) -> str:
    cls = type(obj)
    return f"{cls.__module__}.{cls.__qualname__}"


def _written(obj: Any, protocol: int) -> tuple[Any, list[Any]]:
    """The pickle of an object and, from protocol 5, the large buffers that are not in it."""
    from .pickler import dumps

    if protocol < 5:
        return dumps(obj, protocol), []
    buffers: list[pickle.PickleBuffer] = []

    def is_kept_inside(buffer: pickle.PickleBuffer) -> bool:
        with memoryview(buffer) as view:  # no view of it is left, or its owner could not be resized
            if view.nbytes <= _SMALL or not view.contiguous:
                return True
        buffers.append(buffer)
        return False

    return dumps(obj, 5, buffer_callback=is_kept_inside), buffers


def _sent(data: Any, protocol: int) -> Any:
    """Bytes as an argument in a pickle: the pickler that runs may send large ones out of band, without a copy."""
    if protocol >= 5 and len(memoryview(data).cast("B")) > _SMALL:
        return data if isinstance(data, pickle.PickleBuffer) else pickle.PickleBuffer(data)
    return data if isinstance(data, (bytes, bytearray)) else bytes(data)


def _all_sent(data: Any, buffers: Sequence[Any], protocol: int) -> tuple[Any, ...]:
    if not buffers:
        return (_sent(data, protocol),)
    return _sent(data, protocol), tuple(_sent(buffer, protocol) for buffer in buffers)


class Seal:
    """An object on its way: wherever a pickler writes it, the object itself is what is read.

    Args:
        obj: the object.
    """

    __slots__ = ("__weakref__", "_obj")

    def __init__(self, obj: Any) -> None:
        self._obj = obj

    def get(self) -> Any:
        """The object."""
        return self._obj

    def __reduce_ex__(self, protocol: Any) -> Any:
        running: set[int] = _being_written.__dict__.setdefault("seals", set())
        if id(self) in running:
            raise PicklingError("a seal that leads to itself: what is in it is a pickle of its own, without an end")
        running.add(id(self))
        try:
            return unseal, _all_sent(*_written(self._obj, int(protocol)), int(protocol))
        finally:
            running.discard(id(self))

    def __bytes__(self) -> bytes:
        """A pickle of the object, for whom bytes are all that can be sent: ``pickle.loads`` gives the object."""
        from .pickler import dumps

        return dumps(self._obj)

    def __copy__(self) -> Seal:
        return Seal(self._obj)

    def __deepcopy__(self, memo: dict[Any, Any]) -> Seal:
        from .copier import deepcopy

        return Seal(deepcopy(self._obj, memo))

    def __repr__(self) -> str:
        return f"<sealed {_label(self._obj)}>"


class LazySeal:
    """The pickle of an object, which is pickled and copied as what it is: bytes.

    Args:
        data: the pickle.
        buffers: the buffers that belong to it.
        label: what is in it, for people.
    """

    __slots__ = ("__weakref__", "_buffers", "_data", "_label")

    def __init__(self, data: Any, buffers: Sequence[Any], label: str) -> None:
        self._data = data
        self._buffers = tuple(buffers)
        self._label = label

    def get(self, *, copy: bool = True) -> Any:
        """The object, unpickled anew by each call. Runs code of the pickle's choice.

        Args:
            copy: give the object memory of its own for large arrays and tensors. Without it they use that of the seal,
                and of every other object that comes from it so; it may be read-only, where an engine has mapped it.

        Raises:
            UnpicklingError: something is missing here that the object needs.
        """
        from .unpickler import loads

        buffers = [bytearray(buffer) for buffer in self._buffers] if copy else self._buffers
        return loads(self._data, buffers=buffers)

    @property
    def nbytes(self) -> int:
        """How many bytes it carries."""
        return sum(memoryview(part).nbytes for part in (self._data, *self._buffers))

    def __reduce_ex__(self, protocol: Any) -> Any:
        arguments = _all_sent(self._data, self._buffers, int(protocol))
        return sealed, (self._label, *arguments)

    def __bytes__(self) -> bytes:
        """A pickle of the object, for whom bytes are all that can be sent: ``pickle.loads`` gives the object."""
        if not self._buffers:
            return bytes(self._data)
        return pickle.dumps(_Arriving(self._data, self._buffers), 5)

    def __copy__(self) -> LazySeal:
        return LazySeal(self._data, self._buffers, self._label)

    def __deepcopy__(self, memo: dict[Any, Any]) -> LazySeal:
        return LazySeal(bytes(self._data), [bytearray(buffer) for buffer in self._buffers], self._label)

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self.nbytes

    def __repr__(self) -> str:
        return f"<sealed {self._label}, {self.nbytes:,} bytes>"


class _Arriving:
    """What is unpickled as the object that a lazy seal holds."""

    def __init__(self, data: Any, buffers: Sequence[Any]) -> None:
        self._parts = data, buffers

    def __reduce_ex__(self, protocol: Any) -> Any:
        return unseal, _all_sent(*self._parts, int(protocol))


# -- what pickles call -------------------------------------------------------------------------------------------------
#
# As in safepickle.restore: never renamed, and their arguments never change their meaning.


def unseal(data: Any, buffers: Any = ()) -> Any:
    """The object whose pickle this is. Runs code of the pickle's choice.

    Raises:
        TypeError: the arguments are not bytes.
    """
    from .unpickler import loads

    _check(data, buffers)
    return loads(data, buffers=buffers)


def sealed(label: Any, data: Any, buffers: Any = ()) -> LazySeal:
    """A lazy seal. Runs nothing.

    Raises:
        TypeError: the arguments are not text and bytes.
    """
    if not isinstance(label, str):
        raise TypeError(f"the label of a seal must be a string, not {type(label).__qualname__}")
    _check(data, buffers)
    return LazySeal(data, buffers, label)


def _check(data: Any, buffers: Any) -> None:
    if not isinstance(buffers, tuple):
        raise TypeError(f"the buffers of a seal must be a tuple, not {type(buffers).__qualname__}")
    for part in (data, *buffers):
        try:
            memoryview(part).release()
        except TypeError:
            raise TypeError(f"a seal holds bytes, not {type(part).__qualname__}") from None
