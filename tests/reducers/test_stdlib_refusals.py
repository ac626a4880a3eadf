"""What cannot go is refused with the path to it and what to do, and is left as it was."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import csv
import ctypes
import hashlib
import importlib
import io
import itertools
import mmap
import multiprocessing
import multiprocessing.pool
import os
import re
import selectors
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import safepickle
from safepickle.reducers import files, locks, refusals
from tests.helpers import run_python

__all__: list[str] = []


class Holder:
    """Holds one thing, some levels down."""

    def __init__(self, thing: Any) -> None:
        self.parts = {"inner": [thing]}


def letters() -> Iterator[str]:
    yield from "abc"


async def answer() -> int:
    return 42


async def numbers() -> AsyncIterator[int]:
    yield 1


@contextlib.contextmanager
def mapped(tmp_path: Path) -> Iterator[Any]:
    path = tmp_path / "map"
    path.write_bytes(b"0123")
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as found:
        yield found


@contextlib.contextmanager
def event_loop(tmp_path: Path) -> Iterator[Any]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@contextlib.contextmanager
def future_of_loop(tmp_path: Path) -> Iterator[Any]:
    with event_loop(tmp_path) as loop:
        yield loop.create_future()


@contextlib.contextmanager
def coroutine(tmp_path: Path) -> Iterator[Any]:
    running = answer()
    yield running
    assert asyncio.run(running) == 42, "the attempt touched the coroutine"


@contextlib.contextmanager
def generator(tmp_path: Path) -> Iterator[Any]:
    running = letters()
    next(running)
    yield running
    assert list(running) == ["b", "c"], "the attempt consumed the generator"


@contextlib.contextmanager
def pool(tmp_path: Path) -> Iterator[Any]:
    with multiprocessing.pool.ThreadPool(1) as found:
        yield found


@contextlib.contextmanager
def child(tmp_path: Path) -> Iterator[Any]:
    with subprocess.Popen([sys.executable, "-c", ""]) as found:
        yield found


@contextlib.contextmanager
def popen(tmp_path: Path) -> Iterator[Any]:
    with os.popen("true") as found:
        yield found


@contextlib.contextmanager
def cursor(tmp_path: Path) -> Iterator[Any]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        yield connection.cursor()


def simple(make: Callable[[], Any]) -> Any:
    """A context manager that only makes the thing, and closes it if it can be closed."""

    @contextlib.contextmanager
    def manage(tmp_path: Path) -> Iterator[Any]:
        found = make()
        yield found
        if isinstance(found, concurrent.futures.Executor):
            found.shutdown()
        elif hasattr(found, "close") and not isinstance(found, multiprocessing.Process):
            found.close()

    return manage


#: What it is -> how to make one, and a word of what to do.
THINGS: dict[str, tuple[Any, str]] = {
    "generator": (generator, "list of its items"),
    "coroutine": (coroutine, "call it where"),
    "frame": (simple(sys._getframe), "f_locals"),
    "thread": (simple(threading.Thread), "start it"),
    "timer": (simple(lambda: threading.Timer(1, print)), "start it"),
    "process": (simple(multiprocessing.Process), "start it"),
    "child process": (child, "start it"),
    "pipe": (popen, "keep the text"),
    "thread pool": (simple(lambda: concurrent.futures.ThreadPoolExecutor(1)), "make it"),
    "process pool": (simple(lambda: concurrent.futures.ProcessPoolExecutor(1)), "make it"),
    "pool": (pool, "make it"),
    "future": (simple(concurrent.futures.Future), "keep its result"),
    "event loop": (event_loop, "get_running_loop"),
    "future of a loop": (future_of_loop, "keep its result"),
    "socket": (simple(socket.socket), "connect again"),
    "ssl context": (simple(ssl.create_default_context), "certificates"),
    "database": (simple(lambda: sqlite3.connect(":memory:")), "connect again"),
    "cursor": (cursor, "fetch its rows"),
    "selector": (simple(selectors.DefaultSelector), "register them"),
    "map": (mapped, "map it again"),
    "hash": (simple(lambda: hashlib.sha256(b"x")), "digest"),
    "csv reader": (simple(lambda: csv.reader(["a,b"])), "keep the rows"),
    "csv writer": (simple(lambda: csv.writer(io.StringIO())), "keep the file"),
    "scanner": (simple(lambda: re.compile("a").scanner("aa")), "the position"),
    "matches": (simple(lambda: re.finditer("a", "aa")), "the position"),
    "library": (simple(lambda: ctypes.CDLL(None)), "load it"),
}


@pytest.mark.parametrize("verb", ["dumps", "deepcopy"])
@pytest.mark.parametrize("kind", list(THINGS))
def test_a_refusal_names_the_path_and_what_to_do(kind: str, verb: str, tmp_path: Path) -> None:
    make, what_to_do = THINGS[kind]
    with make(tmp_path) as thing, pytest.raises(safepickle.PicklingError) as caught:
        getattr(safepickle, verb)(Holder(thing))
    message = str(caught.value)
    assert isinstance(caught.value, TypeError), "what catches the standard library's error must catch this one"
    assert isinstance(caught.value, safepickle.CopyError) is (verb == "deepcopy")
    assert ".parts['inner'][0]" in message
    assert what_to_do in message


@pytest.mark.parametrize("verb", ["dumps", "deepcopy", "copy"])
def test_an_asynchronous_generator_is_refused(verb: str) -> None:
    running = numbers()
    with pytest.raises(safepickle.PicklingError, match="asynchronous generator"):
        getattr(safepickle, verb)(running)


@pytest.mark.parametrize("verb", ["dumps", "deepcopy"])
def test_a_task_is_refused(verb: str) -> None:
    async def main() -> None:
        task = asyncio.create_task(answer())
        with pytest.raises(safepickle.PicklingError, match="keep its result"):
            getattr(safepickle, verb)({"task": task})
        assert await task == 42

    asyncio.run(main())


@pytest.mark.parametrize(
    "verb", [safepickle.deepcopy, lambda obj: safepickle.loads(safepickle.dumps(obj))], ids=["deepcopy", "pickle"]
)
def test_a_future_that_is_done_goes_with_its_result(verb: Callable[[Any], Any]) -> None:
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future.set_result([1])
    twin = verb(future)
    assert twin.result(timeout=5) == [1]
    assert twin.result() is not future.result()
    failed: concurrent.futures.Future[Any] = concurrent.futures.Future()
    failed.set_exception(KeyError("k"))
    with pytest.raises(KeyError):
        verb(failed).result(timeout=5)


def test_a_thread_that_leaves_its_running_parts_out_may_go() -> None:
    twin = safepickle.loads(safepickle.dumps(Worker([1, 2])))
    assert twin.jobs == [1, 2]


class Worker(threading.Thread):
    """Says itself what is pickled."""

    def __init__(self, jobs: list[int]) -> None:
        super().__init__()
        self.jobs = jobs

    def __reduce__(self) -> Any:
        return Worker, (self.jobs,)


def test_a_generator_that_is_shared_between_iterators_is_left_alone() -> None:
    running = letters()
    chained = itertools.chain(running, "x")
    with pytest.raises(safepickle.PicklingError):
        safepickle.dumps(chained)
    assert list(chained) == ["a", "b", "c", "x"]


NAMES = [
    *refusals._NAMES,
    *locks._REDUCERS,
    *locks._SHARED_BETWEEN_PROCESSES,
    *files._COMPRESSED,
    "asyncio.queues:Queue",
    "logging:Handler",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_by_name_finds_its_type(name: str) -> None:
    if name == "asyncio.locks:Barrier" and sys.version_info < (3, 11):
        pytest.skip("since Python 3.11")
    module, _, qualname = name.partition(":")
    found = getattr(importlib.import_module(module), qualname)
    rule = safepickle.rule_for(found)
    assert rule is not None
    assert rule.origin == "safepickle.reducers.stdlib"


def test_the_rules_import_no_more_than_they_must() -> None:
    code = """
        import importlib.metadata, sys, safepickle
        before = set(sys.modules)
        safepickle.deepcopy(safepickle.loads(safepickle.dumps(object())))
        heavy = "asyncio multiprocessing sqlite3 ssl socket logging tempfile subprocess ctypes zipfile csv".split()
        print(sorted(set(heavy) & (set(sys.modules) - before)))
    """
    assert run_python(code).strip() == "[]"
