"""What is around tensors: do modules, optimizers, schedulers, loaders, generators work when copied or loaded?"""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings

import pytest

import safepickle
from tests.helpers import fresh_load, run_python

torch = pytest.importorskip("torch")

from torch.nn.utils import parametrizations, parametrize, prune

PROTOCOLS = [2, 4, 5]


def saved(obj):
    """Through torch.save and torch.load."""
    sink = io.BytesIO()
    torch.save(obj, sink, pickle_module=safepickle)
    sink.seek(0)
    return torch.load(sink, pickle_module=safepickle, weights_only=False)


WAYS = {
    "deepcopy": safepickle.deepcopy,
    "protocol 2": lambda obj: pickle.loads(safepickle.dumps(obj, 2)),
    "protocol 5": lambda obj: pickle.loads(safepickle.dumps(obj, 5)),
    "torch.save": saved,
}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
quiet = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore:Lazy modules")

# -- weights that are computed -----------------------------------------------------------------------------------------

COMPUTED = {
    "weight_norm": lambda: parametrizations.weight_norm(torch.nn.Linear(3, 3)),
    "spectral_norm": lambda: parametrizations.spectral_norm(torch.nn.Linear(3, 3)),
    "orthogonal": lambda: parametrizations.orthogonal(torch.nn.Linear(3, 3)),
    "two on one": lambda: parametrizations.weight_norm(parametrizations.weight_norm(torch.nn.Linear(3, 3)), "bias"),
    "old weight_norm": lambda: torch.nn.utils.weight_norm(torch.nn.Linear(3, 3)),
    "old spectral_norm": lambda: torch.nn.utils.spectral_norm(torch.nn.Linear(3, 3)),
    "pruned": lambda: prune.l1_unstructured(torch.nn.Linear(3, 3), "weight", 0.5),
    "lstm": lambda: parametrizations.weight_norm(torch.nn.LSTM(3, 3), "weight_hh_l0"),
    "old lstm": lambda: torch.nn.utils.weight_norm(torch.nn.LSTM(3, 3), "weight_hh_l0"),
}


def output(net, x):
    y = net(x)
    return y[0] if isinstance(y, tuple) else y


@quiet
@each_way
@pytest.mark.parametrize("make", COMPUTED.values(), ids=COMPUTED)
def test_modules_with_computed_weights_compute_the_same_and_train_alone(make, way):
    torch.manual_seed(0)
    net, x = torch.nn.ModuleDict({"core": make()}), torch.randn(2, 3)
    output(net["core"], x).sum().backward()  # used and trained before
    net.zero_grad(set_to_none=True)
    twin = way(net)
    net.eval(), twin.eval()
    want = output(net["core"], x).detach()
    assert torch.allclose(output(twin["core"], x), want)
    assert list(twin.state_dict()) == list(net.state_dict())
    twin.train()
    output(twin["core"], x).square().sum().backward()
    assert all(p.grad is not None for p in twin.parameters())
    torch.optim.SGD(twin.parameters(), lr=0.5).step()
    twin.eval()
    assert not torch.allclose(output(twin["core"], x), want)
    assert torch.equal(output(net["core"], x), want) and all(p.grad is None for p in net.parameters())


@quiet
@each_way
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d"])
def test_quantized_convolutions_can_be_called_and_keep_hooks_and_attributes(kind, way):
    from torch.ao.nn import quantized

    if torch.backends.quantized.engine == "none":
        pytest.skip("torch was built without quantized operators")
    conv, dimensions = getattr(quantized, kind)(1, 1, 1), int(kind[-2])
    conv.set_weight_bias(
        torch.quantize_per_tensor(torch.full(conv.weight().shape, 3.0), 0.5, 0, torch.qint8), torch.ones(1)
    )
    seen: list[int] = []
    conv.register_forward_hook(lambda module, args, out: seen.append(1))
    conv.eval().note = {"layer": 1}
    twin, again, twin_seen = way((conv, conv, seen))
    x = torch.quantize_per_tensor(torch.full((1, 1, *[2] * dimensions), 2.0), 1.0, 0, torch.quint8)
    assert torch.equal(twin(x).dequantize(), torch.full_like(x.dequantize(), 7.0)) and twin is again
    assert (seen, twin_seen, twin.note, twin.training) == ([], [1], {"layer": 1}, False)
    assert twin.note is not conv.note and list(twin.state_dict()) == list(conv.state_dict())


