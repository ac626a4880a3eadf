"""Rules for open files: a path, a mode and a position; never the contents.

- files for reading: opened again at the same position
- files for writing and appending: flushed, and opened again at the same position **without truncating**
- a file that is not there when the pickle is loaded: an error that names it
- closed files: closed ones; the file need not be there
- ``sys.stdin``, ``sys.stdout``, ``sys.stderr`` and their buffers: those of the reading process; shared by copies
- ``gzip``, ``bz2`` and ``lzma`` files for reading: opened again at the same position
- files without a path (pipes, descriptors, temporary files): an error

The layers of a file (text, buffer, raw file) have a rule each, so that an object that holds two of them still does.
"""

from __future__ import annotations

import gc
import io
import os
import stat
import sys
from typing import Any, Final

from .. import restore
from ..copier import deepcopy
from ..registry import Registry
from .parts import ORIGIN, bare, state_of
from .refusals import Refusal

__all__ = ["add_rules"]

_STREAMS: Final = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    reopened = ("path, mode and position: opened again, never truncated; standard streams: those of the reader",
                "a new handle at the same position; standard streams are shared")  # fmt: skip
    for kind, reduce in _LAYERS.items():
        registry.add(
            kind, reduce, copy=_copier(reduce), shallow=_once(reduce), subclasses=True, origin=ORIGIN, summary=reopened
        )
    registry.add(io.BufferedRWPair, reduce_pair, subclasses=True, origin=ORIGIN)
    # A notebook or a test runner puts streams of its own in the place of the standard ones.
    registry.add(io.IOBase.__mro__[1], reduce_other, copy=_copy_other, subclasses=True, origin=ORIGIN)
    for name, reduce in _COMPRESSED.items():
        registry.add(
            name, reduce, copy=_copier(reduce), shallow=_once(reduce), subclasses=True, origin=ORIGIN, summary=reopened
        )
    for name in ("StreamReader", "StreamWriter", "StreamReaderWriter", "StreamRecoder"):
        registry.add(f"codecs:{name}", reduce_codecs_stream, subclasses=True, origin=ORIGIN, summary=reopened)
    registry.add("zipfile:ZipFile", reduce_archive, subclasses=True, origin=ORIGIN, summary=reopened)
    registry.add("tarfile:TarFile", reduce_archive, subclasses=True, origin=ORIGIN, summary=reopened)


def _copier(reduce: Any) -> Any:
    def copy(file: Any, memo: dict[Any, Any]) -> Any:
        if standard_stream(file) is not None:
            return file
        function, arguments, *rest = reduce(file)
        made = function(*[deepcopy(argument, memo) for argument in arguments])
        if rest and rest[0] is not None:
            made.__dict__.update(deepcopy(rest[0], memo))
        return made

    return copy


def _once(reduce: Any) -> Any:
    copy = _copier(reduce)
    return lambda file: copy(file, {})


# -- standard streams -------------------------------------------------------------------------------------------------


def standard_stream(file: Any) -> tuple[str, tuple[str, ...]] | None:
    """The name of a standard stream of this process, or of a layer below it: ``("stdout", ("buffer",))``."""
    for name in _STREAMS:
        found, path = getattr(sys, name, None), ()
        while found is not None:
            if found is file:
                return name, path
            layer = "raw" if path else "buffer"
            if len(path) == 2:
                break
            found, path = _layer(found, layer), (*path, layer)  # type: ignore[assignment]
    return None


def _layer(file: Any, name: str) -> Any:
    try:
        return getattr(file, name, None)
    except Exception:  # detached, or not a file at all
        return None


def reduce_other(file: Any) -> Any:
    """A stream of any type that is a standard stream now."""
    found = standard_stream(file)
    return NotImplemented if found is None else (restore.standard_stream, found)


def _copy_other(file: Any, memo: dict[Any, Any]) -> Any:
    return NotImplemented if standard_stream(file) is None else file


# -- the layers of a file ---------------------------------------------------------------------------------------------


