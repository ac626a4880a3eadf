"""Has anything become slower? In counts, so the answer is the same on every machine. See :mod:`tests.guard`."""

from __future__ import annotations

import json
import shutil

import pytest

import safepickle
from benchmarks import recompile_work, workloads
from benchmarks.common import in_fresh_process
from tests import guard
from tests.counting import calls, for_each
from tests.guard_instructions import SLOW

MINE = json.loads(guard.BASELINE.read_text(encoding="utf-8")).get(guard.version(), {})
UPDATE = "if this is meant: python -m tests.guard update"

compiled = pytest.mark.skipif(guard.pure(), reason="the C core is not built, or not to be used")


def baseline(part):
    if part not in MINE:
        pytest.skip(f"no baseline for Python {guard.version()}: python -m tests.guard update")
    return MINE[part]


def check(found, part):
    assert not (lines := guard.complaints(baseline(part), found)), "\n".join([*lines, UPDATE])


# -- calls and allocations ---------------------------------------------------------------------------------------------


@compiled
def test_no_object_costs_more_calls_or_allocations_with_the_compiled_modules():
    check(guard.measured_elsewhere(guard.counts), "native")


def test_no_object_costs_more_calls_or_allocations_without_the_compiled_modules():
    check(guard.measured_elsewhere(guard.counts, SAFEPICKLE_PURE="1"), "pure")


@compiled
def test_no_tensor_or_layer_costs_more_calls():
    pytest.importorskip("torch")
    check(guard.measured_elsewhere(guard.counts_of_tensors), "tensors")


# -- instructions ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def instructions():
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    return guard.instructions()


@compiled
@pytest.mark.timeout(600)
def test_no_object_costs_more_instructions(instructions):
    expected = baseline("instructions")
    here = expected["interpreter"] == guard.identity()
    tolerance = guard.TOLERANCE if here else guard.TOLERANCE_ELSEWHERE
    assert not (lines := guard.complaints(expected["counts"], instructions, tolerance)), "\n".join([*lines, UPDATE])


@compiled
@pytest.mark.timeout(600)
def test_a_python_call_for_each_object_would_be_seen_in_the_instructions(instructions):
    fast = SLOW.removesuffix(" by a rule in Python")
    (line,) = guard.complaints({fast: instructions[fast]}, {fast: instructions[SLOW]}, guard.TOLERANCE_ELSEWHERE)
    assert line.startswith(fast)


# -- compilations ------------------------------------------------------------------------------------------------------

EVENTS = ("after deepcopy", "after loads in the same process")


@pytest.mark.parametrize("kind", ["importable", "closure", "autotune stack"])
def test_a_kernel_that_was_copied_or_loaded_is_not_compiled_or_read_again(kind, tmp_path):
    pytest.importorskip("triton")
    place = {"kind": kind, "device": "cpu", "folder": str(tmp_path)}
    told = in_fresh_process(recompile_work.write_kernel, {**place, "way": "safepickle", "rounds": 1}, timeout=110)
    assert told["failures"] == {}
    events = told["events"]
    assert events["first launch of all, cold disk"][0]["compiled"] == (3 if kind == "autotune stack" else 1)
    for event in (f"{start}, {disk} disk" for start in EVENTS for disk in ("warm", "cold")):
        (record,) = events[event]
        assert (event, record["compiled"], record["read"]) == (event, 0, 0)
    read = in_fresh_process(recompile_work.read_kernel, {**place, "way": "safepickle", "disk": "warm"}, timeout=110)
    assert read["compiled"] == 0


def test_a_kernel_that_is_made_again_would_be_seen(tmp_path):
    pytest.importorskip("triton")
    arguments = {"way": "by hand", "kind": "importable", "device": "cpu", "folder": str(tmp_path), "rounds": 1}
    events = in_fresh_process(recompile_work.write_kernel, arguments, timeout=110)["events"]
    for start in EVENTS:
        assert events[f"{start}, cold disk"][0]["compiled"] == 1
        assert events[f"{start}, warm disk"][0]["read"] == 1


def test_a_function_that_was_copied_or_loaded_is_not_traced_again(tmp_path):
    pytest.importorskip("tensorflow")
    found = in_fresh_process(
        recompile_work.write_function, {"way": "safepickle", "folder": str(tmp_path)}, timeout=110
    )
    traced = {
        kind: {event: record["traced"] for event, (record,) in told["events"].items()} for kind, told in found.items()
    }
    assert all(told["failures"] == {} for told in found.values())
    assert traced["importable tf.function"] == {
        "first call of all": 1,
        "the same object again": 0,
        "after deepcopy": 0,
        "after loads in the same process": 0,
    }
    assert traced["closure tf.function"]["after loads in the same process"] == 0
    # one that is bound to variables is traced for the copy's: once
    assert traced["tf.function of a method"]["after deepcopy"] == 1


# -- does it notice? ---------------------------------------------------------------------------------------------------


def test_a_python_call_more_for_each_object_is_a_complaint():
    registry = safepickle.Registry()
    registry.register(workloads.Leaf, copy=lambda obj, memo: workloads.Leaf(obj.number, obj.weight, obj.name))

    def calls_of(function):
        return for_each(workloads.leaves, lambda obj: calls(lambda: function(obj)).python, 50)

    name = "calls, deepcopy, dataclasses of atoms"
    before = {name: calls_of(safepickle.deepcopy)}
    after = {name: calls_of(lambda obj: safepickle.deepcopy(obj, registry=registry)) + before[name]}
    assert guard.complaints(before, before) == []
    assert guard.complaints(before, after) == [f"{name}: {after[name]:g}, where the baseline is {before[name]:g}"]


@compiled
def test_going_on_without_the_compiled_modules_is_a_complaint():
    slower = guard.measured_elsewhere(guard.counts, SAFEPICKLE_PURE="1")
    lines = guard.complaints(baseline("native"), slower)
    for name in ("dataclasses", "JSON-like records", "objects with slots"):
        assert any(line.startswith(f"calls, deepcopy, {name}:") for line in lines)
    assert any(line.startswith("calls, dumps, dataclasses:") for line in lines)


def test_what_has_no_baseline_is_a_complaint():
    assert guard.complaints({}, {"calls": 0}) == ["calls: 0, and no baseline"]


@pytest.mark.parametrize(("value", "told"), [(1.1, 0), (1.14, 0), (1.17, 1), (0.2, 0)])
def test_instructions_may_grow_by_the_tolerance(value, told):
    assert len(guard.complaints({"a": 1.0}, {"a": value}, guard.TOLERANCE)) == told
