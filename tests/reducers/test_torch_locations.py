"""Where tensors go on loading: to the device that was theirs, or where ``map_location`` says, in each form of it."""

from __future__ import annotations

import io
import pickle
import threading

import pytest

import safepickle
from safepickle import restore

torch = pytest.importorskip("torch")


class Remote:
    """Pickles as a tensor that was on a device which this machine need not have."""

    def __init__(self, device, values):
        self.device, self.values = device, values

    def __reduce__(self):
        data, options = self.values.numpy().tobytes(), {"device": self.device}
        size = tuple(self.values.shape)
        return restore.torch_tensor, (torch.Tensor, data, self.values.dtype, size, False, None, 0, options)


REMOTE = safepickle.dumps({"a": Remote("cuda:0", torch.arange(4.0)), "b": Remote("cuda:1", torch.ones(2))})
LOCAL = safepickle.dumps([torch.arange(4.0), torch.nn.Parameter(torch.ones(2, 2)), torch.ones(3)[1:]])

FORMS = {
    "name": "cpu",
    "device": torch.device("cpu"),
    "dictionary": {"cuda:0": "cpu", "cuda:1": "cpu"},
    "function": lambda storage, location: storage,
    "function that leaves it": lambda storage, location: None if location == "cpu" else storage,
}

WAYS = {
    "loads": lambda data, place: safepickle.loads(data, map_location=place),
    "load": lambda data, place: safepickle.load(io.BytesIO(data), map_location=place),
    "Unpickler": lambda data, place: safepickle.Unpickler(io.BytesIO(data), map_location=place).load(),
}


@pytest.mark.parametrize("load", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("place", FORMS.values(), ids=FORMS)
def test_tensors_of_a_device_that_is_not_here_go_where_map_location_says(place, load):
    back = load(REMOTE, place)
    assert back["a"].tolist() == [0.0, 1.0, 2.0, 3.0] and back["b"].tolist() == [1.0, 1.0]
    assert back["a"].is_cpu
    back["a"].resize_(8).add_(1)


@pytest.mark.parametrize("load", WAYS.values(), ids=WAYS)
def test_map_location_moves_tensors_of_the_cpu_too(load):
    plain, weight, view = load(LOCAL, "meta")
    assert plain.is_meta and weight.is_meta and view.is_meta
    assert type(weight) is torch.nn.Parameter and weight.requires_grad
    assert (view.shape, view.storage_offset()) == ((2,), 1)


def test_a_dictionary_moves_only_the_devices_that_it_names():
    assert all(tensor.is_cpu for tensor in safepickle.loads(LOCAL, map_location={"cuda:0": "meta"}))
    assert all(tensor.is_meta for tensor in safepickle.loads(LOCAL, map_location={"cpu": "meta"}))
    back = safepickle.loads(REMOTE, map_location={"cuda:0": "cpu", "cuda:1": "meta"})
    assert back["a"].is_cpu and back["b"].is_meta


def test_a_function_is_told_the_storage_and_the_device_it_was_on():
    told = []

    def note(storage, location):
        told.append((storage.nbytes(), location))
        return storage

    safepickle.loads(REMOTE, map_location=note)
    assert told == [(16, "cuda:0"), (8, "cuda:1")]


def test_views_share_memory_where_they_go():
    base = torch.arange(4.0)
    data = safepickle.dumps([base, base[2:]])
    seen = []
    whole, tail = safepickle.loads(data, map_location=lambda storage, location: seen.append(storage) or storage.clone())
    tail.zero_()
    assert whole.tolist() == [0.0, 1.0, 0.0, 0.0] and len(seen) == 1


def test_storages_and_parameters_without_a_shape_are_moved():
    storage, lazy = safepickle.loads(
        safepickle.dumps([torch.ones(2).untyped_storage(), torch.nn.UninitializedParameter()]), map_location="meta"
    )
    assert storage.device.type == "meta" and lazy.device.type == "meta"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
@pytest.mark.parametrize("load", WAYS.values(), ids=WAYS)
def test_without_it_the_error_says_what_to_do(load):
    with pytest.raises(pickle.UnpicklingError, match="'cuda:0'") as caught:
        load(REMOTE, None)
    assert "map_location='cpu'" in str(caught.value)
    with pytest.raises(pickle.UnpicklingError, match="map_location='cpu'"):
        pickle.loads(REMOTE)


def test_what_is_no_place_is_refused():
    with pytest.raises((TypeError, pickle.UnpicklingError), match="map_location must be"):
        safepickle.loads(LOCAL, map_location=5)


def test_it_ends_with_the_load_even_if_that_fails():
    with pytest.raises(pickle.UnpicklingError):
        safepickle.loads(LOCAL[:-20], map_location="meta")
    assert all(tensor.is_cpu for tensor in pickle.loads(LOCAL))


def test_a_load_in_another_thread_is_not_affected():
    seen = []

    def function(storage, location):
        thread = threading.Thread(target=lambda: seen.extend(t.device.type for t in pickle.loads(LOCAL)))
        thread.start()
        thread.join(60)
        return storage

    safepickle.loads(safepickle.dumps(torch.ones(1)), map_location=function)
    assert seen == ["cpu"] * 3


def test_large_buffers_out_of_band_go_there_too():
    buffers = []
    data = safepickle.dumps(torch.ones(1 << 19), 5, buffer_callback=buffers.append)
    assert safepickle.loads(data, buffers=buffers, map_location="meta").is_meta
    assert safepickle.loads(data, buffers=[bytearray(b) for b in buffers], map_location="cpu").sum() == 1 << 19


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_tensors_of_a_device_come_back_to_it_or_where_they_are_told():
    net = torch.nn.Linear(3, 3).cuda()
    data = safepickle.dumps(net)
    assert safepickle.loads(data).weight.device == net.weight.device
    assert torch.equal(safepickle.loads(data, map_location="cpu").weight, net.weight.cpu())
    assert safepickle.loads(safepickle.dumps(net.cpu()), map_location="cuda").weight.is_cuda
