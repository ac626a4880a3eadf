"""Tensors, parameters and storages in plain pickles: do their bytes, their sharing and what hangs on them come back?"""

from __future__ import annotations

import io
import pickle
import pickletools
import sys
import warnings

import pytest

import safepickle
from safepickle.restore import torch_tensor
from tests.helpers import fresh_load

torch = pytest.importorskip("torch")

PROTOCOLS = [2, 4, 5]


def round_trip(obj, protocol=None):
    """Written by us, read by the standard library."""
    return pickle.loads(safepickle.dumps(obj, protocol))


def raw(tensor):
    """All bytes of the storage below a tensor."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def same_bits(a, b):
    """Equal in everything that a tensor says of itself, NaNs included."""
    assert (a.dtype, a.shape, a.stride(), a.storage_offset()) == (b.dtype, b.shape, b.stride(), b.storage_offset())
    assert (a.requires_grad, a.device, a.layout) == (b.requires_grad, b.device, b.layout)
    assert torch.equal(raw(a), raw(b))


DTYPES = [
    value
    for name, value in sorted(vars(torch).items())
    if isinstance(value, torch.dtype)
    and name == str(value).rpartition(".")[2]
    and not name.startswith(("q", "bits1x", "bits2x", "bits4x"))
]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_of_element_comes_back_bit_for_bit(dtype, protocol):
    try:
        storage = torch.arange(48, dtype=torch.uint8).untyped_storage()
        tensor = torch.empty(0, dtype=dtype).set_(storage, 0, (3,), (1,))
    except (RuntimeError, TypeError) as error:
        pytest.skip(f"this torch makes no such tensor: {error}")
    same_bits(round_trip(tensor, protocol), tensor)


SHAPES = {
    "scalar": lambda: torch.tensor(1.5),
    "zero-size": lambda: torch.zeros(0, 3),
    "one": lambda: torch.ones(1),
    "matrix": lambda: torch.randn(3, 4),
    "transposed": lambda: torch.randn(3, 4).t(),
    "strided": lambda: torch.randn(10)[1:9:2],
    "expanded": lambda: torch.ones(1).expand(4),
    "overlapping": lambda: torch.arange(6.0).unfold(0, 3, 1),
    "channels last": lambda: torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "empty view at the end": lambda: torch.ones(4)[4:],
    "bfloat16": lambda: torch.randn(5).bfloat16(),
    "complex": lambda: torch.randn(2, 2, dtype=torch.complex64),
    "large": lambda: torch.randn(600, 600),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("make", SHAPES.values(), ids=SHAPES)
def test_sizes_and_strides_come_back(make, protocol):
    tensor = make()
    same_bits(round_trip(tensor, protocol), tensor)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "make", [lambda x: x.conj(), lambda x: x.conj().imag, lambda x: x.conj().imag[1:]], ids=["conj", "neg", "part"]
)
def test_conjugated_and_negated_views_stay_lazy(make, protocol):
    tensor = make(torch.randn(3, dtype=torch.complex64))
    back = round_trip(tensor, protocol)
    assert torch.equal(back, tensor)
    assert (back.is_conj(), back.is_neg()) == (tensor.is_conj(), tensor.is_neg())


UNUSUAL = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.arange(4.0), 0.5, 1, torch.qint8),
    "per channel": lambda: torch.quantize_per_channel(
        torch.randn(3, 2), torch.ones(3) * 0.1, torch.zeros(3), 0, torch.qint8
    ),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)]),
    "mkldnn": lambda: torch.arange(4.0).view(2, 2).to_mkldnn(),
}


def plain(tensor):
    if tensor.is_quantized:
        return tensor.dequantize()
    if tensor.is_nested:
        return torch.nested.to_padded_tensor(tensor, 0.0)
    return tensor.to_dense() if tensor.layout is not torch.strided else tensor


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("make", UNUSUAL.values(), ids=UNUSUAL)
def test_other_layouts_come_back_in_their_layout(make, protocol):
    tensor = make()
    back = round_trip({"t": tensor}, protocol)["t"]
    for name in ("layout", "dtype", "is_quantized", "is_nested"):
        assert getattr(back, name) == getattr(tensor, name)
    assert torch.equal(plain(back), plain(tensor))


def test_a_meta_tensor_comes_back_without_memory():
    back = round_trip(torch.empty(3, 2, device="meta", dtype=torch.float16))
    assert back.is_meta and back.shape == (3, 2) and back.dtype is torch.float16


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_views_share_the_memory_that_is_written_once(protocol):
    base = torch.arange(10_000.0)
    alone = len(safepickle.dumps(base, protocol))
    data = safepickle.dumps([base[5:7], base, base.view(100, 100), base.view(torch.int32)], protocol)
    assert len(data) < alone + 1000
    part, whole, grid, ints = pickle.loads(data)
    part[0] = -1.0
    assert whole[5] == -1.0 and grid[0, 5] == -1.0 and ints[5] == torch.tensor(-1.0).view(torch.int32)
    assert base[5] == 5.0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tensors_of_equal_content_stay_apart(protocol):
    a, b = round_trip([torch.zeros(3), torch.zeros(3)], protocol)
    a[0] = 1.0
    assert b.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_storage_and_its_tensors_share(protocol):
    tensor = torch.arange(4.0)
    for order in ([tensor.untyped_storage(), tensor], [tensor, tensor.untyped_storage()]):
        back = round_trip(order, protocol)
        storage, again = sorted(back, key=lambda x: isinstance(x, torch.Tensor))
        assert isinstance(storage, torch.UntypedStorage) and bytes(storage) == bytes(tensor.untyped_storage())
        storage.fill_(0)
        assert again.tolist() == [0.0] * 4


@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_a_typed_storage_comes_back_and_shares():
    tensor = torch.arange(4.0)
    storage, again = round_trip([tensor.storage(), tensor])
    assert storage.dtype is torch.float32 and storage.tolist() == [0.0, 1.0, 2.0, 3.0]
    again[0] = 7.0
    assert storage[0] == 7.0


def test_a_sparse_tensor_and_its_values_share():
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.ones(2), (2,), is_coalesced=True)
    values = sparse._values()
    back, parts = round_trip([sparse, values])
    parts[0] = 9.0
    assert back.to_dense().tolist() == [9.0, 1.0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_parameters_keep_class_attributes_gradient_and_identity(protocol):
    weight = torch.nn.Parameter(torch.randn(2, 2))
    weight.mark = {"dim": 0}
    weight.loader = lambda p: p.sum()
    (weight * 3).sum().backward()
    frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    first, again, cold = round_trip([weight, weight, frozen], protocol)
    assert type(first) is torch.nn.Parameter and first is again and first.is_leaf and first.requires_grad
    assert torch.equal(first, weight) and torch.equal(first.grad, weight.grad)
    assert first.mark == {"dim": 0} and first.loader(first) == weight.sum()
    assert type(cold) is torch.nn.Parameter and not cold.requires_grad


class Sharded(torch.nn.Parameter):
    """A parameter with a constructor of its own, as serving engines have them."""

    def __new__(cls, data, rank, world):
        return torch.Tensor._make_subclass(cls, data)

    def __init__(self, data, rank, world):
        self.place = (rank, world)

    def shard(self):
        return self.chunk(self.place[1])[self.place[0]]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_subclass_of_parameter_keeps_its_class(protocol):
    back = round_trip(Sharded(torch.arange(4.0), 1, 2), protocol)
    assert type(back) is Sharded and back.shard().tolist() == [2.0, 3.0]


class Angle(torch.Tensor):
    """A tensor with a name, nothing else of its own."""


class Loud(torch.Tensor):
    """A tensor with a dispatch of its own."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("cls", [Angle, Loud])
