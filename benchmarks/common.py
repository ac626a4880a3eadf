"""How are alternatives compared fairly, and what must be written down beside the figures?

The alternatives of one row run interleaved, in rotating order, so that a busy machine slows all of them alike. Times
are CPU times of the thread (page faults count, other processes do not), or wall time where another device or process
does the work; ratios are medians over the rounds of the ratio within a round. Each workload runs in a process of its
own, so that none inherits the allocator, the caches or the imports of another.

Nothing here needs more than the standard library: what prints and draws imports its libraries when it does.
"""

from __future__ import annotations

import datetime
import gc
import importlib.metadata
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

__all__ = [
    "REPOSITORY",
    "Goal",
    "Row",
    "Settings",
    "Times",
    "at_least",
    "at_most",
    "circumstances",
    "extra",
    "failure",
    "faster",
    "in_fresh_process",
    "interleave",
    "measured",
    "part_of",
    "read_json",
    "rotations",
    "write_json",
]

REPOSITORY = Path(__file__).resolve().parent.parent

Times = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Settings:
    """What one run of the benchmarks is to do.

    Attributes:
        device: where tensors are and kernels run: ``"cpu"`` or ``"cuda"``.
        quick: small workloads and few rounds, to see that every script runs; the figures mean little.
        pythons: other interpreters, for the rows about the C core without private layouts.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    quick: bool = False
    pythons: tuple[str, ...] = ()

    @property
    def rounds(self) -> int:
        """How often each alternative is timed, at most."""
        return 3 if self.quick else 25

    @property
    def budget(self) -> float:
        """The seconds that the rounds of one row may take, if that leaves enough of them."""
        return 0.3 if self.quick else 3.0

    @property
    def fewest(self) -> int:
        return 3 if self.quick else 5

    def size(self, full: int, quick: int | None = None) -> int:
        """The size of a workload: a twentieth of it in a quick run, unless that says otherwise."""
        return (max(1, full // 20) if quick is None else quick) if self.quick else full


# -- what a row says ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """What one figure of a row should be.

    Attributes:
        of: the alternative that it is about.
        kind: ``"faster"``: at least `bound` times as fast as `than`; ``"part"``: at most `bound` times the value of
            `than`; ``"extra"``: at most `bound` more than `than`; ``"at most"``, ``"at least"``: the value itself.
        bound: the number.
        than: the alternative that it is compared with.
    """

    of: str
    kind: Literal["faster", "part", "extra", "at most", "at least"]
    bound: float
    than: str | None = None

    def reached(self, samples: Times) -> float | None:
        """What was measured, in the terms of the goal; ``None`` where an alternative is missing."""
        mine = samples.get(self.of)
        other = samples.get(self.than) if self.than is not None else mine
        if not mine or not other:
            return None
        if self.kind == "faster":
            return statistics.median(b / a for a, b in zip(mine, other, strict=True))
        if self.kind == "part":
            return statistics.median(a / b for a, b in zip(mine, other, strict=True))
        if self.kind == "extra":
            return statistics.median(a - b for a, b in zip(mine, other, strict=True))
        return statistics.median(mine)

    def met(self, samples: Times) -> bool | None:
        reached = self.reached(samples)
        if reached is None:
            return None
        return reached >= self.bound if self.kind in ("faster", "at least") else reached <= self.bound


def faster(bound: float, than: str, of: str = "safepickle") -> Goal:
    return Goal(of, "faster", bound, than)


def part_of(bound: float, than: str, of: str = "safepickle") -> Goal:
    return Goal(of, "part", bound, than)


def extra(bound: float, than: str, of: str = "safepickle") -> Goal:
    return Goal(of, "extra", bound, than)


def at_most(bound: float, of: str = "safepickle") -> Goal:
    return Goal(of, "at most", bound)


def at_least(bound: float, of: str = "safepickle") -> Goal:
    return Goal(of, "at least", bound)


@dataclass
class Row:
    """What some alternatives took for one task.

    Attributes:
        group: the table that the row belongs to.
        task: what was done.
        samples: alternative -> a value for each round.
        baseline: the alternative that the others are compared with, if any.
        goals: what the figures should be.
        unit: of the values: ``"s"`` (seconds), ``"B"`` (bytes), ``"x"`` (a ratio), or what is counted.
        facts: numbers about the workload: objects, bytes, ...
        failures: alternative -> why it has no values.
        clock: which clock the seconds are of.
    """

    group: str
    task: str
    samples: Times
    baseline: str | None = None
    goals: Sequence[Goal] = ()
    unit: str = "s"
    facts: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    clock: str = "CPU"

    def median(self, name: str) -> float:
        return statistics.median(self.samples[name])

    def ratio(self, name: str) -> float | None:
        """How many times the baseline's value this alternative's is, in the median of the rounds."""
        if self.baseline is None or not self.samples.get(self.baseline) or not self.samples.get(name):
            return None
        rounds = list(zip(self.samples[name], self.samples[self.baseline], strict=True))
        return statistics.median(mine / base for mine, base in rounds) if all(base for _, base in rounds) else None

    def missed(self) -> list[Goal]:
        return [goal for goal in self.goals if goal.met(self.samples) is False]

    def as_json(self) -> dict[str, Any]:
        # what is derived is derived from what is written, so that it can be checked
        samples = {name: [_short(value) for value in values] for name, values in self.samples.items()}
        return replace(self, samples=samples)._as_json()

    def _as_json(self) -> dict[str, Any]:
        content: dict[str, Any] = {"group": self.group, "task": self.task, "unit": self.unit}
        if self.unit == "s":
            content["clock"] = self.clock
        if self.baseline is not None:
            content["baseline"] = self.baseline
        if self.facts:
            content["facts"] = dict(self.facts)
        content["samples"] = self.samples
        if self.failures:
            content["failures"] = dict(self.failures)
        # derived, for whoever reads the file with other tools
        content["median"] = {name: _short(self.median(name)) for name in self.samples}
        content["ratio"] = {name: _short(ratio) for name in self.samples if (ratio := self.ratio(name)) is not None}
        content["goals"] = [
            {
                "of": goal.of,
                "kind": goal.kind,
                "bound": goal.bound,
                **({"than": goal.than} if goal.than else {}),
                "reached": None if (reached := goal.reached(self.samples)) is None else _short(reached),
                "met": goal.met(self.samples),
            }
            for goal in self.goals
        ]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Row:
        return cls(
            content["group"],
            content["task"],
            content["samples"],
            content.get("baseline"),
            [Goal(goal["of"], goal["kind"], goal["bound"], goal.get("than")) for goal in content.get("goals", ())],
            content["unit"],
            content.get("facts", {}),
            content.get("failures", {}),
            content.get("clock", "CPU"),
        )


def _short(value: float) -> float:
    """Four digits: more would be noise, and a file of them is small. Whole numbers stay whole."""
    if isinstance(value, int):
        return value
    return float(f"{value:.4g}")


def failure(error: BaseException) -> str:
    """The first line of an error, for the tables."""
    lines = str(error).strip().splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0]}"
    return text if len(text) <= 160 else text[:157] + "..."


# -- timing ------------------------------------------------------------------------------------------------------------


#: Seconds. What takes longer is not called once more to warm up, and gets fewer rounds.
LONG = 1.0
#: Seconds. What takes less is called so often that it takes that long, once more before the clock starts: the garbage
#: collector has been through all memory, and the first call would pay for what it has pushed out of the caches.
SHORT = 5e-4


def rotations(names: Sequence[str], rounds: int) -> list[list[str]]:
    """Return the order of each round: every alternative takes every place in turn."""
    shifts = (turn % len(names) for turn in range(rounds))
    return [[*names[shift:], *names[:shift]] for shift in shifts]


def interleave(
    functions: Mapping[str, Callable[[], object]],
    settings: Settings,
    *,
    clock: Callable[[], float] = time.thread_time,
    synchronize: Callable[[], object] | None = None,
    failures: dict[str, str] | None = None,
) -> Times:
    """Time some functions, alternately, with the garbage collector on.

    Args:
        functions: alternative -> what to time.
        settings: how many rounds, and how long they may take: fewer rounds where a round takes long.
        clock: what tells the time; the thread's CPU time unless the work is done elsewhere.
        synchronize: waits for a device; called before each look at the clock.
        failures: where an alternative that raises an exception is entered, and why; it then has no times. Without it
            the exception is raised.

    Returns:
        For each alternative the seconds that one call took, a value a round. The garbage of earlier calls is collected
        before each timing, and what a call returns is freed after it. A function that takes microseconds is called
        many times in one timing, and its results are freed within.
    """
    working: dict[str, Callable[[], object]] = {}
    first: dict[str, float] = {}
    started = time.perf_counter()
    gc.collect(0 if settings.quick else 2)
    collecting = time.perf_counter() - started
    for name, function in functions.items():
        try:
            first[name] = _time(function, 1, settings, clock, synchronize)
            if first[name] < LONG:
                first[name] = _time(function, 1 if first[name] > SHORT else 50, settings, clock, synchronize)
        except Exception as error:
            if failures is None:
                raise
            failures[name] = failure(error)
        else:
            working[name] = function
    fastest = max(min(first.values(), default=1.0), 1e-7)
    number = max(1, min(5_000, math.ceil(SHORT / fastest)))
    one_round = sum(first.values()) * number + collecting * len(first) + 1e-3
    fewest = settings.fewest if one_round < LONG else 3
    rounds = max(fewest, min(settings.rounds, int(settings.budget / one_round)))
    times: dict[str, list[float]] = {name: [] for name in working}
    for order in rotations(list(working), rounds):
        for name in order:
            times[name].append(_time(working[name], number, settings, clock, synchronize))
    return times


def _time(
    function: Callable[[], object],
    number: int,
    settings: Settings,
    clock: Callable[[], float],
    synchronize: Callable[[], object] | None,
) -> float:
    if not settings.quick:
        gc.collect()
    if number > 1:
        function()
    if synchronize is not None:
        synchronize()
    start = clock()
    result = function()
    for _ in range(number - 1):
        function()
    if synchronize is not None:
        synchronize()
    elapsed = clock() - start
    del result
    return elapsed / number


# -- fresh processes ---------------------------------------------------------------------------------------------------

# What threads of a framework do is not in the CPU time of ours, so there are none.
_CHILDS_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONHASHSEED": "0"}

_CHILD = """
import importlib, json, sys
module, function, file = sys.argv[1:]
with open(file, encoding="utf-8") as stream:
    arguments = json.load(stream)
