"""What hangs on a kernel: launchers, partials, bound methods, configurations, and objects that hold them all."""

from __future__ import annotations

import functools
import io
import pickle
import pickletools
import threading
from pathlib import Path
from typing import Any

import pytest

import safepickle
from tests.helpers import fresh_load, run_python

triton = pytest.importorskip("triton")
torch = pytest.importorskip("torch")

from tests.fixtures.kernels import classes, factories, holders, tuned
from tests.reducers.triton_support import MODES, compilations, compiled_ptx, needs_version

PROTOCOLS = (2, 4, 5)


def cells(function: Any) -> dict[str, Any]:
    return {
        name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True)
    }


# -- launchers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kernel", [tuned.scale, tuned.stacked, tuned.stacked.fn, classes.Ops.negate, holders.entry])
def test_a_launcher_is_pickled_as_its_kernel_and_its_grid(kernel: Any, protocol: int) -> None:
    loaded = pickle.loads(safepickle.dumps(kernel[(3, 2)], protocol))
    assert cells(loaded) == {"self": kernel, "grid": (3, 2)}
    assert loaded.__code__ is kernel[(3, 2)].__code__


def test_a_launcher_of_a_local_kernel_brings_the_kernel(tmp_path: Path) -> None:
    kernel = factories.make_scaled(3)
    key = kernel.cache_key
    data = safepickle.dumps([kernel[(1,)], kernel])
    code = f"""
        contents = {{n: c.cell_contents for n, c in zip(obj[0].__code__.co_freevars, obj[0].__closure__)}}
        print(contents["self"] is obj[1], contents["grid"], obj[1].cache_key == {key!r})
    """
    assert fresh_load(data, code, tmp_path) == "True (1,) True\n"


def test_copies_of_a_launcher_share_the_kernel() -> None:
    launcher = tuned.scale[(1,)]
    assert safepickle.copy(launcher) is launcher
    assert cells(safepickle.deepcopy({"launcher": launcher})["launcher"])["self"] is tuned.scale


def test_a_launcher_whose_grid_is_bound_to_the_object_that_holds_it_is_bound_to_the_copy() -> None:
    class Holder:
        def __init__(self, blocks: int) -> None:
            self.blocks = blocks
            self.launcher = tuned.scale[self.grid]

        def grid(self, meta: dict[str, int]) -> tuple[int]:
            return (self.blocks,)

    holder = Holder(4)
    twin = safepickle.deepcopy(holder)
    twin.blocks = 9
    assert cells(twin.launcher)["self"] is tuned.scale
    assert cells(twin.launcher)["grid"]({}) == (9,)
    assert cells(holder.launcher)["grid"]({}) == (4,)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_launchers_run_in_a_fresh_process(protocol: int, tmp_path: Path) -> None:
    write = f"""
        import triton, safepickle
        from tests.fixtures.kernels import classes, tuned
        launchers = [
            tuned.scale[(1,)],
            classes.Ops.negate[lambda meta: (triton.cdiv(6, meta["BLOCK"]),)],
            tuned.scale_even[(1,)],
            tuned.scale_auto.fn[(1,)],
        ]
        with open("launchers.pkl", "wb") as file:
            file.write(safepickle.dumps(launchers, {protocol}))
    """
    read = """
        import pickle, torch
        with open("launchers.pkl", "rb") as file:
            fixed, flexible, even, inner = pickle.load(file)
        x, o = torch.arange(6.0), torch.zeros(6)
        for launch, constants in ((fixed, {"BLOCK": 8}), (flexible, {"BLOCK": 4}), (even, {}), (inner, {"BLOCK": 8})):
            launch(x, o, 6, **constants)
            print([int(value) for value in o])
        from tests.fixtures.kernels import tuned
        if hasattr(fixed, "__closure__"):  # until Triton 3.4 the interpreter's launchers are objects
            print(any(cell.cell_contents is tuned.scale for cell in fixed.__closure__))
        else:
            print(fixed.grid == (1,))
    """
    run_python(write, cwd=tmp_path, env=MODES["interpreter"])
    doubled, negated = "[0, 2, 4, 6, 8, 10]\n", "[0, -1, -2, -3, -4, -5]\n"
    assert run_python(read, cwd=tmp_path, env=MODES["interpreter"]) == f"{doubled}{negated}{doubled}{doubled}True\n"


