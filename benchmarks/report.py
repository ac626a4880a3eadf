"""How are the rows of a benchmark shown: in a terminal, and in Markdown?

Both show the same tables: one a group, a line a task, a column an alternative, and what the goals are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.common import Goal, Row

__all__ = ["Table", "goal_text", "markdown", "quantity", "show", "tables"]

#: Groups whose ratios read better as "so many times as fast".
AS_SPEED = ("object graphs", "models", "without the C core", "without private layouts", "one tensor, growing")

LABELS = {
    "copy": "copy.deepcopy",
    "by hand": "pickle, by hand",
}


@dataclass
class Table:
    """One table: a title, the columns, and the lines of text, each with whether its goals are met."""

    title: str
    columns: list[str]
    lines: list[list[str]]
    met: list[bool | None]


def tables(rows: Iterable[Row]) -> list[Table]:
    """The tables of a benchmark, in the order of its rows. Units that differ within a group make two tables."""
    members: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        members.setdefault((row.group, row.unit), []).append(row)
    return [_table(group, unit, found) for (group, unit), found in members.items()]


def _table(group: str, unit: str, rows: Sequence[Row]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in [*row.samples, *row.failures]))
    facts = list(dict.fromkeys(fact for row in rows for fact in row.facts if fact in ("objects", "tensors", "bytes")))
    goals = any(row.goals for row in rows)
    columns = ["", *facts, *[LABELS.get(name, name) for name in names], *(["goal"] if goals else [])]
    lines = []
    for row in rows:
        cells = [_cell(row, name, speed=group.startswith(AS_SPEED)) for name in names]
        numbers = [_fact(row, fact) for fact in facts]
        told = "; ".join(goal_text(goal, row) for goal in row.goals)
        lines.append([row.task, *numbers, *cells, *([told] if goals else [])])
    met = [None if not row.goals else not row.missed() for row in rows]
    title = group if unit in ("s", "x") else f"{group}: {'bytes' if unit == 'B' else unit}"
    return Table(title, columns, lines, met)


def _fact(row: Row, fact: str) -> str:
    value = row.facts.get(fact)
    if value is None:
        return ""
    return quantity(value, "B") if fact == "bytes" else f"{value:,.0f}"


def _cell(row: Row, name: str, speed: bool) -> str:
    if name not in row.samples:
        return "fails" if name in row.failures else ""
    text = quantity(row.median(name), row.unit) + _rate(row, name)
    ratio = row.ratio(name)
    if row.unit == "s" and ratio is not None and name != row.baseline:
        text += f" ({_times(1 / ratio)}x)" if speed else f" ({_times(ratio)})"
    return text + ("*" if name in row.failures else "")


def _rate(row: Row, name: str) -> str:
    """How much that is a second, where the size grows."""
    if not row.group.endswith("growing"):
        return ""
    fact = "bytes" if row.group.startswith("one tensor") else "tensors" if "tensors" in row.facts else "objects"
    rate = row.facts[fact] / row.median(name)
    return f", {rate / 1e9:.2g} GB/s" if fact == "bytes" else f", {rate / 1e6:.2g} M {fact}/s"


def _times(value: float) -> str:
    if value < 0.01:
        return "<0.01"
    return f"{value:.0f}" if value >= 20 else f"{value:.1f}" if value >= 2 else f"{value:.2f}"


def quantity(value: float, unit: str) -> str:
    """A value with its unit."""
    if unit == "s":
        return _scaled(value, (("s", 1), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)))
    if unit == "B":
        return _scaled(value, (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1)))
    if unit == "x":
        return f"{value:.2f}"
    return f"{value:,.0f}"


def _scaled(value: float, units: Sequence[tuple[str, float]]) -> str:
    for unit, scale in units:
        if abs(value) >= scale:
            return f"{value / scale:.3g} {unit}"
    unit, scale = units[-1]
    return f"{value / scale:.3g} {unit}"


def goal_text(goal: Goal, row: Row) -> str:
    """A goal in a few characters, with a mark that says whether it is met, and what was reached if it is not."""
    than = {"copy": "copy", "pickle": "pickle"}.get(goal.than or "", goal.than or "")
    if goal.kind == "faster":
        text = "not behind " + than if goal.bound < 1 else f"at least {goal.bound:g}x {than}"
    elif goal.kind == "part":
        text = f"at most {goal.bound:g} of {than}"
    elif goal.kind == "extra":
        text = f"at most {quantity(goal.bound, row.unit)} over {than}"
    else:
        text = f"{goal.kind} {quantity(goal.bound, row.unit)}"
    met = goal.met(row.samples)
    if met is None:
        return f"{text}: not measured"
    return f"{text} ✓" if met else f"{text} ✗ ({reached_text(goal, row)})"


def reached_text(goal: Goal, row: Row) -> str:
    reached = goal.reached(row.samples)
    if reached is None:
        return "not measured"
    if goal.kind == "faster":
        return f"{_times(reached)}x"
    if goal.kind == "part":
        return f"{reached:.3g}"
    return quantity(reached, row.unit)


def show(title: str, rows: Sequence[Row]) -> None:
    """Print the tables in the terminal, with colours where goals are met or not; under each, what failed and how."""
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console()
    if not console.is_terminal:
        console.width = 160
    console.print(f"\n[bold]{title}")
    for table in tables(rows):
        printed = RichTable(title=table.title, title_justify="left")
        for number, column in enumerate(table.columns):
            printed.add_column(column, justify="left" if number in (0, len(table.columns) - 1) else "right")
        for line, met in zip(table.lines, table.met, strict=True):
            colour = {True: "[green]", False: "[red]", None: ""}[met]
            printed.add_row(*line[:-1], colour + line[-1] if table.columns[-1] == "goal" else line[-1])
        console.print(printed)
    for told in failures(rows):
        console.print(f"  {told}", highlight=False)


def failures(rows: Iterable[Row]) -> list[str]:
    """Who fails at what, and how; the same failure of several tasks in one line."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, why in row.failures.items():
            tasks = found.setdefault((LABELS.get(name, name), why), [])
            task = row.task if row.unit == "s" or not tasks else ""
            if task and task not in tasks:
                tasks.append(task)
    lines = []
    for (name, why), tasks in found.items():
        shown = ", ".join(tasks[:3]) + (f" and {len(tasks) - 3} more" if len(tasks) > 3 else "")
        lines.append(f"{name}: {shown}: {why}")
    return lines


def markdown(table: Table) -> str:
    """The table in Markdown, without its title."""
    rule = ["---"] + ["---:" if column != "goal" else "---" for column in table.columns[1:]]
    lines: list[list[str]] = [table.columns, rule, *table.lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in lines)
