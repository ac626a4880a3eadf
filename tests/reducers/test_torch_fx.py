"""Graphs: structure, marks and metadata survive on both verbs, and what comes back is a graph of its own."""

from __future__ import annotations

import operator
import textwrap
import time
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx

import safepickle
from tests.helpers import fresh_load, run_python, run_script

from .torch_ways import assert_independent, every_torch_way, fill, saved

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


class Net(torch.nn.Module):
    """Calls of functions, methods and modules; nested arguments, slices, defaults; tied weights."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x, bias=None):
        y = operator.mul(torch.relu(self.first(x)) + self.shift, self.scale)[:, 0:3]
        left, right = torch.split(y.view(x.size(0), -1), 2, dim=0)
        return self.second(torch.cat([left, right], dim=0))


def traced():
    return torch.fx.symbolic_trace(Net())


def names(graph):
    return [node.name for node in graph.nodes]


# -- graph modules -----------------------------------------------------------------------------------------------------


@every_torch_way
def test_graph_module_computes_the_same_with_weights_of_its_own(way):
    module = traced()
    other = way(module)
    assert (str(other.graph), other.code) == (str(module.graph), module.code)
    assert other.first.weight is other.second.weight
    other.graph.lint()
    assert_independent(module, other, torch.randn(4, 3))


@every_torch_way
def test_marks_on_a_graph_module_and_on_its_nodes_are_kept(way):
    module = traced()
    module.note = {"stage": 1}
    module.meta["origin"] = ["user"]
    for number, node in enumerate(module.graph.nodes):
        node.mark = number
        node.meta["tag"] = [f"n{number}"]
    other = way(module)
    assert other.note == {"stage": 1} and other.note is not module.note
    assert other.meta["origin"] == ["user"]
    assert [node.mark for node in other.graph.nodes] == list(range(len(names(module.graph))))
    assert [node.meta["tag"] for node in other.graph.nodes] == [node.meta["tag"] for node in module.graph.nodes]
    assert all(node.graph is other.graph for node in other.graph.nodes)
    next(iter(other.graph.nodes)).meta["tag"].append("changed")
    assert next(iter(module.graph.nodes)).meta["tag"] == ["n0"]


@every_torch_way
def test_nodes_that_are_held_elsewhere_are_those_of_the_graph(way):
    module = traced()
    module.chosen = [node for node in module.graph.nodes if node.op == "call_function"]
    for node in module.graph.nodes:
        node.meta["next"], node.meta["module"] = node.next, module
    other = way(module)
    nodes = list(other.graph.nodes)
    assert [node.name for node in other.chosen] == [node.name for node in module.chosen]
    assert all(any(node is each for each in nodes) for node in other.chosen)
    assert all(node.meta["next"] is node.next for node in nodes)
    assert all(node.meta["module"] is other for node in nodes)


@every_torch_way
def test_users_of_nodes_are_known(way):
    module = traced()
    expected = {node.name: [user.name for user in node.users] for node in module.graph.nodes}
    assert {node.name: [user.name for user in node.users] for node in way(module).graph.nodes} == expected


@every_torch_way
def test_graph_that_came_back_can_be_edited(way):
    module, x = traced(), torch.randn(4, 3)
    expected = module(x)
    other = way(module)
    for node in other.graph.find_nodes(op="call_function", target=torch.relu):
        node.target = torch.sigmoid
    other.recompile()
    assert len(other.graph.find_nodes(op="call_function", target=torch.sigmoid)) == 1
    assert not torch.allclose(other(x), expected)
    with other.graph.inserting_before(other.graph.output_node()):
        added = other.graph.call_function(torch.relu, (next(iter(other.graph.nodes)),))
    assert names(other.graph).count(added.name) == 1
    other.graph.eliminate_dead_code()
    assert torch.equal(module(x), expected)


@every_torch_way
def test_graph_modules_inside_others_keep_their_metadata(way):
    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, module, name):
            return True

    inner = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()))
    for node in inner.graph.nodes:
        node.meta["tag"] = node.name
    root = torch.nn.Sequential(inner, torch.nn.Linear(3, 2))
    module = torch.fx.GraphModule(root, Tracer().trace(root), class_name="Outer")
    other = way(module)
    assert type(other).__name__ == "Outer"
    assert [node.meta["tag"] for node in getattr(other, "0").graph.nodes] == names(inner.graph)
    assert_independent(module, other, torch.randn(4, 3))


@every_torch_way
def test_hooks_and_compiled_call_of_a_graph_module_are_bound_to_what_comes_back(way):
    module, x = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(3, 3))), torch.ones(1, 3)
    module.offset = 1.0
    module.register_forward_hook(lambda module, inputs, output: output + module.offset)
    module.compile(backend="eager")
    other = way(module)
    other.offset = 5.0
    assert torch.allclose(other(x) - module(x), torch.full((1, 3), 4.0))
    assert other._compiled_call_impl._torchdynamo_orig_callable.__self__ is other


@every_torch_way
def test_compiled_forward_of_a_graph_module_uses_the_weights_that_came_back(way):
    module = traced()
    module.forward = torch.compile(module.forward, backend="eager")
    assert_independent(module, way(module), torch.randn(4, 3))


def test_interpreter_runs_what_came_back():
    module, x = traced(), torch.randn(4, 3)
    other = safepickle.loads(safepickle.dumps(module))
    assert torch.equal(torch.fx.Interpreter(other).run(x), module(x))
    assert torch.equal(torch.fx.Transformer(other).transform()(x), module(x))


def test_hook_for_copies_is_called_with_the_copy():
    module, copied = traced(), []
    module._deepcopy_hooks.append(copied.append)
    assert copied == [] and safepickle.deepcopy(module) is copied[0]


def test_shallow_copy_of_a_graph_module_is_what_torch_makes():
    module, x = traced(), torch.randn(4, 3)
    twin = safepickle.copy(module)
    assert twin is not module and torch.equal(twin(x), module(x))
    assert twin.first.weight is module.first.weight


def test_lazy_graph_module_is_generated_when_it_is_called():
    from torch.fx._lazy_graph_module import _LazyGraphModule

    module = _LazyGraphModule(torch.nn.Sequential(torch.nn.Linear(3, 3)), torch.fx.symbolic_trace(
        torch.nn.Sequential(torch.nn.Linear(3, 3))).graph)  # fmt: skip
    for other in (safepickle.loads(safepickle.dumps(module)), safepickle.deepcopy(module), saved(module)):
        assert isinstance(other, _LazyGraphModule)
        assert torch.equal(other(torch.ones(1, 3)), module(torch.ones(1, 3)))


def test_quantized_graph_module_computes_the_same():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.ao.quantization import get_default_qconfig_mapping
        from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

        x = torch.randn(4, 3)
        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()).eval()
        prepared = prepare_fx(net, get_default_qconfig_mapping("fbgemm"), (x,))
        prepared(x)
        for module in (prepared, convert_fx(safepickle.deepcopy(prepared))):
            module.note, next(iter(module.graph.nodes)).mark = [1], "input"
            for way in (lambda obj: safepickle.loads(safepickle.dumps(obj)), safepickle.deepcopy, saved):
                other, note = way((module, module.note))
                assert torch.equal(other(x), module(x))
                assert other.state_dict().keys() == module.state_dict().keys()
                assert other.note is note and note is not module.note
                assert next(iter(other.graph.nodes)).mark == "input"


def test_large_graph_takes_time_in_proportion_to_its_size():
    def chain(length):
        graph = torch.fx.Graph()
        node = graph.placeholder("x")
        for _ in range(length):
            node = graph.call_function(operator.add, (node, 1))
        graph.output(node)
        return torch.fx.GraphModule(torch.nn.Module(), graph)

    def seconds(module):
        start = time.process_time()
        safepickle.loads(safepickle.dumps(module))
        safepickle.deepcopy(module)
        return time.process_time() - start

    seconds(chain(10))
    small, large = min(seconds(chain(500)) for _ in range(3)), seconds(chain(5000))
    assert large < 40 * small  # twice that if it were quadratic
    assert safepickle.deepcopy(chain(5000))(torch.zeros(1)).item() == 5000


# -- graphs and nodes --------------------------------------------------------------------------------------------------


@every_torch_way
def test_graph_of_its_own_travels_without_the_module_that_owns_it(way):
    module = traced()
    module.graph.note = {"a": 1}
    other = way([module.graph])[0]
    assert str(other) == str(module.graph)
    assert other.note == {"a": 1} and other.owning_module is None
    assert torch.fx.GraphModule(module, other)(torch.ones(4, 3)).shape == (4, 3)


@every_torch_way
def test_node_of_its_own_brings_its_graph(way):
    node = list(traced().graph.nodes)[3]
    other, graph = way([node, node.graph])
    assert other.graph is graph
    assert other is list(graph.nodes)[3]


def test_erased_node_is_refused_with_the_path_to_it():
    module = traced()
    module.graph.eliminate_dead_code()
    node = module.graph.create_node("call_function", torch.relu, (next(iter(module.graph.nodes)),))
    module.graph.erase_node(node)
    with pytest.raises(safepickle.PicklingError, match=r"(?s)obj\['node'\].*erased"):
        safepickle.dumps({"node": node})


# -- metadata of analysis ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["real", "fake"])
@every_torch_way
def test_fake_values_of_nodes_come_back_as_fake_values(mode, way):
    module = make_fx(lambda x: torch.relu(x).sum(0), tracing_mode=mode)(torch.randn(4, 3))
    other = way(module)
    expected, values = [[node.meta.get("val") for node in each.graph.nodes][:-1] for each in (module, other)]
    assert [(type(v), v.shape, v.stride(), v.dtype, v.device) for v in values] == [
        (type(v), v.shape, v.stride(), v.dtype, v.device) for v in expected
    ]
    assert len({id(value.fake_mode) for value in values}) == len({id(value.fake_mode) for value in expected})
    assert torch.equal(other(torch.ones(4, 3)), torch.full((3,), 4.0))


@every_torch_way
def test_graph_with_symbolic_shapes_computes_for_other_shapes(way):
    module = make_fx(lambda x: torch.relu(x) * x.shape[0], tracing_mode="symbolic")(torch.randn(4, 3))
    next(iter(module.graph.nodes)).meta["tag"] = "input"
    other = way(module)
    assert torch.equal(other(torch.ones(5, 3)), torch.full((5, 3), 5.0))
    assert next(iter(other.graph.nodes)).meta["tag"] == "input"


@every_torch_way
def test_graph_that_dynamo_captured_travels(way):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    torch.compile(lambda x: torch.sin(x) + 1, backend=backend)(torch.ones(2))
    other = way(graphs[0])
    assert str(other.graph) == str(graphs[0].graph)
    assert torch.equal(other(torch.zeros(2))[0], torch.ones(2))


# -- exported programs -------------------------------------------------------------------------------------------------


class Exported(torch.nn.Module):
    """A parameter, buffers of both kinds and a constant."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(3, 2)
        self.register_buffer("kept", torch.ones(2))
        self.register_buffer("dropped", torch.ones(2), persistent=False)
        self.constant = torch.ones(2)

    def forward(self, x):
        return torch.relu(self.lin(x)) + self.kept + self.dropped + self.constant


