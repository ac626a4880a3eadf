"""Compiled functions and modules: a recipe travels, the copy is bound to the copy, and compiles by itself."""

from __future__ import annotations

import functools
import shutil
import time
import types
import weakref

import pytest

torch = pytest.importorskip("torch")

import safepickle
from tests.helpers import fresh_load, run_python
from tests.travel import travel

from .torch_ways import assert_independent, every_torch_way, fill, saved
from .ways import every_way

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

GRAPHS: list[object] = []
"""The graphs that :func:`counting` was asked to compile."""


def counting(graph, inputs):
    """A backend that says when it is used."""
    GRAPHS.append(graph)
    return graph.forward


@pytest.fixture(autouse=True)
def _forget_what_was_compiled():
    torch._dynamo.reset()
    GRAPHS.clear()


@torch.compile(backend=counting)
def decorated(x):
    return x * 2 + 1


def undecorated(x):
    return torch.sin(x) + 1


elsewhere = torch.compile(undecorated, backend="eager")


@torch.compiler.disable
def left_alone(x):
    return x - 1


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

    def straight(self, x):
        return self.second(self.first(x))


class Decorated(Net):
    @torch.compile(backend=counting)
    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def context_of(compiled):
    function = compiled.forward if isinstance(compiled, torch.nn.Module) else compiled
    return function.__closure__[function.__code__.co_freevars.index("self")].cell_contents


def backend_of(compiled):
    backend = context_of(compiled).callback
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    return backend


# -- modules -----------------------------------------------------------------------------------------------------------


def with_compiled_forward():
    net = Net()
    net.forward = torch.compile(net.forward, backend=counting)
    return net


def with_compiled_call():
    net = Net()
    net.compile(backend=counting)
    return net


def with_compiled_part():
    net = Net()
    net.first = torch.compile(net.first, backend=counting)
    return net


def of_torch_nn():
    """torch puts a frame of its own around methods of its own modules."""
    net = torch.nn.Linear(3, 2)
    net.forward = torch.compile(net.forward, backend=counting)
    return net


def with_another_method():
    net = Net()
    net.forward = torch.compile(net.straight, backend=counting)
    return net


def with_compiled_closure():
    net = Net()
    net.forward = torch.compile(lambda x: net.second(net.first(x)), backend=counting)
    return net


def with_compiled_partial():
    net = Net()
    net.forward = torch.compile(functools.partial(Net.forward, net), backend=counting)
    return net


def with_a_backend_of_its_own():
    net = Net()
    net.graphs = []

    def backend(graph, inputs):
        GRAPHS.append(graph)
        net.graphs.append(graph)
        return graph.forward

    net.forward = torch.compile(net.forward, backend=backend)
    return net


def wrapped_again():
    net = with_compiled_forward()
    inner = net.forward

    @functools.wraps(inner)
    def forward(*args):
        return inner(*args) + 1

    net.forward = forward
    return net


COMPILED = {
    "OptimizedModule": lambda: torch.compile(Net(), backend=counting),
    "forward": with_compiled_forward,
    "call": with_compiled_call,
    "part": with_compiled_part,
    "forward of torch.nn": of_torch_nn,
    "other method as forward": with_another_method,
    "closure as forward": with_compiled_closure,
    "partial as forward": with_compiled_partial,
    "wrapped again": wrapped_again,
    "decorated in the class": Decorated,
    "inside another": lambda: torch.nn.Sequential(with_compiled_forward(), torch.nn.Tanh()),
}


@pytest.mark.parametrize("called", [False, True], ids=["new", "called"])
@pytest.mark.parametrize("make", COMPILED.values(), ids=COMPILED)
@every_torch_way
def test_compiled_module_comes_back_compiled_and_with_weights_of_its_own(make, called, way):
    net, x = make(), torch.randn(4, 3)
    if called:
        net(x)
    other = way(net)
    torch._dynamo.reset()
    GRAPHS.clear()
    assert_independent(net, other, x)
    assert GRAPHS, "nothing was compiled"