def test_what_is_no_kernel_is_not_launched() -> None:
    from safepickle import restore

    for impostor in ({(1,): print}, [print], tuned):
        with pytest.raises(pickle.UnpicklingError, match="no Triton kernel"):
            restore.launcher(impostor, 0)
        with pytest.raises(pickle.UnpicklingError, match="no Triton kernel"):
            restore.kernel_method(impostor, "pop")


# -- bound methods -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kernel", [tuned.scale, tuned.stacked, tuned.stacked.fn, classes.Ops.negate, holders.entry])
def test_bound_methods_come_back_bound_to_the_kernel(kernel: Any, protocol: int) -> None:
    methods = [getattr(kernel, name) for name in ("run", "warmup") if hasattr(kernel, name)]  # not each kind had both
    data = safepickle.dumps(methods, protocol)
    assert pickle.loads(data) == methods
    assert not any("getattr" in str(argument) for _, argument, _ in pickletools.genops(data))


def test_copies_of_bound_methods_are_bound_to_the_same_kernel() -> None:
    assert safepickle.deepcopy([tuned.scale.run])[0].__self__ is tuned.scale


def test_only_methods_of_the_kernel_itself_are_bound() -> None:
    from safepickle import restore

    for name in ("fn", "__class__", "nothing", "src"):
        with pytest.raises(pickle.UnpicklingError, match="has no method"):
            restore.kernel_method(tuned.scale, name)


# -- partials ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_partial_of_a_kernel_keeps_it(protocol: int) -> None:
    part = functools.partial(tuned.scale, BLOCK=16)
    nested = functools.partial(part, num_warps=2)
    loaded, deeper, run = pickle.loads(
        safepickle.dumps([part, nested, functools.partial(tuned.stacked.run, grid=(1,))], protocol)
    )
    assert loaded.func is tuned.scale and loaded.keywords == {"BLOCK": 16}
    assert deeper.func is tuned.scale and deeper.keywords == {"BLOCK": 16, "num_warps": 2}
    assert run.func == tuned.stacked.run and run.keywords == {"grid": (1,)}


def test_a_copied_partial_shares_the_kernel_and_copies_its_arguments() -> None:
    part = functools.partial(tuned.scale, [1, 2], options={"n": [3]})
    twin = safepickle.deepcopy(part)
    assert twin.func is tuned.scale
    assert twin.args == ([1, 2],) and twin.args[0] is not part.args[0]
    assert twin.keywords == {"options": {"n": [3]}} and twin.keywords["options"] is not part.keywords["options"]


# -- configurations ----------------------------------------------------------------------------------------------------


def make_config() -> Any:
    config = triton.Config(
        {"BLOCK": 32, "SHAPES": [1, 2]}, num_warps=2, num_stages=5, num_ctas=2, maxnreg=96, pre_hook=tuned.keep_small
    )
    config.found_by_search = True  # torch's Inductor adds attributes of its own
    return config


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_configuration_comes_back_equal(protocol: int) -> None:
    config = make_config()
    loaded = pickle.loads(safepickle.dumps(config, protocol))
    assert vars(loaded) == vars(config)
    assert str(loaded) == str(config)
    assert loaded.pre_hook is tuned.keep_small


def test_a_copied_configuration_is_independent() -> None:
    config = make_config()
    twin, shallow = safepickle.deepcopy(config), safepickle.copy(config)
    assert vars(twin) == vars(config) == vars(shallow)
    twin.kwargs["SHAPES"].append(3)
    twin.num_warps = 8
    assert config.kwargs["SHAPES"] == [1, 2] and config.num_warps == 2
    assert shallow is not config and shallow.kwargs is config.kwargs