SHAPES = {"static": None, "dynamic": ({0: torch.export.Dim("n")},)}
with_shapes = pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)


def exported(shapes=None):
    return torch.export.export(Exported(), (torch.randn(4, 3),), dynamic_shapes=shapes)


@with_shapes
@every_torch_way
def test_exported_program_computes_the_same(shapes, way):
    program, x = exported(shapes), torch.randn(4, 3)
    other = way(program)
    assert torch.equal(other.module()(x), program.module()(x))
    assert str(other.graph_signature) == str(program.graph_signature)
    assert torch.equal(other.run_decompositions().module()(x), program.module()(x))
    assert other.state_dict["lin.weight"] is not program.state_dict["lin.weight"]
    assert other.constants.keys() == program.constants.keys()
    if shapes:
        assert other.module()(torch.randn(7, 3)).shape == (7, 2)


@every_torch_way
def test_exported_program_goes_on_sharing_the_weights_of_its_module(way):
    net = Exported()
    other, program = way((net, torch.export.export(net, (torch.randn(4, 3),))))
    assert program.state_dict["lin.weight"] is other.lin.weight


@with_shapes
@every_torch_way
def test_module_of_an_exported_program_checks_its_inputs_and_has_weights_of_its_own(shapes, way):
    module, x = exported(shapes).module(), torch.randn(4, 3)
    expected = module(x).detach()
    other = way(module)
    assert torch.equal(other(x), expected)
    with pytest.raises(Exception, match=r"(?i)guard|expected|mismatch|invalid"):
        other(torch.randn(4, 5))
    fill(other, 0.0)
    assert torch.equal(other(x), torch.full((4, 2), 3.0))
    assert torch.equal(module(x), expected)
    assert other.eval.__self__ is other


