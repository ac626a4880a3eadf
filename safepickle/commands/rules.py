"""``python -m safepickle rules``: the policy table, made from the rules themselves."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json

from ..registry import LIBRARIES, Rule, builtin_registry, load_all_rules
from .tables import markdown_table, print_table

__all__ = ["add_arguments", "policy_rows", "run"]

COLUMNS = ("kind", "pickle", "deepcopy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--markdown", action="store_true", help="print Markdown, as in the README")
    parser.add_argument(
        "--installed", action="store_true", help="import the libraries that have rules, so that all rules show"
    )


def policy_rows(*, import_libraries: bool) -> list[tuple[str, str, str]]:
    """One row for each group of types that are treated alike: types, what pickling does, what copying does.

    Args:
        import_libraries: import each installed library that we have rules for; otherwise only what is imported
            already counts.
    """
    if import_libraries:
        # Triton registers LLVM's options and aborts the process if TensorFlow has done so before.
        for library in sorted(LIBRARIES, key=lambda name: (name != "triton", name)):
            with contextlib.suppress(Exception):
                importlib.import_module(library)
    load_all_rules()
    groups: dict[tuple[str, str, str], list[str]] = {}
    for rule in builtin_registry:
        if rule.summary is not None:
            groups.setdefault((rule.origin, *rule.summary), []).append(_kind(rule))
    return [
        (", ".join(f"`{kind}`" for kind in dict.fromkeys(kinds)), pickled, copied)
        for (_, pickled, copied), kinds in sorted(groups.items(), key=lambda item: _order(item[0][0]))
    ]


def _order(origin: str) -> tuple[bool, str]:
    return (not origin.endswith("stdlib"), "")


def _kind(rule: Rule) -> str:
    module, _, qualname = rule.target.partition(":")
    return qualname if module == "builtins" else f"{module.lstrip('_')}.{qualname}"


def run(arguments: argparse.Namespace) -> int:
    """Print the table."""
    rows = policy_rows(import_libraries=arguments.installed)
    if arguments.json:
        print(json.dumps([dict(zip(COLUMNS, row, strict=True)) for row in rows], indent=2))
    elif arguments.markdown:
        print(markdown_table(COLUMNS, rows))
    else:
        print_table("What happens to what", COLUMNS, [tuple(cell.replace("`", "") for cell in row) for row in rows])
    return 0
