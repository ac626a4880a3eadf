"""torch's Inductor takes the function out of its kernels before it pickles or copies them: does that still work?"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import safepickle

triton = pytest.importorskip("triton")
pytest.importorskip("torch")
triton_heuristics = pytest.importorskip("torch._inductor.runtime.triton_heuristics")
hints = pytest.importorskip("torch._inductor.runtime.hints")

from tests.fixtures.kernels import factories


@pytest.fixture
def tuner() -> Any:
    """A kernel as Inductor generates them, in its own kind of tuner."""
    device = hints.DeviceProperties(
        type="cuda", index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32,
    )  # fmt: skip
    signature = {"in_ptr0": "*fp32", "out_ptr0": "*fp32", "xnumel": "i32", "XBLOCK": "constexpr"}
    decorate = triton_heuristics.pointwise(
        size_hints={"x": 16},
        filename=__file__,
        triton_meta={"signature": signature, "device": device, "constants": {}, "configs": [{}]},
        inductor_meta={
            "grid_type": "Grid1D",
            "kernel_name": "triton_poi_fused_0",
            "mutated_arg_names": [],
            "backend_hash": "0",
        },
        min_elem_per_thread=0,
    )
    return decorate(factories.make_generated())


@pytest.fixture
def emptied(tuner: Any) -> Iterator[Any]:
    """The tuner within the span in which Inductor pickles or copies it."""
    values = tuner.prepare_for_pickle()
    yield tuner
    tuner.restore_after_unpickle(values)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_an_emptied_kernel_is_pickled_as_the_standard_library_does(emptied: Any, protocol: int) -> None:
    ours, theirs = (pickle.loads(dumps(emptied, protocol)) for dumps in (safepickle.dumps, pickle.dumps))
    assert type(ours) is type(theirs) is type(emptied)
    assert ours.fn is not emptied.fn and ours.fn.fn is None
    assert vars(ours.fn).keys() == vars(theirs.fn).keys()
    assert ours.fn.src == theirs.fn.src == emptied.fn.src
    assert ours.fn.arg_names == theirs.fn.arg_names
    ours.restore_after_unpickle(None)
    with ours.fn._hash_lock:
        assert ours.configs == theirs.configs


def test_an_emptied_kernel_is_copied_as_the_standard_library_does(emptied: Any) -> None:
    original = emptied.fn
    for twin in (safepickle.deepcopy(emptied), safepickle.deepcopy([emptied])[0], copy.deepcopy(emptied)):
        assert twin is not emptied and twin.fn is not original
        assert twin.fn.fn is None and twin.fn.src == original.src
        assert twin.fn.params is not original.params
    assert safepickle.copy(original) is not original


def test_its_function_back_in_place_the_kernel_is_shared_again(tuner: Any) -> None:
    values = tuner.prepare_for_pickle()
    kept = safepickle.deepcopy(tuner)
    tuner.restore_after_unpickle(values)
    assert kept.fn.fn is None
    assert safepickle.deepcopy([tuner.fn])[0] is tuner.fn
    assert safepickle.loads(safepickle.dumps(tuner.fn)) is tuner.fn