@each_way
def test_removing_a_parametrization_from_the_copy_leaves_the_original_parametrized(way):
    net = parametrizations.weight_norm(torch.nn.Linear(2, 2))
    twin = way(net)
    assert parametrize.is_parametrized(twin, "weight") and type(twin).__name__ == type(net).__name__
    weight = twin.weight.detach().clone()
    parametrize.remove_parametrizations(twin, "weight")
    assert type(twin) is torch.nn.Linear and torch.allclose(twin.weight, weight)
    assert parametrize.is_parametrized(net, "weight") and torch.allclose(net.weight, weight)


@each_way
def test_a_parametrization_can_be_added_and_set_after_loading(way):
    class Double(torch.nn.Module):
        def forward(self, x):
            return 2 * x

        def right_inverse(self, x):
            return x / 2

    net = torch.nn.Linear(2, 2, bias=False)
    parametrize.register_parametrization(net, "weight", Double())
    twin = way(net)
    twin.weight = torch.full((2, 2), 6.0)
    assert twin.parametrizations.weight.original.tolist() == [[3.0, 3.0]] * 2
    assert twin(torch.ones(1, 2)).tolist() == [[12.0, 12.0]]
    parametrize.register_parametrization(twin, "weight", Double())
    assert len(twin.parametrizations.weight) == 2 and len(net.parametrizations.weight) == 1


def test_a_parametrized_module_in_a_fresh_process(tmp_path):
    net = torch.nn.Sequential(parametrizations.weight_norm(torch.nn.Linear(2, 2)), torch.nn.ReLU())
    code = f"""
        import torch
        from torch.nn.utils import parametrize
        assert parametrize.is_parametrized(obj[0], "weight")
        assert torch.allclose(obj(torch.ones(1, 2)), torch.tensor({net(torch.ones(1, 2)).tolist()!r}), atol=1e-6)
        obj(torch.ones(1, 2)).sum().backward()
        parametrize.remove_parametrizations(obj[0], "weight")
        print(type(obj[0]).__name__)
    """
    assert fresh_load(safepickle.dumps(net), code, tmp_path, loader="pickle").split() == ["Linear"]


@each_way
def test_recurrent_modules_run_on_the_weights_of_their_own(way):
    net = torch.nn.ModuleList([torch.nn.LSTM(2, 3, num_layers=2, bidirectional=True), torch.nn.GRU(2, 3)])
    x, twin = torch.randn(4, 2), way(net)
    for one, other in zip(net, twin, strict=True):
        assert torch.equal(one(x)[0], other(x)[0])
        assert [id(w) for w in other._flat_weights] == [id(getattr(other, n)) for n in other._flat_weights_names]
        with torch.no_grad():
            other.weight_ih_l0.zero_()
        assert not torch.equal(one(x)[0], other(x)[0])


# -- modules -----------------------------------------------------------------------------------------------------------


@each_way
def test_a_module_keeps_everything_that_was_set_on_it(way):
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
    net.eval()
    net.extra = {"a": [1]}
    net[0].weight.requires_grad_(False)
    net.register_buffer("hidden", torch.ones(1), persistent=False)
    twin = way(net)
    assert not twin.training and twin.extra == {"a": [1]} and twin.extra["a"] is not net.extra["a"]
    assert not twin[0].weight.requires_grad and "hidden" not in twin.state_dict() and twin.hidden.tolist() == [1.0]


class Gate(torch.nn.Module):
    """A module with a state of its own making."""

    def __init__(self):
        super().__init__()
        self.lin, self.scratch = torch.nn.Linear(1, 1), object()

    def __getstate__(self):
        return {**self.__dict__, "scratch": None}

    def __setstate__(self, state):
        super().__setstate__(state)
        self.scratch = "made again"


@each_way
def test_getstate_and_setstate_of_a_module_are_honoured(way):
    assert way(Gate()).scratch == "made again"


@each_way
def test_a_handle_whose_module_is_gone_is_dead_and_harmless(way):
    handle = torch.nn.Linear(1, 1).register_forward_hook(print)
    gc.collect()
    way(handle).remove()


@each_way
def test_a_handle_removes_the_hook_of_the_module_that_came_with_it(way):
    net = torch.nn.Linear(1, 1)
    net.handle = net.register_forward_hook(lambda m, x, y: y * 0)
    twin = way(net)
    assert twin(torch.ones(1)).item() == 0.0
    twin.handle.remove()
    assert twin(torch.ones(1)).item() != 0.0 and net(torch.ones(1)).item() == 0.0


