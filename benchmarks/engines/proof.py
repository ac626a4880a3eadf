"""How are the cells run, each in a process of its own that ends?

A cell is one payload carried by one engine, without or with safepickle. Its process is the leader of a group; when it
has ended, or its time is up, everything that it has started is killed.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..common import REPOSITORY
from .processes import descendants
from .trips import HANGS, arrived

__all__ = ["Cell", "Line", "about", "missing", "prove"]


@dataclass
class Cell:
    """What became of one payload, without or with safepickle.

    Attributes:
        there, back: ``"works"``, ``"hangs"``, ``"silently ..."`` or the first line of an exception.
        bytes: how much was sent there.
        seconds: CPU seconds of a trip there and back, in each process that was run.
    """

    there: str
    back: str
    bytes: int | None = None
    seconds: list[float] = field(default_factory=list)

    def arrived(self) -> bool:
        return arrived(self.there) and arrived(self.back)


@dataclass
class Line:
    """One line of the table."""

    engine: str
    payload: str
    without: Cell
    installed: Cell

    def ratio(self) -> float | None:
        """The time with safepickle over that without, the median over pairs of processes; None if nothing arrives."""
        pairs = list(zip(self.installed.seconds, self.without.seconds, strict=False))
        return statistics.median(ours / theirs for ours, theirs in pairs) if pairs else None

    def as_json(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "payload": self.payload,
            "without": asdict(self.without),
            "with": asdict(self.installed),
            "bytes": self.installed.bytes,
            "time_ratio": self.ratio(),
        }


def about(entry: str) -> tuple[str, tuple[str, ...]]:
    """An entry's ``ENGINE`` and ``NEEDS``, read from its source: importing it would import the engine."""
    source = (Path(__file__).parent / f"{entry}.py").read_text(encoding="utf-8")
    said = {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in ast.parse(source).body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and statement.targets[0].id in ("ENGINE", "NEEDS")
    }
    return said["ENGINE"], said["NEEDS"]


def missing(entry: str) -> list[str]:
    """The modules that an entry needs and that are not here."""
    return [name for name in about(entry)[1] if importlib.util.find_spec(name) is None]


def prove(
    entry: str, payload: str, make_payload: str, *, timeout: float, repeats: int, environment: Mapping[str, str]
) -> Line:
    """Fill one line of the table.

    Args:
        entry: the module in this package.
        payload: the name in the table.
        make_payload: ``"module:function"``.
        timeout: seconds for each process.
        repeats: pairs of processes, one without and one with safepickle in turn, where something arrives with both;
            otherwise there is one.
        environment: variables for the processes.
    """

    def run(how: str) -> Cell:
        return _run(entry, make_payload, how, timeout, environment)

    line = Line(about(entry)[0], payload, run("without"), run("with"))
    if line.without.arrived() and line.installed.arrived():
        for _ in range(repeats - 1):
            for cell, how in ((line.without, "without"), (line.installed, "with")):
                cell.seconds += run(how).seconds
    return line


def _run(entry: str, make_payload: str, how: str, timeout: float, environment: Mapping[str, str]) -> Cell:
    with tempfile.TemporaryDirectory(prefix="safepickle-proof-") as folder:
        output, errors = Path(folder, "found.json"), Path(folder, "stderr")
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        with errors.open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.engines.cell", entry, make_payload, how],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": path, "SAFEPICKLE_PROOF_OUTPUT": str(output), **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
            try:
                status = child.wait(timeout)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                _end(child)
        said = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        found = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
    return _cell(found, status, said[-1] if said else "")


def _cell(found: dict[str, Any], status: int | None, last_words: str) -> Cell:
    """What the process has found, as far as it came."""
    if status is None:
        unknown = HANGS
    elif status < 0:
        unknown = f"dies by {signal.Signals(-status).name}"
    else:
        unknown = found.get("failed") or f"ends with status {status}: {last_words}"
    there, back = (found.get(direction) or unknown for direction in ("there", "back"))
    if status is not None and status < 0:  # what was under way had been noted as what does not end
        there, back = (unknown if outcome == HANGS else outcome for outcome in (there, back))
    seconds = found.get("seconds")
    return Cell(there, back, found.get("bytes"), [] if seconds is None else [seconds])


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it has started, in its group or out of it."""
    below = descendants(child.pid)
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    for pid in below:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    child.wait()
