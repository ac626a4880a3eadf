"""Modules that were made on the fly, and what is in them."""

from __future__ import annotations

import pickle
import sys
import types
from pathlib import Path

import pytest

import safepickle

from .travel import PROTOCOLS, travel


def round_trip(obj, protocol=None):
    return pickle.loads(safepickle.dumps(obj, protocol))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_imported_modules_go_by_name(protocol: int) -> None:
    import collections.abc
    import os.path
    import xml.dom.minidom

    for module in (sys, os.path, xml.dom.minidom, collections.abc, types):
        assert round_trip(module, protocol) is module
    assert round_trip(sys.modules["__main__"], protocol) is sys.modules["__main__"]
    assert len(safepickle.dumps(xml.dom.minidom)) < 80


def test_copies_share_modules() -> None:
    assert safepickle.deepcopy([sys])[0] is sys and safepickle.copy(sys) is sys


def test_a_module_made_by_hand(tmp_path: Path) -> None:
    travel(
        """
        import types
        m = types.ModuleType("by_hand", "Its docstring.")
        exec('''
        import math
        count = 0
        rows = [1]
        def up():
            global count
            count += 1
            return count
        def half(x):
            return math.floor(x / 2)
        class Box:
            def get(self):
                return rows
        ''', m.__dict__)
        obj = [m, m.up, m.Box()]
        """.replace("\n        ", "\n").replace("'''\n", "'''\n"),
        """
        import sys
        m, up, box = obj
        assert m.__name__ == "by_hand" and m.__doc__ == "Its docstring." and "by_hand" not in sys.modules
        assert up is m.up and up.__globals__ is vars(m) and up() == 1 and m.count == 1 and m.up() == 2
        assert m.half(5) == 2 and box.get() == [1] and type(box) is m.Box
        assert type(m) is type(sys) and "__builtins__" in vars(m)
        """,
        tmp_path,
    )


def test_the_module_after_its_function(tmp_path: Path) -> None:
    travel(
        """
        import types
        m = types.ModuleType("by_hand")
        exec("count = 0\\nunused = lambda: 0", m.__dict__)
        exec("def up():\\n    global count\\n    count += 1\\n    return count", m.__dict__)
        obj = [m.up, m]
        """,
        """
        up, m = obj
        assert up() == 1 and m.count == 1 and m.up is up and up.__globals__ is vars(m) and m.unused() == 0
        """,
        tmp_path,
    )


def test_a_function_alone_brings_only_what_it_uses_of_its_module(tmp_path: Path) -> None:
    travel(
        """
        import types, sys, threading, socket
        m = types.ModuleType("by_hand")
        sys.modules["by_hand"] = m
        exec("k = 3\\ndef f(x):\\n    return helper(x) * k\\ndef helper(x):\\n    return x + 1", m.__dict__)
        m.big = "x" * 1_000_000
        m.socket = socket.socket()
        obj = m.f
        import safepickle
        assert len(safepickle.dumps(m.f)) < 1500
        """,
        """
        assert obj(1) == 6 and obj.__module__ == "by_hand" and "big" not in obj.__globals__
        """,
        tmp_path,
    )


def test_a_module_that_only_this_process_knows_never_goes_by_name(tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "generated.py").write_text(
        "K = 5\n\ndef f(x):\n    return x + K\n\nclass Box:\n    def get(self):\n        return f(1)\n"
    )
    travel(
        f"""
        import importlib.util, sys
        spec = importlib.util.spec_from_file_location("_gen_module_1", r"{tmp_path}/hidden/generated.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules["_gen_module_1"] = module
        spec.loader.exec_module(module)
        spec = importlib.util.spec_from_file_location("json", r"{tmp_path}/hidden/generated.py")
        false_json = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(false_json)
        template = {{"__name__": "json.decoder", "K": 7}}
        exec("def g(x):\\n    return x + K", template)
        obj = [module.f, module.Box(), false_json.f, template["g"], module]
        """,
        """
        import inspect
        f, box, other, g, module = obj
        assert f(1) == 6 and box.get() == 6 and other(1) == 6 and g(1) == 8 and module.f is f
        assert inspect.getsource(f) == "def f(x):\\n    return x + K\\n"
        """,
        tmp_path,
        home="""
        assert type(back[1]) is module.Box
        """,
    )


def test_modules_of_a_class_of_their_own(tmp_path: Path) -> None:
    package = tmp_path / "lazy_package"
    package.mkdir()
    (package / "real.py").write_text("answer = 42\n")
    (package / "__init__.py").write_text(
        """
import importlib, types

class LazyModule(types.ModuleType):
    def __init__(self, name, target):
        super().__init__(name)
        self._target = target
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self._target), name)

real = LazyModule("lazy_package.real", "lazy_package.real")
ghost = LazyModule("lazy_package.ghost", "lazy_package.real")
"""
    )
    travel(
        """
        import lazy_package, types
        real, ghost = lazy_package.real, lazy_package.ghost
        class Own(types.ModuleType):
            @property
            def twice(self):
                return 2 * self.x
        own = Own("own")
        own.x = 4
        def f():
            return real.answer, ghost.answer
        obj = [f, own, ghost]
        """,
        """
        import lazy_package, sys
        f, own, ghost = obj
        assert f() == (42, 42) and own.twice == 8 and type(own).__name__ == "Own"
        assert ghost is lazy_package.ghost
        """,
        tmp_path,
        pythonpath=[tmp_path],
    )


def test_a_module_that_was_imported_twice_goes_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_twice.py").write_text("import threading\nlock = threading.Lock()\n")
    monkeypatch.syspath_prepend(tmp_path)
    first = __import__("imported_twice")
    del sys.modules["imported_twice"]
    second = __import__("imported_twice")
    assert first is not second
    assert round_trip(first) is second and len(safepickle.dumps(first)) < 80


def test_a_module_made_by_hand_with_the_name_of_a_real_one_is_not_that_one() -> None:
    fake = types.ModuleType("json")
    fake.x = 5
    assert round_trip(fake).x == 5


def test_a_submodule_that_hides_behind_a_function_of_its_name(tmp_path: Path) -> None:
    package = tmp_path / "hiding_package"
    package.mkdir()
    (package / "__init__.py").write_text("from .abs import abs\n")
    (package / "abs.py").write_text("def abs(x):\n    return -x if x < 0 else x\ndef helper():\n    return 1\n")
    travel(
        """
        import sys, hiding_package
        obj = [sys.modules["hiding_package.abs"], hiding_package.abs, sys.modules["hiding_package.abs"].helper]
        """,
        """
        module, function, helper = obj
        assert module.abs is function and function(-2) == 2 and helper() == 1
        """,
        tmp_path,
        pythonpath=[tmp_path],
    )
