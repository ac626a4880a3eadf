"""Do kernels that no name leads to arrive whole, run where their source is gone, and stay one kernel at home?"""

from __future__ import annotations

import gc
import importlib
import pickle
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path
from typing import Any

import pytest

import safepickle
from tests.helpers import REPOSITORY, fresh_load, run_python, run_script

triton = pytest.importorskip("triton")
pytest.importorskip("torch")

from triton.runtime.jit import JITFunction

from tests.fixtures.kernels import borrowed, classes, factories, generated, hidden, holders
from tests.reducers.triton_support import MODES, compilations, compiled_ptx, needs_version

PROTOCOLS = (2, 4, 5)


def local_kernels(tmp_path: Path) -> dict[str, Any]:
    """One kernel of each kind that no importable name leads to."""
    tuned, _ = factories.make_tuned([])
    unrolled = generated.unrolled(2, 4)
    return {
        "from a factory": factories.make_scaled(31),
        "from a cached factory": factories.cached(37),
        "tuned": tuned,
        "the heuristics in a tuned one": tuned.fn,
        "the kernel in a tuned one": tuned.fn.fn,
        "from text whose lines are gone": generated.from_text_whose_lines_are_gone(41),
        "from a file that no finder finds": generated.from_generated_file(tmp_path, 43),
        "from a file that is in no module": generated.from_file_with_this_module_s_name(tmp_path, 47),
        "from a module made by hand": generated.from_hand_made_module("safepickle_special", 53),
        "one of several with one name": unrolled[2],
        "another of several with one name": unrolled[4],
        "with a hidden text": hidden.define_kernel(hidden.multiply),
        "on a function with a name": borrowed.local_copy(),
        "in a local class": classes.local_class().kernel,
    }


# -- at home -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_in_the_process_that_made_it_loading_gives_the_living_kernel(protocol: int, tmp_path: Path) -> None:
    kernels = local_kernels(tmp_path)
    for kind, kernel in kernels.items():
        assert pickle.loads(safepickle.dumps(kernel, protocol)) is kernel, kind
    together = pickle.loads(safepickle.dumps(kernels, protocol))
    assert [kind for kind, kernel in together.items() if kernel is not kernels[kind]] == []


def test_copies_share_it(tmp_path: Path) -> None:
    for kind, kernel in local_kernels(tmp_path).items():
        twin = safepickle.deepcopy({"kernel": kernel, "list": [kernel]})
        assert twin["kernel"] is kernel and twin["list"][0] is kernel, kind
        assert safepickle.copy(kernel) is kernel, kind


def test_two_kernels_of_equal_content_stay_two() -> None:
    one, other = factories.make_scaled(61), factories.make_scaled(61)
    loaded = safepickle.loads(safepickle.dumps([one, other]))
    assert loaded[0] is one and loaded[1] is other


def test_kernels_that_differ_in_a_captured_value_only_are_told_apart(tmp_path: Path) -> None:
    data = [safepickle.dumps(factories.make_scaled(factor), 4) for factor in (2, 3)]
    code = f"""
        import pickle
        other = pickle.loads({data[1]!r})
        print(obj is other, obj is pickle.loads({data[0]!r}))
        for kernel in (obj, other):
            times = [cell.cell_contents for cell in kernel.fn.__closure__ if hasattr(cell.cell_contents, "fn")][0]
            print([cell.cell_contents.value for cell in times.fn.__closure__ if hasattr(cell.cell_contents, "value")])
    """
    assert fresh_load(data[0], code, tmp_path) == "False True\n[2]\n[3]\n"


def test_the_function_of_a_living_kernel_comes_back_with_it_as_itself() -> None:
    kernel = factories.make_scaled(67)
    loaded = safepickle.loads(safepickle.dumps([kernel, kernel.fn]))
    assert loaded[0] is kernel and loaded[1] is kernel.fn


def test_loading_leaves_the_living_kernel_as_it_was() -> None:
    log: list[Any] = []
    tuned, launch = factories.make_tuned(log)
    before = dict(vars(tuned)), dict(vars(tuned.fn.fn)), tuned.fn.fn.fn.__closure__, launch.__closure__
    names = set(tuned.fn.fn.fn.__globals__)
    safepickle.loads(safepickle.dumps([tuned, launch]))
    assert before == (dict(vars(tuned)), dict(vars(tuned.fn.fn)), tuned.fn.fn.fn.__closure__, launch.__closure__)
    assert set(tuned.fn.fn.fn.__globals__) == names


