"""What the README says about others, and about us beside them."""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import subprocess
import sys
import threading

import pytest

import safepickle

cloudpickle = pytest.importorskip("cloudpickle")

SCRIPT = """
import hashlib, sys
pickler = __import__(sys.argv[1])

class Trainer:
    names = {"a", "b", "c"}
    def step(self):
        return 1

print(hashlib.sha256(pickler.dumps(Trainer)).hexdigest())
"""

REENTRANT = """
import sys, threading
pickler = __import__(sys.argv[1])
lock = pickler.loads(pickler.dumps(threading.RLock()))
got = []
thread = threading.Thread(target=lambda: got.append(lock.acquire(timeout=2)), daemon=True)
thread.start()
thread.join(10)
print(got)
"""


def run(folder, code, name, seed="0"):
    (folder / "script.py").write_text(code)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "script.py", name], cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def have(name):
    if importlib.util.find_spec(name) is None:  # not imported here: dill changes the pickle module
        pytest.skip(f"{name} is not installed")
    return name


@pytest.mark.parametrize(("name", "different"), [("cloudpickle", 3), ("safepickle", 1)])
def test_bytes_of_a_scripts_class_in_three_processes(tmp_path, name, different):
    assert len({run(tmp_path, SCRIPT, name, seed) for seed in "123"}) == different


@pytest.mark.parametrize(("name", "acquired"), [("dill", "[False]"), ("safepickle", "[True]")])
def test_a_reentrant_lock_that_was_pickled(tmp_path, name, acquired):
    assert run(tmp_path, REENTRANT, have(name)) == acquired


def test_the_others_refuse_a_reentrant_lock():
    for module in (pickle, cloudpickle):
        with pytest.raises(TypeError):
            module.dumps(threading.RLock())


@pytest.mark.parametrize(("module", "value"), [(pickle, "mine"), (cloudpickle, 1j), (safepickle, "mine")])
def test_a_dispatch_table_that_is_assigned_late(module, value):
    file = io.BytesIO()
    pickler = module.Pickler(file)
    pickler.dispatch_table = {complex: lambda number: (str, ("mine",))}
    pickler.dump(1j)
    assert pickle.loads(file.getvalue()) == value


def test_lambdas_are_refused_by_the_standard_library_and_go_by_value_with_us():
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(lambda: 3)
    assert safepickle.loads(safepickle.dumps(lambda: 3))() == 3
