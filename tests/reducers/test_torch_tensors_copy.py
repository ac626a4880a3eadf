"""Deep and shallow copies of tensors: are they independent, and do they keep what hangs on the originals?"""

from __future__ import annotations

import copy
import gc
import weakref

import pytest

import safepickle
from safepickle import deepcopy

torch = pytest.importorskip("torch")

from tests.reducers.test_torch_tensors import (
    DTYPES,
    SHAPES,
    UNUSUAL,
    Angle,
    Loud,
    Sharded,
    plain,
    same_bits,
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_of_element_is_copied_bit_for_bit(dtype):
    try:
        tensor = torch.empty(0, dtype=dtype).set_(torch.arange(48, dtype=torch.uint8).untyped_storage(), 0, (3,), (1,))
    except (RuntimeError, TypeError) as error:
        pytest.skip(f"this torch makes no such tensor: {error}")
    twin = deepcopy(tensor)
    same_bits(twin, tensor)
    assert twin.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("cls", [torch.Tensor, torch.nn.Parameter])
@pytest.mark.parametrize("make", SHAPES.values(), ids=SHAPES)
def test_sizes_and_strides_are_those_of_the_original(make, cls):
    tensor = make() if cls is torch.Tensor else torch.nn.Parameter(make())
    twin = deepcopy([tensor])[0]
    assert type(twin) is cls and twin.is_leaf
    same_bits(twin, tensor)
    if tensor.numel():
        assert twin.data_ptr() != tensor.data_ptr()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cls", [torch.Tensor, torch.nn.Parameter])
@pytest.mark.parametrize("make", UNUSUAL.values(), ids=UNUSUAL)
def test_other_layouts_are_copied_in_their_layout(make, cls):
    tensor = make()
    if cls is torch.nn.Parameter:
        if tensor.layout is torch._mkldnn:
            pytest.skip("torch makes no such parameters")
        tensor = torch.nn.Parameter(tensor, requires_grad=False)
    tensor.label = ["kept"]
    twin = deepcopy(tensor)
    assert type(twin) is cls and twin.layout is tensor.layout and twin.dtype is tensor.dtype
    assert torch.equal(plain(twin), plain(tensor)) and twin.label == ["kept"] and twin.label is not tensor.label


@pytest.mark.parametrize("make", [lambda x: x.conj(), lambda x: x.conj().imag], ids=["conj", "neg"])
def test_conjugated_and_negated_views_stay_views_of_the_copy(make):
    base = torch.randn(3, dtype=torch.complex64)
    base_twin, twin = deepcopy([base, make(base)])
    want = make(base)
    assert torch.equal(twin, want) and (twin.is_conj(), twin.is_neg()) == (want.is_conj(), want.is_neg())
    base_twin.zero_()
    assert not twin.any() and base.all()


def test_a_meta_tensor_is_copied_without_memory():
    twin = deepcopy(torch.nn.Parameter(torch.empty(3, 2, device="meta")))
    assert twin.is_meta and twin.shape == (3, 2) and type(twin) is torch.nn.Parameter


@pytest.mark.parametrize("wrap", [lambda t: t, torch.nn.Parameter], ids=["tensor", "parameter"])
def test_views_of_one_storage_are_views_of_one_copy(wrap):
    base = torch.arange(6.0)
    head, whole, pairs = deepcopy([wrap(base[:2]), wrap(base), wrap(base.view(3, 2))])
    with torch.no_grad():
        head[1] = 9.0
    assert whole[1] == 9.0 and pairs[0, 1] == 9.0 and base[1] == 1.0


@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_storages_are_copied_with_the_tensors_on_them():
    base = torch.arange(3.0)
    storages = [base.untyped_storage(), base.storage()]
    for holder in [pair for one in storages for pair in ([one, base], [base, one])]:
        twins = deepcopy(holder)
        tensor = next(t for t in twins if isinstance(t, torch.Tensor))
        storage = next(t for t in twins if not isinstance(t, torch.Tensor))
        tensor.fill_(1.0)
        assert bytes(getattr(storage, "_untyped_storage", storage)) == bytes(torch.ones(3).untyped_storage())
        assert base.tolist() == [0.0, 1.0, 2.0]


class Own(torch.Tensor):
    """A tensor that is copied by ``Tensor.__deepcopy__``: it takes part as torch asks for."""

    def new_empty(self, *args, **kwargs):
        return torch.Tensor.new_empty(self, *args, **kwargs).as_subclass(Own)


def test_the_memo_is_the_one_that_torchs_own_methods_use():
    base = torch.arange(4.0)
    loud = base[1:].as_subclass(Own)
    twins = [deepcopy([base, loud]), deepcopy([loud, base])[::-1]]
    for base_twin, loud_twin in twins:
        assert type(loud_twin) is Own
        base_twin[1] = -1.0
        assert loud_twin[0] == -1.0 and base[1] == 1.0


def test_a_memo_of_the_caller_knows_the_copies():
    base, memo = torch.ones(2), {}
    twin = deepcopy(base, memo)
    assert type(memo) is dict and memo[id(base)] is twin and deepcopy([base], memo)[0] is twin
    assert copy.deepcopy(base[:1], memo).data_ptr() == twin.data_ptr()


def test_parameters_keep_attributes_gradient_and_flag():
    weight = torch.nn.Parameter(torch.randn(2, 2))
    weight.shard = {"ranks": [0, 1]}
    (weight * 3).sum().backward()
    twin = deepcopy(weight)
    assert twin.shard == weight.shard and twin.shard["ranks"] is not weight.shard["ranks"]
    assert torch.equal(twin.grad, weight.grad)
    twin.grad.zero_()
    assert weight.grad[0, 0] == 3.0
    assert not deepcopy(torch.nn.Parameter(torch.ones(1), requires_grad=False)).requires_grad


def test_a_subclass_of_parameter_keeps_its_class_and_its_attributes():
    weight = Sharded(torch.arange(4.0), 1, 2)
    twin = deepcopy(torch.nn.ParameterList([weight]))[0]
    assert type(twin) is Sharded and twin.shard().tolist() == [2.0, 3.0] and twin.data_ptr() != weight.data_ptr()


class Stamped(torch.nn.Parameter):
    """A parameter that has its own idea of a copy."""

    def __deepcopy__(self, memo):
        twin = Stamped(self.data.clone(), self.requires_grad)
        twin.stamp = "copied by its own method"
        return twin


def test_a_deepcopy_method_of_a_subclass_is_used():
    assert deepcopy(Stamped(torch.ones(1))).stamp == "copied by its own method"


@pytest.mark.parametrize("cls", [Angle, Loud])
def test_tensor_subclasses_keep_class_attributes_and_sharing(cls):
    base = torch.arange(4.0)
    angle = base.as_subclass(cls)
    angle.unit = ["deg"]
    base_twin, twin = deepcopy([base, angle])
    base_twin[0] = 7.0
    assert type(twin) is cls and twin[0] == 7.0 and twin.unit == ["deg"] and twin.unit is not angle.unit


def test_a_parameter_alone_does_not_bring_the_flat_buffer_it_lies_in():
    flat = torch.arange(1000.0)
    part = torch.nn.Parameter(flat[10:20])
    twin = deepcopy(part)
    assert torch.equal(twin, part) and twin.untyped_storage().nbytes() == 40
    alone, rest = deepcopy([part, torch.nn.Parameter(flat[20:])])
    assert alone.untyped_storage().data_ptr() == rest.untyped_storage().data_ptr()


def test_tied_parameters_stay_tied():
    net = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    net[1].weight = net[0].weight
    twin = deepcopy(net)
    assert twin[0].weight is twin[1].weight is not net[0].weight


def test_a_tensor_with_itself_as_an_attribute():
    tensor = torch.ones(2)
    tensor.me = [tensor]
    twin = deepcopy(tensor)
    assert twin.me[0] is twin


def test_hooks_on_parameters_are_kept_and_bound_to_the_copy():
    class Scaler(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.factor, self.calls = torch.nn.Parameter(torch.ones(1)), 10, 0
            self.handle = self.weight.register_hook(self.scale)
            self.weight.register_post_accumulate_grad_hook(self.count)

        def scale(self, grad):
            return grad * self.factor

        def count(self, parameter):
            self.calls += 1

    net = Scaler()
    twin = deepcopy(net)
    twin.factor = 100
    twin.weight.sum().backward()
    assert twin.weight.grad.item() == 100.0 and (twin.calls, net.calls) == (1, 0) and net.weight.grad is None
    twin.handle.remove()
    net.weight.sum().backward()
    twin.weight.grad = None
    twin.weight.sum().backward()
    assert (net.weight.grad.item(), twin.weight.grad.item()) == (10.0, 1.0)


@pytest.mark.parametrize("cls", [torch.nn.Module, dict])
def test_the_result_of_a_computation_is_copied_without_its_graph(cls):
    leaf = torch.ones(2, requires_grad=True)
    holder = {"cache": leaf * 2} if cls is dict else torch.nn.Module()
    if cls is not dict:
        holder.cache = leaf * 2
    twin = deepcopy(holder)
    cache = twin["cache"] if cls is dict else twin.cache
    assert cache.tolist() == [2.0, 2.0] and cache.is_leaf and not cache.requires_grad


def test_a_part_of_a_parameter_is_a_part_of_the_copied_one():
    net = torch.nn.Linear(2, 2)
    net.row = net.weight[0]
    twin = deepcopy(net)
    with torch.no_grad():
        twin.weight.zero_()
    assert twin.row.tolist() == [0.0, 0.0] and net.row.any()


def test_a_non_leaf_can_be_refused_in_a_call_or_by_a_registry():
    holder = {"deep": [torch.ones(1, requires_grad=True) * 2]}
    strict = safepickle.Registry()
    strict.settings["nonleaf"] = "error"
    for options in ({"nonleaf": "error"}, {"registry": strict}, {"registry": safepickle.Registry(strict)}):
        with pytest.raises(safepickle.CopyError, match="no leaf") as caught:
            deepcopy(holder, **options)
        assert "['deep'][0]" in str(caught.value)
    assert deepcopy(holder, registry=strict, nonleaf="detach")["deep"][0].tolist() == [2.0]
    with pytest.raises(ValueError, match="nonleaf"):
        deepcopy(holder, nonleaf="share")


def test_a_non_leaf_subclass_is_detached_too():
    twin = deepcopy(torch.ones(2, requires_grad=True).as_subclass(Angle) * 2)
    assert type(twin) is Angle and twin.tolist() == [2.0, 2.0] and not twin.requires_grad


def test_a_retained_gradient_of_a_non_leaf_is_kept():
    leaf = torch.ones(2, requires_grad=True)
    middle = leaf * 2
    middle.retain_grad()
    (middle * 3).sum().backward()
    assert deepcopy(middle).grad.tolist() == [3.0, 3.0]


@pytest.mark.parametrize(("name", "arguments"), [("LazyLinear", (3,)), ("LazyBatchNorm1d", ()), ("LazyConv2d", (2, 1))])
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_modules_are_copied_before_they_know_their_shape(name, arguments):
    net = torch.nn.Sequential(getattr(torch.nn, name)(*arguments), torch.nn.ReLU()).double()
    twin = deepcopy(net)
    x = torch.randn(3, 4, 5, 5, dtype=torch.float64)
    x = x if "Conv" in type(net[0]).__name__ else x[:, :, 0, 0]
    twin(x)
    assert "Lazy" not in type(twin[0]).__name__ and "Lazy" in type(net[0]).__name__
    assert all(p.dtype is torch.float64 for p in twin.parameters())
    net(x)


def test_a_copy_made_in_inference_mode_or_of_its_tensors_can_be_trained():
    with torch.inference_mode():
        cached = torch.ones(2)
    twin = deepcopy(cached)
    twin.add_(1)
    assert twin.tolist() == [2.0, 2.0] and not twin.is_inference()


def test_the_copy_keeps_nothing_of_the_original_alive():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.note = {"a": 1}
    gone = weakref.ref(weight)
    twin = deepcopy({"w": weight})
    del weight
    gc.collect()
    assert gone() is None and twin["w"].note == {"a": 1}


# -- shallow -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint16], ids=str)
@pytest.mark.parametrize("cls", [torch.Tensor, torch.nn.Parameter, Angle])
def test_a_shallow_copy_is_another_tensor_on_the_same_memory(cls, dtype):
    base = torch.arange(4).to(dtype)
    tensor = torch.nn.Parameter(base, requires_grad=False) if cls is torch.nn.Parameter else base.as_subclass(cls)
    tensor.note = []
    twin = safepickle.copy(tensor)
    assert type(twin) is cls and twin is not tensor and twin.note is tensor.note
    assert twin.data_ptr() == tensor.data_ptr() and twin.dtype is dtype and twin.shape == (4,)


def test_a_shallow_copy_of_a_leaf_is_a_leaf():
    twin = safepickle.copy(torch.ones(2, requires_grad=True))
    assert twin.is_leaf and twin.requires_grad


def test_a_parameter_that_is_copied_under_a_mode_of_fake_tensors_becomes_a_fake_one():
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    layer = torch.nn.Linear(2, 3)
    with FakeTensorMode(allow_non_fake_inputs=True):
        copied = safepickle.deepcopy(layer)
        assert copied(torch.ones(5, 2)).shape == (5, 3)
    for parameter in copied.parameters():
        assert isinstance(parameter, FakeTensor) and isinstance(parameter, torch.nn.Parameter)
        assert parameter.requires_grad
    assert type(layer.weight) is torch.nn.Parameter
