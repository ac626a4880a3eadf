"""Is an object still itself after pickling, copying, and a journey to another process and back?

What the pytest fixture ``roundtrip`` does, without pytest.
"""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

__all__ = ["WAYS", "RoundTripError", "round_trip"]

#: The ways there are, in the order in which they are tried.
WAYS: Final = ("pickle", "copy", "deepcopy", "process")

Equal = bool | Callable[[Any, Any], object] | None
Check = Callable[[Any], object] | None


class RoundTripError(AssertionError):
    """An object was not itself afterwards; the message says by which way, and what was wrong."""


def round_trip(
    obj: Any,
    *,
    equal: Equal = None,
    check: Check = None,
    through: Iterable[str] = ("pickle", "deepcopy", "process"),
    protocols: Iterable[int] | None = None,
    using: Any = None,
    timeout: float = 60,
) -> dict[str, Any]:
    """Take an object through pickles, a fresh process and copies.

    Args:
        obj: the object.
        equal: how what comes back is compared with the object. ``None``: with ``==`` if the class defines that, else by
            what they hold (:func:`safepickle.digest`); ``False``: not at all; a function ``(old, new)``: what it
            returns must be true.
        check: a function that is called with each object that comes back, in the fresh process as well. It fails by
            raising, or by returning ``False``.
        through: which ways to take, of ``"pickle"``, ``"copy"``, ``"deepcopy"`` and ``"process"``.
        protocols: the pickle protocols for ``"pickle"``; all unless given. ``"process"`` takes the highest of them.
        using: a module with ``dumps`` and ``loads``, and perhaps ``copy`` and ``deepcopy``, in whose place otherwise
            the standard library's are taken; safepickle unless given.
        timeout: seconds for the fresh process.

    Returns:
        What came back, by way: ``"pickle protocol 4"``, ``"deepcopy"``, ``"process"``.

    Raises:
        RoundTripError: something went wrong; the message begins with the way.
        ValueError: there is no such way.
    """
    __tracebackhide__ = True
    ways = tuple(through)
    for way in ways:
        if way not in WAYS:
            raise ValueError(f"there is no way {way!r}: expected some of {', '.join(map(repr, WAYS))}")
    numbers = tuple(range(pickle.HIGHEST_PROTOCOL + 1)) if protocols is None else tuple(protocols)
    if not numbers or not all(number in range(pickle.HIGHEST_PROTOCOL + 1) for number in numbers):
        raise ValueError(f"protocols must be some of 0 to {pickle.HIGHEST_PROTOCOL}, not {protocols!r}")
    if using is None:
        import safepickle as using
    arrived: dict[str, Any] = {}
    for name, travel in _journeys(obj, ways, numbers, using, check, timeout):
        try:
            new = travel()
        except RoundTripError as error:
            raise RoundTripError(f"{name}: {error}") from error.__cause__
        except Exception as error:
            raise RoundTripError(f"{name}: {_said(error)}") from error
        _judge(name, obj, new, equal, check)
        arrived[name] = new
    return arrived


def _journeys(
    obj: Any, ways: tuple[str, ...], protocols: tuple[int, ...], using: Any, check: Check, timeout: float
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The name of each way, and what takes it."""
    for way in WAYS:
        if way not in ways:
            continue
        if way == "pickle":
            for number in protocols:
                yield f"pickle protocol {number}", partial(_through_pickle, obj, number, using)
        elif way == "process":
            yield way, partial(_through_a_process, obj, max(protocols), using, check, timeout)
        else:
            copier = getattr(using, way, None) or getattr(copy, way)
            yield way, partial(copier, obj)


def _through_pickle(obj: Any, protocol: int, using: Any) -> Any:
    return using.loads(using.dumps(obj, protocol))


def _judge(way: str, old: Any, new: Any, equal: Equal, check: Check) -> None:
    __tracebackhide__ = True
    if check is not None:
        try:
            verdict = check(new)
        except Exception as error:
            raise RoundTripError(f"{way}: the check of what came back failed: {_said(error)}") from error
        if verdict is False:
            raise RoundTripError(f"{way}: the check of what came back returned False")
    if equal is False:
        return
    try:
        same = equal(old, new) if callable(equal) else _are_equal(old, new)
    except Exception as error:
        raise RoundTripError(
            f"{way}: what came back cannot be compared (pass equal=False, or a function): {_said(error)}"
        ) from error
    if not same:
        how = "" if callable(equal) or _compares_itself(type(old)) else ", by what they hold"
        raise RoundTripError(f"{way}: what came back is not equal to what was sent{how}\n  sent: {_short(old)}\n"
                             f"  came: {_short(new)}")  # fmt: skip


def _are_equal(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if _compares_itself(type(old)):
        try:
            same = old == new
        except Exception:
            same = None  # a data class that holds arrays
        if isinstance(same, bool):
            return same
    from .digests import digest

    return digest(old) == digest(new)


def _compares_itself(cls: type) -> bool:
    """Whether a class made in Python says when its objects are equal; what those of builtin types hold may not."""
    for base in cls.__mro__:
        if "__eq__" in vars(base):
            return bool(base.__flags__ & 1 << 9)
    return False


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _short(obj: Any) -> str:
    try:
        text = repr(obj)
    except Exception as error:
        text = f"<{type(obj).__qualname__}, whose repr fails: {error}>"
    return text if len(text) <= 200 else f"{text[:200]}..."


# -- another process ---------------------------------------------------------------------------------------------------

_CHILD: Final = "import sys; sys.path[:] = {path!r}; from safepickle.roundtrips import _child; _child({folder!r})"


def _through_a_process(obj: Any, protocol: int, using: Any, check: Check, timeout: float) -> Any:
    """The object after a fresh interpreter has loaded, checked and dumped it."""
    from .pickler import dumps

    with tempfile.TemporaryDirectory(prefix="roundtrip-") as name:
        folder = Path(name)
        (folder / "there").write_bytes(using.dumps(obj, protocol))
        (folder / "task").write_bytes(dumps((using.__name__, protocol, check)))
        source = str(Path(__file__).resolve().parent.parent)
        path = [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)]
        command = [sys.executable, "-c", _CHILD.format(path=[*path, source], folder=name)]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RoundTripError(f"the fresh process has not ended within {timeout:g} s") from None
        if (folder / "error").exists():
            raise RoundTripError((folder / "error").read_text(encoding="utf-8", errors="replace"))
        if done.returncode != 0 or not (folder / "back").exists():
            raise RoundTripError(f"the fresh process ended with status {done.returncode}\n{done.stderr[-2000:]}")
        return using.loads((folder / "back").read_bytes())


def _child(name: str) -> None:
    """What the fresh process does."""
    import importlib

    from .unpickler import loads

    folder = Path(name)
    step = "was not loaded there"
    try:
        module, protocol, check = loads((folder / "task").read_bytes())
        using = importlib.import_module(module)
        new = using.loads((folder / "there").read_bytes())
        step = "failed its check there"
        if check is not None and check(new) is False:
            raise AssertionError("it returned False")
        step = "was not sent back"
        data = using.dumps(new, protocol)
    except BaseException as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        (folder / "error").write_text(f"the object {step}: {_said(error)}\n{text}", encoding="utf-8", errors="replace")
        raise SystemExit(1) from None
    (folder / "back").write_bytes(data)