REPLACED = {
    "method": lambda net: types.MethodType(lambda self, x: self.straight(x), net),
    "other method": lambda net: net.straight,
    "closure": lambda net: lambda x: net.straight(x),
    "partial": lambda net: functools.partial(Net.straight, net),
    "closure over a weak reference": lambda net: (lambda ref: lambda x: ref().straight(x))(weakref.ref(net)),
    "closure over a proxy": lambda net: (lambda proxy: lambda x: proxy.second(proxy.first(x)))(weakref.proxy(net)),
    "closure over a weak method": lambda net: (lambda ref: lambda x: ref()(x))(weakref.WeakMethod(net.straight)),
    "partial over a weak reference": lambda net: functools.partial(lambda ref, x: ref().straight(x), weakref.ref(net)),
    "default": lambda net: lambda x, owner=net: owner.straight(x),
    "keyword default": lambda net: lambda x, *, owner=net: owner.straight(x),
    "in a dict": lambda net: (lambda routes: lambda x: routes["second"](routes["first"](x)))(
        {"first": net.first.forward, "second": net.second.forward}),
    "disabled": lambda net: torch.compiler.disable(net.forward),
    "disabled, not what it calls": lambda net: torch.compiler.disable(net.forward, recursive=False),
    "in a grad mode": lambda net: torch.enable_grad()(net.forward),
    "in autocast": lambda net: torch.autocast("cpu", enabled=False)(net.forward),
    "checkpointed": lambda net: functools.partial(torch.utils.checkpoint.checkpoint, net.straight, use_reentrant=False),
    "wrapped": lambda net: functools.wraps(net.forward)(lambda x, inner=net.forward: inner(x)),
}


@pytest.mark.parametrize("replace", REPLACED.values(), ids=REPLACED)
@every_torch_way
def test_forward_replaced_on_the_instance_is_bound_to_what_comes_back(replace, way):
    net = Net()
    net.forward = replace(net)
    assert_independent(net, way(net), torch.randn(4, 3))


@every_way
def test_backend_that_closes_over_the_module_reports_to_the_one_that_comes_back(way):
    net, x = with_a_backend_of_its_own(), torch.randn(4, 3)
    other = way(net)
    other(x)
    assert len(other.graphs) == 1 and net.graphs == []


@every_way
def test_module_that_holds_its_own_compiled_form_gets_that_of_itself(way):
    net = Net()
    net.__dict__["fast"] = torch.compile(net, backend=counting)
    other = way(net)
    assert other.fast._orig_mod is other
    assert torch.allclose(other.fast(torch.ones(1, 3)), net(torch.ones(1, 3)))
    inside = way(net.fast)
    assert inside._orig_mod.fast is inside


@every_way
def test_compiled_method_beside_its_module_belongs_to_it(way):
    net = with_compiled_forward()
    forward, other = way([net.forward, net])
    assert other.forward is forward
    fill(other, 0.0)
    assert forward(torch.ones(1, 3)).tolist() == [[0.0, 0.0]]


def test_hooks_of_the_compiled_module_itself_come_along():
    net, x = torch.compile(Net(), backend=counting), torch.randn(4, 3)
    net.register_forward_hook(lambda module, inputs, output: output + 1)
    for other in (safepickle.deepcopy(net), safepickle.loads(safepickle.dumps(net)), saved(net)):
        assert torch.allclose(other(x), net._orig_mod(x) + 1)


def test_training_mode_of_a_compiled_module_is_kept():
    net = torch.compile(Net().eval(), backend="eager")
    assert not safepickle.loads(safepickle.dumps(net)).training
    assert not safepickle.deepcopy(net).training


def test_copy_of_a_compiled_module_has_a_compiler_of_its_own():
    net = torch.compile(Net(), backend="eager")
    assert safepickle.deepcopy(net).dynamo_ctx is not net.dynamo_ctx