result = getattr(importlib.import_module(module), function)(**arguments)
with open(file, "w", encoding="utf-8") as stream:
    json.dump(result, stream)
"""


def in_fresh_process(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
    timeout: float = 600,
) -> Any:
    """Call a function of a module in a new interpreter and return its result; both travel as JSON.

    Args:
        function: a function of an importable module.
        arguments: by name.
        python: the interpreter.
        environment: what is changed in the environment.
        timeout: seconds.

    Raises:
        RuntimeError: the process failed, or ran too long; the message has the end of what it printed.
    """
    changed = {**os.environ, **_CHILDS_ENVIRONMENT, **(environment or {})}
    folders = [str(REPOSITORY), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    changed["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folders))
    with tempfile.TemporaryDirectory(prefix="safepickle-benchmark-") as folder:
        file = Path(folder, "arguments.json")
        file.write_text(json.dumps(dict(arguments)), encoding="utf-8")
        command = [python, "-c", _CHILD, function.__module__, function.__name__, str(file)]
        what = f"{function.__module__}.{function.__name__}"
        try:
            done = subprocess.run(command, env=changed, cwd=folder, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{what} ran longer than {timeout:.0f} s") from None
        if done.returncode:
            printed = f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
            raise RuntimeError(f"{what} failed with status {done.returncode}\n{printed}")
        return json.loads(file.read_text(encoding="utf-8"))


def measured(function: Callable[..., Any], arguments: Mapping[str, Any], settings: Settings) -> Any:
    """Call a function in a fresh process; in a quick run in this one, where nobody reads the figures."""
    if settings.quick:
        return json.loads(json.dumps(function(**arguments)))
    return in_fresh_process(function, arguments)


# -- circumstances -----------------------------------------------------------------------------------------------------


def circumstances(*distributions: str) -> dict[str, Any]:
    """Return what a reader needs beside the figures: the machine, the interpreter and the versions."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": sys.version,
        "platform": platform.platform(),
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_GB": _memory(),
        "compiled": _core(),
        "versions": {"safepickle-ml": _own_version(), **{name: _version(name) for name in distributions}},
    }


