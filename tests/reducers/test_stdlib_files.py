"""Open files: a path, a mode and a position, on every way; contents stay where they are."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import pathlib
import socket
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

import safepickle
from tests.helpers import fresh_load, run_python

from .ways import Way, every_way, pickled_ways

__all__: list[str] = []

LINES = [f"row {n} \u00e4\n" for n in range(1000)]


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    found = tmp_path / "rows.txt"
    found.write_text("".join(LINES), encoding="utf-8", newline="\n")
    return found


def read_on(file: Any) -> Any:
    with file:
        return file.readline()


# -- reading ----------------------------------------------------------------------------------------------------------


@every_way
def test_a_text_file_reads_on(way: Way, path: pathlib.Path) -> None:
    with open(path, encoding="utf-8") as file:
        file.readline()
        twin = way({"file": file})["file"]
        assert type(twin) is io.TextIOWrapper
        assert (twin.name, twin.mode, twin.encoding) == (str(path), "r", "utf-8")
        assert twin.readline() == LINES[1]
        assert file.readline() == LINES[1], "one moved the other"
        assert read_on(twin) == LINES[2]
        assert file.readline() == LINES[2]


@every_way
@pytest.mark.parametrize("buffering", [-1, 0])
def test_a_binary_file_reads_on(way: Way, path: pathlib.Path, buffering: int) -> None:
    with open(path, "rb", buffering=buffering) as file:
        file.seek(10)
        twin = way(file)
        assert type(twin) is type(file)
        assert twin.mode == "rb"
        assert twin.read(4) == file.read(4)
        twin.close()
        assert file.tell() == 14


@every_way
def test_a_text_file_in_the_middle_of_a_loop(way: Way, path: pathlib.Path) -> None:
    with open(path, encoding="utf-8") as file:
        next(file)
        next(file)
        twin = way(file)
        assert read_on(twin) == LINES[2]
        assert next(file) == LINES[2]
        assert file.readline() == LINES[3]


@every_way
@pytest.mark.parametrize("newline", [None, "", "\n", "\r", "\r\n"])
@pytest.mark.parametrize("reads", [0, 1, 5])
def test_newlines_are_read_as_before(way: Way, tmp_path: pathlib.Path, newline: str | None, reads: int) -> None:
    path = tmp_path / "mixed.txt"
    path.write_bytes(b"a\nb\r\nc\rd\r\n\n")
    with open(path, newline=newline) as file:
        for _ in range(reads):
            file.readline()
        twin = way(file)
        with twin:
            assert twin.readlines() == file.readlines()


@every_way
@pytest.mark.parametrize("newline", [None, "", "\r\n"])
def test_newlines_are_written_as_before(way: Way, tmp_path: pathlib.Path, newline: str | None) -> None:
    path = tmp_path / "out.txt"
    with open(path, "w", newline=newline) as file:
        file.write("a\n")
        with way(file) as twin:
            twin.write("b\n")
    expected = "\r\n" if newline == "\r\n" else "\n"
    assert path.read_bytes().decode() == f"a{expected}b{expected}"


@every_way
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1", "shift_jis"])
def test_encodings(way: Way, tmp_path: pathlib.Path, encoding: str) -> None:
    path = tmp_path / "coded.txt"
    text = "one\ntwo\nthree\n"
    path.write_text(text, encoding=encoding)
    with open(path, encoding=encoding, errors="replace") as file:
        file.readline()
        with way(file) as twin:
            assert twin.errors == "replace"
            assert twin.read() == file.read() == "two\nthree\n"


@every_way
def test_the_end_of_a_file(way: Way, path: pathlib.Path) -> None:
    with open(path, encoding="utf-8") as file:
        file.read()
        with way(file) as twin:
            assert twin.read() == ""
            twin.seek(0)
            assert twin.readline() == LINES[0]


@every_way
def test_the_layers_of_a_file_stay_layers_of_one(way: Way, path: pathlib.Path) -> None:
    with open(path, encoding="utf-8") as file:
        text, buffer, raw = way([file, file.buffer, file.buffer.raw])
        with text:
            assert text.buffer is buffer
            assert buffer.raw is raw


def test_a_pickled_file_is_small(path: pathlib.Path) -> None:
    with open(path) as file:
        assert len(safepickle.dumps(file)) < 500


@every_way
def test_a_relative_path_is_remembered_in_full(way: Way, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    with open(path.name, encoding="utf-8") as file:
        twin = way(file)
    monkeypatch.chdir("/")
    with twin:
        assert os.path.isabs(twin.name)
        assert twin.readline() == LINES[0]


def test_a_file_reads_on_in_a_fresh_process(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with open(path, encoding="utf-8") as file, open(path, "rb") as raw:
        file.readline()
        raw.seek(4)
        data = safepickle.dumps([file, raw], 2)
    code = "print(obj[0].readline().split()[1], obj[1].read(1).decode(), len(obj[0].readlines()))"
    assert fresh_load(data, code, tmp_path, loader="pickle").split() == ["1", "0", "998"]


# -- writing ----------------------------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("mode", ["w", "x", "w+", "r+", "wb", "ab", "a", "a+"])
def test_a_file_for_writing_is_never_truncated(way: Way, tmp_path: pathlib.Path, mode: str) -> None:
    path = tmp_path / "out"
    if "x" not in mode:
        path.write_bytes(b"0123456789")
    empty: Any = b"" if "b" in mode else ""
    first, second = (b"AB", b"CD") if "b" in mode else ("AB", "CD")
    with open(path, mode) as file:
        file.write(first)
        twin = way(file)
        assert (twin.mode, twin.readable(), twin.writable()) == (file.mode, file.readable(), file.writable())
        assert type(twin) is type(file)
        with twin:
            twin.write(second)
        assert twin.closed
        assert not file.closed
    expected = {"w": b"ABCD", "x": b"ABCD", "r": b"ABCD456789", "a": b"0123456789ABCD"}[mode[0]]
    assert path.read_bytes() == expected
    assert empty in (b"", "")


@every_way
def test_a_file_for_writing_that_somebody_tried_to_read(way: Way, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "out.txt"
    with open(path, "w") as file:
        file.write("first ")
        with pytest.raises(io.UnsupportedOperation):
            next(file)
        with way(file) as twin:
            twin.write("second")
    assert path.read_text() == "first second"


@every_way
@pytest.mark.parametrize("mode", ["r", "rb", "w", "a", "r+"])
def test_a_closed_file_is_closed(way: Way, tmp_path: pathlib.Path, mode: str) -> None:
    path = tmp_path / "gone.txt"
    path.touch()
    file = open(path, mode)  # noqa: SIM115
    file.close()
    path.unlink()
    twin = way(file)
    assert twin.closed
    assert twin.name == str(path) or twin.name == path
    assert type(twin) is type(file)
    assert twin.mode == mode
    assert not path.exists()


# -- what is not there ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["r", "rb", "r+", "w", "a"])
@pytest.mark.parametrize("loads", [safepickle.loads, __import__("pickle").loads], ids=["safepickle", "pickle"])
def test_a_missing_file_is_an_error_that_names_it(path: pathlib.Path, mode: str, loads: Callable[[bytes], Any]) -> None:
    with open(path, mode) as file:
        data = safepickle.dumps(file)
    path.unlink()
    with pytest.raises(safepickle.UnpicklingError, match=r"rows\.txt"):
        loads(data)
    assert not path.exists()


def test_a_file_that_was_deleted_or_replaced_is_refused(path: pathlib.Path) -> None:
    with open(path) as file:
        path.unlink()
        with pytest.raises(safepickle.PicklingError, match="not there any more"):
            safepickle.dumps([file])
        path.write_text("another")
        with pytest.raises(safepickle.PicklingError, match="another file"):
            safepickle.deepcopy([file])


@pytest.mark.parametrize("verb", [safepickle.dumps, safepickle.deepcopy, safepickle.copy])
def test_pipes_and_sockets_are_refused(verb: Callable[[Any], Any]) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as source, os.fdopen(writing, "w") as sink:
        for end in (source, sink):
            with pytest.raises(safepickle.PicklingError, match="descriptor"):
                verb(end)
    one, other = socket.socketpair()
    with one, other, one.makefile() as file, pytest.raises(safepickle.PicklingError, match="socket"):
        safepickle.dumps({"file": file})


@pytest.mark.parametrize("verb", [safepickle.dumps, safepickle.deepcopy])
def test_a_named_pipe_is_refused(verb: Callable[[Any], Any], tmp_path: pathlib.Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDWR), "rb+", buffering=0) as keep, open(pipe, "rb", buffering=0) as file:
        assert keep is not file
        with pytest.raises(safepickle.PicklingError, match="pipe"):
            verb(file)


@pytest.mark.parametrize(
    "make",
    [tempfile.TemporaryFile, tempfile.NamedTemporaryFile, tempfile.SpooledTemporaryFile, tempfile.TemporaryDirectory],
    ids=lambda make: make.__name__,
)
@pytest.mark.parametrize("verb", [safepickle.dumps, safepickle.deepcopy])
def test_temporary_files_are_refused(make: Callable[[], Any], verb: Callable[[Any], Any]) -> None:
    with make():
        temporary = make()
        with pytest.raises(safepickle.PicklingError, match=r"temporary|descriptor") as caught:
            verb({"scratch": [temporary]})
        assert "'scratch'" in str(caught.value)
        (temporary.cleanup if hasattr(temporary, "cleanup") else temporary.close)()


# -- standard streams -------------------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("name", ["stdout", "stderr", "__stdin__", "__stdout__", "__stderr__"])
def test_standard_streams_are_those_of_the_process(way: Way, name: str) -> None:
    assert way({"stream": getattr(sys, name)})["stream"] is getattr(sys, name)


@every_way
def test_the_buffer_of_a_standard_stream(way: Way) -> None:
    assert way([sys.__stdout__.buffer])[0] is sys.__stdout__.buffer  # type: ignore[union-attr]


@every_way
def test_a_stream_of_another_kind_in_its_place(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    class Notebook(io.TextIOBase):
        def __init__(self) -> None:
            self.pipe = (n for n in "unpicklable")

    stream = Notebook()
    monkeypatch.setattr(sys, "stdout", stream)
    assert way({"stream": stream})["stream"] is stream


def test_a_stream_is_that_of_the_reader(tmp_path: pathlib.Path) -> None:
    script = """
        import sys, safepickle
        print(safepickle.dumps([sys.stdout, sys.stderr, sys.stdin, sys.stdout.buffer]).hex())
    """
    data = bytes.fromhex(run_python(script))
    code = """
        import sys
        out, err, source, buffer = obj
        assert (out, err, source, buffer) == (sys.stdout, sys.stderr, sys.stdin, sys.stdout.buffer)
        out.write("written")
    """
    assert fresh_load(data, code, tmp_path) == "written"


# -- files in memory, compressed files, archives, codecs --------------------------------------------------------------


@every_way
def test_files_in_memory_go_with_their_contents(way: Way) -> None:
    text, data = io.StringIO("a\nb\n"), io.BytesIO(b"xyz")
    text.readline()
    data.seek(1)
    twin_text, twin_data = way([text, data])
    assert twin_text.read() == "b\n"
    assert twin_data.read() == b"yz"
    assert data.read() == b"yz"
    wrapped = io.TextIOWrapper(io.BytesIO(b"one\ntwo\n"))
    wrapped.readline()
    assert way(wrapped).readline() == "two\n"


@every_way
@pytest.mark.parametrize("module", [gzip, bz2, lzma], ids=lambda module: module.__name__)
@pytest.mark.parametrize("mode", ["rb", "rt"])
def test_a_compressed_file_reads_on(way: Way, tmp_path: pathlib.Path, module: Any, mode: str) -> None:
    path = tmp_path / "rows.packed"
    with module.open(path, "wt") as file:
        file.writelines(["one\n", "two\n", "three\n"])
    with module.open(path, mode) as file:
        file.readline()
        with way(file) as twin:
            assert type(twin) is type(file)
            assert twin.read() == file.read()


def test_a_compressed_file_that_is_written_is_refused(tmp_path: pathlib.Path) -> None:
    with gzip.open(tmp_path / "out.gz", "wb") as file, pytest.raises(safepickle.PicklingError, match="keep its path"):
        safepickle.dumps(file)


@every_way
def test_archives_for_reading(way: Way, tmp_path: pathlib.Path) -> None:
    (tmp_path / "member").write_text("inside")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "member", "member")
        with pytest.raises(safepickle.PicklingError, match="close it"):
            way(archive)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "member", "member")
        with pytest.raises(safepickle.PicklingError, match="close it"):
            way(tar)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive, tarfile.open(tmp_path / "a.tar") as tar:
        twin, twin_tar = way([archive, tar])
        with twin, twin_tar:
            assert twin.read("member") == b"inside"
            assert twin_tar.extractfile("member").read() == b"inside"
        assert archive.read("member") == b"inside"


@every_way
def test_a_file_from_codecs_reads_on(way: Way, path: pathlib.Path) -> None:
    with codecs.open(os.fspath(path), encoding="utf-8") as file:
        file.readline()
        with way(file) as twin:
            assert type(twin) is codecs.StreamReaderWriter
            assert twin.readline() == LINES[1]
        assert file.readline() == LINES[1]


# -- copy -------------------------------------------------------------------------------------------------------------


def test_copy_of_a_file_is_another_handle(path: pathlib.Path) -> None:
    with open(path, encoding="utf-8") as file:
        file.readline()
        with safepickle.copy(file) as twin:
            assert twin.readline() == LINES[1]
        assert file.readline() == LINES[1]


class Rows(io.FileIO):
    """A file with an attribute."""


@every_way
def test_a_subclass_of_a_file_keeps_its_attributes(way: Way, path: pathlib.Path) -> None:
    with Rows(path) as file:
        file.tag = ["x"]  # type: ignore[attr-defined]
        with way(file) as twin:
            assert type(twin) is Rows
            assert twin.tag == ["x"]
            assert twin.read(3) == b"row"


@pickled_ways
def test_path_objects_and_bytes_as_names(way: Way, path: pathlib.Path) -> None:
    for name in (path, os.fsencode(path)):
        with open(name, "rb") as file, way(file) as twin:
            assert twin.read(3) == b"row"
