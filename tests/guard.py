"""What must not get slower unseen, in counts: calls, allocations and instructions for each object.

``tests/guard.json`` has the counts of each Python version, and ``tests/test_guard.py`` compares. After a change that is
meant to cost more, or that costs less::

    python -m tests.guard update

with each interpreter that is tested (for the instructions valgrind is needed), and say in the commit why.

Calls, allocations and the peak of memory are exact, so none may grow by more than two percent, which leaves room for
what rounds them. Instructions may grow by 15 percent; they are
counted as a multiple of those of ``pickle.dumps`` for the same kind of object in the same process, which takes out
some of the difference between builds of the interpreter. Where the interpreter is not the one that the counts are of
(another compiler, other options), they may differ by half.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safepickle
from benchmarks import workloads
from safepickle import _native
from tests.counting import blocks_kept, calls, for_each, peak_to_result
from tests.guard_instructions import SIZES, STEPS
from tests.helpers import REPOSITORY

__all__ = [
    "BASELINE", "complaints", "counts", "counts_of_tensors", "identity", "instructions", "measured_elsewhere", "pure",
    "version",
]  # fmt: skip

BASELINE = Path(__file__).with_name("guard.json")
REFERENCE = "pickle of dataclasses"
EXACT = 0.02
TOLERANCE = 0.15
TOLERANCE_ELSEWHERE = 0.5
SIZE = 50

#: What is copied and pickled, by the count.
GRAPHS: dict[str, Callable[[int], Any]] = {
    "dataclasses": workloads.records,
    "dataclasses of atoms": workloads.leaves,
    "plain objects": workloads.plain_objects,
    "objects with slots": workloads.slots,
    "dataclasses with slots": workloads.slots_records,
    "nested configs": workloads.configs,
    "object graph with cycles": workloads.object_graph,
    "JSON-like records": workloads.json_records,
    "OrderedDicts": workloads.ordered_dicts,
    "defaultdicts": workloads.nested_defaults,
    "sets": workloads.sets,
    "members of an enum": workloads.members,
}

VERBS: dict[str, Callable[[Any], Any]] = {"deepcopy": safepickle.deepcopy, "dumps": safepickle.dumps}


def version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def identity() -> str:
    """Which build of the interpreter this is, as far as it changes the instructions."""
    parts = [sys.version, str(sysconfig.get_config_var("CONFIG_ARGS")), str(sysconfig.get_config_var("CFLAGS"))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def pure() -> bool:
    return _native.core is None


# -- counting ----------------------------------------------------------------------------------------------------------


def counts() -> dict[str, float]:
    """Calls and allocations for each object more, in this process: with the compiled modules or without."""
    found: dict[str, float] = {}
    for name, make in GRAPHS.items():
        for verb, function in VERBS.items():
            found[f"calls, {verb}, {name}"] = for_each(
                make, lambda obj, function=function: calls(lambda: function(obj)).python, SIZE
            )
        found[f"blocks, deepcopy, {name}"] = for_each(
            make, lambda obj: blocks_kept(lambda: safepickle.deepcopy(obj)), SIZE
        )
    for name, obj in {"1": 1, "a small dict": {"a": [1, 2]}, "a dataclass": workloads.records(1)[0]}.items():
        data = safepickle.dumps(obj)
        found[f"calls, one deepcopy, {name}"] = calls(lambda obj=obj: safepickle.deepcopy(obj)).python
        found[f"calls, one dumps, {name}"] = calls(lambda obj=obj: safepickle.dumps(obj)).python
        found[f"calls, one loads, {name}"] = calls(lambda data=data: safepickle.loads(data)).python
    if not pure():
        for name in ("dataclasses of atoms", "JSON-like records"):
            obj = GRAPHS[name](40 * SIZE)
            found[f"peak to result, deepcopy, {name}"] = peak_to_result(lambda obj=obj: safepickle.deepcopy(obj))
    return {name: round(value, 2) for name, value in found.items()}


def counts_of_tensors() -> dict[str, float]:
    """Calls of Python functions and of C functions by those, for each layer or tensor more; needs torch."""
    from benchmarks import models

    found: dict[str, float] = {}
    for name, make in {
        "small layers": models.small_layers,
        "conv and BatchNorm": models.conv_blocks,
        "small tensors": models.small_tensors,
        "views of shared storages": models.views,
    }.items():
        for verb, function in {**VERBS, "loads": safepickle.loads}.items():
            made = (lambda count, make=make: safepickle.dumps(make(count))) if verb == "loads" else make
            for kind in ("python", "c"):
                found[f"{kind} calls, {verb}, {name}"] = for_each(
                    made, lambda obj, function=function, kind=kind: getattr(calls(lambda: function(obj)), kind), 8
                )
    return {name: round(value, 2) for name, value in found.items()}


def measured_elsewhere(function: Callable[[], dict[str, float]], **environment: str) -> dict[str, float]:
    """The result of one of these functions in a new process, which nothing else has been imported into."""
    code = f"import json; from tests import guard; print(json.dumps(guard.{function.__name__}()))"
    changed = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(REPOSITORY), **environment}
    done = subprocess.run([sys.executable, "-c", code], env=changed, capture_output=True, text=True, timeout=110)
    if done.returncode:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)


def instructions() -> dict[str, float]:
    """The instructions for each object more, as multiples of those that ``pickle.dumps`` takes for a dataclass."""
    libraries = [entry for entry in sys.path if Path(entry, "cloudpickle").is_dir()]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "counts")
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={output}", "--dump-before=getppid"]
        command += [sys.executable, "-S", "-m", "tests.guard_instructions"]
        path = os.pathsep.join([str(REPOSITORY), *libraries[:1]])
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path, "PYTHONMALLOC": "pymalloc"}
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=500)
        if done.returncode:
            raise AssertionError(done.stderr)
        # a file for what was before the first mark, then two for each step and size: what lies between its marks, and
        # what comes after; the last of those is the file without a number
        totals = [_total(Path(f"{output}.{number + 1}")) for number in range(2 * len(SIZES) * len(STEPS))]
    between = totals[1::2]
    slopes = {}
    for place, name in enumerate(STEPS):
        few, many = between[place * len(SIZES) : (place + 1) * len(SIZES)]
        slopes[name] = (many - few) / (SIZES[1] - SIZES[0])
    return {name: round(value / slopes[REFERENCE], 3) for name, value in slopes.items()}


def _total(file: Path) -> int:
    (line,) = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("totals:")]
    return int(line.split()[1])


# -- comparing ---------------------------------------------------------------------------------------------------------


def complaints(baseline: dict[str, float], found: dict[str, float], tolerance: float = EXACT) -> list[str]:
    """What has grown by more than a part of it, and what is not in the baseline at all."""
    lines = []
    for name, value in found.items():
        if name not in baseline:
            lines.append(f"{name}: {value:g}, and no baseline")
        elif value > baseline[name] * (1 + tolerance) + 0.011:  # a hundredth: what rounding may do
            lines.append(f"{name}: {value:g}, where the baseline is {baseline[name]:g}")
    return lines


def update() -> None:
    """Write the counts of this interpreter into the baseline."""
    baseline = json.loads(BASELINE.read_text(encoding="utf-8")) if BASELINE.exists() else {}
    mine = baseline.setdefault(version(), {})
    mine["native"] = measured_elsewhere(counts)
    mine["pure"] = measured_elsewhere(counts, SAFEPICKLE_PURE="1")
    if importlib.util.find_spec("torch") is not None:
        mine["tensors"] = measured_elsewhere(counts_of_tensors)
    if shutil.which("valgrind"):
        mine["instructions"] = {"interpreter": identity(), "counts": instructions()}
    BASELINE.write_text(json.dumps(dict(sorted(baseline.items())), indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["update"]:
        sys.exit("usage: python -m tests.guard update")
    update()
