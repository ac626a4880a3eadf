"""The functions that pickles call: what they make, what they refuse, and what they say then."""

from __future__ import annotations

import abc
import ast
import enum
import fractions
import functools
import pickle
import sys
import types
import typing
from pathlib import Path

import pytest

import safepickle
from safepickle import restore, sources

from .helpers import run_python

CODE = restore.make_code(sys.implementation.cache_tag, *sources.reduce_code((lambda x: x + 1).__code__)[1][1:])


def refused(match: str = "malformed pickle"):
    return pytest.raises(pickle.UnpicklingError, match=match)


# -- the module itself -------------------------------------------------------------------------------------------------


def test_importing_it_imports_no_library() -> None:
    run_python(
        """
        import sys
        import safepickle.restore
        assert not {"torch", "numpy", "triton", "tensorflow", "cloudpickle"} & sys.modules.keys()
        """
    )


def test_nothing_in_it_loads_a_nested_pickle() -> None:
    for file in Path(restore.__file__).parent.glob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not names & {"loads", "Unpickler", "eval", "exec", "marshal", "find_class"}, file.name


def test_pickles_name_the_package_whatever_module_has_the_function() -> None:
    functions = [getattr(restore, name) for name in restore.__all__]
    assert {function.__module__ for function in functions if isinstance(function, types.FunctionType)} == {
        "safepickle.restore"
    }


def test_every_function_that_we_write_a_call_to_is_in_the_list() -> None:
    import pickletools

    class Point(typing.NamedTuple):
        x: int

    class Local(abc.ABC):  # noqa: B024
        @property
        def x(self):
            return 1

        @classmethod
        def make(cls):
            return cls()

    class Color(enum.Enum):
        RED = 1

    module = types.ModuleType("by_hand")
    module.f = types.FunctionType((lambda: 0).__code__, module.__dict__)
    T = typing.TypeVar("T")
    k = 1
    things = [
        Local,
        Local.make,
        Color.RED,
        module,
        T,
        typing.NewType("N", int),
        Point,
        lambda: k,
        types.FunctionType,
        vars(fractions.Fraction)["from_float"],
    ]
    strings: list[str] = []
    written = set()
    for op, arg, _ in pickletools.genops(safepickle.dumps(things, 2)):
        if op.name == "GLOBAL":
            strings = arg.split(" ")
            if strings[0] == "safepickle.restore":
                written.add(strings[1])
    assert len(written) >= 15 and written <= set(restore.__all__), written - set(restore.__all__)


# -- names -------------------------------------------------------------------------------------------------------------


def test_a_reference_to_a_module_that_is_not_here_says_what_was_looked_for() -> None:
    with refused(
        r"cannot load the reference no_such_module:kernel\.fn: module 'no_such_module' cannot be imported here"
    ):
        restore.function("no_such_module", "kernel", ("fn",))


def test_a_reference_to_a_name_that_is_not_there_says_where_it_looked() -> None:
    with refused(r"cannot load the reference json:nothing\.fn: .*json/__init__\.py"):
        restore.function("json", "nothing", ("fn",))
    with refused("local to a function"):
        restore.function("json", "loads.<locals>.inner", ("fn",))