@each_way
def test_averaged_models_go_on_averaging(way):
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    net = torch.nn.Linear(2, 2)
    for averaged in (AveragedModel(net), AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5))):
        averaged.update_parameters(net)
        twin = way(averaged)
        moved = copy.deepcopy(net)
        with torch.no_grad():
            moved.weight.add_(1.0)
        averaged.update_parameters(moved)
        before = twin.module.weight.detach().clone()
        twin.update_parameters(moved)
        assert torch.allclose(twin.module.weight, averaged.module.weight)
        assert not torch.equal(twin.module.weight, before)


# -- optimizers --------------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    name: cls
    for name, cls in vars(torch.optim).items()
    if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)
}
for _name in ("Optimizer", "SparseAdam", "Muon"):  # the last two want other parameters than those of a linear layer
    OPTIMIZERS.pop(_name, None)


def train(net, optimizer, steps):
    x, y = torch.tensor([[1.0, 2.0], [2.0, 1.0], [3.0, 0.0]]), torch.tensor([[2.0], [4.0], [6.5]])

    def closure():
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return [p.detach().clone() for p in net.parameters()]


@each_way
@pytest.mark.parametrize("cls", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_optimizer_goes_on_as_the_original_does(cls, way):
    torch.manual_seed(0)
    net = torch.nn.Linear(2, 1)
    options = {"momentum": 0.9} if cls in (torch.optim.SGD, torch.optim.RMSprop) else {}
    optimizer = cls(net.parameters(), lr=0.05, **options)
    train(net, optimizer, 3)
    twin, twin_optimizer = way((net, optimizer))
    assert [id(p) for g in twin_optimizer.param_groups for p in g["params"]] == [id(p) for p in twin.parameters()]
    start = [p.detach().clone() for p in net.parameters()]
    got = train(twin, twin_optimizer, 3)
    assert all(torch.equal(a, b) for a, b in zip(start, net.parameters(), strict=True)), "the copy moved the original"
    want = train(net, optimizer, 3)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(got, want, strict=True))


class Lookahead(torch.optim.Optimizer):
    """An optimizer with fields of its own, which Optimizer.__getstate__ does not name."""

    def __init__(self, inner, every=2):
        self.inner, self.every, self.count = inner, every, 0
        self.slow = [p.detach().clone() for g in inner.param_groups for p in g["params"]]
        self.decay = lambda x: x * 0.5
        super().__init__([p for g in inner.param_groups for p in g["params"]], {})

    @torch.no_grad()
    def step(self, closure=None):
        self.inner.step(closure)
        self.count += 1
        if self.count % self.every == 0:
            for slow, fast in zip(self.slow, self.param_groups[0]["params"], strict=True):
                slow.add_(self.decay(fast - slow))
                fast.copy_(slow)


@each_way
def test_an_optimizer_keeps_the_fields_of_its_class(way):
    net = torch.nn.Linear(2, 1)
    optimizer = Lookahead(torch.optim.SGD(net.parameters(), lr=0.1))
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    twin, twin_optimizer = way((net, optimizer))
    assert twin_optimizer.count == 1 and twin_optimizer.inner.param_groups[0]["params"][0] is twin.weight
    for model, opt in ((net, optimizer), (twin, twin_optimizer)):
        opt.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        opt.step()
    assert torch.allclose(twin.weight, net.weight) and torch.allclose(twin_optimizer.slow[0], optimizer.slow[0])


@each_way
def test_hooks_of_an_optimizer_are_kept(way):
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer.counts = {"n": 0}

    def count(opt, args, kwargs):
        opt.counts["n"] += 1

    optimizer.register_step_post_hook(count)
    twin = way(optimizer)
    twin.step()
    assert (twin.counts["n"], optimizer.counts["n"]) == (1, 0)


