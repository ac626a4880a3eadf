"""Do kernels that a name leads to travel by that name, and come back as the very object, here and in a fresh process?

The names are those of the fixtures: one for each way in which real libraries keep their kernels.
"""

from __future__ import annotations

import copy
import importlib
import io
import json
import pickle
import pickletools
import sys
from pathlib import Path
from typing import Any

import pytest

import safepickle
from tests.helpers import fresh_load, run_python

triton = pytest.importorskip("triton")
pytest.importorskip("torch")

from tests.fixtures import pathed, shadowed
from tests.fixtures.kernels import (
    classes,
    conditional,
    containers,
    dropped,
    factories,
    holders,
    renamed,
    tuned,
)
from tests.reducers.triton_support import MODES

PROTOCOLS = (2, 4, 5)
PREFIX = "tests.fixtures.kernels."

#: What each kind of kernel is, and where a fresh process finds it.
NAMED = {
    "a plain kernel": "tuned:scale",
    "a tuned variant under a second name": "tuned:scale_auto",
    "another tuned variant of the same kernel": "tuned:scale_wide",
    "a variant with heuristics": "tuned:scale_even",
    "an autotuner over heuristics": "tuned:stacked",
    "the heuristics in an autotuner": "tuned:stacked.fn",
    "the kernel in heuristics in an autotuner": "tuned:stacked.fn.fn",
    "eight wrappers": "tuned:tall",
    "the fifth of eight wrappers": "tuned:tall.fn.fn.fn.fn",
    "the kernel in eight wrappers": "tuned:tall.fn.fn.fn.fn.fn.fn.fn.fn",
    "a name bound again by each wrapper": "tuned:step_by_step",
    "the kernel below a name bound again": "tuned:step_by_step.fn",
    "a kernel whose name a function took": "renamed:cos_kernel",
    "a kernel whose name another kernel took": "renamed:sin_first",
    "the kernel that took the name": "renamed:sin_",
    "a kernel with an edited name": "renamed:edited",
    "a kernel that says it has no module": "renamed:no_module",
    "a kernel that lies about its name": "renamed:liar",
    "a kernel in a private attribute of another object": "holders:add_one._scalar_fn",
    "the object that holds it": "holders:add_one",
    "a library's own kind of kernel": "holders:entry",
    "the autotuner in a library's own kind": "holders:entry.fn",
    "the kernel in a library's own kind": "holders:entry.fn.fn",
    "a tuner of a local class": "holders:anonymous",
    "one of two kernels on one plain function": "borrowed:copy_a",
    "the other of two kernels on one plain function": "borrowed:copy_b",
    "the plain function that both are made from": "borrowed:_copy_padded",
    "a kernel on another module's function": "borrowed:borrowed",
    "a kernel on another module's function with edited text": "borrowed:edited",
    "a constexpr function of a function with another name": "borrowed:double",
    "a kernel from a factory": "factories:named",
    "a kernel from a loop": "factories:scaled_7",
    "a kernel in a class": "classes:Ops.negate",
    "a static kernel": "classes:Ops.keep",
    "a static kernel with heuristics": "classes:Ops.tuned",
    "the kernel in a static kernel with heuristics": "classes:Ops.tuned.fn",
    "a kernel in a nested class": "classes:Ops.Nested.deep",
    "an inherited kernel": "classes:Inheriting.negate",
    "a kernel attached to a class later": "classes:Ops.attached",
    "a kernel attached to a nested class later": "classes:Ops.Nested.attached_deep",
    "a method of an aggregate": "classes:Pair.total",
    "a kernel in a class from a factory": "classes:generated_float32.kernel",
    "a class from a factory": "classes:generated_float16",
    "a kernel that some machines lack": "conditional:sometimes",
    "a kernel with two bodies": "conditional:either",
    "a kernel in a container, with a name": "tuned:scale",
    "the function of a kernel": "tuned:scale.fn",
    "the function below two wrappers": "tuned:stacked.fn.fn.fn",
    "the function of a kernel whose name another took": "renamed:cos_kernel.fn",
    "the function of a kernel in a class": "classes:Ops.negate.fn",
    "a function that is the pruning of a tuner": "tuned:keep_small",
}
#: An aggregate has methods only where kernels are compiled.
COMPILED_ONLY = {"a method of an aggregate"}


