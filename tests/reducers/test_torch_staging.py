"""Tensors on devices on their way into a pickle: a few ahead, together where they are small, in order of need."""

from __future__ import annotations

import io
import pickle

import pytest

import safepickle

torch = pytest.importorskip("torch")

from safepickle.reducers import torch_staging, torch_tensors
from safepickle.reducers.torch_staging import SMALL, Staging, storages_in


class Arrival:
    """What tells that a copy is there; the bytes come when somebody waits for it."""

    def __init__(self, pairs):
        self.pairs = pairs

    def synchronize(self):
        for source, target in self.pairs:
            target.copy_(source)
        self.pairs = []


class FakeTransfers:
    """Copies on the CPU, late, as those from a device are."""

    def __init__(self):
        self.started = []

    def start(self, storages):
        self.started.append([storage.nbytes() for storage in storages])
        sources = [torch.empty(0, dtype=torch.uint8).set_(storage) for storage in storages]
        targets = [torch.zeros_like(source) for source in sources]
        return targets, Arrival(list(zip(sources, targets, strict=True)))


def staging(root, ahead=1 << 30):
    transfers = FakeTransfers()
    return Staging(root, lambda storage: True, transfers, ahead), transfers


def read(stage, tensor):
    return stage.bytes_of(tensor.untyped_storage()).numpy().tobytes() == tensor.detach().numpy().tobytes()


def test_small_storages_travel_together_and_each_has_its_own_bytes():
    net = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(100)])
    stage, transfers = staging(net)
    assert all(read(stage, parameter) for parameter in net.parameters())
    assert [len(batch) for batch in transfers.started] == [1, 199]


def test_large_storages_are_on_their_way_before_they_are_asked_for():
    tensors = [torch.full((SMALL,), float(i)) for i in range(6)]
    stage, transfers = staging(tensors)
    read(stage, tensors[0])
    assert len(transfers.started) == 6
    assert all(read(stage, tensor) for tensor in tensors[1:]) and len(transfers.started) == 6


def test_no_more_is_on_its_way_than_was_allowed(monkeypatch):
    monkeypatch.setattr(torch_staging, "TOGETHER", 0)
    tensors = [torch.full((SMALL,), float(i)) for i in range(10)]
    size = tensors[0].nbytes
    stage, transfers = staging(tensors, ahead=2 * size)
    for done, tensor in enumerate(tensors, 1):
        assert read(stage, tensor)
        assert sum(map(sum, transfers.started)) <= (done + 3) * size


def test_what_was_not_found_ahead_is_copied_when_it_is_asked_for():
    hidden, known = torch.arange(3.0), torch.arange(4.0)
    stage, _ = staging([known])
    assert read(stage, hidden) and read(stage, known) and read(stage, torch.ones(2))


def test_a_shared_storage_travels_once():
    base = torch.arange(4.0)
    stage, transfers = staging([base, base[2:], torch.nn.Parameter(base), torch.ones(1)])
    read(stage, base)
    assert sum(map(sum, transfers.started)) == 20


def test_a_written_buffer_is_given_back_when_the_next_is_asked_for():
    tensors = [torch.ones(4), torch.zeros(4)]
    stage, _ = staging(tensors)
    buffer = pickle.PickleBuffer(stage.bytes_of(tensors[0].untyped_storage()).numpy())
    stage.written_next(buffer)
    assert memoryview(buffer).nbytes == 16
    stage.bytes_of(tensors[1].untyped_storage())
    with pytest.raises(ValueError, match="released"):
        memoryview(buffer)


def test_tensors_are_found_where_models_keep_them():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    root = {"net": net, "optimizer": optimizer, "more": [torch.ones(1), (torch.ones(2), torch.eye(2).to_sparse())]}
    root["me"] = root
    found = {storage._cdata for storage in storages_in(root, lambda storage: True)}
    wanted = [*net.parameters(), *net.buffers(), *(p.grad for p in net.parameters())]
    wanted += [value for state in optimizer.state.values() for value in state.values()]
    assert {tensor.untyped_storage()._cdata for tensor in wanted} <= found


@pytest.fixture
def staged(monkeypatch):
    """Tensors on the CPU are written as those on a device are; returns the transfers of each dump."""
    made = []

    def transfers():
        made.append(FakeTransfers())
        return made[-1]

    def bytes_of(storage, pickler):
        flat = torch_tensors._staging_of(storage, pickler).bytes_of(storage)
        buffer = pickle.PickleBuffer(flat.numpy())
        if pickler.buffer_callback is None and torch_tensors._copies_at_once(pickler):
            torch_tensors._dump_of(pickler).staging.written_next(buffer)
        return buffer

    monkeypatch.setattr(torch_tensors, "_STAGED", {"cpu"})
    monkeypatch.setattr(torch_tensors, "Transfers", transfers)
    monkeypatch.setattr(torch_tensors, "_bytes_of", bytes_of)
    return made


def rules():
    mine = safepickle.Registry()
    for cls in (torch.Tensor, torch.nn.Parameter):
        mine.add(cls, torch_tensors.reduce_tensor, with_pickler=True, origin=torch_tensors.ORIGIN)
    return mine


class Keeps:
    """A file that keeps what is written to it, as it is."""

    def __init__(self):
        self.parts = []

    def write(self, data):
        self.parts.append(data)


def test_a_pickle_holds_what_came_through_staging(staged, tmp_path):
    net = torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(5)])
    keeps = Keeps()
    safepickle.dump(net, keeps, 5, registry=rules())
    with open(tmp_path / "net.pickle", "wb") as file:
        safepickle.dump(net, file, 5, registry=rules())
    sink, buffers = io.BytesIO(), []
    safepickle.dump(net, sink, 5, registry=rules())
    data = safepickle.dumps(net, 5, registry=rules(), buffer_callback=buffers.append)
    backs = [pickle.loads(sink.getvalue()), pickle.loads(data, buffers=buffers), pickle.loads(b"".join(keeps.parts))]
    backs.append(pickle.loads((tmp_path / "net.pickle").read_bytes()))
    backs.append(pickle.loads(safepickle.dumps(net, 5, registry=rules())))
    for back in backs:
        assert all(torch.equal(a, b) for a, b in zip(net.parameters(), back.parameters(), strict=True))
    assert len(staged) == len(backs)
    for transfers in staged:
        assert [len(batch) for batch in transfers.started] == [1, 1, 1, 1, 1, 5]  # the small ones go together


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_tensors_of_a_device_are_written_through_pinned_memory(tmp_path):
    net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)], torch.nn.BatchNorm1d(512)).cuda()
    for protocol in (4, 5):
        with open(tmp_path / "net.pickle", "wb") as file:
            safepickle.dump(net, file, protocol)
        with open(tmp_path / "net.pickle", "rb") as file:
            back = safepickle.load(file, map_location="cpu")
        for a, b in zip(net.state_dict().values(), back.state_dict().values(), strict=True):
            assert torch.equal(a.cpu(), b) and b.is_cpu
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        late = torch.ones(1 << 24, device="cuda").cumsum(0)
        data = safepickle.dumps(late)
    assert pickle.loads(data)[-1].item() == float(1 << 24)
