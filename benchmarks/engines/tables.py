"""How is the proof shown: on the screen, and as the generated part of a page?"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .trips import WORKS

__all__ = ["markdown", "print_proof", "write_block"]

COLUMNS = ("engine", "payload", "without", "with", "bytes", "time ratio")


def outcome(cell: Mapping[str, Any]) -> str:
    """What became of a payload in both directions, in a line where both are alike."""
    there, back = (in_words(cell[direction]) for direction in ("there", "back"))
    return there if there == back else f"there: {there}; back: {back}"


def in_words(outcome: str) -> str:
    """An outcome without the type of the error that a check of a payload raises."""
    return outcome.replace("silently wrong: AssertionError: ", "silently wrong: ")


def cells(line: Mapping[str, Any]) -> tuple[str, ...]:
    """One line's texts."""
    return (
        line["engine"],
        line["payload"],
        outcome(line["without"]),
        outcome(line["with"]),
        "" if line["bytes"] is None else f"{line['bytes']:,}",
        "" if line["time_ratio"] is None else f"{line['time_ratio']:.2f}",
    )


def print_proof(title: str, lines: Sequence[Mapping[str, Any]]) -> None:
    """Print the table."""
    table = Table(title=title, title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in COLUMNS[4:] else "left", overflow="fold")
    engine = None
    for place, line in enumerate(lines):
        texts = [escape(text) for text in cells(line)]
        texts[0], engine = ("" if line["engine"] == engine else texts[0]), line["engine"]
        for column, cell in ((2, line["without"]), (3, line["with"])):
            good = cell["there"] == cell["back"] == WORKS
            texts[column] = f"[{'green' if good else 'red'}]{texts[column]}[/]"
        last = place + 1 == len(lines) or lines[place + 1]["engine"] != engine
        table.add_row(*texts, end_section=last)
    (Console() if sys.stdout.isatty() else Console(width=170)).print(table)


def markdown(lines: Sequence[Mapping[str, Any]]) -> str:
    """The table for a page; messages in code type."""
    rows = [COLUMNS, ["---", "---", "---", "---", "---:", "---:"], *(_markdown_cells(line) for line in lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _markdown_cells(line: Mapping[str, Any]) -> tuple[str, ...]:
    texts = list(cells(line))
    for column, cell in ((2, line["without"]), (3, line["with"])):
        if cell["there"] == cell["back"]:
            texts[column] = _said(cell["there"])
        else:
            texts[column] = f"there: {_said(cell['there'])}<br>back: {_said(cell['back'])}"
    return tuple(texts)


def _said(outcome: str) -> str:
    outcome = in_words(outcome)
    if outcome in (WORKS, "hangs") or outcome.startswith("silently"):
        text = outcome if outcome == WORKS else f"**{outcome}**"
    else:
        text = f"`{outcome.replace('`', chr(39))}`"
    return text.replace("|", "\\|")


def write_block(page: Path, name: str, content: str) -> None:
    """Replace what stands between ``<!-- NAME: ... -->`` and ``<!-- end of NAME -->``."""
    text = page.read_text(encoding="utf-8")
    block = re.compile(rf"(<!-- {name}: [^>]* -->\n)(.*?)(<!-- end of {name} -->)", re.DOTALL)
    if not block.search(text):
        raise ValueError(f"{page} has no block {name!r}")
    page.write_text(block.sub(lambda found: f"{found[1]}\n{content}\n\n{found[3]}", text), encoding="utf-8")
