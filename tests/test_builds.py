"""Is a compiled module used only where it was built for these sources, and does Python serve otherwise?"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import safepickle
from safepickle._native import INTERFACES

from .helpers import run_python

NATIVE = Path(safepickle.__file__).parent / "_native"

#: What a program does, and what doctor says of it.
USES = """
    import safepickle
    from safepickle.__main__ import main
    from tests.test_builds import Point
    [point] = safepickle.loads(safepickle.dumps([Point(1)]))
    assert point.x == 1 and safepickle.deepcopy(point).x == 1
    main(["doctor", "--json"])
"""


class Point:
    def __init__(self, x):
        self.x = x


def said_by_doctor(before=""):
    rows = json.loads(run_python(before + USES, env={"SAFEPICKLE_PURE": None}))
    return {row["what"]: row for row in rows}


@pytest.mark.parametrize(("module", "twin"), [("_core", "copier"), ("_pickling", "pickler")])
@pytest.mark.parametrize("number", [None, 0, 999])
def test_a_module_built_from_other_sources_is_not_used(module, twin, number):
    stale = f"""
    import sys, types
    stale = types.ModuleType("safepickle._native.{module}")
    stale.__file__ = "stale.so"
    stale.INTERFACE = {number}
    sys.modules[stale.__name__] = stale
    """
    row = said_by_doctor(stale)[twin]
    assert row["version"] == "python"
    assert "built from other sources" in row["rules"] and "stale.so" in row["rules"]


@pytest.mark.parametrize(("module", "twin"), [("_core", "copier"), ("_pickling", "pickler")])
def test_a_module_that_is_not_built_is_missed_by_nobody(module, twin):
    row = said_by_doctor(f"""
    import sys
    sys.modules["safepickle._native.{module}"] = None
    """)[twin]
    assert row["version"] == "python" and "not here" in row["rules"]


@pytest.mark.skipif(not (NATIVE / "interface.h").exists(), reason="installed without the sources")
def test_both_sides_have_the_same_numbers():
    source = (NATIVE / "interface.h").read_text(encoding="utf-8")
    defined = re.findall(r"SAFEPICKLE_(\w+)_INTERFACE (\d+)", source)
    assert {f"_{name.lower()}": int(number) for name, number in defined} == INTERFACES