def test_hooks_that_are_registered_later_do_not_replace_those_that_came_along(tmp_path):
    net = parametrizations.weight_norm(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.calls, optimizer.calls = [], []
    net.register_forward_hook(lambda module, x, y: module.calls.append("old"))
    optimizer.register_step_post_hook(lambda opt, args, kwargs: opt.calls.append("old"))
    code = """
        import torch
        net, optimizer = obj
        net.register_forward_hook(lambda module, x, y: module.calls.append("new"))
        optimizer.register_step_post_hook(lambda opt, args, kwargs: opt.calls.append("new"))
        net(torch.ones(1)).sum().backward()
        optimizer.step()
        print(net.calls, optimizer.calls)
    """
    printed = fresh_load(safepickle.dumps((net, optimizer)), code, tmp_path, loader="pickle")
    assert printed.strip() == "['old', 'new'] ['old', 'new']"


def test_an_optimizer_of_main_steps_in_a_fresh_process(tmp_path):
    script = """
        import safepickle, sys, torch

        class Sign(torch.optim.Optimizer):
            def __init__(self, params, lr):
                super().__init__(params, {"lr": lr})
                self.note = lambda: 3

            @torch.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]:
                        p.sub_(group["lr"] * p.grad.sign())

        net = torch.nn.Linear(2, 1)
        torch.nn.init.zeros_(net.weight)
        optimizer = Sign(net.parameters(), 0.5)
        with open(sys.argv[1], "wb") as file:
            file.write(safepickle.dumps((net, optimizer)))
    """
    run_python(script, args=[tmp_path / "pair.pkl"])
    code = """
        import torch
        net, optimizer = obj
        before = net.weight.detach().clone()
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        print((before - net.weight).tolist(), optimizer.note())
    """
    printed = fresh_load((tmp_path / "pair.pkl").read_bytes(), code, tmp_path, loader="pickle")
    assert printed.strip() == "[[0.5, 0.5]] 3"


schedulers = torch.optim.lr_scheduler
SCHEDULERS = {
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda epoch: 0.9),
    "StepLR": lambda o: schedulers.StepLR(o, 2),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [1, 3]),
    "ConstantLR": lambda o: schedulers.ConstantLR(o),
    "LinearLR": lambda o: schedulers.LinearLR(o),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.9),
    "SequentialLR": lambda o: schedulers.SequentialLR(o, _two(o), [2]),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 3),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(_two(o)),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.1, 0.2, scale_fn=lambda x: 0.5, mode="other", step_size_up=2),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=20),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=0),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.01, anneal_epochs=4),
}


def _two(optimizer):
    return [schedulers.ConstantLR(optimizer), schedulers.ExponentialLR(optimizer, 0.9)]


def rates(optimizer, scheduler, count):
    found = []
    for number in range(count):
        optimizer.step()
        scheduler.step(*([float(number)] if isinstance(scheduler, schedulers.ReduceLROnPlateau) else []))
        found.append(optimizer.param_groups[0]["lr"])
    return found


@each_way
@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
@pytest.mark.parametrize("used", [0, 2], ids=["unused", "used"])
def test_a_scheduler_goes_on_and_moves_its_own_optimizer(make, used, way):
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    scheduler = make(optimizer)
    rates(optimizer, scheduler, used)
    _, twin_optimizer, twin = way((net, optimizer, scheduler))
    before = optimizer.param_groups[0]["lr"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns where it finds the optimizer's step replaced
        got = rates(twin_optimizer, twin, 4)
    assert optimizer.param_groups[0]["lr"] == before
    assert got == pytest.approx(rates(optimizer, scheduler, 4))


@each_way
def test_a_scheduler_warns_of_a_step_that_was_left_out_as_before(way):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    _, twin = way((optimizer, schedulers.ExponentialLR(optimizer, 0.9)))
    with pytest.warns(UserWarning, match=r"before `optimizer\.step\(\)`"):
        twin.step()


@each_way
def test_a_gradient_scaler_keeps_its_scale(way):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler.scale(net(torch.ones(1)).sum()).backward()
    scaler.step(optimizer)
    scaler.update(32.0)
    twin = way(scaler)
    assert twin.get_scale() == 32.0 and twin.scale(torch.ones(1)).item() == 32.0


# -- data --------------------------------------------------------------------------------------------------------------


def batches(loader):
    return [batch.tolist() for batch in loader]


@each_way
def test_a_loader_and_its_generator_draw_the_same_batches(way):
    generator = torch.Generator().manual_seed(5)
    loader = torch.utils.data.DataLoader(
        range(8), batch_size=3, shuffle=True, generator=generator, collate_fn=lambda rows: torch.tensor(rows)
    )
    batches(loader)
    twin = way(loader)
    assert twin.generator is twin.sampler.generator is not generator
    assert batches(twin) == batches(loader)
    assert batches(twin) == batches(loader)


@each_way
@pytest.mark.parametrize("name", ["RandomSampler", "WeightedRandomSampler", "SubsetRandomSampler"])
def test_samplers_draw_the_same_numbers(name, way):
    data = torch.utils.data
    generator = torch.Generator().manual_seed(1)
    sampler = {
        "RandomSampler": lambda: data.RandomSampler(range(9), generator=generator),
        "WeightedRandomSampler": lambda: data.WeightedRandomSampler([1.0, 2.0, 3.0], 9, generator=generator),
        "SubsetRandomSampler": lambda: data.SubsetRandomSampler([4, 5, 6, 7], generator=generator),
    }[name]()
    list(sampler)
    twin = way(sampler)
    assert [list(twin), list(twin)] == [list(sampler), list(sampler)]


@each_way
def test_a_loader_with_running_workers_travels_without_them(way):
    loader = torch.utils.data.DataLoader(range(4), num_workers=1, persistent_workers=True, batch_size=2)
    want = batches(loader)
    running = [loader]
    try:
        twin = way(loader)
        assert twin._iterator is None and loader._iterator is not None
        running.append(twin)
        assert batches(twin) == want == batches(loader)
    finally:
        for one in running:
            if one._iterator is not None:
                one._iterator._shutdown_workers()


@pytest.mark.parametrize("way", [safepickle.deepcopy, safepickle.dumps])
def test_a_running_iteration_says_what_to_do(way):
    running = iter(torch.utils.data.DataLoader(range(4)))
    with pytest.raises(safepickle.PicklingError, match="keep the DataLoader"):
        way({"it": running})


@each_way
def test_splits_and_packed_sequences(way):
    first, second = torch.utils.data.random_split(range(10), [7, 3], generator=torch.Generator().manual_seed(0))
    assert [list(part) for part in way([first, second])] == [list(first), list(second)]
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.zeros(2)])
    padded = torch.nn.utils.rnn.pad_packed_sequence
    assert torch.equal(padded(way(packed))[0], padded(packed)[0])


