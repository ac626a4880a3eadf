"""Exceptions come back whole: arguments, fields, attributes, notes, causes and contexts. Tracebacks stay behind."""

from __future__ import annotations

import builtins
import contextlib
import copyreg
import errno
import json
import pickle
import subprocess
import sys
import types
import urllib.error
from pathlib import Path
from typing import Any

import pytest

import safepickle
from tests.helpers import fresh_load

from .ways import Way, every_way

__all__: list[str] = []


class Custom(Exception):
    """Its ``__init__`` takes other arguments than it passes on."""

    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"failed with {code}")
        self.code = code
        self.detail = detail


class Strict(ValueError):
    """Its ``__new__`` wants an argument."""

    def __new__(cls, wanted: str) -> Strict:  # noqa: PYI034
        made = super().__new__(cls, wanted)
        made.wanted = wanted
        return made

    wanted: str


class Slotted(RuntimeError):
    __slots__ = ("where",)

    def __init__(self, where: str) -> None:
        self.where = where


class Disk(OSError):
    def __init__(self, device: str) -> None:
        super().__init__(errno.ENOSPC, "no space", device)
        self.device = device


class Reduced(Exception):
    """Says itself how it is pickled."""

    def __init__(self, value: int) -> None:
        super().__init__()
        self.value = value

    def __reduce__(self) -> Any:
        return Reduced, (self.value,)


class Stop(BaseException):
    """No ``Exception``."""


def raised(
    error: BaseException, cause: BaseException | None = None, during: BaseException | None = None
) -> BaseException:
    """The exception, after it was raised."""
    try:
        if during is not None:
            try:
                raise during
            except BaseException:
                raise error  # noqa: B904
        if cause is not None:
            raise error from cause
        raise error
    except BaseException as caught:
        return caught


def described(error: BaseException | None) -> Any:
    """All that is to be kept."""
    if error is None:
        return None
    fields = {
        name: getattr(error, name, None)
        for name in (
            "errno",
            "strerror",
            "filename",
            "filename2",
            "code",
            "value",
            "name",
            "path",
            "lineno",
            "offset",
            "text",
            "start",
            "end",
            "reason",
            "encoding",
            "object",
            "characters_written",
        )
    }
    return (
        type(error),
        error.args,
        str(error),
        fields,
        dict(vars(error)),
        error.__suppress_context__,
        described(error.__cause__),
        described(error.__context__),
    )


ERRORS = {
    "plain": ValueError("x", 1),
    "empty": KeyError(),
    "custom": Custom(3, detail="disk"),
    "strict": Strict("this"),
    "system": OSError(errno.ENOENT, "gone", "a.txt", None, "b.txt"),
    "not found": FileNotFoundError(2, "gone", "a.txt"),
    "blocking": BlockingIOError(11, "later", 5),
    "disk": Disk("sda"),
    "import": ImportError("no", name="numpy", path="/x"),
    "attribute": AttributeError("no y", name="y", obj=(n for n in "unpicklable")),
    "name": NameError("no z", name="z"),
    "syntax": SyntaxError("bad", ("f.py", 3, 5, "x = (")),
    "unicode": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
    "stop": StopIteration(7),
    "exit": SystemExit(3),
    "base": Stop("now"),
    "json": json.JSONDecodeError("expected", "{", 1),
    "process": subprocess.CalledProcessError(1, ["ls"], b"out", b"err"),
    "timeout": subprocess.TimeoutExpired(["ls"], 3.0),
    "url": urllib.error.URLError("unreachable"),
}


@every_way
@pytest.mark.parametrize("name", list(ERRORS))
def test_an_exception_is_whole(way: Way, name: str) -> None:
    for error in (ERRORS[name], raised(ERRORS[name])):
        twin = way({"error": error})["error"]
        assert described(twin) == described(error)
        assert twin.__traceback__ is None
        assert raised(twin) is twin


@every_way
def test_slots_and_attributes(way: Way) -> None:
    error: Any = Slotted("here")
    error.extra = [1]
    twin = way(error)
    assert (twin.where, twin.extra, twin.args) == ("here", [1], ("here",))
    assert twin.extra is not error.extra


@every_way
def test_causes_and_contexts(way: Way) -> None:
    error = raised(Custom(1, detail="outer"), cause=raised(KeyError("inner"), during=OSError(2, "gone")))
    assert described(error)[6] is not None
    assert described(way(error)) == described(error)
    hidden = raised(ValueError("v"), during=TypeError("t"))
    hidden.__cause__ = None
    assert hidden.__suppress_context__
    assert described(way(hidden)) == described(hidden)


@every_way
def test_a_cause_that_is_also_elsewhere_stays_one(way: Way) -> None:
    cause = KeyError("k")
    twin = way([raised(ValueError("v"), cause=cause), cause])
    assert twin[0].__cause__ is twin[1]


