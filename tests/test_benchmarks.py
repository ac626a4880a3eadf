"""Do the benchmarks run, is their arithmetic right, and is their page that of the committed results?"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

import safepickle
from benchmarks import SCRIPTS, workloads
from benchmarks.common import (
    Goal,
    Row,
    Settings,
    at_least,
    at_most,
    extra,
    faster,
    in_fresh_process,
    interleave,
    measured,
    part_of,
    read_json,
    rotations,
    write_json,
)
from benchmarks.copy_graphs import GOALS as COPY_GOALS
from benchmarks.pickle_work import TASKS
from benchmarks.plot_names import PLOTS
from benchmarks.report import failures, goal_text, markdown, quantity, tables

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"

TIMES = {"pickle": [2.0, 4.0, 6.0], "safepickle": [1.0, 1.0, 3.0]}


# -- the arithmetic ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("goal", "reached", "met"),
    [
        (faster(2, "pickle"), 2.0, True),
        (faster(2.1, "pickle"), 2.0, False),
        (part_of(0.5, "pickle"), 0.5, True),
        (part_of(0.49, "pickle"), 0.5, False),
        (extra(0, "pickle"), -3.0, True),
        (extra(-3.5, "pickle"), -3.0, False),
        (at_most(1), 1.0, True),
        (at_least(2), 1.0, False),
        (faster(2, "absent"), None, None),
        (at_most(1, of="absent"), None, None),
    ],
)
def test_a_goal_is_compared_with_the_median_over_the_rounds(goal, reached, met):
    assert (goal.reached(TIMES), goal.met(TIMES)) == (reached, met)


def test_a_ratio_is_the_median_of_the_ratios_within_a_round():
    row = Row("group", "task", TIMES, "pickle")
    assert row.ratio("safepickle") == 0.5
    assert row.ratio("pickle") == 1
    assert row.ratio("absent") is None


def test_every_alternative_takes_every_place_in_turn():
    assert rotations("abc", 3) == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]


def test_alternatives_are_timed_alternately_and_one_that_fails_is_told():
    order = []

    def busy(name):
        order.append(name)
        end = time.thread_time() + 2e-3
        while time.thread_time() < end:
            pass

    def fails():
        raise ValueError("what a pity\nand more")

    told = {}
    times = interleave(
        {"a": lambda: busy("a"), "b": lambda: busy("b"), "c": fails},
        Settings(quick=True),
        failures=told,
    )
    assert told == {"c": "ValueError: what a pity"}
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3}
    assert "".join(order) == "aa" + "bb" + "ab" + "ba" + "ab"  # twice to warm up, then in turn


def test_a_function_runs_in_a_fresh_process_and_its_error_is_ours():
    assert in_fresh_process(measured_here, {"value": [1, 2]}) == [1, 2]
    assert measured(measured_here, {"value": (1, 2)}, Settings(quick=True)) == [1, 2]
    with pytest.raises(RuntimeError, match="ValueError: no"):
        in_fresh_process(measured_here, {"value": None})


def measured_here(value):
    if value is None:
        raise ValueError("no")
    return value


def test_rows_come_back_from_json(tmp_path):
    row = Row("group", "task", TIMES, "pickle", [part_of(0.4, "pickle")], facts={"objects": 7}, failures={"x": "why"})
    write_json(tmp_path / "a.json", "how?", [row], {"python": "3"})
    head, (back,) = read_json(tmp_path / "a.json")
    assert head == {"question": "how?", "quick": False, "circumstances": {"python": "3"}}
    assert back.as_json() == row.as_json()
    assert back.missed() == [Goal("safepickle", "part", 0.4, "pickle")]


def test_a_table_says_which_goal_was_missed_and_by_how_much():
    missed = Row("models", "a task", TIMES, "pickle", [faster(3, "pickle"), at_most(2)], failures={"dill": "Error: no"})
    (table,) = tables([missed])
    assert table.columns == ["", "pickle", "safepickle", "dill", "goal"]
    assert table.lines == [
        ["a task", "4 s", "1 s (2.0x)", "fails", "at least 3x pickle ✗ (2.0x); at most 2 s ✓"]
    ]
    assert table.met == [False]
    assert failures([missed]) == ["dill: a task: Error: no"]
    assert markdown(table).splitlines()[1] == "| --- | ---: | ---: | ---: | --- |"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "s", "12.3 ms"),
        (4.2e-6, "s", "4.2 µs"),
        (3e-8, "s", "30 ns"),
        (2_500_000, "B", "2.5 MB"),
        (0, "B", "0 B"),
        (1.234, "x", "1.23"),
        (30_000, "levels", "30,000"),
    ],
)
def test_quantities_have_units(value, unit, text):
    assert quantity(value, unit) == text


def test_a_goal_that_cannot_be_judged_says_so():
    assert goal_text(faster(2, "copium"), Row("g", "t", TIMES)) == "at least 2x copium: not measured"


# -- the workloads -----------------------------------------------------------------------------------------------------


def test_each_task_with_a_goal_is_a_workload():
    assert set(COPY_GOALS) | set(TASKS) <= set(workloads.GRAPHS)


@pytest.mark.parametrize("task", TASKS)
def test_pickles_of_plain_workloads_are_those_of_the_standard_library(task):
    make, size = workloads.GRAPHS[task]
    obj = make(min(size, 200))
    assert safepickle.dumps(obj, 5) == pickle.dumps(obj, 5)


@pytest.mark.parametrize("task", workloads.GRAPHS)
def test_workloads_are_copied_whole(task):
    make, size = workloads.GRAPHS[task]
    try:
        obj = make(min(size, 50))
    except ImportError as error:
        pytest.skip(str(error))
    # not the bytes of the pickles: what is shared among atoms may differ
    assert len(pickle.dumps(safepickle.deepcopy(obj), 5)) == pytest.approx(len(pickle.dumps(obj, 5)), rel=0.05)


# -- the scripts -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The results of a quick run of everything."""
    pytest.importorskip("rich")
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("results")
    command = [sys.executable, "-m", "benchmarks", "all", "--quick", "--output", str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_runs_and_leaves_its_figures_and_plots(quick, name):
    head, rows = read_json(quick / "cpu" / f"{name}.json")
    assert head["quick"]
    assert head["circumstances"]["versions"]["safepickle-ml"] == safepickle.__version__
    assert rows
    assert all(values for row in rows for values in row.samples.values())
    drawn = [plot for plot in PLOTS[name] if (quick / "cpu" / f"{plot}.svg").exists()]
    assert drawn or not rows
    for plot in drawn:
        assert ElementTree.parse(quick / "cpu" / f"{plot}.svg").getroot().tag.endswith("svg")
        assert (quick / "cpu" / f"{plot}.png").read_bytes().startswith(b"\x89PNG")


def test_a_quick_run_does_not_take_the_place_of_real_results():
    command = [sys.executable, "-m", "benchmarks", "import_time", "--quick"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--output" in done.stderr


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_is_that_of_the_committed_results():
    from benchmarks import page

    assert page.README.read_text(encoding="utf-8") == page.render(RESULTS), "run: python -m benchmarks readme"


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_committed_results_are_real_small_and_drawn(name):
    file = RESULTS / "cpu" / f"{name}.json"
    if not file.exists():
        pytest.skip("nothing has been measured")
    head, _ = read_json(file)
    assert not head["quick"]
    assert file.stat().st_size < 300_000
    for plot in PLOTS[name]:
        for ending in ("svg", "png"):
            assert 0 < (RESULTS / "cpu" / f"{plot}.{ending}").stat().st_size < 200_000


def test_committed_goals_follow_from_the_committed_values():
    for file in sorted(file for file in RESULTS.rglob("*.json") if file.stem in SCRIPTS):
        content = json.loads(file.read_text(encoding="utf-8"))
        for row in content["rows"]:
            assert Row.from_json(row).as_json()["goals"] == row["goals"], (file.name, row["task"])