def test_shallow_copy_of_a_compiled_module_is_another_one_over_the_same_module():
    net = torch.compile(Net(), backend="eager")
    twin = safepickle.copy(net)
    assert twin is not net and twin._orig_mod is net._orig_mod
    assert torch.equal(twin(torch.ones(1, 3)), net(torch.ones(1, 3)))


def test_disabled_module_stays_disabled():
    net = torch.compiler.disable(Net())
    other = safepickle.loads(safepickle.dumps(net))
    compiled = torch.compile(lambda x: other(x) + 1, backend=counting)
    assert torch.allclose(compiled(torch.ones(1, 3)), net(torch.ones(1, 3)) + 1)
    assert all(node.op != "call_module" for graph in GRAPHS for node in graph.graph.nodes)
    assert_independent(net, other, torch.randn(4, 3))


def test_optimizer_of_a_compiled_model_drives_the_restored_one():
    model, x = torch.compile(Net(), backend="eager"), torch.randn(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for way in (safepickle.deepcopy, lambda pair: safepickle.loads(safepickle.dumps(pair)), saved):
        other, driver = way((model, optimizer))
        before, untouched = other.first.weight.clone(), model.first.weight.clone()
        other(x).sum().backward()
        driver.step()
        assert not torch.equal(other.first.weight, before)
        assert torch.equal(model.first.weight, untouched)


@every_torch_way
def test_compiled_parametrized_module_stays_compiled(way):
    net = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 2))
    net.compile(backend=counting)
    other = way(net)
    assert_independent(net, other, torch.randn(4, 3))
    assert other._compiled_call_impl is not None


def test_shallow_copy_does_not_call_the_compiled_original():
    net = with_compiled_call()
    assert safepickle.copy(net)._compiled_call_impl is None


# -- functions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [decorated, elsewhere, left_alone], ids=["decorated", "assigned", "disabled"])
def test_compiled_function_of_a_module_goes_by_name(function):
    for protocol in (2, 4, 5):
        data = safepickle.dumps(function, protocol)
        assert safepickle.loads(data) is function
        assert len(data) < 200
    assert safepickle.deepcopy(function) is function
    assert safepickle.copy(function) is function
    assert saved([function])[0] is function


def test_function_below_its_compiled_form_goes_by_name():
    inner = decorated._torchdynamo_orig_callable
    assert safepickle.loads(safepickle.dumps(inner)) is inner


FUNCTIONS = {
    "lambda": lambda: torch.compile(lambda x: x * 3, backend=counting),
    "of a named one": lambda: torch.compile(undecorated, backend=counting),
    "of torch": lambda: torch.compile(torch.exp, backend=counting),
    "closure": lambda: (lambda k: torch.compile(lambda x: x * k, backend=counting))(4),
    "keyword default": lambda: torch.compile(lambda x, *, k=5: x * k, backend=counting),
}