def reduce_raw(file: io.FileIO) -> tuple[Any, ...]:
    """A raw file as its path, mode and position."""
    found = standard_stream(file)
    if found is not None:
        return restore.standard_stream, found
    if file.closed:
        return restore.closed_file, (type(file), _closed_name(file), file.mode, None, None)
    arguments = (type(file), path_of(file), file.mode, file.tell() if file.seekable() else None)
    return restore.open_raw_file, arguments, state_of(file, {"name"})


def reduce_buffered(file: Any) -> tuple[Any, ...]:
    """A buffered file as its raw file and its position."""
    found = standard_stream(file)
    if found is not None:
        return restore.standard_stream, found
    raw = _below(file, "raw")
    if file.closed:
        return restore.closed_file, (type(file), _closed_name(raw), getattr(raw, "mode", "rb"), None, None)
    _check_origin(raw)
    if file.writable():
        file.flush()
    return restore.make_buffered_file, (type(file), raw, file.tell() if file.seekable() else None), state_of(file)


def reduce_text(file: io.TextIOWrapper) -> tuple[Any, ...]:
    """A text file as its buffer, its way to read text and its position."""
    found = standard_stream(file)
    if found is not None:
        return restore.standard_stream, found
    buffer = _below(file, "buffer")
    if file.closed:
        raw = getattr(buffer, "raw", buffer)
        mode = getattr(file, "mode", getattr(raw, "mode", "r"))
        return (restore.closed_file, (type(file), _closed_name(raw), mode, file.encoding, file.errors), state_of(file))
    _check_origin(getattr(buffer, "raw", None))
    if file.writable():
        file.flush()
    position = _text_position(file, buffer) if file.seekable() else None
    options = (file.encoding, file.errors, _newline(file), file.line_buffering, file.write_through, position)
    return restore.make_text_file, (type(file), buffer, *options), state_of(file)


def _below(file: Any, name: str) -> Any:
    try:
        return getattr(file, name)
    except ValueError as error:
        raise Refusal(f"this file was detached from what is below it ({error}): keep that") from error


def _check_origin(raw: Any) -> None:
    """Refuse a file that cannot be opened again before it is touched."""
    if isinstance(raw, io.FileIO):
        path_of(raw)


def _closed_name(file: Any) -> Any:
    name = getattr(file, "name", None)
    return name if isinstance(name, (str, bytes, int)) else os.fspath(name) if isinstance(name, os.PathLike) else ""


def reduce_pair(file: Any) -> Any:
    """An error: the two files of a pair cannot be seen."""
    raise Refusal("a BufferedRWPair does not show its two files: keep them")


_LAYERS: Final[dict[type, Any]] = {
    io.FileIO: reduce_raw, io.BufferedReader: reduce_buffered, io.BufferedWriter: reduce_buffered,
    io.BufferedRandom: reduce_buffered, io.TextIOWrapper: reduce_text,
}  # fmt: skip


def path_of(file: Any) -> str:
    """The absolute path under which an open file can be opened again.

    Raises:
        Refusal: there is none.
    """
    name = file.name
    if isinstance(name, int):
        raise Refusal(
            f"this file was opened from the descriptor {name}, without a path (a pipe, a socket, a temporary file): "
            "keep its contents, or what it was opened from"
        )
    path = os.path.abspath(os.fsdecode(name))
    try:
        here = os.fstat(file.fileno())
    except OSError as error:
        raise Refusal(
            f"the descriptor of the open file {path!r} was closed by somebody else ({error.strerror})"
        ) from error
    if stat.S_ISFIFO(here.st_mode) or stat.S_ISSOCK(here.st_mode):
        raise Refusal(f"the pipe {path!r} is connected to this process: keep what is read from it")
    try:
        there = os.stat(path)
    except OSError as error:
        raise Refusal(f"the open file {path!r} is not there any more ({error.strerror}): keep its contents") from error
    if not os.path.samestat(here, there):
        raise Refusal(
            f"the path {path!r} leads to another file than the open one: open it by its full path, or keep its contents"
        )
    return path


