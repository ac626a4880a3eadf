"""Plain tensors that the C core copies and reduces by itself: the same as the definition, whatever is around them."""

from __future__ import annotations

import copy
import gc
import pickle
import threading

import pytest

import safepickle
from safepickle import deepcopy
from safepickle._native import core

torch = pytest.importorskip("torch")

from safepickle.reducers import torch_tensors
from tests.reducers.test_torch_tensors import DTYPES, same_bits

#: ``torch.compile`` puts another in its place for the rest of the process, which must be called for each module.
SETSTATE = vars(torch.nn.Module)["__setstate__"]

native = pytest.mark.skipif(core is None, reason="the definition is in use")


def gathering():
    """Rules by which tensors on the CPU are copied as those on a device are: all at once."""
    rules = safepickle.Registry()
    copier = torch_tensors.tensor_copier(gathered=("is_cpu",))
    for cls in (torch.Tensor, torch.nn.Parameter):
        rules.register(cls, copy=copier, subclasses=True)
    return rules


@pytest.fixture
def calls(monkeypatch):
    """The number of tensors in each multi-tensor call."""
    seen = []
    real = torch._foreach_copy_

    def counted(copies, sources, *args):
        seen.append(len(copies))
        return real(copies, sources, *args)

    monkeypatch.setattr(torch, "_foreach_copy_", counted)
    return seen


@native
def test_many_tensors_on_a_device_are_copied_in_one_call_a_type(calls, monkeypatch):
    monkeypatch.setattr(torch.nn.Module, "__setstate__", SETSTATE)
    net = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(50)])
    net.half_sized = torch.nn.Parameter(torch.randn(3).half())
    net.tied = net[0].weight
    rules = gathering()
    deepcopy(net, registry=rules)  # how a type is copied is found out once, and contents come before that
    calls.clear()
    twin = deepcopy(net, registry=rules)
    assert sorted(calls) == [1, 100]
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        same_bits(b, a)
        assert type(b) is torch.nn.Parameter and b.is_leaf and b.data_ptr() != a.data_ptr()
    assert twin.tied is twin[0].weight


class Looks:
    """Its copy looks at a tensor that was copied before."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __deepcopy__(self, memo):
        twin = Looks(deepcopy(self.tensor, memo))
        twin.seen = twin.tensor.tolist()
        return twin


class Restored:
    """Its state method looks at a tensor."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __setstate__(self, state):
        self.tensor = state["tensor"]
        self.seen = self.tensor.tolist()


