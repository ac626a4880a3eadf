"""How do tests run code in a fresh interpreter, and bound the time that anything may take?

Most of what this package promises is about *another* process: a pickle that loads where the original is gone, a lock
that can be taken there. So the tests start one, and everything that could hang runs under a timeout that ends it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

__all__ = ["REPOSITORY", "call_with_timeout", "fresh_load", "run_python", "run_script"]

T = TypeVar("T")

StrPath = str | os.PathLike[str]

REPOSITORY = Path(__file__).resolve().parent.parent
"""The folder that holds the `safepickle` and the `tests` package; on every child's PYTHONPATH."""


def run_python(
    code: str,
    *,
    cwd: StrPath | None = None,
    env: Mapping[str, str | None] | None = None,
    timeout: float = 120,
    args: Sequence[StrPath] = (),
    pythonpath: Iterable[StrPath] = (),
    inline: bool = False,
) -> str:
    """Run `code` (dedented) in a new interpreter and return what it printed.

    The code runs as a script from a folder of its own, so `inspect.getsource` works on what it defines (as it does for
    a user's script) and only `pythonpath` and the repository's root can be imported: not the working directory.

    Args:
        code: Python source.
        cwd: The working directory; by default the script's own, empty but for the script.
        env: Changes to this process's environment; a value of None removes the variable.
        timeout: Seconds after which the child and all that it started are killed.
        args: The command-line arguments, `sys.argv[1:]` of the code.
        pythonpath: Folders to import from, ahead of the repository's root.
        inline: Run with `python -c` instead, so that the code has no file; then the working directory is importable.

    Returns:
        The child's standard output.

    Raises:
        AssertionError: The child exited with another status than 0, died by a signal, or ran out of time; the message
            has its standard error.
    """
    with tempfile.TemporaryDirectory(prefix="safepickle-test-") as folder:
        script = Path(folder, "script.py")
        source = textwrap.dedent(code)
        script.write_text(source, encoding="utf-8")
        start = ["-c", source] if inline else [script]
        return _run([*start, *args], cwd=folder if cwd is None else cwd, env=env, timeout=timeout, path=pythonpath)


def run_script(
    script: StrPath,
    *,
    cwd: StrPath | None = None,
    env: Mapping[str, str | None] | None = None,
    timeout: float = 120,
    args: Sequence[StrPath] = (),
    pythonpath: Iterable[StrPath] = (),
) -> str:
    """Run a script that exists, as `python script` does (its folder is importable), and return what it printed.

    The arguments, the result and the errors are those of `run_python`; `cwd` is the script's folder by default.
    """
    script = Path(script).resolve()
    return _run([script, *args], cwd=script.parent if cwd is None else cwd, env=env, timeout=timeout, path=pythonpath)


def fresh_load(
    data: bytes,
    code: str,
    tmp_path: StrPath,
    pythonpath: Iterable[StrPath] = (),
    *,
    loader: Literal["safepickle", "pickle"] = "safepickle",
    env: Mapping[str, str | None] | None = None,
    timeout: float = 120,
    args: Sequence[StrPath] = (),
) -> str:
    """Load a pickle as `obj` in a new interpreter, run `code` there, and return what it printed.

    Nothing in `tmp_path` can be imported by the child unless `pythonpath` says so; `tmp_path` is its working directory.

    Args:
        data: The pickle.
        code: Python source that uses `obj`.
        tmp_path: A folder for the test's files.
        pythonpath: Folders to import from, ahead of the repository's root.
        loader: Whose `loads` reads the pickle.
        env, timeout, args: As for `run_python`.

    Raises:
        AssertionError: As for `run_python`; a pickle that does not load is such a failure.
    """
    descriptor, payload = tempfile.mkstemp(prefix="payload-", suffix=".pkl", dir=tmp_path)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    prologue = f"import {loader}\nwith open({payload!r}, 'rb') as _file:\n    obj = {loader}.loads(_file.read())\n"
    source = prologue + textwrap.dedent(code)
    return run_python(source, cwd=tmp_path, env=env, timeout=timeout, args=args, pythonpath=pythonpath)


def call_with_timeout(function: Callable[[], T], seconds: float = 10) -> T:
    """Call `function` in a thread of its own and return its result, so that a deadlock fails the test and ends it.

    Args:
        function: What to call.
        seconds: How long it may take.

    Returns:
        What the function returned.

    Raises:
        AssertionError: The function was still running; its thread is left behind, as a daemon.
        BaseException: Whatever the function raised.
    """
    returned: list[T] = []
    raised: list[BaseException] = []

    def target() -> None:
        try:
            returned.append(function())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=target, daemon=True, name=f"call_with_timeout({function!r})")
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not returned:
        raise AssertionError(f"{function!r} was still running after {seconds} s")
    return returned[0]


def _run(
    arguments: Sequence[StrPath],
    *,
    cwd: StrPath,
    env: Mapping[str, str | None] | None,
    timeout: float,
    path: Iterable[StrPath],
) -> str:
    command = [sys.executable, *(os.fspath(argument) for argument in arguments)]
    child = subprocess.Popen(
        command,
        cwd=cwd,
        env=_environment(env, path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # a process group of its own, so that its children can be ended with it
    )
    try:
        stdout, stderr = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill_group(child)
        stdout, stderr = child.communicate()
        raise AssertionError(_report(f"ran longer than {timeout} s", stdout, stderr)) from None
    finally:
        # also when the test itself is stopped (pytest-timeout, ctrl-C), and for what the child left running
        _kill_group(child)
    if child.returncode != 0:
        raise AssertionError(_report(_ending(child.returncode), stdout, stderr))
    return stdout


def _environment(changes: Mapping[str, str | None] | None, path: Iterable[StrPath]) -> dict[str, str]:
    environment: dict[str, Any] = {**os.environ, "PYTHONIOENCODING": "utf-8", **(changes or {})}
    inherited = [folder for folder in (environment.get("PYTHONPATH") or "").split(os.pathsep) if folder]
    # relative entries mean this process's working directory, not the child's
    folders = [os.path.abspath(folder) for folder in (*path, REPOSITORY, *inherited)]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folders))
    return {name: value for name, value in environment.items() if value is not None}


def _kill_group(child: subprocess.Popen[str]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # it is gone, with all that it started
    child.wait()


def _ending(returncode: int) -> str:
    if returncode >= 0:
        return f"exited with status {returncode}"
    try:
        return f"died by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"died by signal {-returncode}"


def _report(what: str, stdout: str, stderr: str) -> str:
    return f"the child {what}\n--- its standard output ---\n{stdout}\n--- its standard error ---\n{stderr}"
