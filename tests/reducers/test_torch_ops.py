"""Operators and custom operators: the same ones, in this process and in one that has yet to register them."""

from __future__ import annotations

import pickle

import pytest

torch = pytest.importorskip("torch")

import safepickle
from tests.helpers import fresh_load, run_python
from tests.travel import travel

from .torch_ways import every_torch_way, saved

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

LIBRARY = torch.library.Library("safepickle_test", "DEF")
LIBRARY.define("plus(Tensor x) -> Tensor")
LIBRARY.impl("plus", lambda x: x + 1, "CompositeExplicitAutograd")


@torch.library.custom_op("safepickle_test::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def generated(factor):
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * factor

        @staticmethod
        def backward(ctx, gradient):
            return gradient * factor * 10

    return Scale


Twice, Thrice = generated(2), generated(3)

NAMED = {
    "packet": torch.ops.aten.relu,
    "overload": torch.ops.aten.add.Tensor,
    "default overload": torch.ops.aten.relu.default,
    "higher order": torch.ops.higher_order.cond,
    "namespace": torch.ops.aten,
    "ops": torch.ops,
    "classes": torch.classes,
    "of a library": torch.ops.safepickle_test.plus,
    "library": LIBRARY,
    "custom op": double,
    "of a custom op": torch.ops.safepickle_test.double.default,
    "function": torch.relu,
    "function of nn": torch.nn.functional.gelu,
    "dispatching function": torch.nn.functional.max_pool2d,
    "special function": torch.special.expm1,
    "method": torch.Tensor.add,
    "dtype": torch.bfloat16,
    "autograd function": torch.autograd.grad,
    "generated class": Thrice,
}


@pytest.mark.parametrize("thing", NAMED.values(), ids=NAMED)
@every_torch_way
def test_code_that_torch_has_a_name_for_is_the_same_object(thing, way):
    assert way([thing])[0] is thing
    assert safepickle.copy(thing) is thing


def test_apply_of_a_generated_class_is_that_of_the_class():
    for way in (safepickle.deepcopy, lambda obj: safepickle.loads(safepickle.dumps(obj)), saved):
        apply = way([Thrice.apply])[0]
        assert apply.__self__ is Thrice
        x = torch.ones(2, requires_grad=True)
        apply(x).sum().backward()
        assert x.grad.tolist() == [30.0, 30.0]


class UsesOperators(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.act, self.op, self.custom, self.own = torch.ops.aten.relu, torch.ops.aten.mul.Tensor, double, Thrice.apply
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.own(self.custom(self.op(self.act(x), self.weight.detach()))) * self.weight


@every_torch_way
def test_module_that_holds_operators_computes_and_trains(way):
    net, x = UsesOperators(), torch.tensor([1.0, -1.0])
    other = way(net)
    assert other(x).tolist() == [6.0, 0.0]
    other(x).sum().backward()
    assert other.weight.grad.tolist() == [6.0, 0.0] and net.weight.grad is None


def test_operator_that_is_not_registered_is_a_clear_error():
    data = safepickle.dumps(torch.ops.safepickle_test.plus).replace(b"safepickle_test::plus", b"safepickle_test::none")
    with pytest.raises(pickle.UnpicklingError, match=r"safepickle_test::none.*not registered here: import the module"):
        safepickle.loads(data)


def test_library_without_a_name_is_refused():
    library = torch.library.Library("safepickle_unnamed", "DEF")
    with pytest.raises(safepickle.PicklingError, match=r"(?s)obj\['library'\].*safepickle_unnamed.*in a module"):
        safepickle.dumps({"library": library})
    assert safepickle.deepcopy([library])[0] is library


# -- other processes ---------------------------------------------------------------------------------------------------

MODULE = """
import torch

library = torch.library.Library("user_code", "DEF")
library.define("plus(Tensor x) -> Tensor")
library.impl("plus", lambda x: x + 1, "CompositeExplicitAutograd")

@torch.library.custom_op("user_code::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2
"""


def test_operators_of_a_module_bring_the_module_that_registers_them(tmp_path):
    (tmp_path / "user_code.py").write_text(MODULE)
    run_python(
        f"""
        import safepickle, torch, user_code
        ops = torch.ops.user_code
        obj = (ops.plus, ops.double.default, user_code.double, torch.ops.higher_order.cond)
        with open({str(tmp_path / "data.pkl")!r}, "wb") as file:
            file.write(safepickle.dumps(obj))
        """,
        pythonpath=[tmp_path],
    )
    fresh_load(
        (tmp_path / "data.pkl").read_bytes(),
        """
        import sys
        user_code = sys.modules["user_code"]
        import torch
        plus, overload, double, cond = obj
        assert (plus(torch.ones(1)).item(), overload(torch.ones(1)).item(), double(torch.ones(1)).item()) == (2, 2, 2)
        assert double is user_code.double and plus is torch.ops.user_code.plus
        """,
        tmp_path,
        [tmp_path],
    )


def test_custom_operators_of_a_script_are_registered_in_the_process_that_loads_them(tmp_path):
    travel(
        """
        import torch

        @torch.library.custom_op("script_ops::scale", mutates_args=())
        def scale(x: torch.Tensor, k: float = 3.0) -> torch.Tensor:
            return x * k

        @scale.register_fake
        def _(x, k=3.0):
            return torch.empty_like(x)

        def setup(ctx, inputs, output):
            ctx.k = inputs[1]

        def backward(ctx, gradient):
            return gradient * ctx.k * 10, None

        scale.register_autograd(backward, setup_context=setup)

        @torch.library.custom_op("script_ops::increment_", mutates_args={"x"}, device_types="cpu")
        def increment_(x: torch.Tensor) -> None:
            x.add_(1)

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.scale, self.increment, self.overload = scale, increment_, torch.ops.script_ops.scale.default
                self.weight = torch.nn.Parameter(torch.ones(2))

            def forward(self, x):
                return self.scale(self.weight * x) + self.overload(self.weight, 2.0)

        obj = Net()
        """,
        """
        import torch
        x = torch.ones(2)
        y = obj(x)
        assert y.tolist() == [5.0, 5.0]
        y.sum().backward()
        assert obj.weight.grad.tolist() == [50.0, 50.0], "the operator's own backward is lost"
        assert torch.compile(obj.scale, backend="aot_eager", fullgraph=True)(x).tolist() == [3.0, 3.0]
        obj.increment(x)
        assert x.tolist() == [2.0, 2.0]
        import safepickle
        assert safepickle.loads(safepickle.dumps(obj)).scale is obj.scale
        """,
        tmp_path,
        home="assert back.scale is scale and safepickle.deepcopy(obj).scale is scale",
    )


def test_graphs_and_scripted_code_bring_the_operators_that_they_call(tmp_path):
    run_python(
        f"""
        import torch, safepickle, warnings
        warnings.simplefilter("ignore")

        @torch.library.custom_op("graph_ops::triple", mutates_args=())
        def triple(x: torch.Tensor) -> torch.Tensor:
            return x * 3

        @triple.register_fake
        def _(x):
            return torch.empty_like(x)

        class Net(torch.nn.Module):
            def forward(self, x):
                return torch.ops.graph_ops.triple(x)

        x = torch.ones(2)
        things = {{
            "graph": torch.fx.symbolic_trace(Net()),
            "exported": torch.export.export(Net(), (x,)),
            "scripted": torch.jit.script(Net()),
            "traced": torch.jit.trace(Net(), x),
            "function": torch.jit.trace(lambda x: torch.ops.graph_ops.triple(x), x),
        }}
        for name, thing in things.items():
            with open({str(tmp_path)!r} + "/" + name, "wb") as file:
                file.write(safepickle.dumps(thing))
        """
    )
    run_python(
        f"""
        import os, pickle, torch
        for name in ("graph", "exported", "scripted", "traced", "function"):
            child = os.fork()  # what one of them registers must not be there for the next
            if child == 0:
                with open({str(tmp_path)!r} + "/" + name, "rb") as file:
                    thing = pickle.loads(file.read())
                net = thing.module() if name == "exported" else thing
                os._exit(0 if net(torch.ones(2)).tolist() == [3.0, 3.0] else 1)
            assert os.waitpid(child, 0)[1] == 0, name
        """
    )


def test_autograd_functions_of_a_script_keep_their_backward(tmp_path):
    travel(
        """
        import torch

        def make(factor):
            class Scale(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x):
                    ctx.factor = factor
                    return x * factor

                @staticmethod
                def backward(ctx, gradient):
                    return gradient * ctx.factor * 10

            return Scale

        class Reverse(make(1)):
            pass

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.two, self.three, self.reverse = make(2).apply, make(3).apply, Reverse
                self.weight = torch.nn.Parameter(torch.ones(2))

            def forward(self):
                return self.two(self.weight) + self.three(self.weight) + self.reverse.apply(self.weight)

        obj = Net()
        """,
        """
        import torch
        assert obj().tolist() == [6.0, 6.0]
        obj().sum().backward()
        assert obj.weight.grad.tolist() == [60.0, 60.0]
        """,
        tmp_path,
        home="assert back.reverse is Reverse and back.two.__self__ is obj.two.__self__",
    )


KERNELS = """
import torch, triton, triton.language as tl

@triton.jit
def add_one(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)

def launch(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(add_one)[(1,)](x, out, x.numel(), BLOCK=16)
    return out

named = torch.library.triton_op("user_kernels::named", mutates_args={})(launch)
wrapped = torch.library.wrap_triton(add_one)
"""


@pytest.mark.parametrize("interpreted", ["1", "0"])
def test_operators_of_triton_kernels_go_by_name_or_are_registered_again(tmp_path, interpreted):
    pytest.importorskip("triton")
    if not hasattr(torch.library, "triton_op"):
        pytest.skip("this torch has no triton_op")
    (tmp_path / "user_kernels.py").write_text(KERNELS)
    run_python(
        f"""
        import safepickle, torch, user_kernels
        from user_kernels import add_one, named, wrapped

        for thing in (named, wrapped):
            assert safepickle.loads(safepickle.dumps(thing)) is thing
            assert safepickle.deepcopy([thing])[0] is thing

        @torch.library.triton_op("script_kernels::local", mutates_args={{}})
        def local(x: torch.Tensor) -> torch.Tensor:
            return user_kernels.launch(x)

        with open({str(tmp_path / "data.pkl")!r}, "wb") as file:
            file.write(safepickle.dumps((named, wrapped, local, torch.library.wrap_triton(add_one))))
        """,
        pythonpath=[tmp_path],
        env={"TRITON_INTERPRET": interpreted},
    )
    fresh_load(
        (tmp_path / "data.pkl").read_bytes(),
        f"""
        import torch, user_kernels
        named, wrapped, local, again = obj
        assert named is user_kernels.named and wrapped is user_kernels.wrapped
        assert local._qualname == "script_kernels::local"
        if {interpreted} == 1:
            assert local(torch.ones(4)).tolist() == named(torch.ones(4)).tolist() == [2.0] * 4
        else:
            assert again.kernel is user_kernels.add_one and type(again) is type(wrapped)
        """,
        tmp_path,
        [tmp_path],
        env={"TRITON_INTERPRET": interpreted},
    )
