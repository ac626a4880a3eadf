"""Rules for h5py: files that are open for reading are opened again by their path, and so is what is in them.

- a file: its path, opened for reading
- groups, datasets and named types: their file and their name in it; objects of one file share the one that is opened
- files that are open for writing, in memory or closed: an error
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Final

import h5py

from .. import restore
from ..errors import UnpicklingError
from ..registry import Registry
from ..sources import ByValue
from .refusals import Refusal

__all__ = ["add_rules"]

_DRIVERS: Final = ("sec2", "stdio")
_MEMO_KEY: Final = "safepickle: h5py files"


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    reopened = ("open for reading: opened again by path", "opened again by path")
    registry.add(h5py.File, reduce_file, copy=copy_file, shallow=copy_once, subclasses=True, with_pickler=True,
                 origin=__name__, summary=reopened)  # fmt: skip
    for kind in (h5py.Group, h5py.Dataset, h5py.Datatype):
        registry.add(kind, reduce_object, copy=copy_object, shallow=copy_once, subclasses=kind is h5py.Dataset,
                     with_pickler=True, origin=__name__, summary=reopened)  # fmt: skip


def reduce_file(file: h5py.File, pickler: Any) -> tuple[Any, ...]:
    """A file as its path; the objects of the file that come after it will share it."""
    arguments = _how_to_open(file)
    _files_of(pickler).setdefault(arguments[1:], file)
    return restore.h5py_file, arguments


def reduce_object(obj: Any, pickler: Any) -> tuple[Any, ...]:
    """What is in a file, by the file and the name."""
    name, file = _place_of(obj)
    shared = _files_of(pickler).setdefault(_how_to_open(file)[1:], file)
    return restore.h5py_object, (shared, name, _kind_of(obj))


def _how_to_open(file: h5py.File) -> tuple[type, str, bool]:
    if not file:
        raise Refusal("this HDF5 file is closed, and does not know its path any more: keep the path")
    if file.driver not in _DRIVERS:
        raise Refusal(
            f"an HDF5 file of the driver {file.driver!r} cannot be opened again by a path: keep what it is made from"
        )
    if file.mode != "r":
        raise Refusal(f"the HDF5 file {file.filename!r} is open for writing: close it, or open it with mode='r'")
    return type(file), os.path.abspath(os.fsdecode(file.filename)), bool(file.swmr_mode)


def _place_of(obj: Any) -> tuple[str, h5py.File]:
    if not obj:
        raise Refusal(f"this HDF5 {_kind_of(obj)} is closed with its file: keep the path of the file and the name")
    if obj.name is None:
        raise Refusal(f"this HDF5 {_kind_of(obj)} has no name in its file: keep its contents")
    return obj.name, obj.file


def _kind_of(obj: Any) -> str:
    name: str = next(kind.__name__ for kind in (h5py.Dataset, h5py.Datatype, h5py.Group) if isinstance(obj, kind))
    return name


#: The files that one dump has come across, by path, known by what the pickler makes anew for each dump.
_files: weakref.WeakKeyDictionary[ByValue, dict[Any, h5py.File]] = weakref.WeakKeyDictionary()


def _files_of(pickler: Any) -> dict[Any, h5py.File]:
    return _files.setdefault(pickler.by_value, {})


def copy_file(file: h5py.File, memo: dict[Any, Any]) -> h5py.File:
    """Another handle of the file."""
    cls, path, swmr = _how_to_open(file)
    files = memo.setdefault(_MEMO_KEY, {})
    if path not in files:
        try:
            files[path] = restore.h5py_file(cls, path, swmr)
        except UnpicklingError as error:
            raise Refusal(str(error)) from error
    return files[path]


def copy_object(obj: Any, memo: dict[Any, Any]) -> Any:
    """The same in another handle of the file."""
    name, file = _place_of(obj)
    return restore.h5py_object(copy_file(file, memo), name, _kind_of(obj))


def copy_once(obj: Any) -> Any:
    """As a deep copy: there are no parts."""
    return (copy_file if isinstance(obj, h5py.File) else copy_object)(obj, {})
