"""How much memory do copies and pickles of large tensors take? Measured in processes of their own, with some room."""

from __future__ import annotations

import sys

import pytest

from tests.helpers import run_python

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of a process from /proc")

PRELUDE = """
import gc, os, sys, tempfile
import torch, safepickle

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) << 10

def grows(function):
    gc.collect()
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")  # the peak is counted from here
    before = peak()
    result = function()
    return (peak() - before) / SIZE, result

SIZE = 192 << 20
"""

DUMP = """
tensor = torch.ones(SIZE // 4)
safepickle.dumps(torch.ones(1 << 20), 5)
for protocol in PROTOCOLS:
    with tempfile.TemporaryFile(dir=sys.argv[1]) as file:
        more, _ = grows(lambda: safepickle.dump({"weights": [tensor]}, file, protocol))
        assert file.tell() > SIZE
        print(f"{more:.3f}")
"""

LOAD = """
with open(os.path.join(sys.argv[1], "large.pickle"), "wb") as file:
    safepickle.dump({"weights": [torch.ones(SIZE // 4)]}, file, 5)
safepickle.loads(safepickle.dumps(torch.ones(1 << 20), 5))
with open(os.path.join(sys.argv[1], "large.pickle"), "rb") as file:
    more, back = grows(lambda: safepickle.load(file))
assert back["weights"][0][-1] == 1.0
print(f"{more:.3f}")
"""

COPY = """
net = torch.nn.Sequential(*[torch.nn.Linear(1 << 11, 1 << 11, bias=False) for _ in range(SIZE >> 24)])
safepickle.deepcopy(torch.nn.Linear(4, 4))
more, twin = grows(lambda: safepickle.deepcopy(net))
assert torch.equal(twin[0].weight, net[0].weight)
print(f"{more:.3f}")
"""


def measured(code, tmp_path):
    try:
        with open("/proc/self/clear_refs", "w") as clear:
            clear.write("5")
    except OSError:
        pytest.skip("the peak of a process cannot be reset here")
    return [float(word) for word in run_python(PRELUDE + code, args=[tmp_path]).split()]


def test_dumping_a_large_tensor_to_a_file_takes_no_memory(tmp_path):
    (more,) = measured(DUMP.replace("PROTOCOLS", "(5,)"), tmp_path)
    assert more < 0.1


def test_loading_a_large_tensor_from_a_file_takes_its_size(tmp_path):
    (more,) = measured(LOAD, tmp_path)
    assert 0.9 < more < 1.1


def test_copying_a_large_module_takes_its_size(tmp_path):
    (more,) = measured(COPY, tmp_path)
    assert 0.9 < more < 1.15