def test_no_kernel_is_kept_alive() -> None:
    kernel = factories.make_scaled(71)
    alive = weakref.ref(kernel)
    data = safepickle.dumps(kernel)
    safepickle.loads(data)
    del kernel
    factories.make_scaled(71)  # Triton itself keeps the last kernel of each name
    gc.collect()
    assert alive() is None
    assert safepickle.loads(data).fn.__name__ == "scaled"


def test_a_kernel_whose_captured_value_changed_is_another_kernel_to_other_processes(tmp_path: Path) -> None:
    settings = {"scale": 1}

    @triton.heuristics({"SCALE": lambda args: settings["scale"]})
    @triton.jit
    def kernel(x_ptr, SCALE):
        return

    first = safepickle.dumps(kernel, 4)
    settings["scale"] = 2
    second = safepickle.dumps(kernel, 4)
    code = f"""
        import pickle
        second = pickle.loads({second!r})
        print(obj.values["SCALE"]({{}}), second.values["SCALE"]({{}}))
    """
    assert fresh_load(first, code, tmp_path) == "1 2\n"
    assert safepickle.loads(first) is kernel


def test_triton_s_table_of_kernels_keeps_the_one_at_home() -> None:
    table = getattr(importlib.import_module("triton.runtime.jit"), "_triton_jit_function_registry", None)
    if table is None:
        pytest.skip("this version of Triton has no such table")
    name = "tests.fixtures.kernels.factories:make_scaled.<locals>.scaled"
    data = safepickle.dumps(factories.make_scaled(73))
    gc.collect()
    at_home = table[name] = factories.make_scaled(79)
    loaded = safepickle.loads(data)
    assert loaded is not at_home
    assert table[name] is at_home


# -- in another process ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_cache_key_is_the_same_where_the_source_is_gone(protocol: int, tmp_path: Path) -> None:
    kernels = {kind: kernel for kind, kernel in local_kernels(tmp_path).items() if isinstance(kernel, JITFunction)}
    data = safepickle.dumps(kernels, protocol)
    keys = {kind: kernel.cache_key for kind, kernel in kernels.items()}
    assert len(keys) > 10
    code = f"keys = {keys!r}\nprint([kind for kind, kernel in obj.items() if kernel.cache_key != keys[kind]])"
    assert fresh_load(data, code, tmp_path / "..") == "[]\n"


def test_the_text_and_the_line_are_those_of_the_original(tmp_path: Path) -> None:
    for kind, kernel in local_kernels(tmp_path).items():
        if not isinstance(kernel, JITFunction):
            continue
        code = f"print(obj.src == {kernel.src!r}, obj.starting_line_number == {kernel.starting_line_number!r})"
        assert fresh_load(safepickle.dumps(kernel), code, tmp_path) == "True True\n", kind


def test_inspect_and_the_interpreter_s_tracebacks_find_the_text(tmp_path: Path) -> None:
    kernel = factories.make_scaled(83)
    code = "import inspect\nprint(inspect.getsource(obj.fn), end='')"
    printed = fresh_load(safepickle.dumps(kernel), code, tmp_path)
    assert "def scaled(x_ptr" in printed and "@triton.jit(do_not_specialize" in printed


def test_there_and_back_again_it_is_the_living_kernel(tmp_path: Path) -> None:
    kernels = local_kernels(tmp_path)
    (tmp_path / "home.pkl").write_bytes(safepickle.dumps(kernels))
    code = """
        import safepickle
        with open("back.pkl", "wb") as file:
            file.write(safepickle.dumps(obj))
    """
    fresh_load(safepickle.dumps(kernels), code, tmp_path)
    back = safepickle.loads((tmp_path / "back.pkl").read_bytes())
    assert [kind for kind, kernel in back.items() if kernel is not kernels[kind]] == []


