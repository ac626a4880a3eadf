"""How do the results look? Each script's plots, as SVG and PNG beside its JSON.

Colours are those of Okabe and Ito, which stay apart for colour-blind eyes, and every alternative has a marker of its
own. Axes of times and ratios are logarithmic.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.common import Row
from benchmarks.plot_names import PLOTS
from benchmarks.report import quantity

__all__ = ["draw"]

#: Alternative -> label, colour, marker.
STYLES: dict[str, tuple[str, str, str]] = {
    "safepickle": ("safepickle", "#0072B2", "o"),
    "copy": ("copy.deepcopy", "#333333", "|"),
    "pickle": ("pickle", "#333333", "|"),
    "by hand": ("pickle, by hand", "#333333", "D"),
    "copium": ("copium", "#E69F00", "s"),
    "pickle round trip": ("pickle round trip", "#009E73", "^"),
    "cloudpickle": ("cloudpickle", "#CC79A7", "D"),
    "dill": ("dill", "#D55E00", "X"),
    "torch.save": ("torch.save, torch.load", "#56B4E9", "v"),
    "numpy": ("the same bytes in NumPy", "#009E73", "P"),
    "clones of the tensors": ("clones of the tensors alone", "#56B4E9", "v"),
    "one clone of the same bytes": ("one clone of the same bytes", "#999999", "P"),
    "install and uninstall": ("both calls", "#0072B2", "o"),
    "safepickle, rule": ("safepickle", "#0072B2", "o"),
    "more rules": ("with more rules", "#0072B2", "o"),
    "installed": ("after install()", "#0072B2", "o"),
    "import safepickle": ("import safepickle", "#0072B2", "o"),
}

SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "svg.fonttype": "none",
    "svg.hashsalt": "safepickle",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.fontsize": 9,
}


def draw(name: str, rows: Sequence[Row], folder: Path) -> None:
    """Draw what there is to see in the rows of a script, and write it as SVG and PNG."""
    with pyplot.rc_context(SETTINGS):
        for plot, function in zip(PLOTS[name], _FIGURES[name], strict=True):
            figure = function(rows)
            if figure is None:
                continue
            path = folder / plot
            folder.mkdir(parents=True, exist_ok=True)
            figure.savefig(f"{path}.svg", bbox_inches="tight", metadata={"Date": None})
            figure.savefig(f"{path}.png", bbox_inches="tight", dpi=110, metadata={"Software": None})
            pyplot.close(figure)


# -- parts -------------------------------------------------------------------------------------------------------------


def _style(name: str) -> tuple[str, str, str]:
    return STYLES.get(name, (name, "#999999", "."))


def _number(value: float, _: Any = None) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _dots(axes: Any, rows: Sequence[Row], names: Sequence[str], value: Callable[[Row, str], float | None]) -> None:
    """A line for each row, from the top, with a dot for each alternative."""
    for place, row in enumerate(rows):
        for name in reversed(names):
            x = value(row, name)
            if x is not None and x > 0:
                _, colour, marker = _style(name)
                main = name == names[0]
                axes.plot(x, place, marker, color=colour, markersize=7 if main else 5.5, zorder=3 if main else 2,
                          markeredgecolor="white", markeredgewidth=0.5)  # fmt: skip
    axes.set_yticks(range(len(rows)), [row.task for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", color="#eeeeee", linewidth=5)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)


def _log_x(axes: Any, label: str, formatter: Callable[..., str] = _number) -> None:
    axes.set_xscale("log")
    axes.set_xlabel(label)
    axes.xaxis.set_major_formatter(FuncFormatter(formatter))
    low, high = axes.get_xlim()
    if high / low < 100:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _legend(figure: Any, names: Iterable[str], extra: Sequence[Any] = (), columns: int = 4) -> None:
    handles = []
    for name in names:
        label, colour, marker = _style(name)
        handles.append(Line2D([], [], linestyle="", marker=marker, color=colour, label=label, markersize=7))
    figure.legend(handles=[*handles, *extra], loc="outside lower center", ncols=columns)


def _goal_marks(axes: Any, rows: Sequence[Row], value: Callable[[Row], float | None]) -> Any:
    """A mark where the goal of each row is; returns what explains it in a legend."""
    for place, row in enumerate(rows):
        x = value(row)
        if x is not None:
            axes.plot([x, x], [place - 0.38, place + 0.38], color="#0072B2", linewidth=1.4, alpha=0.55, zorder=1)
    return Line2D([], [], color="#0072B2", alpha=0.55, linestyle="", marker="|", markersize=9, label="goal")


def _of(rows: Iterable[Row], *groups: str) -> list[Row]:
    return [row for row in rows if row.group in groups]


def _present(rows: Iterable[Row], order: Sequence[str]) -> list[str]:
    there = {name for row in rows for name in row.samples}
    return [name for name in order if name in there]


# -- copies ------------------------------------------------------------------------------------------------------------


def _speedup(row: Row, name: str) -> float | None:
    ratio = row.ratio(name)
    return None if ratio is None else 1 / ratio


def _clip_left(
    axes: Any, rows: Sequence[Row], names: Sequence[str], value: Callable[[Row, str], float | None], left: float
) -> None:
    """Leave out what is far off all others, and write it at the edge."""
    for place, row in enumerate(rows):
        beyond = [(x, name) for name in names if (x := value(row, name)) is not None and x < left]
        for step, (x, name) in enumerate(beyond):
            axes.annotate(f"◂ {x:.2g}", (left * 1.05, place), color=_style(name)[1], fontsize=8, va="center",
                          xytext=(38 * step, 0), textcoords="offset points")  # fmt: skip
    axes.set_xlim(left=left)


def _speed_goal(row: Row) -> float | None:
    return next((goal.bound for goal in row.goals if goal.kind == "faster" and goal.than == "copy"), None)


def _copies(rows: Sequence[Row]) -> Any:
    graphs, models = _of(rows, "object graphs"), _of(rows, "models")
    shown = [*graphs, *models]
    if not shown:
        return None
    order = _present(shown, ["safepickle", "copium", "pickle round trip", "clones of the tensors",
                             "one clone of the same bytes"])  # fmt: skip
    figure, axes = pyplot.subplots(figsize=(8.6, 0.235 * len(shown) + 1.3), layout="constrained")
    _dots(axes, shown, order, _speedup)
    axes.axvline(1, color="#333333", linewidth=1)
    goal = _goal_marks(axes, shown, _speed_goal)
    _clip_left(axes, shown, order, _speedup, 0.15)
    _log_x(axes, "times as fast as copy.deepcopy (further right is faster)")
    if graphs and models:
        axes.axhline(len(graphs) - 0.5, color="#999999", linewidth=0.8, linestyle=":")
    axes.set_title("deepcopy, by what is copied")
    _legend(figure, order, [goal])
    return figure


#: group, what is counted a second, its fact, the axis
_GROWING = (
    ("dataclasses, growing", "objects a second", "objects", "dataclasses (int, list, dict)"),
    ("JSON-like records, growing", "objects a second", "objects", "JSON-like records"),
    ("small layers, growing", "tensors a second", "tensors", "small Linear layers"),
    ("one tensor, growing", "bytes a second", "bytes", "bytes of one tensor"),
)


def _sizes(rows: Sequence[Row]) -> Any:
    panels = [panel for panel in _GROWING if _of(rows, panel[0])]
    if not panels:
        return None
    figure, grid = pyplot.subplots(1, len(panels), figsize=(3.0 * len(panels), 3.3), layout="constrained")
    order = _present([row for panel in panels for row in _of(rows, panel[0])],
                     ["safepickle", "copium", "copy", "pickle round trip", "clones of the tensors",
                      "one clone of the same bytes"])  # fmt: skip
    for axes, (group, per_second, fact, label) in zip([grid] if len(panels) == 1 else grid, panels, strict=True):
        members = _of(rows, group)
        for name in order:
            points = [(row.facts["size"], row.facts[fact] / row.median(name)) for row in members if name in row.samples]
            if points:
                _, colour, marker = _style(name)
                marker = "_" if marker == "|" else marker
                axes.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=5, linewidth=1.3,
                          linestyle="--" if "clone" in name else "-")  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(label)
        axes.set_title(per_second)
        axes.grid(color="#e4e4e4", linewidth=0.6)
        axes.xaxis.set_major_formatter(FuncFormatter(_prefixed))
        axes.yaxis.set_major_formatter(FuncFormatter(_prefixed))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
    _legend(figure, order, columns=6)
    return figure


def _prefixed(value: float, _: Any = None) -> str:
    for prefix, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:g} {prefix}"
    return f"{value:g}"


# -- pickles -----------------------------------------------------------------------------------------------------------


def _pickles(rows: Sequence[Row]) -> Any:
    found = []
    for verb in ("dumps", "loads"):
        members = [row for row in rows if row.group.startswith(f"{verb}, ") and "without" not in row.group]
        found.append(members)
    if not any(found):
        return None
    order = _present([*found[0], *found[1]], ["safepickle", "cloudpickle", "dill", "torch.save", "numpy"])
    figure, grid = pyplot.subplots(
        1, 2, figsize=(9.4, 0.25 * len(found[0]) + 1.3), sharey=True, layout="constrained"
    )  # fmt: skip
    goal = None
    for axes, verb, members in zip(grid, ("dumps", "loads"), found, strict=True):
        _dots(axes, members, order, lambda row, name: row.ratio(name))
        axes.axvline(1, color="#333333", linewidth=1)
        goal = _goal_marks(axes, members, _part_goal)
        _clip_left(axes, members, order, lambda row, name: row.ratio(name), 0.03)
        _log_x(axes, "time, as a part of pickle's (further left is faster)")
        axes.set_title(verb)
    _legend(figure, order, [goal])
    return figure


def _part_goal(row: Row) -> float | None:
    return next((goal.bound for goal in row.goals if goal.kind == "part" and goal.than == "pickle"), None)


# -- kernels -----------------------------------------------------------------------------------------------------------

_WAYS = ["safepickle", "by hand", "dill", "cloudpickle", "copium", "pickle"]
_COUNTS = ("compilations", "traces")


def _kernels(rows: Sequence[Row]) -> Any:
    return _events(rows, lambda group: group.endswith("kernel"), "compilations")


def _functions(rows: Sequence[Row]) -> Any:
    return _events(rows, lambda group: "tf.function" in group, "traces")


def _events(rows: Sequence[Row], wanted: Callable[[str], bool], unit: str) -> Any:
    """A panel for each kind: the time of the first launch after each event, with what it compiled beside the dot."""
    groups = list(dict.fromkeys(row.group for row in rows if wanted(row.group)))
    if not groups:
        return None
    times = {group: [row for row in _of(rows, group) if row.unit == "s"] for group in groups}
    counts = {(row.group, row.task): row for row in rows if row.unit == unit}
    tallest = max(map(len, times.values()))
    width = 3.2 * len(groups) + 2.4
    figure, grid = pyplot.subplots(1, len(groups), figsize=(width, 0.42 * tallest + 1.1), sharey=True,
                                   layout="constrained")  # fmt: skip
    events = [row for members in times.values() for row in members if row.task.startswith("after")]
    order = _present(events, _WAYS)
    for axes, group in zip([grid] if len(groups) == 1 else grid, groups, strict=True):
        for place, row in enumerate(times[group]):
            _event(axes, place, row, counts[group, row.task], order)
        _event_axes(axes, times[group], "time of the launch" if unit == "compilations" else "time of the call")
        axes.set_title(group)
    note = Line2D([], [], linestyle="", marker="$3$", color="#333333", label=f"the number is that of {unit}")
    without = Line2D([], [], linestyle="", marker="o", color="#999999", label="no copy")
    _legend(figure, order, [without, note], columns=5)
    return figure


def _event(axes: Any, place: int, row: Row, counts: Row, order: Sequence[str]) -> None:
    """The dots of one event; what happens before any copy is made has one, for it does not depend on the way."""
    if row.task.startswith("after"):
        ways = [name for name in order if name in row.samples]
        dots = [(row.median(name), counts.median(name), *_style(name)[1:]) for name in ways]
    else:
        median = statistics.median(map(row.median, row.samples))
        dots = [(median, statistics.median(map(counts.median, counts.samples)), "#999999", "o")]
    for step, (seconds, count, colour, marker) in enumerate(dots):
        y = place + (step - (len(dots) - 1) / 2) * 0.27
        axes.plot(seconds, y, marker, color=colour, markersize=6.5, markeredgecolor="white", markeredgewidth=0.5)
        axes.annotate(f"{count:.0f}", (seconds, y), textcoords="offset points", xytext=(6, -3), fontsize=8,
                      color=colour, fontweight="bold" if count else "normal")  # fmt: skip


def _event_axes(axes: Any, members: Sequence[Row], label: str) -> None:
    axes.set_yticks(range(len(members)), [row.task for row in members])
    axes.set_ylim(len(members) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    for place in range(0, len(members), 2):
        axes.axhspan(place - 0.5, place + 0.5, color="#f4f4f4", zorder=0)
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.set_xlabel(label)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity(value, "s")))
    axes.xaxis.set_major_locator(LogLocator(numticks=5))
    axes.xaxis.set_minor_formatter(NullFormatter())


# -- overhead ----------------------------------------------------------------------------------------------------------

_OVERHEAD = ["safepickle", "cloudpickle", "dill", "copium", "safepickle, rule", "more rules", "installed",
             "import safepickle"]  # fmt: skip


def _ratios(rows: Sequence[Row]) -> Any:
    shown = [row for row in rows if row.unit == "s" and row.baseline is not None]
    if not shown:
        return None
    order = _present(shown, _OVERHEAD)
    figure, axes = pyplot.subplots(figsize=(9.4, 0.25 * len(shown) + 1.2), layout="constrained")
    _dots(axes, shown, order, lambda row, name: row.ratio(name))
    axes.set_yticks(range(len(shown)), [f"{row.task}; beside {_baseline(row)}" for row in shown])
    axes.axvline(1, color="#333333", linewidth=1)
    _log_x(axes, "time, as a part of that of what it is compared with (further left is faster)")
    axes.set_title("what a call costs, beside what it stands in for")
    labels: dict[str, str] = {}
    for name in order:
        labels.setdefault(_style(name)[1] + _style(name)[2], name)
    _legend(figure, labels.values())
    return figure


def _baseline(row: Row) -> str:
    return {"copy": "copy", "default registry": "fewer rules"}.get(str(row.baseline), str(row.baseline))


def _imports(rows: Sequence[Row]) -> Any:
    (row,) = rows
    figure, axes = pyplot.subplots(figsize=(7.0, 1.5))
    for place, (name, values) in enumerate(row.samples.items()):
        median = statistics.median(values)
        axes.barh(place, median * 1e3, color="#0072B2" if name == "import safepickle" else "#bbbbbb", height=0.6)
        axes.annotate(quantity(median, "s"), (median * 1e3, place), textcoords="offset points", xytext=(4, -3))
    axes.set_yticks(range(len(row.samples)), list(row.samples))
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("CPU time of the import, ms")
    return figure


#: For each script what draws its plots, in the order of their names.
_FIGURES: dict[str, tuple[Callable[[Sequence[Row]], Any], ...]] = {
    "copy_throughput": (_copies, _sizes),
    "pickle_throughput": (_pickles,),
    "kernel_recompile": (_kernels, _functions),
    "overhead": (_ratios,),
    "import_time": (_imports,),
}
