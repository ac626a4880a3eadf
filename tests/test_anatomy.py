"""What is in a pickle is found out without running it, and a malformed file is a finding, not a crash."""

import io
import os
import pickle
import random
import struct
import threading
import time

import pytest

import safepickle
from safepickle.anatomy import Malformed, read_file, read_pickle
from safepickle.commands.inspect import describe


class Thing:
    def __init__(self):
        self.name, self.rows = "thing", [1, 2, 3]


def anatomy(data: bytes):
    return read_pickle(io.BytesIO(data), len(data))


def payload(protocol=None):
    return safepickle.dumps(
        {
            "thing": Thing(),
            "lock": threading.Lock(),
            "text": "é" * 300,
            "data": b"x" * 70_000,
            "set": {1},
            "pair": (1.5, -3),
            "big": 1 << 200,
        },
        protocol,
    )


@pytest.mark.parametrize("protocol", range(6))
def test_every_protocol_is_followed_to_its_end(protocol):
    data = payload(protocol)
    found = anatomy(data)
    assert found.problem is None
    assert (found.end, found.protocol) == (len(data), protocol if protocol >= 2 else 0)
    assert found.root.kind == "dict" and found.root.count == 14


def test_names_are_counted_and_nothing_is_imported(tmp_path):
    data = pickle.dumps([1], 4).replace(b"]", b"]")
    evil = b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x0etouch /tmp/xyz\x85R."
    found = anatomy(evil)
    assert found.globals == {"posix.system": 1} and found.calls == {"posix.system": 1}
    assert anatomy(data).globals == {}
    assert not os.path.exists("/tmp/xyz")


def test_a_function_by_value_shows_its_source_and_the_python_that_wrote_it():
    import sys

    (function,) = describe(anatomy(safepickle.dumps(lambda x: x + 41)))["functions"]
    assert "lambda x: x + 41" in function["source"]
    assert function["python"] == sys.implementation.cache_tag


def test_sizes_are_those_of_the_parts():
    parts = {entry["part"]: entry["bytes"] for entry in describe(anatomy(payload()))["parts"]}
    assert 70_000 <= parts["['data']"] < 70_020
    assert next(iter(parts)) == "['data']"


def test_several_pickles_in_one_file(tmp_path):
    path = tmp_path / "three.pkl"
    path.write_bytes(pickle.dumps(1) + pickle.dumps("two", 0) + payload())
    document = read_file(path)
    assert document.problem is None and len(document.pickles) == 3
    assert [found.root.kind for found in document.pickles] == ["number", "text", "dict"]


def test_a_large_argument_is_skipped_and_not_read(tmp_path):
    path = tmp_path / "large.pkl"
    size = 3 << 30
    with path.open("wb") as file:  # a sparse file: three gigabytes that take no room
        file.write(b"\x80\x04\x8e" + struct.pack("<Q", size))
        file.seek(size, 1)
        file.write(b".")
    before = time.process_time()
    document = read_file(path)
    assert document.problem is None and document.pickles[0].root.value[1] == size
    assert time.process_time() - before < 5


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "no pickle here"),
        (b"\x80\x04", "ends before the pickle does"),
        (b"\x80\x09.", "protocol 9"),
        (b"\xff", "no opcode"),
        (b"\x80\x04.", "stack is empty"),
        (b"\x80\x04h\x07.", "nothing in the memo"),
        (b"\x80\x04e.", "no mark"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60), "bytes where"),
        (b"\x80\x04\x95" + struct.pack("<Q", 1 << 60), "frame"),
        (b"Iabc\n.", "not a number"),
        (b"\x80\x04}(K\x01u.", "a key without a value"),
        (b"\x80\x04K\x01K\x02\x93.", "not a text"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(data, problem):
    found = anatomy(data)
    assert problem in found.problem and found.problem.startswith("at byte")


@pytest.mark.timeout(300)
def test_ten_thousand_damaged_pickles_are_findings_and_none_is_a_crash():
    generator = random.Random(20)
    originals = [payload(p) for p in range(6)] + [safepickle.dumps(lambda x: x), pickle.dumps([Thing()] * 50)]
    originals = [data.replace(b"x" * 70_000, b"x" * 100) for data in originals]
    kinds = {"fine": 0, "finding": 0}
    for _ in range(10_000):
        data = bytearray(generator.choice(originals))
        for _ in range(generator.randint(1, 6)):
            how = generator.random()
            place = generator.randrange(len(data))
            if how < 0.5:
                data[place] = generator.randrange(256)
            elif how < 0.7:
                del data[place : place + generator.randint(1, 20)]
            elif how < 0.9:
                data[place:place] = generator.randbytes(generator.randint(1, 20))
            else:
                del data[place:]
            if not data:
                data = bytearray(b".")
        started = time.process_time()
        found = anatomy(bytes(data))
        assert time.process_time() - started < 2
        describe(found)
        kinds["fine" if found.problem is None else "finding"] += 1
    assert kinds["finding"] > 5_000 and sum(kinds.values()) == 10_000


def test_a_pickle_that_grows_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr("safepickle.anatomy.MAX_NODES", 1000)
    found = anatomy(b"\x80\x04" + b"K\x01" * 5000 + b".")
    assert "gave up" in found.problem


def test_malformed_is_a_value_error():
    assert issubclass(Malformed, ValueError)
