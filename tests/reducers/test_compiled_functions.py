"""Do the compiled functions of other libraries travel by name, or by value where they can, and do copies share them?

Each library is tested where it is installed.
"""

from __future__ import annotations

import importlib
import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest

import safepickle
from tests.helpers import fresh_load

PROTOCOLS = (2, 4, 5)

#: Library -> the names in its fixture.
NAMED = {
    "jax": ["double", "add_static", "add_plain", "Ops.negate", "clipped", "smooth"],
    "numba": ["double", "add_one", "add_one_fast", "halve", "keep", "blur", "callback"],
    "helion": ["add", "add_again"],
    "tilelang": ["nothing", "renamed"],
    "cuda.tile": ["nothing", "renamed"],
    "cupy": ["fill", "squared", "total"],
}
CASES = [(library, name) for library, names in NAMED.items() for name in names]


def fixture(library: str) -> Any:
    try:
        importlib.import_module(library)
    except Exception as error:  # also where the library is there and cannot start
        pytest.skip(f"no {library} here: {error}")
    return importlib.import_module(f"tests.fixtures.compiled.with_{library.replace('.', '_')}")


def named(library: str, name: str) -> Any:
    found = fixture(library)
    for part in name.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("library", "name"), CASES)
def test_it_comes_back_as_itself(library: str, name: str, protocol: int) -> None:
    compiled = named(library, name)
    data = safepickle.dumps([compiled, compiled], protocol)
    assert all(loaded is compiled for loaded in pickle.loads(data))
    assert not any("getattr" in str(argument) for _, argument, _ in pickletools.genops(data))
    assert len(data) < 200


@pytest.mark.parametrize(("library", "name"), CASES)
def test_copies_share_it(library: str, name: str) -> None:
    compiled = named(library, name)
    assert safepickle.deepcopy({"f": [compiled]})["f"][0] is compiled
    assert safepickle.copy(compiled) is compiled


@pytest.mark.parametrize(("library", "name"), CASES)
def test_a_fresh_process_finds_it(library: str, name: str, tmp_path: Path) -> None:
    compiled = named(library, name)
    code = f"import tests.fixtures.compiled.with_{library.replace('.', '_')} as fixture\nprint(obj is fixture.{name})"
    assert fresh_load(safepickle.dumps(compiled), code, tmp_path).endswith("True\n")


def test_only_compiled_functions_are_loaded_by_reference() -> None:
    from safepickle import restore

    for module, qualname in (("os", "system"), ("builtins", "eval"), ("threading", "Lock")):
        with pytest.raises(pickle.UnpicklingError, match="no compiled function"):
            restore.compiled(module, qualname, ())


# -- jax ---------------------------------------------------------------------------------------------------------------


def test_a_local_jitted_function_works_in_a_fresh_process(tmp_path: Path) -> None:
    make = fixture("jax").make
    code = """
        print(float(obj(2.0)), float(obj(2.0, power=3)), obj._jit_info.static_argnums)
    """
    assert fresh_load(safepickle.dumps(make(3.0)), code, tmp_path) == "12.0 24.0 ()\n"


def test_the_options_of_a_local_jitted_function_travel(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    compiled = jax.jit(lambda x, n: x * n, static_argnames=("n",), keep_unused=True, inline=True)
    code = """
        info = obj._jit_info
        print(float(obj(2.0, 4)), info.static_argnums, info.static_argnames, info.keep_unused, info.inline)
    """
    assert fresh_load(safepickle.dumps(compiled), code, tmp_path) == "8.0 (1,) ('n',) True True\n"


def test_at_home_a_local_jitted_function_is_the_living_one_and_traces_once() -> None:
    jax = pytest.importorskip("jax")
    traces: list[str] = []

    def body(x: Any) -> Any:
        traces.append("traced")
        return 2 * x

    compiled = jax.jit(lambda x: body(x))
    assert float(compiled(2.0)) == 4.0
    for again in (safepickle.loads(safepickle.dumps(compiled)), safepickle.deepcopy([compiled])[0]):
        assert again is compiled
        assert float(again(3.0)) == 6.0
    assert traces == ["traced"]


def test_a_local_function_with_a_derivative_of_its_own_keeps_it(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")

    @jax.custom_jvp
    def local(x: Any) -> Any:
        return x * x

    local.defjvps(lambda tangent, answer, x: 7.0 * tangent)
    code = "import jax\nprint(float(obj(3.0)), float(jax.grad(obj)(3.0)))"
    assert fresh_load(safepickle.dumps(local), code, tmp_path) == "9.0 7.0\n"


# -- numba -------------------------------------------------------------------------------------------------------------


def test_a_local_dispatcher_works_in_a_fresh_process(tmp_path: Path) -> None:
    compiled = fixture("numba").make(3)
    assert compiled(2) == 6
    assert fresh_load(safepickle.dumps(compiled), "print(obj(4))", tmp_path) == "12\n"
    assert safepickle.loads(safepickle.dumps(compiled)) is compiled


# -- cupy --------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_a_local_raw_kernel_keeps_its_code_and_options(tmp_path: Path) -> None:
    compiled = fixture("cupy").make()
    code = "print(obj.name, obj.options, 'threadIdx' in obj.code)"
    assert fresh_load(safepickle.dumps(compiled), code, tmp_path).endswith("fill ('-O2',) True\n")


# -- others ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["cuda.tile"])
def test_a_local_kernel_that_no_library_can_rebuild_is_an_error_that_names_its_type(library: str) -> None:
    kernel = type(named(library, "nothing"))(lambda x: None)
    with pytest.raises(pickle.PicklingError, match=type(kernel).__name__):
        safepickle.dumps(kernel)
