"""How much of dill's catalogue of standard-library objects goes through, here and elsewhere?

``dill._objects`` is a list of about 225 objects, made to find out what a pickler can do. It is made in a process of
its own, because it opens sockets and databases, with all four picklers in turn. To see the table: ``python -m pytest
-s -k table`` on this file.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from typing import Any

import pytest

from tests.helpers import run_python

__all__: list[str] = []

if importlib.util.find_spec("dill") is None:  # not by importing it: that changes the standard library's pickler
    pytest.skip("dill is not installed", allow_module_level=True)

PROBE = """
import warnings
warnings.simplefilter("ignore")
import json, pickle, cloudpickle, dill
from dill import _objects
import safepickle

catalogue = {**_objects.a, **_objects.d, **_objects.x, **_objects.registered, **_objects.failures}


def outcome(pickler, obj):
    try:
        pickler.loads(pickler.dumps(obj))
    except BaseException as error:
        kinds = [cls.__module__ + "." + cls.__qualname__ for cls in type(error).__mro__]
        return {"kinds": kinds, "message": str(error)}
    return None


def copied(obj):
    try:
        safepickle.deepcopy(obj)
    except BaseException as error:
        kinds = [cls.__module__ + "." + cls.__qualname__ for cls in type(error).__mro__]
        return {"kinds": kinds, "message": str(error)}
    return None


picklers = {"pickle": pickle, "cloudpickle": cloudpickle, "dill": dill, "safepickle": safepickle}
table = {name: {"type": type(obj).__name__} for name, obj in sorted(catalogue.items())}
for label, pickler in picklers.items():
    for name, obj in sorted(catalogue.items()):
        table[name][label] = outcome(pickler, obj)
for name, obj in sorted(catalogue.items()):
    table[name]["deepcopy"] = copied(obj)
print(json.dumps(table))
"""

#: What dill pickles and we refuse on purpose, and why.
REFUSED_ON_PURPOSE = {
    "TemporaryFileType": "it is gone when its owner closes it; dill gives back a handle on nothing",
    "PyCapsuleType": "a pointer into the memory of this process",
}


@functools.cache
def catalogue() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = json.loads(run_python(PROBE).splitlines()[-1])
    return table


def went_through(pickler: str) -> set[str]:
    return {name for name, row in catalogue().items() if row[pickler] is None}


def test_the_catalogue_is_there() -> None:
    assert len(catalogue()) > 200


@pytest.mark.parametrize("peer", ["pickle", "cloudpickle", "dill"])
def test_more_of_the_catalogue_goes_through_than_elsewhere(peer: str) -> None:
    ours, theirs = went_through("safepickle"), went_through(peer)
    assert len(ours) > len(theirs)
    assert sorted(theirs - ours - REFUSED_ON_PURPOSE.keys()) == []


@pytest.mark.parametrize("way", ["safepickle", "deepcopy"])
def test_each_refusal_is_an_error_of_ours_that_says_what_to_do(way: str) -> None:
    refused = {name: row[way] for name, row in catalogue().items() if row[way] is not None}
    for name, error in refused.items():
        assert "safepickle.errors.PicklingError" in error["kinds"], name
        first, _, rest = error["message"].partition("\n")
        assert first.startswith(("cannot pickle ", "cannot copy ")), name
        assert " at obj" in first, name
        assert "reason: " in rest, name
        says_why = "cannot travel by value" in rest or "safepickle.reducers.refusals.Refusal" in error["kinds"]
        assert says_why or "hint: " in rest, name


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    counts = {label: len(went_through(label)) for label in ("pickle", "cloudpickle", "dill", "safepickle", "deepcopy")}
    with capsys.disabled():
        print(f"\n{len(catalogue())} objects of dill's catalogue; through: {counts}")
    assert counts["deepcopy"] >= counts["pickle"]
