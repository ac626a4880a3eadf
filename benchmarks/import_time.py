"""What does `import safepickle` cost beside the modules that it stands in for?

Each import is timed in a fresh interpreter, from a warm cache of bytecode.

    python -m benchmarks import_time [--quick]
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import Row, Settings, part_of, rotations

__all__ = ["DISTRIBUTIONS", "QUESTION", "measure"]

QUESTION = "What does `import safepickle` cost beside the modules that it stands in for?"
DISTRIBUTIONS = ("cloudpickle",)

BASELINE = "import pickle, copy, cloudpickle"
STATEMENTS = ("import pickle, copy", "import safepickle", BASELINE)
GOAL = 1.0


def folder_of(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed")
    return str(Path(spec.origin).resolve().parent.parent)


def seconds(statement: str, cache: str) -> float:
    """Return the CPU time of one import statement in a new interpreter, with its bytecode cached in a given folder.

    The interpreter runs without `site`: a start-up file in site-packages (an editable install is one) imports modules
    of the standard library, which would then be missing from the time of whoever imports them too.
    """
    folders = dict.fromkeys((folder_of("safepickle"), folder_of("cloudpickle")))
    code = f"import time; start = time.process_time(); {statement}; print(time.process_time() - start)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "PYTHONPYCACHEPREFIX": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-S", "-c", code]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def measure(settings: Settings) -> Iterator[Row]:
    """One row, from a fresh interpreter for each value."""
    times: dict[str, list[float]] = {statement: [] for statement in STATEMENTS}
    with tempfile.TemporaryDirectory() as cache:
        for statement in STATEMENTS:
            seconds(statement, cache)
        for order in rotations(STATEMENTS, 3 if settings.quick else 31):
            for statement in order:
                times[statement].append(seconds(statement, cache))
    yield Row("import", "import", times, BASELINE, [part_of(GOAL, BASELINE, of="import safepickle")])
