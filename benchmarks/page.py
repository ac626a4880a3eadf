"""Writes README.md from the results: what a user in a hurry wants to know first, then the plots, then every table.

``python -m benchmarks readme``. The text is a function of the committed JSON alone, so a test can compare.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import SCRIPTS
from benchmarks.common import Goal, Row, read_json
from benchmarks.plot_names import PLOTS
from benchmarks.reasons import reason
from benchmarks.report import failures, goal_text, markdown, quantity, reached_text, tables

__all__ = ["render", "write"]

README = Path(__file__).resolve().parent / "README.md"
DEVICES = ("cpu", "cuda")

#: script -> what its part of the page is called, and the alternative text of its plots.
TITLES = {
    "copy_throughput": "deepcopy",
    "pickle_throughput": "dumps and loads",
    "kernel_recompile": "The first launch after a copy",
    "overhead": "Overhead",
    "import_time": "Import time",
}

#: script -> what one has to know to read its figures.
NOTES = {
    "copy_throughput": """\
- *objects*: those that `copy.deepcopy` enters in its memo: containers and instances, not what they hold of atoms.
- *clones of the tensors*: `tensor.clone()` for each parameter and buffer, and nothing else: the limit.
- *without private layouts*: the C core reads some of Python's own structures where it knows the version; this is
  without (`SAFEPICKLE_PORTABLE=1`), as it is on versions that it does not know.
- *history*: copium clears a table that has grown at each later call.
- *memory*: what stays when a copy is gone is what the source has grown by (the standard library gives each instance a
  `__dict__`) or a leak.""",
    "pickle_throughput": """\
- Each alternative loads what it has written itself. Pickles of plain objects are the standard library's, byte for byte.
- *in-band*: the tensor's bytes are in the pickle; *out-of-band*: beside it (PEP 574), and nothing is copied.
- *memory*: beyond what was there before, as a part of the bytes; files are written to and read from a disk.""",
    "kernel_recompile": """\
- *by hand*: the standard library, with a `__getstate__` that drops the kernel, and a `__setstate__` that makes it
  again.
- *warm* and *cold*: Triton's cache on disk has the result of the compilation, or not. Without a GPU it compiles for
  sm_90, with the real `ptxas`; the time is that of the compilation, and nothing is launched.
- dill takes what was compiled along in its pickle (tens to hundreds of kB), and makes a second kernel that is not the
  module's. That this works on a GPU, where kernels are loaded into the device, is not shown here.
- A `tf.function` that is bound to variables is traced once for the copy's: its graph is for the original's.""",
    "overhead": """\
- *references*: what one kernel or function adds to a call; what it takes to find its name, and to check it.""",
    "import_time": "",
}

HOW = """\
## How to run them

    make bench                                              # all of them; about a quarter of an hour
    python -m benchmarks all                                # the same, in an environment of your own
    python -m benchmarks copy_throughput --output out       # one of them, elsewhere
    python -m benchmarks all --device cuda                  # models, tensors and kernels on a GPU
    python -m benchmarks copy_throughput --python python3.12  # and on another Python
    python -m benchmarks all --quick --output out           # do they run? The figures mean little
    python -m benchmarks readme                             # this page, from the JSON

They need the extra `bench`, and measure what is installed beside it: torch, Triton, TensorFlow, copium, cloudpickle,
dill, networkx. `--check` exits with status 1 where a goal is missed. What must not get slower unseen is counted, not
timed, in `tests/test_guard.py` (`make guard`).

## How to read the figures

- The alternatives of a row run interleaved in one process, in rotating order, with the garbage collector on; each row
  has a process of its own. A *ratio* is the median over the rounds of the ratio within a round.
- Times are CPU times of the thread, which repeat within about five percent on a busy machine, where wall time does
  not; frameworks run with one thread. Launches of kernels, calls of a `tf.function` and all times on a GPU are wall
  times.
- In brackets: how many times as fast as the first column (with an x), or which part of its time (without).
- Ratios travel between machines better than times do, but not perfectly: they depend on how the interpreter was
  built. The JSON has every round, and names machine, interpreter and versions.