# -- generators and values ---------------------------------------------------------------------------------------------


@each_way
def test_a_generator_draws_the_same_next_numbers_and_is_independent(way):
    generator = torch.Generator().manual_seed(7)
    torch.rand(3, generator=generator)
    twin, again = way([generator, generator])
    assert twin is again is not generator
    first = torch.rand(2, generator=twin)
    assert torch.equal(first, torch.rand(2, generator=generator))
    assert torch.equal(torch.randn(3, generator=twin), torch.randn(3, generator=generator))


@each_way
def test_the_state_of_the_random_numbers(way):
    state = torch.get_rng_state()
    want = torch.rand(2)
    torch.set_rng_state(way(state))
    assert torch.equal(torch.rand(2), want)


VALUES = [
    torch.float32, torch.bfloat16, torch.strided, torch.sparse_coo, torch.channels_last, torch.preserve_format,
    torch.per_tensor_affine,
]  # fmt: skip


@each_way
@pytest.mark.parametrize("value", VALUES, ids=str)
def test_singletons_stay_themselves(value, way):
    assert way([value])[0] is value


@each_way
def test_devices_sizes_and_limits(way):
    assert way(torch.device("cuda:1")) == torch.device("cuda:1")
    size = way(torch.ones(2, 3).size())
    assert type(size) is torch.Size and size == (2, 3) and size.numel() == 6
    assert way(torch.finfo(torch.bfloat16)).max == torch.finfo(torch.bfloat16).max
    assert way(torch.iinfo(torch.int8)).max == 127
    pair = way(torch.max(torch.ones(2, 2), 0))
    assert type(pair) is torch.return_types.max and pair.values.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("way", [w for n, w in WAYS.items() if n != "torch.save"])
def test_a_dictionary_with_tensors_as_weak_keys(way):
    from torch.utils.weak import WeakTensorKeyDictionary

    weight, other = torch.nn.Parameter(torch.ones(1)), torch.ones(1)
    names = WeakTensorKeyDictionary()
    names[weight], names[other] = ["weight"], ["not part of it"]
    twin, twin_names = way((weight, names))
    assert twin_names[twin] == ["weight"] and twin_names[twin] is not names[weight]
    assert (weight in twin_names, other in twin_names) == (False, way is safepickle.deepcopy)
    del twin
    gc.collect()
    assert [key for key in twin_names if key is not other] == []


