"""The command line: ``python -m safepickle COMMAND``.

Exit status: 0 fine, 1 a finding, 2 the command could not do its work.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

__all__ = ["main"]

#: Command -> what it does; the module of that name in :mod:`safepickle.commands` holds it.
COMMANDS = {
    "inspect": "what is in a pickle or a torch file, without running it",
    "verify": "whether every name in a file is here; imports the modules that it names, but does not load it",
    "migrate": "rewrite names in a file, without running it",
    "explain": "what of an object can be pickled and copied, and what cannot",
    "demo": "a model with kernels, a compiled function, a lock and a lambda: what each pickler makes of it",
    "rules": "the policy table: what pickling and copying do with each kind of object",
    "doctor": "versions, which libraries are here, which rules serve them",
}


def build_parser() -> argparse.ArgumentParser:
    """The parser with a sub-parser for each command."""
    parser = argparse.ArgumentParser(
        prog="python -m safepickle", description="Pickle and copy what an ML program holds."
    )
    parser.add_argument(
        "--version", action="version", version=f"safepickle {importlib.import_module('safepickle').__version__}"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary)
        importlib.import_module(f"safepickle.commands.{name}").add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: the arguments; those of the process unless given.

    Returns:
        The exit status.
    """
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help()
        return 2
    try:
        status: int = importlib.import_module(f"safepickle.commands.{arguments.command}").run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # as with `| head`: whoever reads has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
