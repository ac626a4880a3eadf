"""Context variables go by name; from a script, by one identity. Contexts keep what has a name."""

from __future__ import annotations

import contextvars
import decimal
from pathlib import Path
from typing import Any

import pytest

import safepickle
from tests.helpers import fresh_load, run_python

from .ways import Way, every_way, pickled_ways

__all__: list[str] = []

LEVEL: contextvars.ContextVar[Any] = contextvars.ContextVar("level", default=0)


class Holder:
    """A class that holds a variable."""

    trace: contextvars.ContextVar[Any] = contextvars.ContextVar("trace")


@every_way
def test_a_variable_of_a_module_is_that_variable(way: Way) -> None:
    twin = way({"a": LEVEL, "b": [LEVEL]})
    assert twin["a"] is LEVEL
    assert twin["b"][0] is LEVEL


def test_a_function_by_value_reads_the_variable_of_the_module(tmp_path: Path) -> None:
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "app_context.py").write_text(
        "import contextvars\nuser = contextvars.ContextVar('user', default='nobody')\n"
    )
    code = """
        import sys, safepickle
        from app_context import user
        sys.stdout.buffer.write(safepickle.dumps(lambda: user.get()).hex().encode())
    """
    data = bytes.fromhex(run_python(code, pythonpath=[folder]))
    assert (
        fresh_load(data, "from app_context import user\nuser.set('me')\nprint(obj())", tmp_path, [folder]).strip()
        == "me"
    )


@pickled_ways
def test_a_variable_without_a_name_is_made_once(way: Way) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("local", default="none")
    assert way(variable) is variable, "this process knows it"
    twin = way([variable, lambda: variable.get()])
    assert twin[1]() == "none"


SCRIPT = """
    import contextvars, sys, safepickle
    request = contextvars.ContextVar("request", default="none")
    bare = contextvars.ContextVar("bare")
    def tag(x):
        return f"{request.get()}:{x}"
    def enter(name):
        request.set(name)
    def peek():
        return bare.get("unset")
    request.set("home")
    print(*[safepickle.dumps(part).hex() for part in (tag, enter, peek)])
"""


def test_two_payloads_of_a_script_share_its_variable(tmp_path: Path) -> None:
    tag, enter, peek = (bytes.fromhex(part) for part in run_python(SCRIPT).split())
    code = f"""
        import safepickle
        tag, enter, peek = obj, safepickle.loads({enter!r}), safepickle.loads({peek!r})
        print(tag(1)); enter("worker"); print(tag(2)); print(peek())
    """
    assert fresh_load(tag, code, tmp_path).split() == ["none:1", "worker:2", "unset"]


def test_equal_scripts_write_equal_bytes() -> None:
    assert run_python(SCRIPT, env={"PYTHONHASHSEED": "1"}) == run_python(SCRIPT, env={"PYTHONHASHSEED": "2"})


def test_variables_of_one_name_stay_two() -> None:
    variables: list[contextvars.ContextVar[Any]] = [contextvars.ContextVar("same", default=1) for _ in range(2)]
    twins = safepickle.loads(safepickle.dumps(variables))
    assert twins[0] is variables[0]
    assert twins[1] is variables[1]


# -- contexts ---------------------------------------------------------------------------------------------------------


def context_with(**values: Any) -> contextvars.Context:
    context = contextvars.Context()
    context.run(LEVEL.set, values.get("level", 5))
    context.run(Holder.trace.set, values.get("trace", ["span"]))
    return context


@every_way
def test_a_context_has_its_values_and_is_independent(way: Way) -> None:
    context = context_with(level=["deep"])
    twin = way(context)
    assert type(twin) is contextvars.Context
    assert twin[LEVEL] == ["deep"]
    assert twin[LEVEL] is not context[LEVEL]
    twin.run(LEVEL.set, 9)
    assert twin[LEVEL] == 9
    assert context[LEVEL] == ["deep"]
    assert LEVEL.get() == 0


def test_a_context_leaves_variables_without_a_name_behind() -> None:
    hidden: contextvars.ContextVar[Any] = contextvars.ContextVar("hidden")
    context = context_with()
    context.run(hidden.set, (n for n in "unpicklable"))
    twin = safepickle.loads(safepickle.dumps(context))
    assert twin[LEVEL] == 5
    assert hidden not in twin


def test_a_copied_context_has_them_all() -> None:
    hidden: contextvars.ContextVar[Any] = contextvars.ContextVar("hidden")
    context = context_with()
    context.run(hidden.set, [1])
    twin = safepickle.deepcopy(context)
    assert twin[hidden] == [1]
    assert twin[hidden] is not context[hidden]
    assert safepickle.copy(context)[hidden] is context[hidden]


@pytest.mark.timeout(400)  # the names of its variables are looked for in all that the whole suite has imported
@every_way
def test_the_context_of_a_thread_that_computes_with_decimals(way: Way) -> None:
    decimal.getcontext()
    context = contextvars.copy_context()
    assert type(way(context)) is contextvars.Context
    twin = way(decimal.Context(prec=3))
    assert twin.divide(decimal.Decimal(1), decimal.Decimal(3)) == decimal.Decimal("0.333")


@every_way
def test_a_context_that_holds_itself(way: Way) -> None:
    context = contextvars.Context()
    context.run(LEVEL.set, [context])
    twin = way(context)
    assert twin[LEVEL][0] is twin


def test_a_token_is_refused() -> None:
    token = contextvars.Context().run(LEVEL.set, 3)
    with pytest.raises(safepickle.PicklingError, match="token"):
        safepickle.dumps([token])