def test_a_reference_gives_functions_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "referenced.py").write_text(
        "class Kernel:\n    def __init__(self, fn):\n        self.fn, self.evil, self.cls = fn, len, int\n"
        "@Kernel\ndef kernel(x):\n    return x + 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert restore.function("referenced", "kernel", ("fn",))(1) == 2
    for path in ((), ("evil",), ("cls",)):
        with refused("leads to a"):
            restore.function("referenced", "kernel", path)
    with refused("no attribute"):
        restore.function("referenced", "kernel", ("__class__",))
    for arguments in ((1, "kernel", ("fn",)), ("referenced", None, ("fn",)), ("referenced", "kernel", "fn")):
        with refused():
            restore.function(*arguments)


def test_an_attribute_of_a_class_is_a_method_or_property_of_its_own() -> None:
    class Local:
        data = 5
        evil = len

        def method(self): ...
        @property
        def prop(self): ...
        @classmethod
        def made(cls): ...
        @functools.cached_property
        def cached(self): ...

    assert restore.class_attribute(Local, "method") is Local.method
    assert (
        restore.class_attribute(Local, "prop") is Local.prop
        and restore.class_attribute(Local, "prop", "fget") is Local.prop.fget
    )
    assert restore.class_attribute(Local, "made", "__func__") is Local.made.__func__
    assert restore.class_attribute(Local, "cached", "func") is Local.cached.func
    for arguments in (
        ("data",),
        ("evil",),
        ("missing",),
        ("method", "__globals__"),
        ("prop", "fset"),
        ("prop", "__class__"),
        ("__class__",),
    ):
        with refused("no method or property"):
            restore.class_attribute(Local, *arguments)
    with refused("must be type"):
        restore.class_attribute(5, "method")


def test_a_bound_class_method_belongs_to_the_class() -> None:
    assert restore.bound_classmethod(Path, "cwd") == Path.cwd
    for owner, name in ((Path, "exists"), (Path, "missing"), (Path, "__init__")):
        with refused("is not a class method"):
            restore.bound_classmethod(owner, name)
    with refused():
        restore.bound_classmethod("pathlib.Path", "cwd")


def test_markers_are_those_that_are_known() -> None:
    import dataclasses

    assert restore.sentinel("dataclasses", "MISSING") is dataclasses.MISSING
    with refused("not a known marker"):
        restore.sentinel("os", "system")


def test_types_of_the_interpreter() -> None:
    assert restore.builtin_type("FunctionType") is types.FunctionType
    for name in ("new_class", "nothing"):
        with refused("is not a type"):
            restore.builtin_type(name)
    with refused():
        restore.builtin_type(5)


def test_modules_are_modules() -> None:
    import xml.dom

    assert restore.submodule("xml.dom") is xml.dom
    with refused():
        restore.module_attribute("json", "loads")
    with refused():
        restore.submodule(None)
    with pytest.raises(ImportError):
        restore.submodule("no_such_module")
    for make in (restore.same_module, restore.module_namespace):
        with refused():
            make({})


# -- functions ---------------------------------------------------------------------------------------------------------


def test_code_of_another_version_is_refused_before_it_is_made() -> None:
    with refused(r"written by Python 3\.7 and cannot run under Python"):
        restore.make_code("cpython-37", "whatever")
    with refused(r"written by Python 7\.3 \(pypy\)"):
        restore.make_code("pypy-73")
    with refused("written by Python rust-alpha"):
        restore.make_code("unknown-rust-alpha")


def test_a_function_needs_code_and_a_namespace() -> None:
    assert restore.make_function(CODE, {}, "f", None, None)(1) == 2
    for arguments in (("x + 1", {}, "f", None, None), (CODE, [], "f", None, None)):
        with refused():
            restore.make_function(*arguments)
    with refused():
        restore.fill_function(print, {})


def test_a_function_is_filled_once() -> None:
    made = restore.make_function(CODE, restore.make_namespace("m", None), "f", None, None)
    restore.fill_function(made, {"globals": {"a": 1}, "cells": []})
    restore.fill_function(made, {"globals": {"a": 2, "b": 3}, "cells": []})
    assert made.__globals__["a"] == 1 and "b" not in made.__globals__ and made.__module__ == "m" and made.__dict__ == {}


def test_cells() -> None:
    cell = restore.make_cell()
    with pytest.raises(ValueError):
        cell.cell_contents
    restore.fill_cell(cell, ())
    restore.fill_cell(cell, (5,))
    assert cell.cell_contents == 5
    with refused():
        restore.fill_cell([], (1,))


def test_a_method_needs_something_to_call() -> None:
    with refused("needs a callable"):
        restore.bind_method(5, 6)


# -- classes -----------------------------------------------------------------------------------------------------------


def test_a_class_needs_an_identity_and_a_metaclass() -> None:
    with refused():
        restore.make_class(5, None, "X", (), {})
    with refused():
        restore.make_class("m:X:1", "type", "X", (), {})
    with refused():
        restore.fill_class(5, {})
    with refused():
        restore.begin_class(5, {})
    with refused():
        restore.begin_class(int, [])
    with refused("not the type of an enumeration"):
        restore.make_enum("m:X:1", type, "X", (), {}, [], {})
    with refused():
        restore.make_named_tuple("m:X:1", "X", "a b", ())


def test_an_identity_gives_the_living_class_and_a_new_one_once_it_is_gone() -> None:
    import gc

    namespace = {"__module__": "m", "__qualname__": "X"}
    one = restore.make_class("m:X:test-1", None, "X", (), namespace)
    assert (
        restore.make_class("m:X:test-1", None, "Y", (int,), {}) is one
        and restore.identities.identity_of(one) == "m:X:test-1"
    )
    restore.fill_class(one, {"attributes": {"a": 1}})
    restore.fill_class(one, {"attributes": {"a": 2}})
    assert restore.begin_class(one, {"a": 3}) is one and one.a == 1
    del one
    gc.collect()
    assert restore.identities.object_of("m:X:test-1") is None
    assert not hasattr(restore.make_class("m:X:test-1", None, "X", (), namespace), "a")


def test_an_identity_of_another_kind_is_not_mistaken() -> None:
    cls = restore.make_class("m:kind:test", None, "kind", (), {})
    variable = restore.make_type_variable("m:kind:test", "TypeVar", "T", (), {})
    assert isinstance(cls, type) and isinstance(variable, typing.TypeVar)


def test_two_living_objects_never_have_one_identity() -> None:
    identities = restore.Identities()

    class A: ...

    a, b, c = A(), A(), A()
    assert [identities.remember(x, "same") for x in (a, b, c, b)] == ["same", "same-1", "same-2", "same-1"]
    assert identities.object_of("same-1") is b and identities.identity_of(c) == "same-2"
    del b
    assert (
        identities.object_of("same-1") is None and identities.remember(d := A(), "same") == "same-1" and d is not None
    )


def test_members_are_members() -> None:
    class Color(enum.Enum):
        RED = 1

    assert restore.enum_member(Color, "RED") is Color.RED
    with refused("has no member 'BLUE'"):
        restore.enum_member(Color, "BLUE")
    with refused():
        restore.enum_member(int, "real")


def test_kinds_of_type_variables_are_known() -> None:
    with refused("not a kind of type variable"):
        restore.make_type_variable("m:T:1", "Any", "T", (), {})


@pytest.mark.skipif(sys.version_info >= (3, 11), reason="this version of Python has them")
def test_a_type_variable_of_a_newer_python_is_refused_with_a_reason() -> None:
    with refused("this version of Python does not have"):
        restore.make_type_variable("m:Ts:1", "TypeVarTuple", "Ts", (), {})


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this version of Python has them")
def test_a_type_alias_needs_a_newer_python() -> None:
    with refused(r"needs Python 3\.12"):
        restore.make_type_alias("m", "A", int, ())


def test_a_hostile_pickle_cannot_reach_another_callable_through_a_reference() -> None:
    payload = b"csafepickle.restore\nfunction\n(Vos\nVsystem\n(Vx\nttR."
    with refused("cannot load the reference|leads to"):
        pickle.loads(payload)
