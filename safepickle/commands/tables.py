"""Tables for people: by rich where it is installed, else plain text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["markdown_table", "print_table"]


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their column names."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        _print_plain(title, columns, rows)
        return
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(_escape, row))
    console: Any = Console() if sys.stdout.isatty() else Console(width=150)
    console.print(table)


def _escape(text: str) -> str:
    from rich.markup import escape

    escaped: str = escape(text)
    return escaped


def _print_plain(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(str(row[i])) for row in [columns, *rows]) for i in range(len(columns))]
    print(title)
    for row in [columns, ["-" * width for width in widths], *rows]:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The rows as a Markdown table."""
    cells = [list(columns), ["---"] * len(columns), *[[cell.replace("|", "\\|") for cell in row] for row in rows]]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)
