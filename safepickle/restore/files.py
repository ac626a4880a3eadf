"""What a pickle calls for open files."""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Any

from ..errors import UnpicklingError
from .checks import _check

__all__ = [
    "closed_file",
    "fill_codecs_stream",
    "make_buffered_file",
    "make_text_file",
    "open_compressed_file",
    "open_raw_file",
    "standard_stream",
]


def standard_stream(name: str, path: tuple[str, ...]) -> Any:
    """``sys.stdin``, ``sys.stdout`` or ``sys.stderr`` of this process, or the ``buffer`` of it."""
    if name.strip("_") not in ("stdin", "stdout", "stderr") or not {"buffer", "raw"}.issuperset(path):
        raise UnpicklingError(f"malformed pickle: sys.{'.'.join([name, *path])} is not a standard stream")
    found = getattr(sys, name)
    for part in path:
        found = getattr(found, part, None)
        if found is None:
            raise UnpicklingError(f"the pickle holds sys.{'.'.join([name, *path])}, which this process does not have")
    return found


def open_raw_file(cls: type, path: str, mode: str, position: int | None) -> io.FileIO:
    """The file of that path, never truncated and never created, at that position.

    Raises:
        UnpicklingError: the file is not there or cannot be opened.
    """
    if not (isinstance(cls, type) and issubclass(cls, io.FileIO)):
        raise UnpicklingError(f"malformed pickle: {cls!r} is not a kind of io.FileIO")
    _check(path, str, "the path of a file")
    made = cls.__new__(cls)
    try:
        io.FileIO.__init__(made, path, mode, opener=_reopen)
        if position is not None:
            made.seek(position)
    except OSError as error:
        raise UnpicklingError(
            f"cannot reopen the file {path!r} (mode {mode!r}, position {position}), which was open where the pickle "
            f"was written: {error.strerror or error}. A pickle holds the path of a file and not its contents"
        ) from error
    return made


def _reopen(path: str, flags: int) -> int:
    return os.open(path, flags & ~(os.O_TRUNC | os.O_CREAT | os.O_EXCL))


def make_buffered_file(cls: type, raw: Any, position: int | None) -> Any:
    """A buffered reader or writer over a raw file."""
    for base in (io.BufferedReader, io.BufferedWriter, io.BufferedRandom):
        if isinstance(cls, type) and issubclass(cls, base):
            made: Any = cls.__new__(cls)
            base.__init__(made, raw)
            if position is not None:
                made.seek(position)
            return made
    raise UnpicklingError(f"malformed pickle: {cls!r} is not a kind of buffered file")


def make_text_file(
    cls: type, buffer: Any, encoding: str, errors: str, newline: str | None, line_buffering: bool, write_through: bool,
    position: int | None,
) -> io.TextIOWrapper:  # fmt: skip
    """Text over a buffered file."""
    if not (isinstance(cls, type) and issubclass(cls, io.TextIOWrapper)):
        raise UnpicklingError(f"malformed pickle: {cls!r} is not a kind of io.TextIOWrapper")
    made = cls.__new__(cls)
    io.TextIOWrapper.__init__(made, buffer, encoding, errors, newline, line_buffering, write_through)
    if position is not None:
        made.seek(position)
    return made


def fill_codecs_stream(stream: Any, attributes: dict[str, Any]) -> None:
    """Give a stream of :mod:`codecs` its attributes; by hand, because it looks in its file for what it lacks."""
    import codecs

    _check(stream, (codecs.Codec, codecs.StreamReaderWriter, codecs.StreamRecoder), "a stream of codecs")
    object.__getattribute__(stream, "__dict__").update(attributes)


def closed_file(cls: type, name: Any, mode: str, encoding: str | None, errors: str | None) -> Any:
    """A file object that is closed. The file itself need not be here."""
    _check(cls, type, "the type of a file")
    raw = io.FileIO(os.devnull, mode.replace("t", "").replace("x", "w"), opener=_reopen)
    raw.name = name
    made: Any = raw
    if not issubclass(cls, io.FileIO):
        buffered: type = io.BufferedRandom if "+" in mode else io.BufferedReader if "r" in mode else io.BufferedWriter
        is_buffered = issubclass(cls, (io.BufferedReader, io.BufferedWriter, io.BufferedRandom))
        made = make_buffered_file(cls if is_buffered else buffered, raw, None)
        if issubclass(cls, io.TextIOWrapper):
            made = make_text_file(cls, made, encoding or "utf-8", errors or "strict", None, False, False, None)
    made.close()
    return made


def open_compressed_file(kind: str, path: str, position: int) -> Any:
    """A compressed file (``gzip``, ``bz2``, ``lzma``) for reading, at that position of its contents.

    Raises:
        UnpicklingError: the file is not there or cannot be opened.
    """
    classes = {"gzip": "GzipFile", "bz2": "BZ2File", "lzma": "LZMAFile"}
    if kind not in classes:
        raise UnpicklingError(f"malformed pickle: {kind!r} is not a way to compress files")
    try:
        made = getattr(importlib.import_module(kind), classes[kind])(path, "rb")
        made.seek(position)
    except OSError as error:
        raise UnpicklingError(
            f"cannot reopen the file {path!r} ({kind}, position {position}), which was open where the pickle was "
            f"written: {error.strerror or error}. A pickle holds the path of a file and not its contents"
        ) from error
    return made