@every_way
def test_an_exception_that_leads_to_itself(way: Way) -> None:
    error: Any = ValueError("v")
    error.args = (error,)
    error.other = raised(KeyError("k"), cause=error)
    twin = way(error)
    assert twin.args[0] is twin
    assert twin.other.__cause__ is twin


@every_way
@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes since Python 3.11")
def test_notes(way: Way) -> None:
    error = Custom(1, detail="d")
    error.add_note("while loading")
    assert way(error).__notes__ == ["while loading"]


ExceptionGroup: Any = getattr(builtins, "ExceptionGroup", Exception)
BaseExceptionGroup: Any = getattr(builtins, "BaseExceptionGroup", Exception)


@every_way
@pytest.mark.skipif(sys.version_info < (3, 11), reason="there are groups since Python 3.11")
def test_groups(way: Way) -> None:
    class Many(ExceptionGroup):
        def derive(self, errors: Any) -> Any:
            return Many(self.message, errors)

    inner = Custom(2, detail="inner")
    for group in (
        ExceptionGroup("several", [inner, KeyError(1)]),
        Many("many", [inner]),
        BaseExceptionGroup("base", [Stop()]),
    ):
        error = raised(group, during=inner)
        twin = way(error)
        assert type(twin) is type(error)
        assert twin.message == error.message
        assert list(map(described, twin.exceptions)) == list(map(described, error.exceptions))
        if type(inner) is type(twin.exceptions[0]):
            assert twin.__context__ is twin.exceptions[0]


@every_way
def test_a_class_that_reduces_itself_is_asked_and_keeps_its_cause(way: Way) -> None:
    assert way(Reduced(4)).value == 4
    error = raised(Reduced(5), cause=raised(Custom(1, detail="d"), during=KeyError("k")))
    twin = way(error)
    assert twin.value == 5
    assert described(twin.__cause__) == described(error.__cause__)
    decoding = raised(json.JSONDecodeError("expected", "{", 1), during=KeyError("k"))
    assert described(way(decoding)) == described(decoding)


@every_way
def test_a_context_that_cannot_go_along_is_left_behind(way: Way) -> None:
    lost = raised(KeyError(n for n in "unpicklable"), during=ValueError("first"))
    error = raised(Custom(1, detail="news"), during=raised(TypeError([1]), during=lost))
    twin = way(error)
    assert twin.detail == "news"
    assert twin.__context__.args == ([1],)
    assert twin.__context__.__context__ is None


@pytest.mark.parametrize("verb", [safepickle.dumps, safepickle.deepcopy])
def test_a_cause_that_cannot_go_along_is_an_error(verb: Any) -> None:
    with pytest.raises(safepickle.PicklingError, match="generator"):
        verb(raised(Custom(1, detail="d"), cause=KeyError(n for n in "unpicklable")))


def test_an_exception_that_pickle_brings_back_whole_is_left_to_it() -> None:
    for error in (
        ValueError("x"),
        FileNotFoundError(2, "gone", "a.txt"),
        SystemExit(3),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "i"),
    ):
        assert safepickle.dumps(error) == pickle.dumps(error)


def test_an_exception_in_a_fresh_process(tmp_path: Path) -> None:
    code = """
        try:
            raise obj
        except Exception as error:
            print(type(error).__name__, error, error.code, repr(error.__cause__), type(error.__context__).__name__)
    """

    class Local(Exception):
        def __init__(self, code: int, what: str) -> None:
            super().__init__(f"{what}!")
            self.code = code

    data = safepickle.dumps(raised(Local(3, "broken"), cause=KeyError("k")))
    assert fresh_load(data, code, tmp_path).split() == ["Local", "broken!", "3", "KeyError('k')", "NoneType"]


@pytest.mark.parametrize("verb", [safepickle.dumps, safepickle.deepcopy])
def test_a_traceback_is_refused(verb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(copyreg.dispatch_table, types.TracebackType, raising=False)  # engines bring tblib along
    error = raised(ValueError("x"))
    with pytest.raises(safepickle.PicklingError, match="format_tb"):
        verb({"trace": error.__traceback__})


@pytest.mark.parametrize("installed", [False, True], ids=["plain", "installed"])
def test_what_another_package_makes_of_tracebacks_wins(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(copyreg.dispatch_table, types.TracebackType, first_line_of)
    error = raised(ValueError("x"))
    with safepickle.install() if installed else contextlib.nullcontext():
        assert safepickle.loads(safepickle.dumps([error.__traceback__])) == [first_line_of(error.__traceback__)[1][0]]
        assert pickle.loads(pickle.dumps(error.__traceback__)) == first_line_of(error.__traceback__)[1][0]


def first_line_of(trace: types.TracebackType | None) -> Any:
    assert trace is not None
    return str, (f"line {trace.tb_lineno}",)


def test_copy_keeps_the_cause() -> None:
    error = raised(Custom(1, detail="d"), cause=KeyError("k"))
    twin = safepickle.copy(error)
    assert twin is not error
    assert twin.__cause__ is error.__cause__
    assert (twin.args, twin.code, twin.detail) == (error.args, 1, "d")