def test_two_payloads_of_one_kernel_are_one_kernel(tmp_path: Path) -> None:
    tuned, launch = factories.make_tuned([])
    data = [safepickle.dumps(part, 4) for part in (tuned.fn.fn, tuned, launch, tuned.fn)]
    code = f"""
        import pickle
        tuned, launch, heuristics = map(pickle.loads, {data[1:]!r})
        print(tuned.fn.fn is obj, tuned.fn is heuristics, launch.__closure__[0].cell_contents is tuned)
    """
    assert fresh_load(data[0], code, tmp_path) == "True True True\n"


def test_equal_programs_write_equal_bytes(tmp_path: Path) -> None:
    code = """
        import hashlib, safepickle
        from tests.fixtures.kernels import factories, hidden
        tuned, launch = factories.make_tuned([])
        data = safepickle.dumps([tuned, launch, factories.make_scaled(3), hidden.define_kernel(hidden.add)])
        print(hashlib.sha256(data).hexdigest())
    """
    first = run_python(code, env={"PYTHONHASHSEED": "1"})
    assert first == run_python(code, env={"PYTHONHASHSEED": "2"})


CYCLES = """
import pickle
tuned, launch, function = {order}
assert tuned.fn.fn.fn is function
assert launch.__closure__[0].cell_contents is tuned
assert tuned.configs[0].pre_hook({{}}) is tuned
assert tuned.fn.values["EVEN"]({{"n": 4}}) is True and tuned.fn.values["EVEN"]({{"n": 3}}) is False
assert tuned.early_config_prune(tuned.configs, {{}}) == tuned.configs[:1]
assert tuned.base_fn is function and tuned.arg_names == ["x_ptr", "o_ptr", "n", "EVEN", "BLOCK"]
assert [p.is_constexpr for p in tuned.fn.fn.params] == [False, False, False, True, True]
print("whole")
"""


@pytest.mark.parametrize(
    ("parts", "order"),
    [
        ("[tuned, launch, function]", "obj"),
        ("[launch, tuned, function]", "(obj[1], obj[0], obj[2])"),
        ("[function, launch, tuned]", "(obj[2], obj[1], obj[0])"),
        ("[tuned.fn.fn, launch, function]", "(obj[1].__closure__[0].cell_contents, obj[1], obj[2])"),
        ("[tuned.configs, tuned, launch, function]", "obj[1:]"),
        ("[tuned.early_config_prune, launch, tuned, function]", "(obj[2], obj[1], obj[3])"),
    ],
    ids=["wrapper first", "user first", "function first", "kernel first", "configurations first", "callback first"],
)
def test_cycles_close_from_whichever_end_they_are_pickled(parts: str, order: str, tmp_path: Path) -> None:
    tuned, launch = factories.make_tuned([])
    payload = eval(parts, {"tuned": tuned, "launch": launch, "function": tuned.fn.fn.fn})
    for protocol in PROTOCOLS:
        assert fresh_load(safepickle.dumps(payload, protocol), CYCLES.format(order=order), tmp_path) == "whole\n"


def test_a_kernel_and_its_function_are_one_whichever_comes_first(tmp_path: Path) -> None:
    kernel = generated.from_text_whose_lines_are_gone(89)
    key = kernel.cache_key
    data = safepickle.dumps([kernel.fn, kernel])
    assert fresh_load(data, f"print(obj[1].fn is obj[0], obj[1].cache_key == {key!r})", tmp_path) == "True True\n"


SCRIPT = """
import multiprocessing, sys
import triton, triton.language as tl
import safepickle

FACTOR = tl.constexpr(int(sys.argv[1]))

@triton.jit
def helper(v):
    return v * FACTOR

@triton.autotune([triton.Config({"BLOCK": 16}, pre_hook=lambda args: None)], key=["n"])
@triton.jit
def mine(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr, helper(n))

def is_mine(data):
    kernel, inner = safepickle.loads(data)
    return kernel is mine, inner is mine.fn, mine.fn.hash is None

if __name__ == "__main__":
    if sys.argv[2] == "write":
        with open("mine.pkl", "wb") as file:
            file.write(safepickle.dumps([mine, mine.fn]))
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.apply(is_mine, (safepickle.dumps([mine, mine.fn]),)))
    else:
        with open("mine.pkl", "rb") as file:
            print(is_mine(file.read()))
"""


