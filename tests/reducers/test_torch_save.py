"""``torch.save`` and ``torch.load`` with ``pickle_module=safepickle``: plain torch files that hold more than usual."""

from __future__ import annotations

import io
import pickle
import threading
import zipfile

import pytest

import safepickle
from tests.helpers import run_python

torch = pytest.importorskip("torch")

formats = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
protocols = pytest.mark.parametrize("protocol", [2, 3, 4, 5])


def save(obj, target, *, zipped=True, protocol=2):
    torch.save(obj, target, pickle_module=safepickle, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)


def load(source, **options):
    if isinstance(source, io.BytesIO):
        source.seek(0)
    return torch.load(source, pickle_module=safepickle, weights_only=False, **options)


def through(obj, **options):
    sink = io.BytesIO()
    save(obj, sink, **options)
    return load(sink)


class Odd(torch.nn.Module):
    """A module that plain pickle refuses."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(2, 2)
        self.lock = threading.RLock()
        self.scale = lambda x: x * 2
        self.register_buffer("head", self.lin.weight.detach()[:1])
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, x):
        with self.lock:
            return self.scale(self.lin(x))


@formats
@protocols
def test_a_module_that_plain_pickle_refuses(zipped, protocol, tmp_path):
    net, x = Odd(), torch.ones(1, 2)
    for target in (io.BytesIO(), tmp_path / "net.pt"):
        save(net, target, zipped=zipped, protocol=protocol)
        twin = load(target)
        assert torch.equal(twin(x), net(x))
        twin.head.zero_()
        assert twin.lin.weight[0].tolist() == [0.0, 0.0] and net.lin.weight[0].all()
        assert twin.generator.initial_seed() == 1


@formats
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_the_file_is_the_one_that_plain_torch_writes(zipped, protocol):
    tensors = {"base": torch.arange(6.0), "half": torch.arange(6.0)[:3], "weight": torch.nn.Parameter(torch.ones(2))}
    tensors["view"] = tensors["base"][2:]
    ours, theirs = io.BytesIO(), io.BytesIO()
    save(tensors, ours, zipped=zipped, protocol=protocol)
    torch.save(tensors, theirs, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    if zipped:
        ours, theirs = (zipfile.ZipFile(f) for f in (ours, theirs))
        names = [sorted(name.partition("/")[2] for name in file.namelist()) for file in (ours, theirs)]
        assert names[0] == names[1]
        pickles = [next(z.read(n) for n in z.namelist() if n.endswith("data.pkl")) for z in (ours, theirs)]
        assert pickles[0] == pickles[1]
    else:
        assert ours.getvalue() == theirs.getvalue()


STATES = {
    "module": lambda: torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).state_dict(),
    "optimizer": lambda: _stepped().state_dict(),
    "types": lambda: {
        name: torch.arange(3).to(getattr(torch, name))
        for name in ("bfloat16", "float8_e5m2", "uint16", "bool", "complex64")
    },
    "odd layouts": lambda: {"sparse": torch.eye(2).to_sparse(), "conj": torch.ones(2, dtype=torch.complex64).conj()},
    "parameter": lambda: {"w": torch.nn.Parameter(torch.ones(2))},
}


def _stepped():
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return optimizer


def equal(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, torch.Tensor):
        return a.dtype is b.dtype and torch.equal(a.to_dense().to(torch.complex64), b.to_dense().to(torch.complex64))
    return a == b


@pytest.mark.parametrize("make", STATES.values(), ids=STATES)
def test_a_state_dict_opens_without_us_mapped_and_with_weights_only(make, tmp_path):
    state = make()
    save(state, tmp_path / "state.pt")
    got = torch.load(tmp_path / "state.pt", weights_only=True, mmap=True)
    assert equal(state, got)


@formats
def test_a_state_dict_opens_where_safepickle_is_not_installed(zipped, tmp_path):
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    save({"net": net, "optimizer": optimizer}, tmp_path / "net.pt", zipped=zipped)
    code = """
        import sys
        sys.modules["safepickle"] = None  # as if it were not there
        import torch
        got = torch.load("net.pt", weights_only=False)
        assert got["optimizer"].param_groups[0]["params"][0] is got["net"].weight
        got["net"](torch.ones(1, 2)).sum().backward()
        got["optimizer"].step()
        print("stepped")
    """
    assert run_python(code, cwd=tmp_path).split() == ["stepped"]


@formats
def test_in_a_fresh_process_with_a_class_of_main(zipped, tmp_path):
    script = """
        import io, sys, threading, torch, safepickle

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.lin, self.lock, self.act = torch.nn.Linear(2, 2), threading.Lock(), lambda x: x + 1

            def forward(self, x):
                with self.lock:
                    return self.act(self.lin(x))

        net = Net()
        zipped = sys.argv[2] == "True"
        pair = (net, net(torch.ones(1, 2)))
        torch.save(pair, sys.argv[1], pickle_module=safepickle, _use_new_zipfile_serialization=zipped)
    """
    run_python(script, args=[tmp_path / "net.pt", str(zipped)])
    code = """
        import torch, safepickle
        net, want = torch.load("net.pt", pickle_module=safepickle, weights_only=False, map_location="cpu")
        assert torch.equal(net(torch.ones(1, 2)), want)
        print("same")
    """
    assert run_python(code, cwd=tmp_path).split() == ["same"]


@formats
def test_map_location_is_asked(zipped):
    sink, asked = io.BytesIO(), []
    save({"t": torch.ones(2), "f": lambda: 3}, sink, zipped=zipped)

    def place(storage, location):
        asked.append(location)
        return storage

    got = load(sink, map_location=place)
    assert asked == ["cpu"] and got["t"].tolist() == [1.0, 1.0] and got["f"]() == 3


def test_a_mapped_file_with_more_than_tensors(tmp_path):
    save(Odd(), tmp_path / "net.pt")
    twin = load(tmp_path / "net.pt", mmap=True)
    assert twin(torch.ones(1, 2)).shape == (1, 2)


@formats
def test_attributes_of_tensors_are_kept_as_torch_keeps_them(zipped):
    weight, plain = torch.nn.Parameter(torch.ones(2)), torch.ones(1)
    weight.loader, plain.mark = lambda p: p.sum(), threading.Lock()
    got = through([weight, plain], zipped=zipped)
    assert got[0].loader(got[0]) == 2.0 and got[1].mark.acquire(blocking=False)


def test_storages_of_their_own():
    tensor = torch.arange(4.0)
    storage, again = through([tensor.untyped_storage(), tensor.untyped_storage()])
    assert bytes(storage) == bytes(tensor.untyped_storage())
    again.fill_(0)
    assert bytes(storage) == bytes(16)


@formats
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_modules_are_as_torch_writes_them(zipped):
    net = through(torch.nn.LazyLinear(2), zipped=zipped)
    assert net(torch.ones(1, 3)).shape == (1, 2)


def test_the_other_pickles_of_a_legacy_file_are_plain():
    sink = io.BytesIO()
    save({"t": torch.ones(2)}, sink, zipped=False)
    sink.seek(0)
    assert pickle.load(sink) == 0x1950A86A20F9469CFC6C


def test_plain_pickle_of_the_same_object_afterwards_is_not_affected():
    net = Odd()
    through(net)
    twin = pickle.loads(safepickle.dumps(net))
    assert torch.equal(twin(torch.ones(1, 2)), net(torch.ones(1, 2)))
