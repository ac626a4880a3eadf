"""``python -m safepickle explain SCRIPT:OBJECT``: what of an object can be pickled and copied, and what cannot."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import runpy
import sys
from typing import Any

__all__ = ["add_arguments", "load_object", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "target", metavar="SCRIPT:OBJECT", help="a file or a module, and an expression in it; the script is run"
    )


def load_object(target: str) -> Any:
    """Run the script (not as ``__main__``), or import the module, and evaluate the expression there.

    Raises:
        ValueError: the target is not of the form ``script:object``.
        Exception: whatever the script raises.
    """
    where, colon, expression = target.rpartition(":")
    if not colon or not where or not expression:
        raise ValueError(f"{target!r} is not of the form SCRIPT:OBJECT, such as train.py:model")
    if where.endswith(".py"):
        namespace = runpy.run_path(where, run_name="<explained>")
    else:
        sys.path.insert(0, "")
        namespace = vars(importlib.import_module(where))
    return eval(expression, namespace)


def run(arguments: argparse.Namespace) -> int:
    """Print the report; status 1 if something cannot go, 2 if the object cannot be had."""
    from .. import explain

    try:
        obj = load_object(arguments.target)
    except Exception as error:
        print(f"{arguments.target}: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    report = explain(obj)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(report), indent=2, default=str))
    else:
        _print(report)
    return 1 if report.problems else 0


def _print(report: Any) -> None:
    try:
        from rich.console import Console
    except ImportError:
        print(report)
        return
    Console().print(report)
