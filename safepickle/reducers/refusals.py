"""What cannot be pickled or copied, and what can one do instead?

Things that live in this process or outside of Python: running code, threads, connections, what the operating system
holds. For each the error says what it is and what to do. Nothing is consumed or changed by the attempt.
"""

from __future__ import annotations

import re
import types
from typing import Any, Final

from ..entries import foreign_entry
from ..errors import PicklingError
from ..registry import Registry
from .parts import ORIGIN

__all__ = ["Refusal", "add_rules"]


class Refusal(PicklingError, TypeError):
    """By its nature an object cannot be pickled or copied. The standard library raises a ``TypeError`` for most."""


def refuse(reason: str) -> Any:
    """A reducer that raises, unless somebody has told :mod:`copyreg` how objects of the type are pickled."""

    def reduce(obj: Any) -> Any:
        if foreign_entry(type(obj)) is not None:  # ``tblib`` has one for tracebacks
            return NotImplemented
        raise Refusal(reason)

    reduce.refuses = True  # type: ignore[attr-defined]
    return reduce


_PATTERN: Any = re.compile("")  # scanners are not documented
_RUNNING: Final = "{} is running code: its position and variables are in a frame of this interpreter; {}"
_GENERATOR: Final = "keep what it is made from, or a list of its items"

#: Type -> why, and what to do.
_TYPES: Final[dict[type, str]] = {
    types.GeneratorType: _RUNNING.format("a generator", _GENERATOR),
    types.CoroutineType: _RUNNING.format(
        "a coroutine", "keep the function and its arguments, and call it where it is awaited"
    ),
    types.AsyncGeneratorType: _RUNNING.format("an asynchronous generator", _GENERATOR),
    types.FrameType: "a frame is running code of this interpreter: keep the values that are needed from frame.f_locals",
    type(
        _PATTERN.scanner("")
    ): "a scanner is in the middle of a string: keep the pattern, the string and the position",
    types.TracebackType: "a traceback holds the frames of this interpreter: keep its text, traceback.format_tb(...)",
}

_CONNECTION: Final = (
    "{} is a connection of this process: keep the address, and connect again where it is needed (in __setstate__)"
)
_PROCESS: Final = "{} is at work in this process: keep what it is made from, and start it again where it is needed"
_TEMPORARY: Final = (
    "a temporary file is deleted by the object that made it: keep its contents, or write to a file of your own and "
    "keep the path"
)
_EXECUTOR: Final = "an executor has threads or processes at work: keep the arguments, and make it where it is needed"
_WATCH: Final = "{} watches files of this process: register them with a new one where it is needed"
_HASH: Final = "the state of a hash is inside of OpenSSL: keep its digest, or the data, and hash it where it is needed"
_FUTURE: Final = "{} waits for work in this process: wait for it and keep its result"

#: "module:qualname" -> why, and what to do.
_NAMES: Final[dict[str, str]] = {
    "threading:Thread": _PROCESS.format("a thread"),
    "concurrent.futures.thread:ThreadPoolExecutor": _EXECUTOR,
    "concurrent.futures.process:ProcessPoolExecutor": _EXECUTOR,
    "multiprocessing.pool:Pool": "a pool has processes at work: keep the arguments, and make it where it is needed",
    "subprocess:Popen": "a child process belongs to this process: keep its command, and start it where it is needed",
    "os:_wrap_close": "the pipe of os.popen belongs to this process: read it and keep the text",
    "asyncio.base_events:BaseEventLoop": "an event loop is at work in this process: where it is needed take "
    "asyncio.get_running_loop()",
    "_asyncio:Future": _FUTURE.format("an asyncio future"),
    "_asyncio:Task": _FUTURE.format("a task"),
    "contextvars:Token": "a token undoes one ContextVar.set in one context: set the variable anew",
    "tempfile:_TemporaryFileWrapper": _TEMPORARY,
    "tempfile:SpooledTemporaryFile": _TEMPORARY,
    "tempfile:TemporaryDirectory": _TEMPORARY.replace("file", "directory", 1).replace(
        "a file of your own", "a folder of your own"
    ),
    "socket:socket": _CONNECTION.format("a socket"),
    "_socket:socket": _CONNECTION.format("a socket"),
    "ssl:SSLObject": _CONNECTION.format("an SSL object"),
    "_ssl:_SSLContext": "an SSL context holds keys inside of OpenSSL: keep the paths of the certificates, and make it "
    "where it is needed",
    "sqlite3:Connection": _CONNECTION.format("an SQLite connection"),
    "sqlite3:Cursor": "a cursor belongs to a connection of this process: fetch its rows and keep them",
    "selectors:BaseSelector": _WATCH.format("a selector"),
    "select:epoll": _WATCH.format("an epoll object"),
    "mmap:mmap": "a memory map belongs to this process: keep the path of the file and map it again, or keep its bytes",
    "_hashlib:HASH": _HASH,
    "_hashlib:HMAC": _HASH,
    "_csv:Reader": "a csv reader is in the middle of an iterator: keep the rows, or the file and its dialect",
    "_csv:Writer": "a csv writer holds a method of its file only: keep the file, and make it where it is needed",
    "ctypes:CDLL": "a shared library is at addresses of this process: keep its name, and load it where it is needed",
    "posix:DirEntry": "a directory entry holds what the operating system said of a file: keep its path",
}


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    error = ("an error that says what to do", "an error that says what to do")
    for cls, reason in _TYPES.items():
        registry.add(cls, refuse(reason), origin=ORIGIN, summary=error)
    for name, reason in _NAMES.items():
        registry.add(name, refuse(reason), subclasses=True, origin=ORIGIN, summary=error)
    registry.add("multiprocessing.process:BaseProcess", reduce_process, subclasses=True, origin=ORIGIN, summary=error)
    registry.add("concurrent.futures._base:Future", reduce_future, subclasses=True, origin=ORIGIN,
                 summary=("its result; an error while it waits", "its result; an error while it waits"))  # fmt: skip


def reduce_process(process: Any) -> Any:
    """An error, unless ``multiprocessing`` itself is starting the process."""
    from multiprocessing.context import get_spawning_popen

    if get_spawning_popen() is not None:
        return NotImplemented
    raise Refusal(
        "a process belongs to the one that starts it: keep the function and its arguments, and start it elsewhere"
    )


def reduce_future(future: Any) -> Any:
    """A future that is done goes with its result; one that waits does so for this process."""
    if future.done():
        return NotImplemented
    raise Refusal(_FUTURE.format("a future"))