# -- text -------------------------------------------------------------------------------------------------------------


def _text_position(file: io.TextIOWrapper, buffer: Any) -> int:
    try:
        return file.tell()
    except OSError:  # inside of a loop over the lines, or after somebody tried to read what is only written
        return _position_by_reading(file) if file.readable() else int(buffer.tell())


def _position_by_reading(file: io.TextIOWrapper) -> int:
    """Where a file stands that is being iterated: by the length of the rest. The file ends up where it was."""
    rest = _length_of_rest(file)
    file.seek(0)
    left = _length_of_rest(file) - rest
    file.seek(0)
    while left > 0:
        left -= len(file.read(min(left, 1 << 20)))
    return file.tell()


def _length_of_rest(file: io.TextIOWrapper) -> int:
    length = 0
    while part := file.read(1 << 20):
        length += len(part)
    return length


def _newline(file: io.TextIOWrapper) -> str | None:
    """The ``newline`` that a file was opened with: the string after the decoder, as the garbage collector sees it.

    Text that waits to be handed out follows it there. After a seek there is none, so that an empty string can only be
    ``newline``.
    """
    if file.seekable() and file.readable():
        file.seek(file.tell())
    parts = [part for part in gc.get_referents(file) if not isinstance(part, type)]
    try:
        index = next(i for i, part in enumerate(parts) if type(part) is str and part == file.encoding)
        last = max(i for i, part in enumerate(parts) if type(part) is str and part == file.errors)
    except (StopIteration, ValueError):
        return None
    strings = [part for part in parts[index + 1 : last] if type(part) is str]
    universal = any(type(part) is io.IncrementalNewlineDecoder for part in parts[index + 1 : last])
    if not strings or strings[0] not in ("", "\n", "\r", "\r\n") or (universal and strings[0] != ""):
        return None
    return strings[0]


# -- compressed files and archives ------------------------------------------------------------------------------------


def _reduce_compressed(kind: str, file: Any, inner: Any) -> tuple[Any, ...]:
    if file.closed or not file.readable():
        raise Refusal(
            f"a {kind} file that is closed or being written cannot be opened again: keep its path"
        )
    if not isinstance(inner, io.BufferedReader):
        raise Refusal(f"a {kind} file over a {type(inner).__name__} cannot be opened again: keep that")
    return restore.open_compressed_file, (kind, path_of(inner), file.tell())


def reduce_gzip(file: Any) -> tuple[Any, ...]:
    """A gzip file for reading as its path and position."""
    return _reduce_compressed("gzip", file, file.fileobj)


def reduce_bz2(file: Any) -> tuple[Any, ...]:
    """A bz2 file for reading as its path and position."""
    return _reduce_compressed("bz2", file, file._fp)


def reduce_lzma(file: Any) -> tuple[Any, ...]:
    """An lzma file for reading as its path and position."""
    return _reduce_compressed("lzma", file, file._fp)


_COMPRESSED: Final[dict[str, Any]] = {
    "gzip:GzipFile": reduce_gzip,
    "bz2:BZ2File": reduce_bz2,
    "lzma:LZMAFile": reduce_lzma,
}


def reduce_archive(archive: Any) -> Any:
    """An archive goes with its file; one that is being written to a real file must not have a second writer."""
    file = getattr(archive, "fileobj", None) or getattr(archive, "fp", None)
    if archive.mode == "r" or file is None or isinstance(file, io.BytesIO) or not isinstance(file, io.IOBase):
        return NotImplemented
    raise Refusal("an archive that is being written cannot be opened a second time: close it and keep its path")


# -- the streams of codecs, such as codecs.open gives -----------------------------------------------------------------


def reduce_codecs_stream(stream: Any) -> tuple[Any, ...]:
    """A stream as its attributes: its file, and what it has read ahead."""
    return bare(type(stream), dict(object.__getattribute__(stream, "__dict__")), restore.fill_codecs_stream)