def test_tensor_subclasses_come_back_with_attributes_and_share(cls, protocol):
    base = torch.arange(4.0)
    angle = base.as_subclass(cls)
    angle.unit = "deg"
    back, shared = round_trip([angle, base], protocol)
    assert type(back) is cls and back.unit == "deg" and back.tolist() == base.tolist()
    shared[0] = 5.0
    assert back[0] == 5.0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_buffers_keep_what_marks_them(protocol):
    net = torch.nn.Module()
    net.table = torch.nn.Buffer(torch.arange(3.0), persistent=False)
    back = round_trip(net, protocol)
    assert isinstance(back.table, torch.nn.Buffer) and back.table.persistent is False
    assert "table" not in back.state_dict() and dict(back.named_buffers())["table"].tolist() == [0.0, 1.0, 2.0]


def test_a_tensor_with_itself_as_an_attribute():
    tensor = torch.ones(2)
    tensor.me, tensor.half = tensor, tensor[:1]
    back = round_trip(tensor)
    assert back.me is back
    back.half[0] = 4.0
    assert back[0] == 4.0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_result_of_a_computation_comes_back_as_values(protocol):
    leaf = torch.ones(3, requires_grad=True)
    back = round_trip({"y": leaf * 2}, protocol)["y"]
    assert back.is_leaf and back.requires_grad and back.tolist() == [2.0, 2.0, 2.0]


