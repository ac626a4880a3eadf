"""Does this object survive, and does it still work on the other side?

The object is pickled, loaded in a fresh interpreter and used there. That finds what a round trip in one process cannot:
modules that exist only here, names that only this script has, locks on which the first use waits for ever.
"""

from __future__ import annotations

import faulthandler
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .errors import PicklingError
from .pickler import dumps
from .registry import Registry
from .unpickler import loads

__all__ = ["CheckError", "Checked", "check"]


class CheckError(pickle.PickleError):
    """An object was pickled but did not come back, or did not work where it came back.

    Attributes:
        stage: ``"loading"``, ``"using"`` or ``"starting"``: what was going on.
        reason: what happened.
        details: the traceback, or the stack of what was hanging.
        output: what was printed meanwhile.
    """

    def __init__(self, stage: str, reason: str, details: str = "", output: str = "") -> None:
        super().__init__(stage, reason, details, output)
        self.stage = stage
        self.reason = reason
        self.details = details
        self.output = output

    def __str__(self) -> str:
        lines = [f"{self.stage} failed: {self.reason}"]
        for title, text in (("where", self.details), ("printed meanwhile", self.output)):
            if text.strip():
                lines.append(f"--- {title} ---\n{text.strip()}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Checked:
    """What a successful :func:`check` has to tell.

    Attributes:
        size: bytes of the pickle.
        seconds: how long dumping, loading and using took.
        value: what ``use`` returned, if that could be brought back; else ``None``.
        value_repr: the same as text.
        output: what was printed meanwhile.
    """

    size: int
    seconds: dict[str, float] = field(default_factory=dict)
    value: Any = None
    value_repr: str | None = None
    output: str = ""

    def __str__(self) -> str:
        steps = ", ".join(f"{step} {seconds:.3f} s" for step, seconds in self.seconds.items())
        returned = "" if self.value_repr is None else f"; use returned {self.value_repr}"
        return f"fine: {self.size:,} bytes, {steps}{returned}"


def check(
    obj: Any,
    *,
    in_subprocess: bool = True,
    timeout: float = 60,
    use: Callable[[Any], Any] | None = None,
    registry: Registry | None = None,
    protocol: int | None = None,
) -> Checked:
    """Pickle an object, load it in a fresh interpreter, and use what came back.

    The interpreter starts where another script beside this one would: in the working directory, with the environment
    and the script's folder on its path, and without what this process has changed since.

    Args:
        obj: the object.
        in_subprocess: False: load it in this process, in a thread.
        timeout: seconds for loading and using; then the interpreter is killed.
        use: called there with the loaded object; it is pickled, too, so a lambda will do. What it returns comes back.
        registry: the rules for pickling; the default registry unless given.
        protocol: the pickle protocol, as for :func:`safepickle.dumps`.

    Returns:
        Sizes, times and what ``use`` returned.

    Raises:
        PicklingError: the object or ``use`` cannot be pickled.
        CheckError: it cannot be loaded there, raises when it is used, or takes longer than ``timeout``.

    Example:
        >>> import safepickle, threading
        >>> safepickle.check({"lock": threading.Lock()}, use=lambda state: state["lock"].acquire(timeout=5)).value
        True
    """
    started = time.perf_counter()
    data = dumps(obj, protocol, registry=registry)
    seconds = {"dumping": time.perf_counter() - started}
    try:
        call = None if use is None else dumps(use, protocol, registry=registry)
    except PicklingError as error:
        raise PicklingError(f"the function that is to use the object {error}") from error
    if in_subprocess:
        return _in_subprocess(data, call, seconds, timeout)
    return _in_thread(data, call, seconds, timeout)


# -- on this side ------------------------------------------------------------------------------------------------------

_CHILD: Final = """
import sys
folder, timeout, beside, root = sys.argv[1:]
sys.argv[1:] = []
if not getattr(sys.flags, "safe_path", False):
    sys.path[0] = beside
try:
    import safepickle
except ImportError:
    sys.path.append(root)
from safepickle.checks import _serve
_serve(folder, float(timeout))
"""


def _in_subprocess(data: bytes, call: bytes | None, seconds: dict[str, float], timeout: float) -> Checked:
    with tempfile.TemporaryDirectory(prefix="safepickle-check-") as name:
        folder = Path(name)
        folder.joinpath("object").write_bytes(data)
        if call is not None:
            folder.joinpath("use").write_bytes(call)
        command = [sys.executable, "-c", _CHILD, name, str(timeout), _folder_beside(), str(_ROOT)]
        with folder.joinpath("output").open("wb") as output:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                # A second more than the child has, so that it can say where it hangs; and the time of its start.
                child.wait(timeout + _START)
            except subprocess.TimeoutExpired:
                pass
            finally:
                _kill(child)
        return _outcome(folder, child.returncode, len(data), seconds, timeout)


#: Where this package is, for an interpreter that does not find it by itself.
_ROOT: Final = Path(__file__).resolve().parent.parent
#: Seconds that an interpreter may take to start.
_START: Final = 10.0


def _folder_beside() -> str:
    """What another script beside this one would have first on its path."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if getattr(main, "__spec__", None) is not None or not isinstance(file, str):
        return ""  # started by -m, by -c or interactively
    return os.path.dirname(os.path.abspath(file))


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End the child with all that it started."""
    try:
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    except (ProcessLookupError, PermissionError):
        pass  # it is gone
    child.wait()


def _outcome(folder: Path, status: int, size: int, seconds: dict[str, float], timeout: float) -> Checked:
    output = folder.joinpath("output").read_text("utf-8", "replace")
    try:
        result = json.loads(folder.joinpath("result").read_text("utf-8"))
    except (OSError, ValueError):
        stage = _text(folder / "stage") or "starting"
        stack = _text(folder / "stack")
        if stack and status in (-getattr(signal, "SIGKILL", 9), 1) and "Timeout" in stack:
            raise CheckError(stage, f"it was not done after {timeout:g} s", stack, output) from None
        raise CheckError(stage, _ending(status), stack, output) from None
    if "error" in result:
        raise CheckError(
            result["stage"], result["error"] + _explained(result.get("missing")), result["traceback"], output
        )
    value = None
    if folder.joinpath("value").exists():
        value = loads(folder.joinpath("value").read_bytes())
    return Checked(size, {**seconds, **result["seconds"]}, value, result["value_repr"], output)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _ending(status: int) -> str:
    if status < 0:
        try:
            return f"the interpreter died by {signal.Signals(-status).name}"
        except ValueError:
            return f"the interpreter died by signal {-status}"
    return f"the interpreter ended with status {status}"


def _explained(missing: str | None) -> str:
    """Why a module that is missing there can be had here."""
    module = sys.modules.get(missing or "")
    if module is None:
        return ""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return f"; here {missing!r} was made on the fly: nothing on disk defines it"
    top = Path(file).resolve()
    for entry in sys.path:
        if entry and top.is_relative_to(Path(entry).resolve()):
            return f"; here {missing!r} is {file}, found through {entry!r}, which this process has added to sys.path"
    return f"; here {missing!r} is {file}, which is on no path"


def _in_thread(data: bytes, call: bytes | None, seconds: dict[str, float], timeout: float) -> Checked:
    done: list[Any] = []
    stage = ["loading"]

    def run() -> None:
        try:
            done.append(_load_and_use(data, call, stage.append))
        except BaseException as error:
            done.append(error)

    thread = threading.Thread(target=run, daemon=True, name="safepickle.check")
    thread.start()
    thread.join(timeout)
    if not done:
        frame = sys._current_frames().get(thread.ident or 0)
        stack = "" if frame is None else "".join(traceback.format_stack(frame))
        raise CheckError(stage[-1], f"it was not done after {timeout:g} s", stack)
    if isinstance(done[0], BaseException):
        raise CheckError(stage[-1], _one_line(done[0]), "".join(traceback.format_exception(done[0]))) from done[0]
    value, times = done[0]
    return Checked(len(data), {**seconds, **times}, value, None if call is None else _short_repr(value))


# -- on the other side -------------------------------------------------------------------------------------------------


def _load_and_use(data: bytes, call: bytes | None, enter: Callable[[str], Any]) -> tuple[Any, dict[str, float]]:
    enter("loading")
    started = time.perf_counter()
    obj = loads(data)
    use = None if call is None else loads(call)
    times = {"loading": time.perf_counter() - started}
    if use is None:
        return None, times
    enter("using")
    started = time.perf_counter()
    value = use(obj)
    times["using"] = time.perf_counter() - started
    return value, times


def _serve(name: str, timeout: float) -> None:
    """What the fresh interpreter does: load, use, and write down what came of it."""
    folder = Path(name)
    stage = "starting"

    def enter(now: str) -> None:
        nonlocal stage
        stage = now
        folder.joinpath("stage").write_text(now, "utf-8")

    call = folder.joinpath("use").read_bytes() if folder.joinpath("use").exists() else None
    with folder.joinpath("stack").open("w") as stack:
        faulthandler.enable(stack)
        faulthandler.dump_traceback_later(timeout, file=stack, exit=True)
        try:
            value, times = _load_and_use(folder.joinpath("object").read_bytes(), call, enter)
        except BaseException as error:
            result: dict[str, Any] = {"stage": stage, "error": _one_line(error), "traceback": traceback.format_exc()}
            result["missing"] = getattr(error, "name", None) if isinstance(error, ImportError) else None
        else:
            result = {"seconds": times, "value_repr": None if call is None else _short_repr(value)}
            _send_back(value, folder)
        faulthandler.cancel_dump_traceback_later()
        faulthandler.disable()
    temporary = folder.joinpath("result.new")
    temporary.write_text(json.dumps(result), "utf-8")
    temporary.replace(folder / "result")


def _send_back(value: Any, folder: Path) -> None:
    try:
        data = dumps(value)
    except Exception:  # then its repr has to do
        return
    folder.joinpath("value").write_bytes(data)


def _one_line(error: BaseException) -> str:
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _short_repr(value: Any, most: int = 200) -> str:
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__qualname__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= most else text[: most - 3] + "..."
