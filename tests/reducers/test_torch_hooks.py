"""Hooks: they are those of what comes back, can be removed there, and report there."""

from __future__ import annotations

import functools
import types
import weakref

import pytest

torch = pytest.importorskip("torch")

import safepickle
from tests.helpers import fresh_load, run_python

from .torch_ways import TORCH_WAYS, every_torch_way, fill

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*will not be serialized")

#: Under torch.save, tensors are written as torch writes them: without hooks.
WHOLE = {name: way for name, way in TORCH_WAYS.items() if name != "torch.save"}
whole_tensors = pytest.mark.parametrize("way", WHOLE.values(), ids=WHOLE)


class Hooked(torch.nn.Module):
    """Hooks of every kind that report to the module itself."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
        self.seen = []
        self.shift = 0.0
        self.handle = self.inner.register_forward_hook(self.doubling)
        self.register_forward_pre_hook(lambda module, inputs: (inputs[0] + module.shift,))
        self.register_forward_hook(self.with_keywords, with_kwargs=True, always_call=True)
        self.register_full_backward_hook(self.backward_done)
        self.register_load_state_dict_post_hook(self.loaded)

    def doubling(self, module, inputs, output):
        self.seen.append("forward")
        return output * 2

    def with_keywords(self, module, args, kwargs, output):
        self.seen.append("keywords")

    def backward_done(self, module, gradients_in, gradients_out):
        self.seen.append("backward")

    def loaded(self, module, keys):
        self.seen.append("loaded")

    def forward(self, x):
        return self.inner(x)


@every_torch_way
def test_hooks_that_are_methods_of_the_module_report_to_what_comes_back(way):
    net, x = Hooked(), torch.randn(2, 3)
    other = way(net)
    expected = other(x)
    expected.sum().backward()
    other.load_state_dict(other.state_dict())
    assert other.seen == ["forward", "keywords", "backward", "loaded"]
    assert net.seen == []
    assert torch.allclose(expected, net(x))


@every_torch_way
def test_hook_that_reads_the_module_reads_what_comes_back(way):
    net, x = Hooked(), torch.zeros(1, 3)
    other = way(net)
    other.shift = 1.0
    assert not torch.allclose(other(x), net(x))


@every_torch_way
def test_handle_removes_the_hook_of_what_comes_back_only(way):
    net, x = Hooked(), torch.randn(2, 3)
    other = way(net)
    other.handle.remove()
    other(x)
    net(x)
    assert (other.seen, net.seen) == (["keywords"], ["forward", "keywords"])


@every_torch_way
def test_hook_in_a_closure_writes_into_what_comes_back(way):
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    net.activations = {}

    def keep(name):
        def hook(module, inputs, output):
            net.activations[name] = output

        return hook

    for name, part in net.named_children():
        part.register_forward_hook(keep(name))
    other = way(net)
    other(torch.ones(1, 2))
    assert sorted(other.activations) == ["0", "1"] and net.activations == {}


@every_torch_way
def test_hook_that_is_a_partial_over_a_weak_reference_counts_for_what_comes_back(way):
    def hook(owner, module, inputs, output):
        owner().calls += 1

    net = torch.nn.Linear(2, 1)
    net.calls = 0
    net.register_forward_hook(functools.partial(hook, weakref.ref(net)))
    other = way(net)
    other(torch.ones(1, 2))
    assert (other.calls, net.calls) == (1, 0)


@every_torch_way
def test_hook_that_is_a_method_of_another_object_in_the_same_call_is_of_its_copy(way):
    class Recorder:
        def __init__(self):
            self.shapes = []

        def __call__(self, module, inputs, output):
            self.shapes.append(tuple(output.shape))

        def hook(self, module, inputs, output):
            self.shapes.append(tuple(output.shape))

    net, recorder = torch.nn.Linear(2, 1), Recorder()
    net.register_forward_hook(recorder)
    net.register_forward_hook(recorder.hook)
    for pair in ((net, recorder), (recorder, net)):
        first, second = way(pair)
        other, watcher = (first, second) if isinstance(first, torch.nn.Module) else (second, first)
        other(torch.ones(4, 2))
        assert watcher.shapes == [(4, 1), (4, 1)] and recorder.shapes == []


@pytest.mark.parametrize("order", [1, -1], ids=["hooked first", "hooked last"])
@every_torch_way
def test_hook_that_calls_another_module_of_the_same_call_calls_its_copy(order, way):
    inner, net = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)
    net.register_forward_pre_hook(lambda module, inputs: (inner(inputs[0]),))
    other_net, other_inner = way([net, inner][::order])[::order]
    fill(other_inner, 0.0)
    assert torch.allclose(other_net(torch.ones(1, 3)), other_net.bias)
    assert not torch.allclose(net(torch.ones(1, 3)), net.bias)


def test_hook_over_an_object_outside_the_copy_is_shared():
    inner, net = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)
    net.register_forward_pre_hook(lambda module, inputs: (inner(inputs[0]),))
    twin = safepickle.deepcopy(net)
    assert list(twin._forward_pre_hooks.values()) == list(net._forward_pre_hooks.values())
    assert torch.equal(twin(torch.ones(1, 3)), net(torch.ones(1, 3)))


@whole_tensors
def test_hooks_on_parameters_report_to_what_comes_back(way):
    net = torch.nn.Linear(3, 2)
    net.log = []
    net.weight.register_hook(lambda gradient: net.log.append("gradient") or gradient * 2)
    net.weight.register_post_accumulate_grad_hook(lambda parameter: net.log.append("accumulated"))
    net.handle = net.bias.register_hook(lambda gradient: gradient * 3)
    other = way(net)
    other(torch.ones(1, 3)).sum().backward()
    assert (other.log, net.log) == (["gradient", "accumulated"], [])
    assert other.weight.grad.tolist() == [[2.0] * 3] * 2
    assert other.bias.grad.tolist() == [3.0, 3.0]
    other.bias.grad = None
    other.handle.remove()
    other(torch.ones(1, 3)).sum().backward()
    assert other.bias.grad.tolist() == [1.0, 1.0]
    net(torch.ones(1, 3)).sum().backward()
    assert net.bias.grad.tolist() == [3.0, 3.0]


@every_torch_way
def test_handle_without_its_module_can_be_removed_and_does_nothing(way):
    net = torch.nn.Linear(2, 1)
    handle = net.register_forward_hook(lambda *args: None)
    way({"handle": handle})["handle"].remove()
    assert len(net._forward_hooks) == 1


def test_hook_that_is_registered_after_loading_does_not_replace_a_loaded_one(tmp_path):
    """A new process numbers its hooks from zero."""
    run_python(
        f"""
        import safepickle, torch
        net = torch.nn.Linear(2, 1)
        for _ in range(3):
            net.register_forward_hook(lambda *args: None).remove()
        net.calls = []
        net.register_forward_hook(lambda module, inputs, output: module.calls.append("old"))
        net.weight.register_hook(lambda gradient: gradient * 2)
        with open({str(tmp_path / "data.pkl")!r}, "wb") as file:
            file.write(safepickle.dumps(net))
        """
    )
    fresh_load(
        (tmp_path / "data.pkl").read_bytes(),
        """
        import torch
        for _ in range(5):
            obj.register_forward_hook(lambda module, inputs, output: module.calls.append("new"))
            obj.weight.register_hook(lambda gradient: gradient * 2)
        obj(torch.ones(1, 2)).sum().backward()
        assert obj.calls == ["old"] + ["new"] * 5, obj.calls
        assert obj.weight.grad.tolist() == [[64.0, 64.0]]
        """,
        tmp_path,
    )


# -- wrappers of functions ---------------------------------------------------------------------------------------------


WRAPPED = {
    "vmap": lambda f: torch.vmap(f),
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum()),
    "jacrev": lambda f: torch.func.jacrev(f),
    "functionalize": lambda f: torch.func.functionalize(f),
    "no_grad": lambda f: torch.no_grad()(f),
    "inference_mode": lambda f: torch.inference_mode()(f),
    "autocast": lambda f: torch.autocast("cpu", enabled=False)(f),
    "checkpoint": lambda f: functools.partial(torch.utils.checkpoint.checkpoint, f, use_reentrant=False),
    "compiled": lambda f: torch.compile(torch.vmap(f), backend="eager"),
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
@every_torch_way
def test_transformed_function_of_a_module_uses_what_comes_back(wrap, way):
    net, x = torch.nn.Module(), torch.tensor([1.0, 2.0])
    net.factor = torch.nn.Parameter(torch.ones(1))
    net.transformed = wrap(lambda x: x * x * net.factor)
    expected = net.transformed(x)
    other = way(net)
    assert torch.allclose(other.transformed(x), expected)
    fill(other, 3.0)
    assert torch.allclose(other.transformed(x), expected * 3)
    assert torch.allclose(net.transformed(x), expected)


@every_torch_way
def test_functional_call_and_stacked_parameters_work_on_what_comes_back(way):
    nets = [torch.nn.Linear(2, 1) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(nets)
    net, other_parameters = way((nets[0], parameters))
    x = torch.ones(3, 4, 2)
    call = torch.vmap(lambda p, x: torch.func.functional_call(net, p, (x,)))
    assert torch.equal(call(other_parameters, x), torch.vmap(
        lambda p, x: torch.func.functional_call(nets[0], p, (x,)))(parameters, x))  # fmt: skip


@every_torch_way
def test_methods_put_on_an_instance_are_bound_to_what_comes_back(way):
    net = torch.nn.Linear(2, 1)
    net.total = types.MethodType(lambda self: self.weight.sum().item(), net)
    other = way(net)
    fill(other, 2.0)
    assert other.total() == 4.0
    assert net.total() == net.weight.sum().item()


def test_module_in_a_checkpoint_wrapper_trains_alone():
    wrapper = pytest.importorskip("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")
    net = wrapper.checkpoint_wrapper(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh()))
    x = torch.ones(1, 2)
    for other in (safepickle.deepcopy(net), safepickle.loads(safepickle.dumps(net))):
        assert torch.equal(other(x), net(x))
        other(x).sum().backward()
        assert all(parameter.grad is not None for parameter in other.parameters())
        assert all(parameter.grad is None for parameter in net.parameters())