class Keyed:
    """Is hashed by the contents of a tensor."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __hash__(self):
        return hash(tuple(self.tensor.tolist()))

    def __eq__(self, other):
        return self.tensor.tolist() == other.tensor.tolist()


@pytest.mark.parametrize("hold", [Looks, Restored], ids=["__deepcopy__", "__setstate__"])
def test_python_code_sees_the_contents_of_gathered_tensors(hold):
    weight = torch.nn.Parameter(torch.arange(3.0))
    twin = deepcopy([weight, hold(weight), hold(torch.ones(2))], registry=gathering())
    assert twin[1].seen == [0.0, 1.0, 2.0] and twin[2].seen == [1.0, 1.0] and twin[1].tensor is twin[0]


def test_a_hash_sees_the_contents_of_gathered_tensors():
    holder = [torch.arange(3.0), {Keyed(torch.ones(2)): "kept"}]
    twin = deepcopy(holder, registry=gathering())
    assert twin[1][Keyed(torch.ones(2))] == "kept"


def test_a_rule_in_steps_sees_the_contents_of_gathered_tensors():
    rules, seen = gathering(), []

    class Box:
        def __init__(self, part):
            self.part = part

    def copy_box(box, memo):
        part = yield box.part
        seen.append(part.tolist())
        return Box(part)

    rules.register(Box, copy=copy_box)
    deepcopy([Box(torch.ones(2)), Box(torch.zeros(1))], registry=rules)
    assert seen == [[1.0, 1.0], [0.0]]


def test_the_result_of_a_nested_call_has_its_contents():
    class Nested:
        def __init__(self, tensor):
            self.tensor = tensor

        def __deepcopy__(self, memo):
            twin = Nested(None)
            twin.values = deepcopy({"t": self.tensor}, memo)["t"].tolist()
            return twin

    assert deepcopy(Nested(torch.ones(2)), registry=gathering()).values == [1.0, 1.0]


def test_nothing_is_left_behind_when_a_copy_fails_halfway():
    def refuse(self):
        raise ValueError("no state")

    bad = type("Bad", (), {"__getstate__": refuse, "__reduce_ex__": lambda self, protocol: refuse(self)})()
    weight = torch.nn.Parameter(torch.ones(2))
    for rules in (None, gathering()):
        with pytest.raises(ValueError, match="no state"):
            deepcopy([weight, bad], registry=rules)
        assert torch.is_grad_enabled()
        assert deepcopy([weight], registry=rules)[0].tolist() == [1.0, 1.0]


def test_graphs_are_made_again_after_a_copy_and_by_what_runs_within():
    class Trains:
        def __deepcopy__(self, memo):
            leaf = torch.ones(1, requires_grad=True)
            twin = Trains()
            twin.has_graph = (leaf * 2).requires_grad
            return twin

    assert deepcopy([torch.nn.Parameter(torch.ones(2)), Trains()])[1].has_graph
    assert torch.is_grad_enabled() and (torch.ones(1, requires_grad=True) * 2).requires_grad
    with torch.no_grad():
        deepcopy([torch.nn.Parameter(torch.ones(2))])
        assert not torch.is_grad_enabled()


def test_a_mode_of_torch_takes_part_as_before():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counts(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Counts.calls += 1
            return func(*args, **(kwargs or {}))

    with Counts():
        twin = deepcopy(torch.nn.Parameter(torch.arange(2.0)))
    assert Counts.calls > 0 and twin.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_core_copies_as_the_definition_does(dtype):
    try:
        tensor = torch.empty(0, dtype=dtype).set_(torch.arange(48, dtype=torch.uint8).untyped_storage(), 0, (3,), (1,))
    except (RuntimeError, TypeError) as error:
        pytest.skip(f"this torch makes no such tensor: {error}")
    for one in (tensor, tensor.clone() if dtype in torch_tensors._COMMON else tensor):
        same_bits(deepcopy(one), torch_tensors.copy_tensor(one, {}))


def test_a_storage_that_the_core_has_copied_is_known_to_torchs_own_methods_and_to_views():
    class Own(torch.Tensor):
        def new_empty(self, *args, **kwargs):
            return torch.Tensor.new_empty(self, *args, **kwargs).as_subclass(Own)

    base = torch.arange(4.0)
    base_twin, tail, own = deepcopy([base, base[2:], base.as_subclass(Own)])
    base_twin.zero_()
    assert tail.tolist() == [0.0, 0.0] and own.tolist() == [0.0] * 4 and base[3] == 3.0


@pytest.mark.parametrize("native_first", [True, False])
def test_the_storages_of_a_memo_that_travels_between_the_copiers_are_shared(native_first):
    base, memo = torch.arange(3.0), {}
    first, second = (deepcopy, copy.deepcopy) if native_first else (copy.deepcopy, deepcopy)
    one = first([base], memo)[0]
    other = second([base[1:]], memo)[0]
    one[1] = 9.0
    assert other[0] == 9.0 and base[1] == 1.0


def test_gradients_and_attributes_of_plain_tensors_follow():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.full((2,), 3.0)
    weight.note = {"owner": weight, "grad": weight.grad}
    twin = deepcopy({"w": weight})["w"]
    assert twin.grad.tolist() == [3.0, 3.0] and twin.grad is not weight.grad
    assert twin.note["owner"] is twin and twin.note["grad"] is twin.grad


def test_channels_last_stays_channels_last():
    weight = torch.nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))
    twin = deepcopy([weight])[0]
    assert twin.stride() == weight.stride() and twin.is_contiguous(memory_format=torch.channels_last)
    same_bits(twin, weight)


def test_a_negated_view_of_a_whole_storage_shares_it_with_the_others():
    base = torch.arange(3.0)
    twin, base_twin = deepcopy([torch._neg_view(base), base])
    assert twin.is_neg() and twin.tolist() == [-0.0, -1.0, -2.0] and base_twin.tolist() == [0.0, 1.0, 2.0]
    base_twin[0] = 5.0
    assert twin[0] == -5.0


def test_other_threads_may_change_what_is_copied():
    rows = [[torch.ones(64, 64), {"w": torch.nn.Parameter(torch.zeros(8))}] for _ in range(50)]
    stop = threading.Event()

    def change():
        while not stop.is_set():
            for row in rows:
                row[1] = {"w": torch.nn.Parameter(torch.zeros(8)), "more": [torch.ones(2)]}

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(20):
            twin = deepcopy(rows)
            assert all(row[0].sum() == 4096.0 and row[1]["w"].shape == (8,) for row in twin)
    finally:
        stop.set()
        thread.join()


def test_copies_leave_nothing_behind():
    net = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(10)])
    net[0].weight.grad = torch.ones(4, 4)

    def tensors():
        gc.collect()
        return sum(isinstance(part, torch.Tensor) for part in gc.get_objects())

    rules = gathering()
    for way in (deepcopy, lambda obj: pickle.loads(safepickle.dumps(obj)), lambda obj: deepcopy(obj, registry=rules)):
        way(net)
        before = tensors()
        for _ in range(20):
            way(net)
        assert tensors() == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_model_on_a_device_costs_a_few_calls_and_its_own_size(calls):
    net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(200)]).cuda()
    size = sum(p.nbytes for p in net.parameters())
    deepcopy(net)
    calls.clear()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    twin = deepcopy(net)
    torch.cuda.synchronize()
    assert calls == [400] and torch.cuda.max_memory_allocated() - before <= 1.1 * size
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b) and a.data_ptr() != b.data_ptr()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        again = deepcopy(net)
    side.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))
