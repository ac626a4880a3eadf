"""``python -m safepickle doctor``: what is installed here, and which rules serve it."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import sys

from ..registry import ENTRY_POINT_GROUP, LIBRARIES
from .tables import print_table

__all__ = ["add_arguments", "run"]

#: Import name -> distribution, where they differ.
DISTRIBUTIONS = {"tensorflow": ("tensorflow", "tensorflow-cpu")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options besides ``--json``."""


def run(arguments: argparse.Namespace) -> int:
    """Print the findings. Imports no library."""
    from .. import __version__

    rows = [
        ("safepickle", __version__, ""),
        (
            "python",
            platform.python_version(),
            f"{sys.implementation.cache_tag}: functions by value load under this tag only",
        ),
        ("copier", *_twin("_core")),
        ("pickler", *_twin("_pickling")),
        ("cloudpickle", _version("cloudpickle"), "register_pickle_by_value is honoured"),
        ("rich", _version("rich"), "tables" if _version("rich") != "-" else "not here: plain tables"),
    ]
    for library, module in sorted(LIBRARIES.items()):
        rows.append((library, _version(library), module if importlib.util.find_spec(library) else "not here"))
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        rows.append((point.name, _version(point.name), f"entry point {point.value}"))
    if arguments.json:
        print(json.dumps([dict(zip(("what", "version", "rules"), row, strict=True)) for row in rows], indent=2))
    else:
        print_table("safepickle doctor", ("what", "version", "rules"), rows)
    return 0


def _twin(module: str) -> tuple[str, str]:
    """Whether the compiled module or its twin in Python serves, and why."""
    from .._native import why_python

    why = why_python.get(module)
    return ("native", "compiled; SAFEPICKLE_PURE=1 keeps to Python") if why is None else ("python", why)


def _version(name: str) -> str:
    for distribution in DISTRIBUTIONS.get(name, (name,)):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "-"
