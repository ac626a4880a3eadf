"""Loggers go by name; handlers are rebuilt with a fresh lock, and go on where their file ended."""

from __future__ import annotations

import io
import logging
import logging.handlers
import pickle
import queue
import sys
from pathlib import Path
from typing import Any

import pytest

import safepickle
from tests.helpers import call_with_timeout, fresh_load

from .ways import Way, every_way

__all__: list[str] = []


class Counting(logging.Handler):
    """Counts what it is given."""

    def __init__(self, label: str) -> None:
        super().__init__(logging.INFO)
        self.label = label
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(self.format(record))


def record(message: str, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("name", level, __file__, 1, message, (), None)


def handle(handler: logging.Handler, message: str) -> None:
    call_with_timeout(lambda: handler.handle(record(message)))


@every_way
def test_a_logger_goes_by_name(way: Way) -> None:
    logger = logging.getLogger("safepickle.tests.some")
    logger.addHandler(logging.NullHandler())
    twin = way({"log": logger, "root": logging.getLogger()})
    assert twin["log"] is logger
    assert twin["root"] is logging.getLogger()


@every_way
def test_an_adapter_keeps_its_logger_and_extra(way: Way) -> None:
    adapter = logging.LoggerAdapter(logging.getLogger("safepickle.tests.adapted"), {"run": [7]})
    twin = way(adapter)
    assert twin.logger is adapter.logger
    assert twin.extra == {"run": [7]}
    assert twin.extra is not adapter.extra


@every_way
def test_a_logger_without_a_name_goes_with_its_handlers(way: Way) -> None:
    logger = logging.Logger("detached", logging.INFO)
    logger.propagate = False
    logger.addHandler(Counting("own"))
    logger.addFilter(logging.Filter("detached"))
    twin = way(logger)
    assert twin is not logger
    assert (twin.name, twin.level, twin.propagate) == ("detached", logging.INFO, False)
    twin.info("hello %s", "you")
    twin.debug("too low")
    assert twin.handlers[0].seen == ["hello you"]
    assert logger.handlers[0].seen == []  # type: ignore[attr-defined]


@every_way
def test_a_handler_has_a_fresh_lock_and_all_else(way: Way) -> None:
    handler = Counting("mine")
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    handler.addFilter(logging.Filter(""))
    handler.name = "counting"
    with handler.lock:  # type: ignore[union-attr]
        twin = way({"handler": handler})["handler"]
        handle(twin, "one")
    assert twin.seen == ["WARNING one"]
    assert (twin.label, twin.level, twin.name, len(twin.filters)) == ("mine", logging.INFO, "counting", 1)
    assert handler.seen == []
    assert twin.lock is not handler.lock
    assert logging._handlers["counting"] is handler  # type: ignore[attr-defined]
    handler.name = None


@every_way
@pytest.mark.parametrize("mode", ["a", "w"])
def test_a_file_handler_appends(way: Way, tmp_path: Path, mode: str) -> None:
    path = tmp_path / "run.log"
    handler = logging.FileHandler(path, mode, encoding="utf-8")
    handle(handler, "first")
    twin = way(handler)
    handle(twin, "second")
    twin.close()
    handler.close()
    assert path.read_text().splitlines() == ["first", "second"]


@every_way
def test_a_file_handler_opens_no_file_until_it_must(way: Way, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    handler = logging.FileHandler(path)
    path.unlink()
    twin = way(handler)
    assert not path.exists()
    handle(twin, "now")
    twin.close()
    handler.close()
    assert path.read_text() == "now\n"


@every_way
def test_rotating_handlers(way: Way, tmp_path: Path) -> None:
    sized = logging.handlers.RotatingFileHandler(tmp_path / "sized.log", maxBytes=20, backupCount=2)
    timed = logging.handlers.TimedRotatingFileHandler(tmp_path / "timed.log", when="H", backupCount=3)
    watched = logging.handlers.WatchedFileHandler(tmp_path / "watched.log")
    handlers = [sized, timed, watched]
    for handler in handlers:
        handle(handler, "x" * 15)
    twins = way(handlers)
    for handler in twins:
        handle(handler, "y" * 15)
        handler.close()
    for handler in handlers:
        handler.close()
    assert (tmp_path / "sized.log").read_text() == "y" * 15 + "\n"
    assert (tmp_path / "sized.log.1").read_text() == "x" * 15 + "\n"
    assert (
        (tmp_path / "timed.log").read_text()
        == (tmp_path / "watched.log").read_text()
        == "x" * 15 + "\n" + "y" * 15 + "\n"
    )
    assert twins[1].rolloverAt == timed.rolloverAt


@every_way
def test_stream_handlers(way: Way) -> None:
    buffer = io.StringIO()
    handler = logging.StreamHandler(buffer)
    twin, twin_buffer, standard = way([handler, buffer, logging.StreamHandler(sys.stderr)])
    handle(twin, "text")
    assert twin_buffer.getvalue() == "text\n"
    assert buffer.getvalue() == ""
    assert standard.stream is sys.stderr


def test_a_stream_handler_writes_to_the_readers_stderr(tmp_path: Path) -> None:
    code = """
        import io, sys, logging
        assert obj.stream is sys.stderr
        sys.stderr = obj.stream = io.StringIO()
        obj.handle(logging.LogRecord("n", 30, "f", 1, "said", (), None))
        print(sys.stderr.getvalue())
    """
    assert fresh_load(safepickle.dumps(logging.StreamHandler(sys.stderr)), code, tmp_path).strip() == "said"


@every_way
def test_handlers_that_hand_on(way: Way) -> None:
    target = Counting("target")
    memory = logging.handlers.MemoryHandler(10, target=target)
    waiting: queue.Queue[Any] = queue.Queue()
    twin, twin_queue = way([memory, logging.handlers.QueueHandler(waiting)])
    handle(twin, "kept")
    twin.flush()
    assert twin.target.seen == ["kept"]
    handle(twin_queue, "queued")
    assert twin_queue.queue.get(timeout=5).message == "queued"
    assert waiting.empty()
    null = way(logging.NullHandler())
    assert null.lock is None


@every_way
def test_a_socket_handler_connects_again(way: Way) -> None:
    handler = logging.handlers.SocketHandler("localhost", 9)
    handler.sock = object()  # type: ignore[assignment]
    twin = way(handler)
    assert (twin.host, twin.port, twin.sock) == ("localhost", 9, None)


def test_a_rebuilt_handler_is_flushed_at_exit() -> None:
    twin = safepickle.loads(safepickle.dumps(Counting("x")))
    assert any(reference() is twin for reference in logging._handlerList)  # type: ignore[attr-defined]


def test_a_logger_needs_no_safepickle_to_load() -> None:
    logger = logging.getLogger("safepickle.tests.plain")
    assert pickle.loads(safepickle.dumps(logger)) is logger


def test_a_handler_in_a_fresh_process(tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "job.log")
    handle(handler, "home")
    handler.close()
    code = """
        import logging
        obj.handle(logging.LogRecord("n", 30, "f", 1, "away", (), None))
        obj.close()
    """
    fresh_load(safepickle.dumps(handler), code, tmp_path)
    assert (tmp_path / "job.log").read_text().split() == ["home", "away"]