"""


Results = dict[str, tuple[dict[str, Any], list[Row]]]


def write(results: Path) -> None:
    README.write_text(render(results), encoding="utf-8")


def render(results: Path) -> str:
    """The page for the results in a folder, which has one folder a device.

    Args:
        results: the folder.

    Returns:
        The text of README.md.
    """
    found: dict[str, Results] = {}
    for device in DEVICES:
        files = {name: results / device / f"{name}.json" for name in SCRIPTS}
        found[device] = {name: read_json(file) for name, file in files.items() if file.exists()}
    parts = [
        "<!-- written by `python -m benchmarks readme` from results/: change that, not this -->",
        "# Benchmarks",
        _findings(found["cpu"]),
    ]
    parts += [_section(name, "cpu", *found["cpu"][name]) for name in SCRIPTS if name in found["cpu"]]
    parts.append(_goals(found["cpu"]) if found["cpu"] else "")
    parts.append(_cuda(found["cuda"]))
    parts.append(HOW)
    parts.append(_machine(found) if any(found.values()) else "")
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


# -- the finding -------------------------------------------------------------------------------------------------------


def _findings(results: Results) -> str:
    """A sentence for each script, from its figures."""
    lines = []
    for name, tell in _TELL.items():
        if name in results:
            lines += [f"- {sentence}" for sentence in tell(results[name][1]) if sentence]
    rows = [row for _, rows in results.values() for row in rows]
    goals = [(goal.met(row.samples), goal) for row in rows for goal in row.goals]
    known = [met for met, _ in goals if met is not None]
    if not results:
        return "Nothing has been measured yet."
    lines.append(f"- {sum(known)} of {len(known)} goals are met; [the others](#goals-that-are-not-met), with reasons.")
    return "\n".join(lines)


def _in(rows: Iterable[Row], *groups: str) -> list[Row]:
    return [row for row in rows if row.group in groups]


def _speeds(rows: Iterable[Row], than: str) -> list[float]:
    goal = Goal("safepickle", "faster", 1, than)
    return sorted(speed for row in rows if (speed := goal.reached(row.samples)) is not None)


def _span(values: Sequence[float], digits: str = ".0f") -> str:
    low, high = format(values[0], digits), format(values[-1], digits)
    return low if low == high else f"{low} to {high}"


def _copy(rows: list[Row]) -> list[str]:
    sentences = []
    graphs = _in(rows, "object graphs")
    speeds = _speeds(graphs, "copy")
    if speeds:
        against = _speeds(graphs, "copium")
        text = f"**`deepcopy` of objects: {_span(speeds)} times as fast as `copy.deepcopy`**"
        text += f" (median {statistics.median(speeds):.0f})"
        if against:
            ahead = sum(speed > 1 for speed in against)
            text += f", and ahead of copium in {ahead} of {len(against)} workloads"
            text += f" (median {statistics.median(against):.1f} times as fast)"
        sentences.append(text + ".")
    models = [row for row in _in(rows, "models") if not row.task.startswith("large")]
    if speeds := _speeds(models, "copy"):
        text = f"**Models: {_span(speeds, '.1f')} times as fast**; large parameters at the speed of cloning them."
        sentences.append(text)
    return sentences


def _pickle(rows: list[Row]) -> list[str]:
    from benchmarks.pickle_work import INSTANCES

    def parts(verb: str, wanted: Callable[[Row], bool]) -> list[float]:
        members = [row for row in rows if row.group in (f"{verb}, objects", f"{verb}, tensors") and wanted(row)]
        return sorted(ratio for row in members if (ratio := row.ratio("safepickle")) is not None)

    sentences = []
    instances = parts("dumps", lambda row: row.task in INSTANCES)
    plain = parts("dumps", lambda row: row.group == "dumps, objects" and row.task not in INSTANCES)
    if instances and plain:
        sentences.append(
            f"**`dumps`: {_span(instances, '.2f')} of `pickle`'s time for instances**, {_span(plain, '.2f')} for plain "
            "containers, strings and numbers, byte for byte the same pickles."
        )
    dumps = parts("dumps", lambda row: row.group == "dumps, tensors")
    loads = parts("loads", lambda row: row.group == "loads, tensors")
    if dumps and loads:
        sentences.append(
            f"**Many tensors: {_span(dumps, '.2f')} of `pickle`'s time for `dumps`, {_span(loads, '.2f')} for "
            "`loads`**."
        )
    return sentences


def _recompile(rows: list[Row]) -> list[str]:
    events = ("after deepcopy", "after loads in the same")
    kernels = [row for row in rows if row.group.endswith("kernel") and row.task.startswith(events)]
    compiled = [row for row in kernels if row.unit == "compilations"]
    if not compiled:
        return []
    ours = int(max(row.median("safepickle") for row in compiled))
    by_hand = int(max(row.median("by hand") for row in compiled if "by hand" in row.samples))
    times = {
        way: sorted(row.median(way) for row in kernels if row.unit == "s" and way in row.samples)
        for way in ("safepickle", "by hand")
    }
    return [
        f"**Kernels: {ours} compilations after a copy, and after `loads` in the same process**, where the usual "
        f"`__getstate__` that drops and re-creates them compiles up to {by_hand} again. The first launch takes "
        f"{quantity(times['safepickle'][0], 's')} to {quantity(times['safepickle'][-1], 's')}, not "
        f"{quantity(times['by hand'][0], 's')} (read from disk) to {quantity(times['by hand'][-1], 's')}."
    ]


def _overhead(rows: list[Row]) -> list[str]:
    goal = Goal("safepickle", "extra", 0, "pickle")
    found = [goal.reached(row.samples) for row in rows if row.task == "dumps of 1"]
    return [
        f"The smallest call, `dumps(1)`, takes {quantity(extra, 's')} more than `pickle.dumps(1)`."
        for extra in found
        if extra is not None
    ]


def _import(rows: list[Row]) -> list[str]:
    (row,) = rows
    ours, theirs = row.median("import safepickle"), row.median(str(row.baseline))
    return [f"`import safepickle` takes {quantity(ours, 's')}; `{row.baseline}` takes {quantity(theirs, 's')}."]


_TELL: dict[str, Callable[[list[Row]], list[str]]] = {
    "copy_throughput": _copy,
    "pickle_throughput": _pickle,
    "kernel_recompile": _recompile,
    "overhead": _overhead,
    "import_time": _import,
}


# -- sections ----------------------------------------------------------------------------------------------------------


def _section(name: str, device: str, head: dict[str, Any], rows: list[Row]) -> str:
    parts = [f"## {TITLES[name]}", head["question"]]
    for plot in PLOTS[name]:
        parts.append(f"![{TITLES[name]}: plot of the tables below](results/{device}/{plot}.svg)")
    if NOTES[name]:
        parts.append(NOTES[name])
    parts.append(_details(rows))
    return "\n\n".join(parts)


def _details(rows: list[Row]) -> str:
    """Every table, folded; what failed, and how, is below."""
    parts = ["<details><summary>Tables</summary>"]
    for table in tables(rows):
        parts += [f"**{table.title}**", markdown(table)]
    failed = failures(rows)
    if failed:
        told = "\n".join(f"- {line}" for line in failed)
        star = " `*`: it works up to there." if any(row.unit == "levels" for row in rows) else ""
        parts += [f"**What fails, and how.**{star}", _plain(told)]
    parts.append("</details>")
    return "\n\n".join(parts)


def _plain(text: str) -> str:
    """Error messages have signs that Markdown would take as its own."""
    return text.replace("<", "&lt;").replace(">", "&gt;").replace("_", "\\_")


def _goals(results: Results) -> str:
    lines = ["## Goals that are not met", "", "| what | goal | reached | why |", "| --- | --- | ---: | --- |"]
    some = False
    for name in SCRIPTS:
        for row in results[name][1] if name in results else ():
            for goal in row.missed():
                some = True
                told = goal_text(goal, row).partition(" ✗")[0]
                why = reason(row.group, row.task) or "not known yet"
                lines.append(f"| {row.group}: {row.task} | {told} | {reached_text(goal, row)} | {why} |")
    return "\n".join(lines) if some else "## Goals that are not met\n\nNone."


def _cuda(results: Results) -> str:
    if not results:
        return (
            "## On a GPU\n\nThere are no results yet: `python -m benchmarks all --device cuda` measures models, "
            "tensors and launches there, with the device's own clone bandwidth as the limit."
        )
    parts = ["## On a GPU"]
    parts += [_section(name, "cuda", *results[name]).replace("## ", "### ", 1) for name in SCRIPTS if name in results]
    return "\n\n".join(parts)


def _machine(found: dict[str, Results]) -> str:
    lines = ["## Where this was measured", ""]
    lines += ["| | date | commit | processor | Python | versions |", "|" + " --- |" * 6]
    for device, results in found.items():
        for name, (head, _) in results.items():
            where = head["circumstances"]
            versions = ", ".join(f"{what} {version}" for what, version in where["versions"].items() if version)
            machine = f"{where['processor']}, {where['cpus']} CPUs, {where['memory_GB']} GB"
            if where.get("gpu"):
                machine += f"; {where['gpu']}"
            python = where["python"].split()[0]
            commit = f"{where['commit']} ({where['compiled']})"
            lines.append(f"| {name}, {device} | {where['date'][:10]} | {commit} | {machine} | {python} | {versions} |")
    return "\n".join(lines)