# -- other processes ---------------------------------------------------------------------------------------------------


def test_graphs_of_a_script_work_in_a_new_process(tmp_path):
    run_python(
        f"""
        import safepickle, torch, torch.fx

        def custom(x):
            return x * 2

        torch.fx.wrap("custom")

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = torch.nn.Linear(3, 3)

            def forward(self, x):
                return custom(torch.relu(self.lin(x)))

        module = torch.fx.symbolic_trace(Net())
        for node in module.graph.nodes:
            node.meta["tag"], node.mark = "t" + node.name, len(node.name)
        x = torch.randn(4, 3)
        program = torch.export.export(torch.nn.Linear(3, 2), (x,))
        obj = {{"module": module, "x": x, "y": module(x).detach(), "unlifted": program.module(), "program": program,
               "z": program.module()(x).detach()}}
        with open({str(tmp_path / "data.pkl")!r}, "wb") as file:
            file.write(safepickle.dumps(obj))
        """
    )
    fresh_load(
        (tmp_path / "data.pkl").read_bytes(),
        """
        import torch
        module, x = obj["module"], obj["x"]
        assert torch.allclose(module(x), obj["y"])
        assert all(node.meta["tag"] == "t" + node.name and node.mark == len(node.name) for node in module.graph.nodes)
        assert torch.allclose(obj["unlifted"](x), obj["z"])
        assert torch.allclose(obj["program"].module()(x), obj["z"])
        assert obj["unlifted"].weight is obj["program"].state_dict["weight"]
        """,
        tmp_path,
        loader="pickle",
    )