@pytest.mark.parametrize("make", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("called", [False, True], ids=["new", "called"])
def test_compiled_function_without_a_name_is_compiled_again(make, called):
    function, x = make(), torch.arange(3.0)
    expected = function(x) if called else make()(x)
    for protocol in (2, 4, 5):
        other = safepickle.loads(safepickle.dumps(function, protocol))
        torch._dynamo.reset()
        GRAPHS.clear()
        assert torch.equal(other(x), expected)
        assert len(GRAPHS) == 1
    assert torch.equal(saved({"f": function})["f"](x), expected)


def test_copy_of_a_compiled_function_that_is_bound_to_nothing_is_itself():
    function = torch.compile(lambda x: x * 3, backend="eager")
    assert safepickle.deepcopy({"f": function})["f"] is function


class Backend:
    """A backend with a state."""

    def __init__(self):
        self.uses = 0

    def __call__(self, graph, inputs):
        self.uses += 1
        return graph.forward


@every_way
def test_backend_with_a_state_that_comes_along_is_the_one_that_is_used(way):
    backend = Backend()
    function = torch.compile(lambda x: x + 1, backend=backend)
    other, copied = way((function, backend))
    other(torch.ones(1))
    assert (copied.uses, backend.uses) == (1, 0)
    assert safepickle.deepcopy([function])[0] is function  # of its own, it has nothing that is copied


def test_many_compiled_functions_without_names_are_pickled_in_one_search():
    def seconds(count):
        functions = [torch.compile(lambda x, k=k: x * k, backend="eager") for k in range(count)]
        start = time.process_time()
        safepickle.dumps(functions)
        return time.process_time() - start

    seconds(1)
    assert seconds(200) < 20 * max(seconds(1), 0.02)


def test_recursive_compiled_function_calls_its_compiled_self():
    @torch.compiler.disable
    def down(n):
        return torch.ones(1) if n == 0 else down(n - 1) + 1

    other = safepickle.loads(safepickle.dumps(down))
    assert other(3).item() == 4
    names = other.__wrapped__.__code__.co_freevars
    assert other.__wrapped__.__closure__[names.index("down")].cell_contents is other


def test_attributes_that_a_user_sets_on_a_compiled_function_are_kept():
    function = torch.compile(lambda x: x, backend="eager")
    function.note = {"stage": 1}
    assert safepickle.loads(safepickle.dumps(function)).note == {"stage": 1}


OPTIONS = {
    "defaults": {},
    "fullgraph": {"fullgraph": True},
    "dynamic": {"dynamic": True},
    "static": {"dynamic": False},
    "mode": {"mode": "max-autotune"},
    "mode with graphs": {"mode": "reduce-overhead"},
    "options": {"options": {"max_autotune": True, "epilogue_fusion": False}},
    "backend by name": {"backend": "aot_eager"},
    "backend with options": {"backend": "aot_eager", "options": {"a": 1}},
    "backend of a user": {"backend": counting},
    "guard filter": {"options": {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe}},
    "all at once": {"fullgraph": True, "dynamic": True, "mode": "max-autotune-no-cudagraphs"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("what", [lambda: torch.nn.Linear(1, 1), lambda: lambda x: x], ids=["module", "function"])
def test_all_options_of_the_compiler_come_back(options, what):
    copied = {name: dict(value) if isinstance(value, dict) else value for name, value in options.items()}
    compiled = torch.compile(what(), **copied)  # torch takes entries out of its arguments
    for protocol in (2, 5):
        other = safepickle.loads(safepickle.dumps(compiled, protocol))
        old, new = context_of(compiled), context_of(other)
        assert backend_of(other) == backend_of(compiled)
        assert type(backend_of(other)) is type(backend_of(compiled))
        assert (new.fullgraph, new._dynamic, new._hooks) == (old.fullgraph, old._dynamic, old._hooks)


def test_fullgraph_is_still_demanded_of_what_comes_back():
    def broken(x):
        torch._dynamo.graph_break()
        return x + 1

    other = safepickle.loads(safepickle.dumps(torch.compile(broken, backend="eager", fullgraph=True)))
    with pytest.raises(torch._dynamo.exc.Unsupported):
        other(torch.ones(1))
    other = safepickle.loads(safepickle.dumps(torch.compile(broken, backend="eager")))
    assert other(torch.ones(1)).item() == 2


def test_equal_recipes_are_equal_bytes():
    make = FUNCTIONS["closure"]
    assert safepickle.dumps(make()) == safepickle.dumps(make())
    net = with_compiled_forward()
    data = safepickle.dumps(net)
    net(torch.ones(1, 3))
    assert safepickle.dumps(net) == data  # nothing of what was compiled since is in it


def test_wrapper_around_a_compiled_function_calls_a_compiled_one():
    inner = torch.compile(lambda x: x * 3, backend=counting)

    @functools.wraps(inner)
    def wrapper(x):
        return inner(x) + 1

    other = safepickle.loads(safepickle.dumps(wrapper))
    assert other(torch.ones(1)).item() == 4
    assert len(GRAPHS) == 1


def test_patch_of_compiler_settings_is_one_of_the_same_settings():
    patch = safepickle.loads(safepickle.dumps(torch._dynamo.config.patch(recompile_limit=3)))
    with patch:
        assert torch._dynamo.config.recompile_limit == 3
    assert torch._dynamo.config.recompile_limit != 3


# -- other processes ---------------------------------------------------------------------------------------------------

MODULE = """
import torch

@torch.compile(backend="eager")
def decorated(x):
    return x + 1

fast = torch.compile(lambda x: x * 3, backend="eager")

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(2, 2)
        self.forward = torch.compile(self.forward, backend="eager")
        self.other = torch.compile(torch.nn.Linear(2, 2), backend="eager")
        self.compile(backend="eager")

    def forward(self, x):
        return self.other(self.lin(x))
"""


def test_compiled_things_of_a_module_work_in_a_new_process(tmp_path):
    (tmp_path / "user_code.py").write_text(MODULE)
    run_python(
        f"""
        import user_code, safepickle, torch
        net, x = user_code.Net(), torch.ones(1, 2)
        obj = {{"net": net, "x": x, "y": net(x).detach(), "decorated": user_code.decorated, "fast": user_code.fast}}
        with open({str(tmp_path / "data.pkl")!r}, "wb") as file:
            file.write(safepickle.dumps(obj))
        """,
        pythonpath=[tmp_path],
    )
    fresh_load(
        (tmp_path / "data.pkl").read_bytes(),
        """
        import torch, user_code
        net, x = obj["net"], obj["x"]
        assert torch.allclose(net(x), obj["y"])
        assert obj["decorated"] is user_code.decorated and obj["fast"] is user_code.fast
        assert obj["fast"](x).tolist() == [[3.0, 3.0]]
        assert net._compiled_call_impl is not None
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.zero_()
        assert net(x).tolist() == [[0.0, 0.0]]
        """,
        tmp_path,
        [tmp_path],
        loader="pickle",
    )


def test_compiled_things_of_a_script_work_in_a_new_process(tmp_path):
    travel(
        """
        import torch

        scale = 3.0

        @torch.compile(backend="eager")
        def decorated(x):
            return x * scale

        def backend(graph, inputs):
            backend.used = True
            return graph.forward

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = torch.nn.Linear(2, 2)
                self.act = torch.compile(lambda x: x + 1, backend=backend)

            @torch.compile(backend="eager")
            def forward(self, x):
                return self.act(self.lin(x)) * 2

            @torch.compiler.disable
            def log(self):
                return "log"

        net = Net()
        net.fast = torch.compile(net.lin.forward, backend="eager")
        x = torch.ones(1, 2)
        obj = {"net": net, "x": x, "y": net(x).detach(), "decorated": decorated, "backend": backend}
        """,
        """
        import torch
        assert torch.allclose(obj["net"](obj["x"]), obj["y"])
        assert obj["decorated"](obj["x"]).tolist() == [[3.0, 3.0]]
        assert obj["net"].log() == "log"
        assert torch.equal(obj["net"].fast(obj["x"]), obj["net"].lin(obj["x"]))
        obj["net"].act(obj["x"])
        assert obj["backend"].used
        torch._dynamo.reset()
        """,
        tmp_path,
    )


@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_what_the_default_compiler_made_stays_behind():
    function = torch.compile(lambda x: torch.relu(x) * 2)
    expected = function(torch.ones(3))
    data = safepickle.dumps(function)
    assert len(data) < 2000
    assert torch.equal(safepickle.loads(data)(torch.ones(3)), expected)
