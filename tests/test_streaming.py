"""How much memory do dumping and loading take beside the object? Counted in a fresh process where nothing else runs."""

from __future__ import annotations

import json

import pytest

from tests.helpers import run_python

CODE = """
    import importlib.util, json, pickle, tracemalloc
    import safepickle

    objects = {{
        "bytes": lambda size: bytes(size),
        "bytearray": lambda size: bytearray(size),
        "many": lambda size: [bytes([number % 256]) * 1000 for number in range(size // 1000)],
        "few": lambda size: {{number: bytearray(size // 10) for number in range(10)}},
        "buffers": lambda size: [pickle.PickleBuffer(bytearray(size // 10)) for number in range(10)],
    }}
    if importlib.util.find_spec("numpy"):
        import numpy
        objects["array"] = lambda size: numpy.zeros(size, numpy.uint8)
        objects["transposed"] = lambda size: numpy.zeros((size // 1000, 1000), numpy.uint8).T

    def peak_of(make, size):
        obj = make(size)
        {before}
        tracemalloc.start()
        {measured}
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak / size

    peaks = {{}}
    for name, make in objects.items():
        peak_of(make, 10_000)  # what is imported and cached is no part of it
        peaks[name] = peak_of(make, 10_000_000)
    print(json.dumps(peaks))
"""

DUMPS = {
    "dump": "with open('it.pkl', 'wb') as file: safepickle.dump(obj, file, 5)",
    "Pickler": "with open('it.pkl', 'wb') as file: safepickle.Pickler(file, 5).dump(obj)",
}
SAVED = "with open('it.pkl', 'wb') as file: pickle.dump(obj, file, 5); del obj"
LOADS = {
    "load": "with open('it.pkl', 'rb') as file: restored = safepickle.load(file)",
    "Unpickler": "with open('it.pkl', 'rb') as file: restored = safepickle.Unpickler(file).load()",
}


def peaks_of(measured, *, before="pass", cwd):
    """The most memory that was taken while something ran, as a part of the object's size, for objects of many kinds."""
    peaks = json.loads(run_python(CODE.format(measured=measured, before=before), cwd=cwd))
    assert "few" in peaks
    return peaks


@pytest.mark.parametrize("by", DUMPS)
def test_a_large_object_is_streamed_into_a_file(by, tmp_path):
    peaks = peaks_of(DUMPS[by], cwd=tmp_path)
    assert {name: peak for name, peak in peaks.items() if peak > 0.2} == {}


@pytest.mark.parametrize("by", LOADS)
def test_loading_from_a_file_takes_little_more_than_the_object(by, tmp_path):
    peaks = peaks_of(LOADS[by], before=SAVED, cwd=tmp_path)
    assert {name: peak for name, peak in peaks.items() if peak > 1.1} == {}


def test_the_pickle_in_memory_takes_little_more_than_its_length(tmp_path):
    peaks = peaks_of("data = safepickle.dumps(obj, 5)", cwd=tmp_path)
    assert peaks.pop("many") < 1.6  # the standard library's own dumps, which is faster for such
    assert {name: peak for name, peak in peaks.items() if peak > 1.2} == {}


def test_out_of_band_buffers_are_not_copied(tmp_path):
    peaks = peaks_of("data = safepickle.dumps(obj, 5, buffer_callback=lambda buffer: None)", cwd=tmp_path)
    assert peaks["buffers"] < 0.1
    assert peaks.get("array", 0) < 0.1 and peaks.get("transposed", 0) < 0.1