def test_gradient_hooks_on_parameters_are_kept():
    weight = torch.nn.Parameter(torch.ones(2))
    handle = weight.register_hook(lambda grad: grad * 10)
    seen = []
    weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))
    back, removable = round_trip([weight, handle])
    back.sum().backward()
    assert back.grad.tolist() == [10.0, 10.0] and weight.grad is None
    removable.remove()
    back.grad = None
    back.sum().backward()
    assert back.grad.tolist() == [1.0, 1.0]


def test_a_hook_that_says_it_is_not_serializable_stays_behind():
    weight = torch.nn.Parameter(torch.ones(1))

    @torch.utils.hooks.unserializable_hook
    def local(grad):
        raise AssertionError

    weight.register_hook(local)
    back = round_trip(weight)
    back.sum().backward()
    assert back.grad.tolist() == [1.0]


def test_a_hook_registered_after_loading_does_not_replace_one_that_was_loaded(tmp_path):
    weight = torch.nn.Parameter(torch.ones(1))
    weight.register_hook(lambda grad: grad * 10)
    code = """
        obj.register_hook(lambda grad: grad + 1)
        obj.sum().backward()
        print(obj.grad.item())
    """
    assert fresh_load(safepickle.dumps(weight), code, tmp_path).split() == ["11.0"]


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_loaded_tensor_owns_memory_that_can_be_written_and_resized(protocol):
    back = round_trip(torch.arange(4.0), protocol)
    back.add_(1)
    back.resize_(100)
    assert back[:4].tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("size", [10, 1 << 19])
def test_in_place_operations_never_reach_immutable_bytes(size):
    buffers = []
    data = safepickle.dumps(torch.zeros(size), 5, buffer_callback=buffers.append)
    sent = [bytes(buffer) for buffer in buffers]
    back = safepickle.loads(data, buffers=sent)
    back.fill_(1.0)
    assert sent[0] == bytes(4 * size)
    assert safepickle.loads(data, buffers=sent).sum() == 0


def test_out_of_band_each_storage_is_one_buffer():
    base = torch.randn(1000)
    buffers = []
    data = safepickle.dumps([base, base[10:], torch.nn.Parameter(base)], 5, buffer_callback=buffers.append)
    assert [memoryview(buffer).nbytes for buffer in buffers] == [4000] and len(data) < 1000
    whole, tail, weight = pickle.loads(data, buffers=[bytearray(buffers[0])])
    assert torch.equal(whole, base) and torch.equal(weight, base)
    tail[0] = 3.0
    assert whole[10] == 3.0 and weight[10] == 3.0


def test_a_large_writable_buffer_becomes_the_memory_without_a_copy():
    buffers = []
    data = safepickle.dumps(torch.zeros(1 << 20), 5, buffer_callback=buffers.append)
    memory = bytearray(buffers[0])
    back = safepickle.loads(data, buffers=[memory])
    memory[:4] = torch.tensor(2.5).view(1).view(torch.uint8).numpy().tobytes()
    assert back[0] == 2.5


@pytest.mark.parametrize(
    "wrap", [bytes, bytearray, memoryview, pickle.PickleBuffer, lambda b: memoryview(b"\0" + bytes(b))[1:]]
)
@pytest.mark.parametrize("size", [0, 3, 1 << 19])
def test_any_kind_of_buffer_can_be_loaded_from(wrap, size):
    tensor = torch.arange(float(size))
    buffers = []
    data = safepickle.dumps(tensor, 5, buffer_callback=buffers.append)
    assert torch.equal(safepickle.loads(data, buffers=[wrap(bytearray(buffer)) for buffer in buffers]), tensor)


