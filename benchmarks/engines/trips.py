"""How is one payload carried there and back, and what is said about it?

Entries call :func:`trip`. What runs on the engine's other side is :func:`use` and :func:`make`, which every worker can
import.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from .processes import cpu_seconds

__all__ = ["HANGS", "WORKS", "arrived", "attempt", "first_line", "make", "note", "through_files", "trip", "use"]

WORKS = "works"
HANGS = "hangs"

#: Seconds that one direction may take before it is said to hang.
LIMIT = float(os.environ.get("SAFEPICKLE_PROOF_LIMIT", "30"))
#: Timings; the smallest counts. Each is of as many trips as take :data:`ENOUGH` seconds.
ROUNDS = int(os.environ.get("SAFEPICKLE_PROOF_ROUNDS", "3"))
ENOUGH = 1.5
#: Where a cell's process says how far it has come, for the case that it does not come further.
OUTPUT = os.environ.get("SAFEPICKLE_PROOF_OUTPUT")

_MOST = 240  # characters of a message


class _TimeIsUp(BaseException):
    """Not an Exception: engines catch those, and try again."""


class Failed(Exception):
    """What another process has raised, in one line, where that cannot be sent as it is."""


def make(name: str) -> Any:
    """The payload that ``"module:function"`` makes."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)()


def use(payload: Any) -> str:
    """Use what has arrived: ``"works"``, or ``"silently ..."`` and what is wrong with it."""
    try:
        import_module("tests.engines.payloads").check(payload)
    except Exception as error:
        return f"silently wrong: {first_line(error)}"
    return WORKS


def trip(
    make_payload: str,
    there: Callable[[Any], str],
    back: Callable[[str], Any],
    size: Callable[[Any], int] | None = None,
) -> dict[str, Any]:
    """Carry a payload to the other side, and one that is made on the other side to this one.

    Args:
        make_payload: ``"module:function"``.
        there: sends a payload to the other side and returns what :func:`use` says of it there.
        back: has the other side call :func:`make` with this name and returns what has arrived here.
        size: the number of bytes that ``there`` sends for a payload; called if it has arrived, as what it was or not.

    Returns:
        What an entry's ``carry`` returns.
    """
    payload = make(make_payload)
    found: dict[str, Any] = {"there": None, "back": None, "bytes": None, "seconds": None}
    found["there"] = attempt("there", lambda: there(payload))
    if arrived(found["there"]) and size is not None:
        found["bytes"] = size(payload)
    found["back"] = attempt("back", lambda: use(back(make_payload)))
    if arrived(found["there"]) and arrived(found["back"]):
        found["seconds"] = _cost(lambda: (there(payload), back(make_payload)))
    note(**found)
    return found


def arrived(outcome: str) -> bool:
    """Whether something has arrived, be it what was sent or not."""
    return outcome.startswith((WORKS, "silently"))


def attempt(direction: str, action: Callable[[], str], limit: float | None = None) -> str:
    """What an action returns; or the first line of what it raises, or ``"hangs"`` where it does not end.

    Args:
        direction: ``"there"`` or ``"back"``: what is under way, should the process have to be killed.
        action: returns ``"works"`` or ``"silently ..."``.
        limit: seconds; :data:`LIMIT` unless given. Ends what waits in Python; the rest is for who watches the process.
    """
    note(**{direction: HANGS})

    def time_is_up(_signal: int, _frame: FrameType | None) -> None:
        raise _TimeIsUp

    before = signal.signal(signal.SIGALRM, time_is_up)
    signal.setitimer(signal.ITIMER_REAL, LIMIT if limit is None else limit)
    try:
        outcome = action()
    except _TimeIsUp:
        outcome = HANGS
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # some libraries derive their errors from it
        outcome = first_line(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    note(**{direction: outcome})
    return outcome


def first_line(error: BaseException) -> str:
    """An exception's type and the first line of its message, as at the end of a traceback, the same in every run."""
    if isinstance(error, Failed):
        return str(error)
    cls = type(error)
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{name}: {lines[0]}" if lines else name
    text = re.sub(r"0x[0-9a-f]{6,}", "0x..", re.sub(r"\x1b\[[0-9;]*m", "", text))
    text = re.sub(r"\bpid=\d+", "pid=..", text)
    return text if len(text) <= _MOST else text[: _MOST - 3] + "..."


def note(**found: Any) -> None:
    """Write down what is known so far."""
    if OUTPUT is None:
        return
    path = Path(OUTPUT)
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**known, **found}), encoding="utf-8")


def _cost(action: Callable[[], object]) -> float:
    """The CPU seconds that one call takes in this process and all that it has started."""
    start = time.perf_counter()
    action()
    elapsed = time.perf_counter() - start
    number = 1 if ROUNDS == 1 else max(1, min(200, round(ENOUGH / elapsed)))
    return min(_cpu(action, number) for _ in range(ROUNDS))


def _cpu(action: Callable[[], object], number: int) -> float:
    start = cpu_seconds()
    for _ in range(number):
        action()
    return (cpu_seconds() - start) / number


def through_files(
    make_payload: str,
    save: Callable[[Any, str], object],
    load: Callable[[str], Any],
    initializer: Callable[[], object] | None = None,
) -> dict[str, Any]:
    """A trip by way of files: saved in one process, loaded and used in the other.

    Args:
        make_payload: as for :func:`trip`.
        save: writes an object to a path; importable.
        load: reads it; importable.
        initializer: called in the other process first.

    Returns:
        What an entry's ``carry`` returns; ``bytes`` is the size of the file, or of all in the folder.
    """
    with (
        tempfile.TemporaryDirectory(prefix="safepickle-proof-") as folder,
        multiprocessing.get_context("spawn").Pool(1, initializer) as pool,
    ):
        ours, theirs = str(Path(folder, "ours")), str(Path(folder, "theirs"))

        def there(payload: Any) -> str:
            save(payload, ours)
            return pool.apply(_guarded, (_load_and_use, load, ours))

        def back(name: str) -> Any:
            pool.apply(_guarded, (_make_and_save, name, save, theirs))
            return load(theirs)

        return trip(make_payload, there, back, lambda _payload: _size(Path(ours)))


def _guarded(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a worker, which would end by what is no Exception while the other process waits."""
    try:
        return function(*arguments)
    except Exception:
        raise
    except BaseException as error:
        raise Failed(first_line(error)) from None


def _load_and_use(load: Callable[[str], Any], path: str) -> str:
    return use(load(path))


def _make_and_save(name: str, save: Callable[[Any, str], object], path: str) -> None:
    save(make(name), path)


def _size(path: Path) -> int:
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)
