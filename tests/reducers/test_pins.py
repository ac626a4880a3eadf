"""A pinned reference notices that the source it was made from has changed."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import safepickle
from tests.helpers import run_script

MODULE = """
import triton
import triton.language as tl


@triton.jit
def scale(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) * {factor}, mask=i < n)


tuned = triton.autotune(configs=[triton.Config({{"BLOCK": 8}})], key=["n"])(scale)
"""

DUMP = """
import pinned_kernels, safepickle, sys
mode = sys.argv[1] if sys.argv[1] != "None" else None
open("k.pkl", "wb").write(safepickle.dumps([pinned_kernels.scale, pinned_kernels.tuned], pin=mode))
"""

LOAD = """
import pickle, warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    try:
        scale, tuned = pickle.load(open("k.pkl", "rb"))
        import pinned_kernels
        assert scale is pinned_kernels.scale and tuned is pinned_kernels.tuned
        print("loaded", sum("is not the one" in str(w.message) for w in seen))
    except pickle.UnpicklingError as error:
        print("refused", error)
"""


def run(folder, code, *arguments):
    (folder / "job.py").write_text(code)
    return run_script(folder / "job.py", args=arguments, cwd=folder, pythonpath=[folder]).strip()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pinned_kernels.py").write_text(MODULE.format(factor=2))
    return tmp_path


@pytest.mark.parametrize(
    ("mode", "unchanged", "changed"),
    [("raise", "loaded 0", "refused"), ("warn", "loaded 0", "loaded 2"), ("None", "loaded 0", "loaded 0")],
)
def test_changed_source_raises_or_warns_as_asked(folder, mode, unchanged, changed):
    run(folder, DUMP, mode)
    assert run(folder, LOAD) == unchanged
    (folder / "pinned_kernels.py").write_text(MODULE.format(factor=3))
    assert run(folder, LOAD).startswith(changed)


def test_verify_compares_pinned_sources_without_loading_the_file(folder):
    run(folder, DUMP, "raise")
    verify = "from safepickle.__main__ import main\nprint('status', main(['verify', 'k.pkl']))\n"
    assert run(folder, verify).endswith("status 0")
    (folder / "pinned_kernels.py").write_text(MODULE.format(factor=3))
    text = run(folder, verify)
    assert "its source has changed since" in text and text.endswith("status 1")


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="pin must be"):
        safepickle.dumps(1, pin="sometimes")


def test_a_pin_says_nothing_about_what_has_no_reference():
    assert pickle.loads(safepickle.dumps({"a": [1, 2]}, pin="raise")) == {"a": [1, 2]}