def test_the_current_default_device_does_not_decide_where_tensors_go():
    tensors = [torch.ones(2), torch.nn.Parameter(torch.ones(2)), torch.ones(3)[1:], torch.tensor(7)]
    data = safepickle.dumps(tensors)
    with torch.device("meta"):
        assert [(t.device.type, t.tolist()) for t in safepickle.loads(data)] == [("cpu", t.tolist()) for t in tensors]
        assert safepickle.deepcopy(torch.ones(2, device="cpu")).device.type == "cpu"
        assert safepickle.loads(safepickle.dumps(torch.ones(2, device="cpu"))).tolist() == [1.0, 1.0]


# -- the pickle itself -------------------------------------------------------------------------------------------------


def names_in(data):
    """The globals that a pickle names."""
    strings, found = [], set()
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name == "GLOBAL":
            found.add(argument.replace(" ", "."))
        elif opcode.name == "STACK_GLOBAL":
            found.add(".".join(strings[-2:]))
        elif isinstance(argument, str):
            strings.append(argument)
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_no_pickle_inside_the_pickle(protocol):
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    everything = [net, *(make() for make in UNUSUAL.values())]
    everything += [torch.ones(2).untyped_storage(), torch.ones(2).as_subclass(Loud)]
    assert not any("_load_from_bytes" in name for name in names_in(safepickle.dumps(everything, protocol)))


def test_equal_tensors_give_equal_bytes_whoever_else_looks_at_them():
    net = torch.nn.Linear(3, 3)
    before = safepickle.dumps(net)
    other_view, array = net.weight[0], net.bias.detach().numpy()
    assert safepickle.dumps(net) == before and len(array) == 3 and len(other_view) == 3
    assert safepickle.dumps(safepickle.loads(before)) == before


def from_list(values):
    """What reducers of users call."""
    return torch.tensor(values)


FROM_LIST = f"{__name__}.from_list"


def test_a_pickler_with_a_dispatch_table_for_tensors_gets_them_all():
    seen = []

    def reduce(tensor):
        seen.append(type(tensor))
        return from_list, (tensor.tolist(),)

    sink = io.BytesIO()
    pickler = safepickle.Pickler(sink)
    pickler.dispatch_table = {torch.Tensor: reduce}
    pickler.dump([torch.ones(2), torch.nn.Parameter(torch.zeros(1))])
    plain_tensor, weight = pickle.loads(sink.getvalue())
    assert seen == [torch.Tensor, torch.Tensor] and plain_tensor.tolist() == [1.0, 1.0]
    assert isinstance(weight, torch.nn.Parameter) and weight.tolist() == [0.0]


def test_a_reducer_override_for_tensors_gets_those_of_parameters_too():
    class Sender(safepickle.Pickler):
        def reducer_override(self, obj):
            return (from_list, (obj.tolist(),)) if type(obj) is torch.Tensor else NotImplemented

    weight = torch.nn.Parameter(torch.ones(2))
    weight.note = "kept"
    sink = io.BytesIO()
    Sender(sink).dump(weight)
    assert FROM_LIST in names_in(sink.getvalue())
    back = pickle.loads(sink.getvalue())
    assert isinstance(back, torch.nn.Parameter) and back.tolist() == [1.0, 1.0] and back.note == "kept"


def test_a_users_rule_for_tensors_is_used_for_parameters_too():
    mine = safepickle.Registry()
    mine.register(torch.Tensor, lambda tensor: (from_list, (tensor.tolist(),)))
    data = safepickle.dumps([torch.ones(1), torch.nn.Parameter(torch.zeros(2))], registry=mine)
    assert FROM_LIST in names_in(data)
    plain_tensor, weight = pickle.loads(data)
    assert plain_tensor.tolist() == [1.0] and isinstance(weight, torch.nn.Parameter) and weight.tolist() == [0.0, 0.0]