def test_a_configuration_from_another_version_gets_this_version_s_defaults() -> None:
    from safepickle import restore

    config = restore.make_config()
    restore.fill_config(config, {"kwargs": {"BLOCK": 4}, "num_warps": 1, "an_option_of_the_future": 7})
    expected = {**vars(triton.Config({})), "kwargs": {"BLOCK": 4}, "num_warps": 1, "an_option_of_the_future": 7}
    assert vars(config) == expected
    with pytest.raises(pickle.UnpicklingError, match="must be Config"):
        restore.fill_config(tuned, {})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_constant_comes_back_with_its_value_and_type(protocol: int) -> None:
    import triton.language as tl

    for value in (3, 1.5, True, None, "text", tl.float32, tuned.scale):
        constant = tl.constexpr(value)
        for twin in (pickle.loads(safepickle.dumps(constant, protocol)), safepickle.deepcopy(constant)):
            assert type(twin) is tl.constexpr
            assert twin.value is value or twin.value == value
            assert vars(twin).keys() == vars(constant).keys()


# -- objects that hold kernels -----------------------------------------------------------------------------------------


class Slotted:
    __slots__ = ("kernel", "lock")

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.lock = threading.Lock()


class Engine:
    """What users build: a kernel in each of the places that they put kernels in."""

    def __init__(self, kernel: Any) -> None:
        self.attribute = kernel
        self.list = [kernel, kernel]
        self.table = {"step": kernel, ("deep", 1): {"again": kernel}}
        self.partial = functools.partial(kernel.run, BLOCK=16)
        self.run = kernel.run
        self.launcher = kernel[(1,)]
        self.slotted = Slotted(kernel)
        self.lock = threading.RLock()
        self.weight = torch.ones(3)

    def kernels(self) -> list[Any]:
        return [
            self.attribute, *self.list, self.table["step"], self.table["deep", 1]["again"], self.partial.func.__self__,
            self.run.__self__, cells(self.launcher)["self"], self.slotted.kernel,
        ]  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [lambda: tuned.stacked, lambda: tuned.scale, lambda: factories.make_scaled(5)],
    ids=["stack", "plain", "local"],
)
def test_an_object_full_of_kernels_keeps_one_kernel_everywhere(make: Any) -> None:
    kernel = make()
    engine = Engine(kernel)
    ways = [safepickle.deepcopy(engine), *(safepickle.loads(safepickle.dumps(engine, p)) for p in PROTOCOLS)]
    file = io.BytesIO()
    torch.save(engine, file, pickle_module=safepickle)
    file.seek(0)
    ways.append(torch.load(file, pickle_module=safepickle, weights_only=False))
    for twin in ways:
        assert all(found is kernel for found in twin.kernels())
        assert twin.lock.acquire(timeout=1) and twin.slotted.lock.acquire(timeout=1)
        twin.weight.zero_()
        assert torch.equal(engine.weight, torch.ones(3))


def test_in_a_fresh_process_it_is_one_kernel_too(tmp_path: Path) -> None:
    data = safepickle.dumps([Engine(factories.make_scaled(7)), Engine(tuned.stacked)])
    code = """
        from tests.fixtures.kernels import tuned
        local, named = (engine.kernels() for engine in obj)
        print(len(local), len({id(kernel) for kernel in local}), all(kernel is tuned.stacked for kernel in named))
    """
    assert fresh_load(data, code, tmp_path) == "9 1 True\n"


@needs_version(3, 6)
def test_a_copied_module_shares_its_kernel_s_compilations_and_splits_its_weights() -> None:
    class Net(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
            self.kernel = tuned.scale

    net = Net()
    compiled_ptx(net.kernel, torch.float32, torch.float32, 4, BLOCK=32)
    twin = safepickle.deepcopy(net)
    with compilations() as done:
        compiled_ptx(twin.kernel, torch.float32, torch.float32, 4, BLOCK=32)
    assert done == []
    assert twin.kernel is tuned.scale
    assert twin.layer.weight is not net.layer.weight and torch.equal(twin.layer.weight, net.layer.weight)