@each_way
@pytest.mark.parametrize("cache_size", [0, 1])
def test_inverses_of_transforms_invert_what_came_along(cache_size, way):
    from torch.distributions import AffineTransform, ComposeTransform, ExpTransform, Normal, TransformedDistribution

    shift = AffineTransform(torch.tensor(1.0), torch.tensor(2.0), cache_size=cache_size)
    both = ComposeTransform([ExpTransform(), shift])
    alone, (twin, inverse), chain = way((ExpTransform().inv, (shift, shift.inv), both.inv))
    assert alone(torch.ones(1)) == 0 and alone.inv(torch.zeros(1)) == 1
    assert inverse.inv is twin and twin.inv is inverse and twin is not shift
    assert torch.allclose(chain(both(torch.ones(1))), torch.ones(1))
    twin.loc.fill_(5.0)
    assert inverse(torch.tensor(9.0)) == 2 and shift.inv(torch.tensor(9.0)) == 4
    spread = TransformedDistribution(Normal(0.0, 1.0), [ExpTransform().inv])
    assert way(spread).log_prob(torch.ones(1)) == spread.log_prob(torch.ones(1))


# -- devices -----------------------------------------------------------------------------------------------------------


@each_way
def test_streams_are_of_the_same_device_and_stay_one(way):
    stream = torch.Stream(device="cpu")
    first, again = way([stream, stream])
    assert first is again and first == stream and isinstance(first, torch.Stream)
    assert (first is stream) is (way is safepickle.deepcopy)


@each_way
def test_events_are_fresh(way):
    event = torch.Event(device="cpu")
    first, again = way([event, event])
    assert first is again is not event and first.device == event.device


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return grad


@pytest.mark.parametrize("verb", [safepickle.deepcopy, safepickle.dumps])
@pytest.mark.parametrize("make", [lambda x: x * 2, Square.apply], ids=["built in", "custom"])
def test_nodes_of_the_graph_are_refused_with_their_path(make, verb):
    node = make(torch.ones(1, requires_grad=True)).grad_fn
    with pytest.raises(safepickle.PicklingError) as caught:
        verb({"stats": [node]})
    assert "['stats'][0]" in str(caught.value) and type(node).__name__ in str(caught.value)


DISTRIBUTED = """
import copy, pickle, safepickle, torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
group = dist.new_group([0])
holder = {"world": dist.group.WORLD, "group": group}
for twin in (safepickle.deepcopy(holder), pickle.loads(safepickle.dumps(holder))):
    assert twin["world"] is dist.group.WORLD and twin["group"] is group, twin
    dist.all_reduce(torch.ones(1), group=twin["group"])
mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
for twin in (safepickle.deepcopy(mesh), pickle.loads(safepickle.dumps(mesh))):
    assert twin.mesh_dim_names == ("dp",) and twin == mesh
    dist.all_reduce(torch.ones(1), group=twin.get_group("dp"))
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
for twin in (safepickle.deepcopy(net), pickle.loads(safepickle.dumps(net))):
    twin(torch.ones(1, 2)).sum().backward()
    assert twin.module.weight.grad is not None and net.module.weight.grad is None
for verb in (safepickle.deepcopy, safepickle.dumps):
    for thing in (dist.all_reduce(torch.ones(1), async_op=True), dist.HashStore()):
        try:
            verb([thing])
        except safepickle.PicklingError as error:
            assert "[0]" in str(error), error
        else:
            raise AssertionError(thing)
data = safepickle.dumps(holder)
dist.destroy_process_group()
try:
    pickle.loads(data)
except pickle.UnpicklingError as error:
    assert "init_process_group before loading" in str(error), error
else:
    raise AssertionError("loaded a group that is gone")
try:
    safepickle.dumps(group)
except safepickle.PicklingError as error:
    assert "not registered" in str(error), error
print("done")
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_process_groups_are_those_of_the_process(tmp_path):
    assert run_python(DISTRIBUTED).split() == ["done"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_tensors_streams_and_generators_come_back_to_their_device():
    net = torch.nn.Linear(2, 2).cuda()
    net.stream = torch.cuda.Stream(priority=-1)
    generator = torch.Generator("cuda").manual_seed(3)
    for way in (safepickle.deepcopy, lambda obj: pickle.loads(safepickle.dumps(obj))):
        twin, twin_generator = way((net, generator))
        x = torch.ones(1, 2, device="cuda")
        assert torch.equal(twin(x), net(x)) and twin.weight.data_ptr() != net.weight.data_ptr()
        assert twin.stream.device == net.stream.device and twin.stream.priority == -1
        drawn = [torch.rand(2, device="cuda", generator=one) for one in (twin_generator, generator)]
        assert torch.equal(*drawn)
    with pytest.raises(safepickle.PicklingError, match="capture it again"):
        safepickle.dumps(torch.cuda.CUDAGraph())