def test_code_that_torch_made_is_equal_bytes_in_processes_with_other_hash_seeds(tmp_path):
    script = tmp_path / "script.py"  # one file: TorchScript keeps the place of each line
    script.write_text(textwrap.dedent("""
        import hashlib, warnings
        import safepickle, torch
        warnings.simplefilter("ignore")
        torch.manual_seed(0)

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = torch.nn.Linear(3, 3)

            def forward(self, x):
                return torch.relu(self.lin(x))

        @torch.library.custom_op("stable_ops::triple", mutates_args=())
        def triple(x: torch.Tensor) -> torch.Tensor:
            return x * 3

        net, x = Net(), torch.ones(1, 3)
        net.forward = torch.compile(net.forward, mode="max-autotune")
        for thing in (net, torch.jit.script(Net()), torch.jit.trace(Net(), x), torch.fx.symbolic_trace(Net()), triple,
                      torch.export.export(Net(), (x,)).module(), torch.compile(lambda x: x, dynamic=True)):
            print(hashlib.sha256(safepickle.dumps(thing)).hexdigest())
    """))
    first, second = (run_script(script, env={"PYTHONHASHSEED": seed}) for seed in ("1", "2"))
    assert first.split() == second.split() and len(first.split()) == 7


def test_equal_graphs_are_equal_bytes():
    torch.manual_seed(0)
    first = safepickle.dumps(traced())
    torch.manual_seed(0)
    assert safepickle.dumps(traced()) == first
