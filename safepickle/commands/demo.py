"""``python -m safepickle demo``: one model, four picklers, and what is left of it."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .demo_attempt import OK
from .tables import markdown_table, print_table

__all__ = ["add_arguments", "run"]

METHODS = ("pickle", "cloudpickle", "dill", "safepickle")
LABELS = {"pickle": "stdlib pickle and copy"}
COLUMNS = ("deepcopy", "pickle", "fresh process")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="how long one attempt may take")
    parser.add_argument("--markdown", action="store_true", help="print Markdown, as in the README")


def attempt(method: str, timeout: float) -> dict[str, str]:
    """What a pickler makes of the model, each part in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.pkl"
        results = _child("write", method, file, timeout)
        if file.exists():
            results.update(_child("read", method, file, timeout))
        return {column: results.get(column, "-") for column in COLUMNS}


def _child(action: str, method: str, file: Path, timeout: float) -> dict[str, str]:
    command = [sys.executable, "-m", "safepickle.commands.demo_attempt", action, method, str(file)]
    columns = COLUMNS[:2] if action == "write" else COLUMNS[2:]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return dict.fromkeys(columns, f"hangs (ended after {timeout:.0f} s)")
    try:
        found: dict[str, str] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return dict.fromkeys(columns, f"the process ended with status {done.returncode}: {reason}")
    return found


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def run(arguments: argparse.Namespace) -> int:
    """Print the table; status 1 if safepickle fails anywhere in it."""
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"the demo needs {' and '.join(missing)}: pip install 'safepickle-ml[torch,triton]'", file=sys.stderr)
        return 2
    methods = [name for name in METHODS if importlib.util.find_spec(name) is not None]
    with ThreadPoolExecutor(max_workers=2) as pool:
        results = dict(zip(methods, pool.map(lambda name: attempt(name, arguments.timeout), methods), strict=True))
    if arguments.json:
        print(json.dumps(results, indent=2))
    else:
        parts = "Triton kernels, a traced tf.function, a lock and a lambda"
        if importlib.util.find_spec("tensorflow") is None:
            parts = "Triton kernels, a lock and a lambda (TensorFlow is not installed)"
        rows = [(LABELS.get(name, name), *result.values()) for name, result in results.items()]
        if arguments.markdown:
            print(markdown_table(("with", *COLUMNS), [[_without_addresses(cell) for cell in row] for row in rows]))
            return 0
        print_table(f"A torch module with {parts}, run on text", ("with", *COLUMNS), rows)
    return 0 if set(results["safepickle"].values()) == {OK} else 1
