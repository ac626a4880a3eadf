"""``python -m safepickle verify FILE``: would this file load here? Resolves every name, without loading the file."""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import sys
from typing import Any

from ..restore import source_digest
from .inspect import describe, read_with_progress
from .names import find, split
from .tables import print_table

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="a pickle, several in a row, or a file of torch.save")


def run(arguments: argparse.Namespace) -> int:
    """Print what is missing; status 1 if something is, 2 if a file cannot be read. Imports what the files name."""
    rows: list[tuple[str, str, str]] = []
    unreadable = False
    for path in arguments.files:
        try:
            document = read_with_progress(path)
        except OSError as error:
            print(f"{path}: {error.strerror or error}", file=sys.stderr)
            unreadable = True
            continue
        if document.problem:
            rows.append((path, "the file", document.problem))
        for found in document.pickles:
            rows.extend((path, what, problem) for what, problem in _problems(describe(found)))
    if arguments.json:
        print(json.dumps([dict(zip(("file", "what", "problem"), row, strict=True)) for row in rows], indent=2))
    elif rows:
        print_table("what would keep it from loading", ("file", "what", "problem"), rows)
    elif not unreadable:
        print("every name is here")
    return 2 if unreadable else int(bool(rows))


def _problems(described: dict[str, Any]) -> list[tuple[str, str]]:
    problems = []
    for entry in [*described["globals"], *described["references"]]:
        problem = _why_not(entry["name"])
        if problem is not None:
            problems.append((entry["name"], problem))
    problems.extend((pin["name"], problem) for pin in described["pins"] if (problem := _drifted(pin)) is not None)
    here = sys.implementation.cache_tag
    for stamp in described["python"]:
        if stamp != here:
            problems.append(("functions by value", f"written by {stamp}; this is {here}"))
    return problems


def _why_not(name: str) -> str | None:
    try:
        find(name)
    except ImportError as error:
        return f"cannot be imported: {error}"
    except AttributeError as error:
        return f"{error}{_nearest(name)}"
    except Exception as error:
        return f"importing it failed: {type(error).__name__}: {error}"
    return None


def _drifted(pin: dict[str, Any]) -> str | None:
    """What is wrong with a reference that carries the hash of its source."""
    try:
        same = source_digest(find(pin["name"])) == pin["source"]
    except OSError as error:
        return f"pinned, but its source cannot be had: {error}"
    except Exception:
        return None  # said already: the name is not here
    return None if same else "pinned, and its source has changed since"


def _nearest(name: str) -> str:
    module, qualname = split(name)[0]
    try:
        close = difflib.get_close_matches(qualname.partition(".")[0], dir(importlib.import_module(module)), n=1)
    except Exception:
        return ""
    return f"; did you mean {module}.{close[0]}?" if close else ""
