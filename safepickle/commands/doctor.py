"""``python -m safepickle doctor``: what is installed here, which rules serve it, and where safepickle is installed."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys

from ..engines import DISTRIBUTIONS as ENGINES_FROM
from ..engines import HOOKS, MODULES, NEEDS
from ..registry import ENTRY_POINT_GROUP, LIBRARIES
from .tables import print_table

__all__ = ["add_arguments", "run"]

#: Import name -> distribution, where they differ.
DISTRIBUTIONS = {"tensorflow": ("tensorflow", "tensorflow-cpu")}

_AUTOINSTALL = "safepickle-ml-autoinstall"


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
    rows += _installation()
    rows += [_engine(name) for name in sorted(MODULES)]
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


def _installation() -> list[tuple[str, str, str]]:
    """Whether safepickle is installed in this process, and what does that when an interpreter starts."""
    module = sys.modules.get("safepickle.installation")
    asked = [] if module is None else list(module._asked)
    state = ("yes", f"{asked[0]!r}; see .changes") if asked else ("no", "import safepickle; safepickle.install()")
    version = _version(_AUTOINSTALL)
    variable = os.environ.get("SAFEPICKLE_INSTALL")
    if version == "-":
        advice = "pip install 'safepickle-ml[autoinstall]' for SAFEPICKLE_INSTALL=1 to work"
        start = advice if variable is None else f"SAFEPICKLE_INSTALL={variable} has no effect: {advice}"
    else:
        start = f"SAFEPICKLE_INSTALL is {'not set' if variable is None else variable}"
    workers = os.environ.get("SAFEPICKLE_ENGINES")
    return [
        ("install()", *state),
        ("autoinstall", version, start),
        ("install_worker", workers or "multiprocessing", "the engines: SAFEPICKLE_ENGINES"),
    ]


def _engine(name: str) -> tuple[str, str, str]:
    """One engine: its version, whether safepickle is installed into it here, and what that changes."""
    here = sys.modules.get("safepickle.installation")
    top = NEEDS[name].partition(".")[0]
    if importlib.util.find_spec(top) is None:
        return f"engine {name}", "-", "not here"
    of_python = top in sys.stdlib_module_names
    version = platform.python_version() if of_python else _version(ENGINES_FROM.get(name, name))
    state = "installed" if here is not None and name in here._adapted else f'safepickle.install("{name}")'
    return f"engine {name}", version, f"{state}: {HOOKS[name]}"


def _version(name: str) -> str:
    for distribution in DISTRIBUTIONS.get(name, (name,)):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "-"
