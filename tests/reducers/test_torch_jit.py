"""TorchScript: what was scripted or traced computes the same, and trains alone, after every way of travelling."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

import safepickle
from tests.helpers import fresh_load, run_python

from .torch_ways import assert_independent, every_torch_way, fill, saved

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")


@pytest.fixture(autouse=True, scope="module")
def _torch_script_is_deprecated():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def scripted(obj):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(obj)


def traced(obj, *inputs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.trace(obj, inputs)


def gated(x: torch.Tensor, k: float = 2.0) -> torch.Tensor:
    if bool(x.sum() > 0):
        return x * k
    return x


scripted_gated = scripted(gated)
traced_double = traced(lambda x: x * 2, torch.ones(1))


class Parts(torch.nn.Module):
    """Everything that TorchScript keeps in a module, and what only Python has."""

    def __init__(self):
        super().__init__()
        self.lin, self.norm = torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.same = self.weight
        self.register_buffer("hidden", torch.zeros(3), persistent=False)
        self.calls = [0]
        self.table = {"one": torch.ones(1)}
        self.label = "parts"

    def forward(self, x):
        self.calls.append(1)
        return self.norm(self.lin(x) * self.weight) + self.table["one"]

    @torch.jit.export
    def counted(self) -> int:
        return len(self.calls)

    @torch.jit.ignore
    def in_python(self, x):
        return x + self.weight


class OldStyle(torch.jit.ScriptModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), 2.0))

    @torch.jit.script_method
    def forward(self, x):
        return x * self.weight


def plain():
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))


MODULES = {
    "scripted": lambda: scripted(plain()),
    "traced": lambda: traced(plain(), torch.ones(1, 3)),
    "scripted part": lambda: torch.nn.Sequential(scripted(torch.nn.Linear(3, 3)), torch.nn.Linear(3, 2)),
    "traced part": lambda: torch.nn.Sequential(traced(torch.nn.Linear(3, 3), torch.ones(1, 3)), torch.nn.Linear(3, 2)),
    "with attributes": lambda: scripted(Parts().eval()),
    "old style": lambda: OldStyle(),
}


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
@every_torch_way
def test_scripted_module_trains_alone(make, way):
    net = make()
    other = way(net)
    assert all(parameter.is_leaf and parameter.requires_grad for parameter in other.parameters())
    assert type(other) is type(net)
    assert_independent(net, other, torch.randn(4, 3))


@every_torch_way
def test_state_of_a_scripted_module_is_complete(way):
    net = scripted(Parts())
    net(torch.randn(4, 3))
    other = way(net)
    assert list(other.state_dict()) == list(net.state_dict())
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in other.state_dict().items())
    assert {name for name, _ in other.named_parameters()} == {name for name, _ in net.named_parameters()}
    assert {name for name, _ in other.named_buffers()} == {name for name, _ in net.named_buffers()}
    assert (other.label, other.counted(), other.training) == ("parts", 2, True)
    assert not way(scripted(Parts()).eval()).norm.training


@every_torch_way
def test_containers_in_a_scripted_module_are_its_own(way):
    net = scripted(Parts().eval())
    other = way(net)
    other(torch.ones(1, 3))
    assert (other.counted(), net.counted()) == (2, 1)


@every_torch_way
def test_tied_parameters_of_a_scripted_module_stay_tied(way):
    net = scripted(Parts())
    other = way(net)
    assert other.weight is other.same
    assert other.weight is not net.weight


@every_torch_way
def test_parameters_that_a_scripted_module_shares_with_another_stay_shared(way):
    lin = torch.nn.Linear(3, 3)
    eager, script = way([lin, scripted(lin)])
    assert script.weight is eager.weight
    fill(eager, 0.0)
    assert script(torch.ones(1, 3)).tolist() == [[0.0, 0.0, 0.0]]


@every_torch_way
def test_optimizer_drives_the_parameters_of_the_restored_scripted_module(way):
    net, x = scripted(plain()), torch.randn(4, 3)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    net(x).sum().backward()
    optimizer.step()
    other, driver = way((net, optimizer))
    before, untouched = other(x).detach(), net(x).detach()
    driver.zero_grad()
    other(x).sum().backward()
    driver.step()
    assert not torch.allclose(other(x), before)
    assert torch.equal(net(x), untouched)
    assert driver.state_dict()["state"][0]["step"].item() == 2


@every_torch_way
def test_what_only_the_python_side_of_a_scripted_module_has_is_kept(way):
    net = scripted(Parts())
    net.note = {"stage": 1}
    net.lin.tag = "inner"
    other = way(net)
    assert other.note == {"stage": 1} and other.note is not net.note
    assert other.lin.tag == "inner"
    fill(other, 5.0)
    assert other.in_python(torch.zeros(3)).tolist() == [5.0, 5.0, 5.0]
    assert net.in_python(torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]


def test_frozen_module_computes_the_same():
    net = torch.jit.freeze(scripted(plain().eval()))
    x = torch.randn(4, 3)
    for other in (safepickle.deepcopy(net), safepickle.loads(safepickle.dumps(net)), saved(net)):
        assert torch.equal(other(x), net(x))


def test_module_that_is_converted_for_this_machine_is_copied_and_refuses_to_be_pickled():
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch converts nothing here")
    plain_net = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1), torch.nn.BatchNorm2d(1)).eval()
    net, x = torch.jit.optimize_for_inference(scripted(plain_net)), torch.randn(1, 1, 2, 2)
    assert torch.equal(safepickle.deepcopy(net)(x), net(x))
    with pytest.raises(safepickle.PicklingError, match=r"(?s)obj\['model'\].*optimize_for_inference"):
        safepickle.dumps({"model": net})


def test_frozen_parameters_stay_frozen():
    net = scripted(torch.nn.Linear(3, 2))
    net.weight.requires_grad_(False)
    for other in (safepickle.deepcopy(net), safepickle.loads(safepickle.dumps(net)), saved(net)):
        assert [parameter.requires_grad for parameter in other.parameters()] == [False, True]


def test_dynamically_quantized_scripted_module_computes_the_same():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = torch.ao.quantization.quantize_dynamic(plain(), {torch.nn.Linear}, dtype=torch.qint8)
        net = scripted(quantized)
    x = torch.randn(4, 3)
    for other in (safepickle.deepcopy(net), safepickle.loads(safepickle.dumps(net)), saved(net)):
        assert torch.equal(other(x), net(x))


def test_scripted_container_keeps_its_length_and_its_items():
    net = scripted(plain())
    other = safepickle.loads(safepickle.dumps(net))
    assert len(other) == 3
    twin = safepickle.deepcopy(net)
    assert len(twin) == 3
    assert twin[0].weight is next(twin.parameters())


@every_torch_way
def test_method_of_a_scripted_module_uses_the_weights_that_came_back(way):
    net = torch.nn.Module()
    net.script = scripted(torch.nn.Linear(3, 2))
    net.fast = net.script.forward
    other = way(net)
    fill(other, 0.0)
    assert other.fast(torch.ones(1, 3)).tolist() == [[0.0, 0.0]]
    assert not torch.equal(net.fast(torch.ones(1, 3)), torch.zeros(1, 2))


def test_shallow_copy_of_a_scripted_module_shares_its_parameters():
    net = scripted(torch.nn.Linear(3, 2))
    twin = safepickle.copy(net)
    assert twin is not net and twin.weight is net.weight


def test_weights_are_not_in_the_archive_of_the_code():
    small, large = scripted(torch.nn.Linear(3, 3)), scripted(torch.nn.Linear(300, 300))
    code = len(safepickle.dumps(small))
    assert len(safepickle.dumps(large)) < code + 300 * 301 * 4 + 100


class CallsPython(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.helper(self.lin(x))

    @torch.jit.ignore
    def helper(self, x):
        return x + self.lin.bias


def test_scripted_module_that_calls_python_is_copied_and_refuses_to_be_pickled():
    net = scripted(CallsPython())
    assert_independent(net, safepickle.deepcopy(net), torch.randn(4, 3))
    with pytest.raises(safepickle.PicklingError, match=r"(?s)obj\['model'\].*CallsPython.*helper"):
        safepickle.dumps({"model": net})


# -- functions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [scripted_gated, traced_double], ids=["scripted", "traced"])
def test_script_function_of_a_module_goes_by_name(function):
    for protocol in (2, 4, 5):
        assert safepickle.loads(safepickle.dumps(function, protocol)) is function
    assert safepickle.deepcopy([function])[0] is function
    assert safepickle.copy(function) is function
    assert saved([function])[0] is function


@every_torch_way
def test_script_function_without_a_name_keeps_control_flow_and_defaults(way):
    def local(x: torch.Tensor, k: float = 3.0) -> torch.Tensor:
        parts: list[torch.Tensor] = []
        if bool(x.sum() > 0):
            parts.append(x * k)
        else:
            parts.append(x)
        return parts[0]

    function = scripted(local)
    other = way([function])[0]
    assert isinstance(other, torch.jit.ScriptFunction)
    assert other(torch.ones(2)).tolist() == [3.0, 3.0]
    assert other(torch.ones(2), 4.0).tolist() == [4.0, 4.0]
    assert other(-torch.ones(2)).tolist() == [-1.0, -1.0]


@every_torch_way
def test_script_function_that_calls_another_takes_it_along(way):
    def outer(x: torch.Tensor) -> torch.Tensor:
        return gated(x) + 1

    assert way([scripted(outer)])[0](torch.ones(2)).tolist() == [3.0, 3.0]


@every_torch_way
def test_traced_function_without_a_name_is_what_was_traced(way):
    function = traced(lambda x: x * 2 if x.sum() > 0 else x * 3, torch.ones(2))
    other = way([function])[0]
    assert isinstance(other, torch.jit.ScriptFunction)
    assert other(torch.ones(2)).tolist() == [2.0, 2.0]
    assert other(-torch.ones(2)).tolist() == [-2.0, -2.0], "it was traced with a positive input"


# -- other processes ---------------------------------------------------------------------------------------------------


def test_scripted_things_of_a_script_work_in_a_new_process(tmp_path):
    run_python(
        f"""
        import warnings; warnings.simplefilter("ignore")
        import safepickle, torch
        from typing import List

        @torch.jit.script
        def gelu_like(x: torch.Tensor, k: float = 1.7) -> torch.Tensor:
            parts: List[torch.Tensor] = [x * torch.sigmoid(k * x)]
            return parts[0]

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.lin, self.act = torch.jit.script(torch.nn.Linear(3, 3)), gelu_like
                self.traced = torch.jit.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))

            def forward(self, x):
                return self.traced(self.act(self.lin(x)))

        net, x = Net(), torch.randn(4, 3)
        with open({str(tmp_path / "data.pkl")!r}, "wb") as file:
            file.write(safepickle.dumps({{"net": net, "x": x, "y": net(x).detach()}}, 2))
        """
    )
    fresh_load(
        (tmp_path / "data.pkl").read_bytes(),
        """
        import torch
        net, x = obj["net"], obj["x"]
        assert torch.allclose(net(x), obj["y"])
        net(x).sum().backward()
        assert net.lin.weight.grad is not None and net.traced.weight.grad is not None
        import safepickle
        again = safepickle.loads(safepickle.dumps(safepickle.deepcopy(net)))
        assert torch.allclose(again(x), obj["y"])
        """,
        tmp_path,
        loader="pickle",
    )
