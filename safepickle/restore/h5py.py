"""What a pickle calls for files, groups and datasets of h5py."""

from __future__ import annotations

from typing import Any

from ..errors import UnpicklingError
from .checks import _check

__all__ = [
    "h5py_file",
    "h5py_object",
]


def h5py_file(cls: type, path: str, swmr: bool) -> Any:
    """The HDF5 file of that path, for reading.

    Raises:
        UnpicklingError: the file is not there or cannot be opened.
    """
    import h5py

    if not (isinstance(cls, type) and issubclass(cls, h5py.File)):
        raise UnpicklingError(f"malformed pickle: {cls!r} is not a kind of h5py.File")
    _check(path, str, "the path of a file")
    made = h5py.File.__new__(cls)
    try:
        h5py.File.__init__(made, path, "r", swmr=swmr)
    except OSError as error:
        raise UnpicklingError(
            f"cannot reopen the HDF5 file {path!r}, which was open where the pickle was written: {error}. "
            "A pickle holds the path of a file and not its contents"
        ) from error
    return made


def h5py_object(file: Any, name: str, kind: str) -> Any:
    """A group, a dataset or a named type in an HDF5 file."""
    import h5py

    _check(file, h5py.Group, "an HDF5 file")
    _check(name, str, "the name of an HDF5 object")
    try:
        found = file[name]
    except KeyError as error:
        raise UnpicklingError(f"the HDF5 file {file.filename!r} has no {name!r} here: {error}") from error
    if kind not in ("Group", "Dataset", "Datatype") or not isinstance(found, getattr(h5py, kind)):
        raise UnpicklingError(f"{name!r} in the HDF5 file {file.filename!r} is a {type(found).__name__}, not a {kind}")
    return found
