"""How are alternatives compared fairly, and what must be written down beside the figures?

The alternatives of one row run interleaved, in rotating order, so that a busy machine slows all of them alike. Times
are CPU times of the thread (page faults count, other processes do not); ratios are medians over the rounds of the
ratio within a round.
"""

from __future__ import annotations

import datetime
import gc
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["REPOSITORY", "Row", "Times", "circumstances", "interleave", "print_table", "rotations", "write_json"]

REPOSITORY = Path(__file__).resolve().parent.parent

Times = Mapping[str, Sequence[float]]


@dataclass
class Row:
    """The times of some alternatives at one task, each a list with one time in seconds a round.

    Attributes:
        task: what was done.
        times: alternative -> seconds in each round.
        baseline: the alternative that the others are compared with.
        goals: alternative -> the largest ratio to the baseline that is accepted.
    """

    task: str
    times: Times
    baseline: str
    goals: Mapping[str, float] = field(default_factory=dict)

    def median(self, name: str) -> float:
        return statistics.median(self.times[name])

    def ratio(self, name: str) -> float:
        rounds = zip(self.times[name], self.times[self.baseline], strict=True)
        return statistics.median(time / base for time, base in rounds)

    def met(self) -> bool:
        return all(self.ratio(name) <= goal for name, goal in self.goals.items())

    def as_json(self) -> dict[str, Any]:
        names = list(self.times)
        return {
            "task": self.task,
            "baseline": self.baseline,
            "goals": dict(self.goals),
            "median_s": {name: self.median(name) for name in names},
            "ratio": {name: self.ratio(name) for name in names},
            "met": self.met(),
            "times_s": {name: [round(time, 9) for time in times] for name, times in self.times.items()},
        }


def rotations(names: Sequence[str], rounds: int) -> list[list[str]]:
    """Return the order of each round: every alternative takes every place in turn."""
    shifts = (turn % len(names) for turn in range(rounds))
    return [[*names[shift:], *names[:shift]] for shift in shifts]


def interleave(functions: Mapping[str, Callable[[], object]], *, rounds: int, number: int = 1) -> Times:
    """Time some functions, alternately, with the garbage collector on.

    Args:
        functions: alternative -> what to time.
        rounds: how often each is timed.
        number: calls in one timing, for functions that take microseconds.

    Returns:
        For each alternative the seconds of CPU time that one call took, a value a round. The garbage of earlier calls
        is collected before each timing, and what a call returns is freed after it (with `number` above 1: within it).
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    for order in rotations(list(functions), rounds):
        for name in order:
            times[name].append(_time(functions[name], number))
    return times


def _time(function: Callable[[], object], number: int) -> float:
    gc.collect()
    start = time.thread_time()
    result = function()
    for _ in range(number - 1):
        function()
    elapsed = time.thread_time() - start
    del result
    return elapsed / number


def circumstances(*distributions: str) -> dict[str, Any]:
    """Return what a reader needs beside the figures: the machine, the interpreter and the versions."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": sys.version,
        "platform": platform.platform(),
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "versions": {name: _version(name) for name in ("safepickle-ml", *distributions)},
    }


def _commit() -> str | None:
    try:
        command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--abbrev=12"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Print a line for each alternative of each row: its median time, its ratio to the baseline, and the goal."""
    table = Table(title=title, title_justify="left")
    table.add_column("task")
    table.add_column("by")
    table.add_column("median", justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("goal", justify="right")
    for row in rows:
        for place, name in enumerate(row.times):
            last = place == len(row.times) - 1
            goal = row.goals.get(name)
            ratio = "1" if name == row.baseline else f"{row.ratio(name):.2f}"
            table.add_row(
                "" if place else row.task,
                name,
                _seconds(row.median(name)),
                ratio,
                "" if goal is None else f"[{'green' if row.ratio(name) <= goal else 'red'}]at most {goal}",
                end_section=last,
            )
    Console().print(table)


def _seconds(value: float) -> str:
    for unit, scale in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def write_json(path: str | os.PathLike[str], question: str, rows: Sequence[Row], where: Mapping[str, Any]) -> None:
    """Write the rows, every time of every round included, and the circumstances."""
    content = {"question": question, "circumstances": where, "rows": [row.as_json() for row in rows]}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