def resolve(place: str) -> Any:
    module, _, path = place.partition(":")
    found = importlib.import_module(PREFIX + module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def here(place: str) -> Any:
    try:
        return resolve(place)
    except AttributeError:
        pytest.skip("this version of Triton has no such kernels")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", NAMED)
def test_loading_gives_the_very_object(kind: str, protocol: int) -> None:
    kernel = here(NAMED[kind])
    data = safepickle.dumps(kernel, protocol)
    assert pickle.loads(data) is kernel
    assert safepickle.loads(data) is kernel


@pytest.mark.parametrize("kind", [kind for kind in NAMED if kind not in ("the object that holds it",)])
def test_copies_share_it(kind: str) -> None:
    kernel = here(NAMED[kind])
    held = {"kernel": kernel, "again": [kernel]}
    twin = safepickle.deepcopy(held)
    assert twin["kernel"] is kernel
    assert twin["again"][0] is kernel
    assert safepickle.copy(kernel) is kernel


def test_deepcopy_of_an_object_that_holds_a_kernel_shares_the_kernel_and_splits_the_rest() -> None:
    twin = safepickle.deepcopy(holders.add_one)
    assert twin is not holders.add_one
    assert twin._scalar_fn is holders.add_one._scalar_fn
    assert twin.overloads is not holders.add_one.overloads
    assert twin._lock.acquire(timeout=1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", NAMED)
def test_no_stream_asks_for_getattr(kind: str, protocol: int) -> None:
    data = safepickle.dumps(here(NAMED[kind]), protocol)
    strings = {str(argument) for _, argument, _ in pickletools.genops(data)}
    assert not any("getattr" in text for text in strings)
    assert len(data) < 200


# -- in another process ------------------------------------------------------------------------------------------------

CHECK = """
import importlib, json, pickle, sys

def resolve(place):
    module, _, path = place.partition(":")
    found = importlib.import_module("tests.fixtures.kernels." + module)
    for name in path.split("."):
        found = getattr(found, name)
    return found

with open("payloads.pkl", "rb") as file:
    payloads = pickle.load(file)
verdicts = {}
for kind, (place, data) in payloads.items():
    try:
        loaded = pickle.loads(data)
        verdicts[kind] = "same" if loaded is resolve(place) else f"another {type(loaded).__name__}"
    except Exception as error:
        verdicts[kind] = f"{type(error).__name__}: {error}"
print(json.dumps(verdicts))
"""

WRITE = """
import importlib, pickle, sys, json
import safepickle
from tests.reducers.test_triton_references import NAMED, resolve
payloads = {}
for kind, place in NAMED.items():
    try:
        payloads[kind] = (place, safepickle.dumps(resolve(place), 4))
    except AttributeError:
        pass
pickle.dump(payloads, open("payloads.pkl", "wb"))
"""


@pytest.fixture(scope="module", params=MODES)
def verdicts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a fresh process says of each payload, in each of Triton's two modes."""
    folder = tmp_path_factory.mktemp("references")
    run_python(WRITE, cwd=folder, env=MODES[request.param])
    verdicts: dict[str, str] = json.loads(run_python(CHECK, cwd=folder, env=MODES[request.param]))
    return verdicts


@pytest.mark.parametrize("kind", NAMED)
def test_a_fresh_process_finds_the_object_of_that_name(verdicts: dict[str, str], kind: str) -> None:
    if kind not in verdicts:
        pytest.skip("this version of Triton has no such kernels")
    assert verdicts[kind] == "same"


def test_a_class_from_a_factory_is_found_in_a_fresh_process_with_its_kernel(verdicts: dict[str, str]) -> None:
    assert verdicts["a class from a factory"] == "same"


def test_compiled_kernels_by_name_load_where_kernels_are_interpreted_and_the_other_way_round(tmp_path: Path) -> None:
    for write, read in (("compiler", "interpreter"), ("interpreter", "compiler")):
        run_python(WRITE, cwd=tmp_path, env=MODES[write])
        verdicts = json.loads(run_python(CHECK, cwd=tmp_path, env=MODES[read]))
        assert len(verdicts) > 40
        assert {
            kind: verdict for kind, verdict in verdicts.items() if verdict != "same" and kind not in COMPILED_ONLY
        } == {}


# -- the shortest form -------------------------------------------------------------------------------------------------


def test_a_kernel_of_a_module_is_written_as_a_bare_global() -> None:
    data = safepickle.dumps(tuned.scale, 4)
    assert [
        (op.name, argument)
        for op, argument, _ in pickletools.genops(data)
        if argument is not None and op.name != "PROTO"
    ] == [
        ("FRAME", len(data) - 11),
        ("SHORT_BINUNICODE", "tests.fixtures.kernels.tuned"),
        ("SHORT_BINUNICODE", "scale"),
    ]
    assert safepickle.dumps(tuned.scale, 2) == b"\x80\x02ctests.fixtures.kernels.tuned\nscale\nq\x00."


def test_the_pickle_of_a_kernel_in_a_short_module_has_about_34_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kmod.py").write_text(
        "import triton, triton.language as tl\n@triton.jit\ndef add_kernel(x_ptr, n):\n    tl.store(x_ptr, n)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import kmod  # type: ignore[import-not-found]

    data = safepickle.dumps(kmod.add_kernel, 4)
    assert len(data) <= 34
    printed = run_python(
        f"import pickle, sys\nkernel = pickle.loads({data!r})\nprint(kernel.fn.__name__, 'safepickle' in sys.modules)",
        pythonpath=[tmp_path],
    )
    assert printed == "add_kernel False\n"
    sys.modules.pop("kmod")


def test_weights_only_loading_accepts_a_kernel_that_was_declared_safe() -> None:
    import torch

    if not hasattr(tuned.scale, "__qualname__"):
        pytest.skip("torch asks for it, and kernels have it from Triton 3.4 on")
    file = io.BytesIO()
    torch.save({"weight": torch.ones(2), "kernel": tuned.scale}, file, pickle_module=safepickle)
    file.seek(0)
    with torch.serialization.safe_globals([tuned.scale]):
        loaded = torch.load(file, weights_only=True)
    assert loaded["kernel"] is tuned.scale
    assert torch.equal(loaded["weight"], torch.ones(2))


def test_torch_save_and_load_with_this_module_keep_every_layer() -> None:
    import torch

    parts = [tuned.stacked, tuned.stacked.fn, tuned.stacked.fn.fn, tuned.scale_auto, classes.Ops.negate]
    file = io.BytesIO()
    torch.save(parts, file, pickle_module=safepickle)
    file.seek(0)
    loaded = torch.load(file, pickle_module=safepickle, weights_only=False)
    assert all(new is old for new, old in zip(loaded, parts, strict=True))


# -- names that must not become references -----------------------------------------------------------------------------


def test_a_kernel_in_a_container_only_goes_by_value() -> None:
    for kernel in (containers.TABLE["adam"]["init"], containers._KERNELS[1]):
        assert b"make_kernel" in safepickle.dumps(kernel)
        assert safepickle.loads(safepickle.dumps(kernel)) is kernel


def test_a_kernel_whose_name_was_deleted_goes_by_value() -> None:
    assert b"make_kernel" in safepickle.dumps(renamed.KEPT[0])


def test_a_kernel_that_its_module_dropped_goes_by_value() -> None:
    assert dropped.dropped is abs
    assert b"make_kernel" in safepickle.dumps(dropped.seen[0])


def test_a_name_that_is_bound_on_first_use_is_no_reference() -> None:
    kernel = factories.on_first_use()
    assert factories._on_first_use is kernel
    assert b"_on_first_use" not in safepickle.dumps(kernel)


def test_a_name_given_to_a_script_s_kernel_in_another_module_is_no_reference(tmp_path: Path) -> None:
    printed = run_python(
        """
        import triton, triton.language as tl
        import safepickle
        from tests.fixtures.kernels import tuned

        @triton.jit
        def mine(x_ptr, n):
            tl.store(x_ptr, n)

        tuned.patched_in = mine
        data = safepickle.dumps(mine)
        print(b"patched_in" in data, b"make_kernel" in data, safepickle.loads(data) is mine)
        """
    )
    assert printed == "False True True\n"


def test_a_module_that_the_user_wants_by_value_is_no_place_for_references() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    cloudpickle.register_pickle_by_value(tuned)
    try:
        assert b"make_kernel" in safepickle.dumps(tuned.scale)
    finally:
        cloudpickle.unregister_pickle_by_value(tuned)
    assert b"make_kernel" not in safepickle.dumps(tuned.scale)


def test_gluon_kernels_on_triton_s_own_functions_are_found_where_gluon_has_them() -> None:
    gluon = pytest.importorskip("triton.experimental.gluon.language")
    import triton.language as tl

    if not hasattr(gluon, "cdiv"):
        pytest.skip("this version of Triton makes none")
    assert type(gluon.cdiv) is not type(tl.cdiv)
    for protocol in PROTOCOLS:
        assert pickle.loads(safepickle.dumps(gluon.cdiv, protocol)) is gluon.cdiv
        assert pickle.loads(safepickle.dumps(tl.cdiv, protocol)) is tl.cdiv


def test_every_kernel_of_triton_s_own_language_comes_back_as_itself() -> None:
    from triton.runtime.jit import JITFunction

    modules = [module for name, module in sys.modules.items() if name.startswith("triton.") and module is not None]
    kernels = {id(v): v for module in modules for v in list(vars(module).values()) if isinstance(v, JITFunction)}
    assert len(kernels) > 20
    assert [k for k in kernels.values() if pickle.loads(safepickle.dumps(k)) is not k] == []


# -- modules that are hard to get at -----------------------------------------------------------------------------------


def test_a_kernel_in_a_module_that_a_function_hides_is_found_in_a_fresh_process(tmp_path: Path) -> None:
    module = sys.modules["tests.fixtures.shadowed.absolute"]
    assert shadowed.absolute is not module
    data = safepickle.dumps([module.absolute_kernel, module.absolute_kernel.fn], 2)
    printed = fresh_load(
        data,
        """
        import sys
        module = sys.modules["tests.fixtures.shadowed.absolute"]
        print(obj[0] is module.absolute_kernel, obj[1] is module.absolute_kernel.fn)
        """,
        tmp_path,
    )
    assert printed == "True True\n"


def test_a_module_that_its_package_made_importable_is_named_by_the_error_where_it_is_not(tmp_path: Path) -> None:
    assert pathed.__name__ == "tests.fixtures.pathed"
    import safepickle_fixture_ops as ops  # type: ignore[import-not-found]

    data = safepickle.dumps(triton.heuristics({})(ops.vendored).fn, 4)
    held = safepickle.dumps({"launch": ops.vendored[(1,)], "kernel": ops.vendored.fn}, 4)
    assert pickle.loads(data) is ops.vendored
    printed = fresh_load(
        safepickle.dumps(None), f"import tests.fixtures.pathed, pickle\nprint(pickle.loads({data!r}))", tmp_path
    )
    assert "vendored" in printed
    printed = fresh_load(
        safepickle.dumps(None),
        f"""
        import pickle
        try:
            pickle.loads({held!r})
        except Exception as error:
            print(type(error).__name__, error)
        """,
        tmp_path,
    )
    assert "safepickle_fixture_ops" in printed and "No module named" in printed


def test_a_name_that_only_some_machines_have_is_named_by_the_error(tmp_path: Path) -> None:
    data = safepickle.dumps(triton.heuristics({})(conditional.sometimes)[(1,)], 4)
    code = f"""
        import pickle
        try:
            pickle.loads({data!r})
        except Exception as error:
            print(error)
    """
    printed = fresh_load(safepickle.dumps(None), code, tmp_path, env={"FIXTURE_WITHOUT": "1"})
    assert "conditional" in printed and "sometimes" in printed


def test_a_kernel_with_two_bodies_is_the_one_of_the_reading_process(tmp_path: Path) -> None:
    data = safepickle.dumps(conditional.either)
    printed = fresh_load(data, "print(obj.src)", tmp_path, env={"FIXTURE_FAST": "1"})
    assert "n + 1" in printed and "n + 1" not in conditional.either.src


# -- what loading checks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "qualname", "path"),
    [
        ("os", "system", ()),
        ("builtins", "eval", ()),
        ("tests.fixtures.kernels.tuned", "keep_small", ()),
        ("tests.fixtures.kernels.tuned", "CONFIGS", ()),
        ("tests.fixtures.kernels.tuned", "scale", ("fn",)),
        ("tests.fixtures.kernels.tuned", "scale", ("__globals__",)),
    ],
)
def test_a_reference_to_a_kernel_loads_nothing_but_kernels(module: str, qualname: str, path: tuple[str, ...]) -> None:
    from safepickle import restore

    with pytest.raises(pickle.UnpicklingError, match=r"no Triton kernel|has no attribute"):
        restore.kernel(module, qualname, path)


@pytest.mark.parametrize(
    ("module", "qualname", "path"),
    [
        ("os", "system", ()),
        ("builtins", "eval", ()),
        ("tests.fixtures.kernels.tuned", "keep_small", ()),
        ("tests.fixtures.kernels.tuned", "scale_auto", ()),
        ("tests.fixtures.kernels.holders", "add_one", ("_lock",)),
    ],
)
def test_a_reference_to_a_stand_in_loads_only_what_holds_the_function_of_that_name(
    module: str, qualname: str, path: tuple[str, ...]
) -> None:
    from safepickle import restore

    with pytest.raises(pickle.UnpicklingError, match="does not hold"):
        restore.stand_in(module, qualname, path)


def test_loading_a_name_that_is_gone_says_which_and_where() -> None:
    from safepickle import restore

    with pytest.raises(pickle.UnpicklingError, match=r"tests\.fixtures\.kernels\.tuned:vanished.*tuned\.py"):
        restore.kernel("tests.fixtures.kernels.tuned", "vanished", ())
    with pytest.raises(pickle.UnpicklingError, match=r"no_such_module:kernel.*No module named"):
        restore.kernel("no_such_module", "kernel", ())


# -- what pickling leaves alone ----------------------------------------------------------------------------------------


def test_pickling_and_copying_ask_no_kernel_for_its_cache_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime import jit

    callable_class = getattr(jit, "JITCallable", jit.JITFunction)

    def refuse(self: Any) -> Any:
        raise AssertionError("asked for the cache key")

    monkeypatch.setattr(callable_class, "cache_key", property(refuse))
    monkeypatch.setattr(callable_class, "__hash__", refuse)
    kernel = factories.make_scaled(101)
    for held in ([tuned.scale], {"k": tuned.stacked, "l": kernel}, (kernel, kernel[(1,)], kernel.fn)):
        safepickle.loads(safepickle.dumps(held))
        safepickle.deepcopy(held)
    assert kernel.hash is None


def test_the_standard_copy_of_a_kernel_is_not_ours_to_change() -> None:
    assert copy.copy(tuned.scale) is not tuned.scale