def test_where_the_same_script_runs_its_kernels_are_the_script_s_own(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert run_script(script, args=["3", "write"]) == "(True, True, True)\n"
    assert run_script(script, args=["3", "read"]) == "(True, True, True)\n"
    assert run_script(script, args=["4", "read"]) == "(False, False, True)\n"


# -- options -----------------------------------------------------------------------------------------------------------


@needs_version(3, 4)
def test_the_options_of_jit_travel(tmp_path: Path) -> None:
    @triton.jit(
        version=3,
        do_not_specialize=["n"],
        do_not_specialize_on_alignment=[0],
        debug=True,
        noinline=True,
        repr=lambda specialization: "shown",
        launch_metadata=lambda grid, kernel, args: {"name": "measured"},
    )
    def optioned(x_ptr, n):
        return

    code = """
        print(obj.version, obj.do_not_specialize, obj.do_not_specialize_on_alignment, obj.debug, obj.noinline)
        print(obj.repr(None), obj.launch_metadata(None, None, None))
        print([(p.do_not_specialize, p.do_not_specialize_on_alignment) for p in obj.params])
    """
    assert fresh_load(safepickle.dumps(optioned), code, tmp_path) == (
        "3 ['n'] [0] True True\nshown {'name': 'measured'}\n[(False, True), (True, False)]\n"
    )


@needs_version(3, 6)
def test_what_was_compiled_and_hooks_that_were_added_stay_behind(tmp_path: Path) -> None:
    kernel = factories.make_scaled(97)
    kernel.add_pre_run_hook(lambda *args, **kwargs: None)
    compiled_ptx(kernel, *_arguments(), 8, BLOCK=16)
    assert len(kernel.device_caches) == 1
    code = "print(obj.pre_run_hooks, len(obj.device_caches), obj.hash, obj.used_global_vals)"
    assert fresh_load(safepickle.dumps(kernel), code, tmp_path) == "[] 0 None {}\n"


def make_full_tuner() -> Any:
    hooks: list[str] = []

    @triton.autotune(
        [
            triton.Config(
                {"BLOCK": 16}, num_warps=2, num_stages=4, maxnreg=64, pre_hook=lambda args: hooks.append("config")
            )
        ],
        key=["n"],
        reset_to_zero=["o_ptr"],
        restore_value=["x_ptr"],
        pre_hook=lambda args, reset_only=False: hooks.append("pre"),
        post_hook=lambda args, exception: hooks.append("post"),
        prune_configs_by={
            "perf_model": lambda **kwargs: 1.0,
            "top_k": 1,
            "early_config_prune": lambda configs, *_, **__: configs,
        },
        do_bench=lambda call, quantiles: [7.0, 7.0, 7.0],
        cache_results=True,
    )
    @triton.jit
    def full(x_ptr, o_ptr, n, BLOCK: triton.language.constexpr):
        return

    return full


@needs_version(3, 4)
def test_the_options_of_autotune_travel(tmp_path: Path) -> None:
    code = """
        config = obj.configs[0]
        print(config.kwargs, config.num_warps, config.num_stages, config.maxnreg)
        print(obj.keys, obj.reset_to_zero, obj.restore_value)
        obj.pre_hook({}), obj.post_hook({}, None), config.pre_hook({})
        print(obj.pre_hook.__closure__[0].cell_contents, obj.user_defined_pre_hook, obj.user_defined_post_hook)
        print(obj.do_bench(None, None), obj.cache_results)
        print(obj.perf_model(), obj.configs_top_k, obj.early_config_prune([1], {}))
    """
    assert fresh_load(safepickle.dumps(make_full_tuner()), code, tmp_path) == (
        "{'BLOCK': 16} 2 4 64\n['n'] ['o_ptr'] ['x_ptr']\n"
        "['pre', 'post', 'config'] True True\n"
        "[7.0, 7.0, 7.0] True\n1.0 1 [1]\n"
    )


@needs_version(3, 2)
def test_hooks_that_the_tuner_made_itself_work_on_the_restored_tuner(tmp_path: Path) -> None:
    tuned, _ = factories.make_tuned([])
    assert not tuned.user_defined_pre_hook
    code = """
        import torch
        args = {"x_ptr": torch.ones(2), "o_ptr": torch.ones(2)}
        obj.pre_hook(args)
        args["o_ptr"].zero_()
        obj.post_hook(args, None)
        print(args["o_ptr"].tolist(), obj.pre_hook.__closure__[0].cell_contents is obj)
    """
    assert fresh_load(safepickle.dumps(tuned), code, tmp_path) == "[1.0, 1.0] True\n"


@needs_version(3, 4)
@pytest.mark.filterwarnings("ignore:warmup, rep, and use_cuda_graph")
def test_a_benchmark_that_the_tuner_made_from_its_options_is_made_again(tmp_path: Path) -> None:
    plain = factories.make_scaled(103)
    tuned = triton.autotune([triton.Config({"BLOCK": 16})], key=["n"], warmup=3, rep=5)(plain)
    code = """
        made = {n: c.cell_contents for n, c in zip(obj._do_bench.__code__.co_freevars, obj._do_bench.__closure__)}
        print(obj.num_warmups, obj.num_reps, made["warmup"], made["rep"])
    """
    data = safepickle.dumps(tuned)
    assert (
        fresh_load(data, code, tmp_path, env={"PYTHONWARNINGS": "error::DeprecationWarning:safepickle"}) == "3 5 3 5\n"
    )


@needs_version(3, 6)
def test_gluon_and_constexpr_functions_keep_their_classes(tmp_path: Path) -> None:
    gluon = pytest.importorskip("triton.experimental.gluon")

    @gluon.jit
    def local_gluon(x, n):
        return

    @triton.constexpr_function
    def local_constexpr(x):
        return 2 * x

    code = "print(type(obj[0]).__name__, type(obj[1]).__name__, obj[1](21))"
    printed = fresh_load(safepickle.dumps([local_gluon, local_constexpr]), code, tmp_path)
    assert printed == "GluonJITFunction ConstexprFunction 42\n"


def test_a_name_that_somebody_gave_the_kernel_travels(tmp_path: Path) -> None:
    kernel = factories.make_scaled(107)
    kernel.__name__ = kernel.__qualname__ = "nice_name"
    assert (
        fresh_load(safepickle.dumps(kernel), "print(obj.__name__, obj.fn.__name__)", tmp_path) == "nice_name scaled\n"
    )


# -- what cannot go ----------------------------------------------------------------------------------------------------


def test_a_kernel_of_a_library_s_own_class_is_refused_by_value_with_its_name() -> None:
    kernel = holders.local_entry()
    with pytest.raises(pickle.PicklingError, match=r"local_entry\.<locals>\.hidden.*LibEntry"):
        safepickle.dumps({"deep": [kernel]})
    assert safepickle.deepcopy([kernel])[0] is kernel


def test_a_library_s_own_class_without_a_function_of_triton_goes_as_any_object(tmp_path: Path) -> None:
    code = "print(obj.size, obj[(2,)]())"
    assert fresh_load(safepickle.dumps(holders.Sized(5)), code, tmp_path) == "5 (5, (2,))\n"


def test_a_kind_that_this_version_of_triton_lacks_is_named() -> None:
    from safepickle import restore

    with pytest.raises(pickle.UnpicklingError, match=rf"Triton {triton.__version__} has no kernels of kind 'quantum'"):
        restore.make_kernel("m:k:0", "quantum")


def test_a_kernel_that_cannot_be_rebuilt_is_named(tmp_path: Path) -> None:
    data = safepickle.dumps(factories.make_scaled(109), 4)
    code = f"""
        import pickle
        from triton.runtime import jit
        def refuse(self, *args, **kwargs):
            raise RuntimeError("out of order")
        jit.JITFunction.__init__ = refuse
        try:
            pickle.loads({data!r})
        except pickle.UnpicklingError as error:
            print(error)
    """
    printed = fresh_load(safepickle.dumps(None), code, tmp_path)
    assert "make_scaled.<locals>.times" in printed and "out of order" in printed


def test_a_hidden_text_is_refused_where_kernels_are_interpreted(tmp_path: Path) -> None:
    data = safepickle.dumps(hidden.define_kernel(hidden.add), 4)
    code = f"""
        import pickle
        try:
            pickle.loads({data!r})
        except pickle.UnpicklingError as error:
            print(error)
    """
    printed = fresh_load(safepickle.dumps(None), code, tmp_path, env=MODES["interpreter"])
    assert "nowhere.in.particular:combined" in printed and "interpreter" in printed


def test_a_kernel_without_a_text_is_interpreted_where_it_arrives_and_not_compiled(tmp_path: Path) -> None:
    write = """
        import triton, triton.language as tl, safepickle
        exec(compile("@triton.jit\\ndef textless(x_ptr, n):\\n    tl.store(x_ptr, n)", "<nowhere>", "exec"))
        with open("textless.pkl", "wb") as file:
            file.write(safepickle.dumps(textless))
    """
    read = """
        import pickle, torch
        with open("textless.pkl", "rb") as file:
            data = file.read()
        try:
            kernel = pickle.loads(data)
            x = torch.zeros(1)
            kernel[(1,)](x, 3)
            print(x.tolist())
        except pickle.UnpicklingError as error:
            print(error)
    """
    run_python(write, cwd=tmp_path, env=MODES["interpreter"])
    assert run_python(read, cwd=tmp_path, env=MODES["interpreter"]) == "[3.0]\n"
    printed = run_python(read, cwd=tmp_path, env=MODES["compiler"])
    assert "cannot rebuild the kernel __main__:textless" in printed


# -- running and compiling ---------------------------------------------------------------------------------------------


def _arguments() -> tuple[Any, Any]:
    import torch

    return torch.float32, torch.float32


@needs_version(3, 6)
def test_it_compiles_where_the_source_is_gone(tmp_path: Path) -> None:
    kernels = {kind: kernel for kind, kernel in local_kernels(tmp_path).items() if isinstance(kernel, JITFunction)}
    tuned, _ = factories.make_tuned([])
    payload = {
        **{k: v for k, v in kernels.items() if v.arg_names == ["x_ptr", "o_ptr", "n", "BLOCK"]},
        "a tuned kernel": tuned.fn,
    }
    assert len(payload) >= 9
    code = """
        import torch
        from tests.reducers.triton_support import compiled_ptx
        for kind, kernel in obj.items():
            kernel, more = (kernel.fn, {"EVEN": True}) if "tuned" in kind else (kernel, {})
            ptx = compiled_ptx(kernel, torch.float32, torch.float32, 8, BLOCK=16, **more)
            assert "st.global" in ptx, kind
        print(len(obj))
    """
    printed = fresh_load(safepickle.dumps(payload), code, tmp_path, timeout=300)
    assert printed == f"{len(payload)}\n"


@needs_version(3, 6)
def test_a_kernel_that_was_compiled_here_is_read_from_disk_there(tmp_path: Path) -> None:
    kernel, other = factories.make_scaled(113), generated.from_text_whose_lines_are_gone(127)
    for one in (kernel, other):
        compiled_ptx(one, *_arguments(), 8, BLOCK=16)
    code = """
        import torch
        from tests.reducers.triton_support import compilations, compiled_ptx
        with compilations() as done:
            for kernel in obj:
                compiled_ptx(kernel, torch.float32, torch.float32, 8, BLOCK=16)
        print(done)
    """
    assert fresh_load(safepickle.dumps([kernel, other]), code, tmp_path) == "['read scaled', 'read generated']\n"


@needs_version(3, 6)
def test_nothing_is_compiled_again_after_copying_or_loading_at_home() -> None:
    kernel = factories.make_scaled(131)
    compiled_ptx(kernel, *_arguments(), 8, BLOCK=16)
    with compilations() as done:
        for again in (
            safepickle.deepcopy([kernel])[0],
            safepickle.copy(kernel),
            safepickle.loads(safepickle.dumps(kernel)),
        ):
            compiled_ptx(again, *_arguments(), 8, BLOCK=16)
    assert done == []


NOTEBOOK = '''
import linecache, sys
import torch, triton, triton.language as tl
import safepickle

CELL = """
OFFSET = tl.constexpr(10)

@triton.jit
def bump(v):
    return v + OFFSET

@triton.heuristics({"DOUBLE": lambda args: args["n"] > 3})
@triton.jit
def cell_kernel(x_ptr, o_ptr, n, DOUBLE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = bump(tl.load(x_ptr + i, mask=i < n))
    if DOUBLE:
        v = v * 2
    tl.store(o_ptr + i, v, mask=i < n)

def launch(x):
    o = torch.zeros_like(x)
    cell_kernel[(1,)](x, o, x.numel(), BLOCK=8)
    return o
"""
name = "<ipython-input-7-cell>"
linecache.cache[name] = (len(CELL), None, CELL.splitlines(True), name)
exec(compile(CELL, name, "exec"), globals())
with open("notebook.pkl", "wb") as file:
    file.write(safepickle.dumps({"kernel": cell_kernel, "launch": launch, "run": cell_kernel[(1,)]}, int(sys.argv[1])))
assert safepickle.deepcopy([cell_kernel])[0] is cell_kernel
'''


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_notebook_s_kernel_runs_where_the_cell_was_never_executed(protocol: int, tmp_path: Path) -> None:
    run_python(NOTEBOOK, cwd=tmp_path, env=MODES["interpreter"], args=[str(protocol)])
    code = """
        import pickle, torch
        with open("notebook.pkl", "rb") as file:
            loaded = pickle.load(file)
        print(loaded["launch"](torch.arange(5.0)).tolist(), loaded["launch"](torch.arange(2.0)).tolist())
        o = torch.zeros(5)
        loaded["run"](torch.arange(5.0), o, 5, BLOCK=8)
        print(o.tolist(), loaded["launch"].__globals__["cell_kernel"] is loaded["kernel"])
    """
    assert run_python(code, cwd=tmp_path, env=MODES["interpreter"]) == (
        "[20.0, 22.0, 24.0, 26.0, 28.0] [10.0, 11.0]\n[20.0, 22.0, 24.0, 26.0, 28.0] True\n"
    )


@pytest.mark.parametrize(("write", "read"), [("compiler", "interpreter"), ("interpreter", "compiler")])
def test_a_kernel_of_one_mode_loads_as_one_of_the_other(write: str, read: str, tmp_path: Path) -> None:
    run_python(NOTEBOOK, cwd=tmp_path, env=MODES[write], args=["4"])
    code = """
        import pickle, torch
        with open("notebook.pkl", "rb") as file:
            loaded = pickle.load(file)
        kernel = loaded["kernel"].fn
        if type(kernel).__name__ == "InterpretedFunction":
            print(loaded["launch"](torch.arange(2.0)).tolist())
        else:
            from tests.reducers.triton_support import compiled_ptx
            print("st.global" in compiled_ptx(kernel, torch.float32, torch.float32, 8, DOUBLE=True, BLOCK=8))
    """
    expected = {"interpreter": "[10.0, 11.0]\n", "compiler": "True\n"}
    assert run_python(code, cwd=tmp_path, env=MODES[read]) == expected[read]


def test_a_script_s_kernel_runs_where_the_script_was_deleted(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, torch, triton, triton.language as tl
            import safepickle

            @triton.jit
            def halve(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
                i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
                tl.store(o_ptr + i, tl.load(x_ptr + i, mask=i < n) / 2, mask=i < n)

            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = torch.nn.Linear(4, 4)
                    self.kernel, self.table = halve, {"halve": halve}

                def forward(self, x):
                    y = self.layer(x).detach()
                    o = torch.empty_like(y)
                    self.kernel[(1,)](y, o, y.numel(), BLOCK=16)
                    return o

            torch.manual_seed(0)
            net = Net()
            x = torch.ones(2, 4)
            torch.save([net, x, net(x)], "net.pt", pickle_module=safepickle)
            """
        )
    )
    environment = {"TRITON_INTERPRET": "1", "PYTHONPATH": str(REPOSITORY)}
    _run_and_remove(script, environment)
    code = """
        import safepickle, torch
        net, x, y = torch.load("net.pt", pickle_module=safepickle, weights_only=False)
        print(torch.equal(net(x), y), net.table["halve"] is net.kernel)
        torch.nn.init.zeros_(net.layer.weight)
        torch.nn.init.ones_(net.layer.bias)
        print(net(x).tolist())
    """
    printed = run_python(code, cwd=tmp_path, env=MODES["interpreter"])
    assert printed == "True True\n[[0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]]\n"


def _run_and_remove(script: Path, environment: dict[str, str]) -> None:
    import os

    command = [sys.executable, str(script)]
    subprocess.run(command, cwd=script.parent, env={**os.environ, **environment}, check=True, timeout=120)
    script.unlink()