def test_a_persistent_id_sees_the_storages():
    kept = []

    class Store(safepickle.Pickler):
        def persistent_id(self, obj):
            if isinstance(obj, (torch.UntypedStorage, torch.TypedStorage)):
                kept.append(obj)
                return len(kept) - 1
            return None

    class Fetch(safepickle.Unpickler):
        def persistent_load(self, pid):
            return kept[pid]

    sink = io.BytesIO()
    Store(sink).dump([torch.ones(2), torch.nn.Parameter(torch.zeros(3))])
    assert len(kept) == 2
    ones, zeros = Fetch(io.BytesIO(sink.getvalue())).load()
    assert ones.tolist() == [1.0, 1.0] and zeros.tolist() == [0.0, 0.0, 0.0]


def test_a_persistent_id_that_wants_no_storages_still_gives_no_nested_pickle():
    class Quiet(safepickle.Pickler):
        def persistent_id(self, obj):
            return None

    base = torch.arange(1000.0)
    sink = io.BytesIO()
    Quiet(sink, 4).dump([base, base[1:], torch.nn.Parameter(base)])
    assert len(sink.getvalue()) < 6000 and not any("_load_from_bytes" in name for name in names_in(sink.getvalue()))
    whole, tail, weight = pickle.loads(sink.getvalue())
    tail[0] = 9.0
    assert whole[1] == 9.0 and weight[1] == 9.0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_in_a_fresh_process(protocol, tmp_path):
    net = torch.nn.Linear(2, 2)
    net.weight.mark = "kept"
    net.register_buffer("head", net.weight.detach()[:1])
    code = """
        import torch
        assert obj.weight.mark == "kept" and type(obj.weight) is torch.nn.Parameter
        obj.head.zero_()
        assert obj.weight[0].tolist() == [0.0, 0.0]
        obj(torch.ones(1, 2)).sum().backward()
        print(obj.weight.grad.tolist())
    """
    printed = fresh_load(safepickle.dumps(net, protocol), code, tmp_path, loader="pickle")
    assert printed.strip() == "[[1.0, 1.0], [1.0, 1.0]]"


def test_bytes_of_the_other_byte_order_are_swapped():
    tensor = torch.arange(4, dtype=torch.int32)
    other = "little" if sys.byteorder == "big" else "big"
    swapped = bytearray(tensor.numpy().byteswap().tobytes())
    back = torch_tensor(torch.Tensor, swapped, torch.int32, (4,), False, None, 0, {"byteorder": other})
    assert back.tolist() == [0, 1, 2, 3]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_a_device_that_is_not_here_is_named():
    with pytest.raises(pickle.UnpicklingError, match="'cuda:0'"):
        torch_tensor(torch.Tensor, bytearray(8), torch.float32, (2,), False, None, 0, {"device": "cuda:0"})


@pytest.mark.parametrize(
    "arguments",
    [
        (int, bytearray(4), torch.float32, (1,)),
        (torch.Tensor, bytearray(4), "float32", (1,)),
        (torch.Tensor, bytearray(4), torch.float32, [1]),
    ],
)
def test_malformed_arguments_are_refused(arguments):
    with pytest.raises(pickle.UnpicklingError, match="malformed"):
        torch_tensor(*arguments)


# -- parameters without a shape ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("name", "arguments"), [("LazyLinear", (3,)), ("LazyConv1d", (3, 1)), ("LazyBatchNorm1d", ())]
)
def test_lazy_modules_find_their_shape_after_loading(name, arguments, protocol):
    net = getattr(torch.nn, name)(*arguments)
    net.to(torch.float64)
    for name, parameter in net.named_parameters():
        parameter.label = name
    back = round_trip(net, protocol)
    assert [p.label for p in back.parameters()] == [name for name, _ in net.named_parameters()]
    x = torch.randn(4, 2, 5, dtype=torch.float64)
    x = x if "Conv" in type(net).__name__ else x[:, :, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert back(x).dtype is torch.float64
    assert "Lazy" not in type(back).__name__ and "Lazy" in type(net).__name__


# -- the digest --------------------------------------------------------------------------------------------------------


def test_a_digest_does_not_depend_on_who_else_shares_the_memory():
    from safepickle.digests import digest

    base = torch.arange(4.0)
    view = base[1:]
    assert digest(base) == digest(torch.arange(4.0)) != digest(torch.zeros(4))
    assert digest([base, view]) == digest([torch.arange(4.0), base[1:]])
