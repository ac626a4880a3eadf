"""How does a pickle become an object again?

As the standard library does it: loading a pickle runs what the pickle says, so load only what you trust.
"""

from __future__ import annotations

import _io
import pickle
from collections.abc import Iterable
from typing import Any, NoReturn

from .locations import mapped

__all__ = ["Unpickler", "load", "loads"]


class Unpickler(pickle.Unpickler):
    """A ``pickle.Unpickler``. Loading a pickle can run any code: load only what you trust.

    Subclasses may define ``find_class`` and ``persistent_load``.

    Args:
        file, fix_imports, encoding, errors, buffers: as for :class:`pickle.Unpickler`.
        map_location: where tensors of torch go instead of the device that they were on, as for ``torch.load``: a
            device or its name, a dictionary from names to names, or a function of a storage and the name of its device.
    """

    map_location: Any = None

    def __init__(
        self,
        file: Any,
        *,
        fix_imports: bool = True,
        encoding: str = "ASCII",
        errors: str = "strict",
        buffers: Iterable[Any] | None = (),
        map_location: Any = None,
    ) -> None:
        super().__init__(file, fix_imports=fix_imports, encoding=encoding, errors=errors, buffers=buffers)
        if map_location is not None:
            self.map_location = map_location
        self._file, self._fix_imports = file, fix_imports

    def load(self) -> Any:
        """The object of the next pickle in the file.

        Raises:
            UnpicklingError: the pickle is malformed, or names something that is not here; says where in the file, and
                what.
        """
        file = getattr(self, "_file", None)
        start = None if file is None else _position_of(file)
        try:
            if self.map_location is None:
                return super().load()
            with mapped(self.map_location):
                return super().load()
        except Exception as error:
            own_find_class = type(self).find_class is not pickle.Unpickler.find_class
            _raise_translated(error, file, start, getattr(self, "_fix_imports", True), own_find_class)


def _position_of(file: Any) -> int | None:
    """Where a file stands, if it can be brought back there."""
    if isinstance(file, _io._IOBase):
        try:
            return file.tell() if file.seekable() else None
        except Exception:
            return None
    return None


def _raise_translated(
    error: Exception, source: Any, start: int | None, fix_imports: bool, own: bool = False
) -> NoReturn:
    """Raise the error that says where and what; to be called while ``error`` is being handled."""
    from .loading import translate_unpickling_error

    translated = translate_unpickling_error(error, source, start, fix_imports=fix_imports, own_find_class=own)
    if translated is error:
        raise error
    raise translated from translated.__cause__


def load(
    file: Any,
    *,
    fix_imports: bool = True,
    encoding: str = "ASCII",
    errors: str = "strict",
    buffers: Iterable[Any] | None = (),
    map_location: Any = None,
) -> Any:
    """Load an object from a file. Arguments as for :func:`pickle.load`. Runs code of the pickle's choice.

    Args:
        file, fix_imports, encoding, errors, buffers: as for :func:`pickle.load`.
        map_location: where tensors of torch go instead of the device that they were on; see :class:`Unpickler`.

    Raises:
        UnpicklingError: the pickle is malformed, or names something that is not here; says where in the file, and what.
    """
    start = _position_of(file)
    try:
        if map_location is None:
            return pickle.load(file, fix_imports=fix_imports, encoding=encoding, errors=errors, buffers=buffers)
        with mapped(map_location):
            return pickle.load(file, fix_imports=fix_imports, encoding=encoding, errors=errors, buffers=buffers)
    except Exception as error:
        _raise_translated(error, file, start, fix_imports)


def loads(
    data: Any,
    /,
    *,
    fix_imports: bool = True,
    encoding: str = "ASCII",
    errors: str = "strict",
    buffers: Iterable[Any] | None = (),
    map_location: Any = None,
) -> Any:
    """Load an object from bytes. Arguments as for :func:`pickle.loads`. Runs code of the pickle's choice.

    Args:
        data, fix_imports, encoding, errors, buffers: as for :func:`pickle.loads`.
        map_location: where tensors of torch go instead of the device that they were on; see :class:`Unpickler`.

    Raises:
        UnpicklingError: the pickle is malformed, or names something that is not here; says at which byte, and what.
    """
    try:
        if map_location is None:
            return pickle.loads(data, fix_imports=fix_imports, encoding=encoding, errors=errors, buffers=buffers)
        with mapped(map_location):
            return pickle.loads(data, fix_imports=fix_imports, encoding=encoding, errors=errors, buffers=buffers)
    except Exception as error:
        _raise_translated(error, data, 0, fix_imports)