def _commit() -> str | None:
    """The commit that was measured; ``-dirty`` where the package differs from it, whatever the results do."""
    try:
        git = ["git", "-C", str(REPOSITORY)]
        commit = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        changed = [*git, "status", "--porcelain", "--untracked-files=no", "--", "safepickle"]
        dirty = subprocess.run(changed, capture_output=True, text=True, check=True)
        return commit.stdout.strip() + ("-dirty" if dirty.stdout.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (AttributeError, OSError, ValueError):
        return None


def _core() -> str:
    """Which of the compiled modules the package uses in this process."""
    from safepickle import _native

    missing = [f"{name} in Python ({why})" for name, why in _native.why_python.items()]
    return "; ".join(missing) if missing else "compiled modules in use"


def _own_version() -> str:
    import safepickle

    return safepickle.__version__


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


# -- results -----------------------------------------------------------------------------------------------------------


def write_json(
    path: str | os.PathLike[str], question: str, rows: Iterable[Row], where: Mapping[str, Any], quick: bool = False
) -> None:
    """Write the rows, every value of every round included, and the circumstances: one line a row."""
    head = {"question": question, "quick": quick, "circumstances": where}
    lines = ",\n".join(f"  {json.dumps(row.as_json())}" for row in rows)
    text = json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n' + lines + "\n ]\n}\n"
    json.loads(text)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")


def read_json(path: str | os.PathLike[str]) -> tuple[dict[str, Any], list[Row]]:
    """Read what `write_json` wrote: everything but the rows, and the rows."""
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    rows = [Row.from_json(row) for row in content.pop("rows")]
    return content, rows
