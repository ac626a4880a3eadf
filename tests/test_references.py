"""Which name leads to an object, here and in a process that has yet to import it?"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import safepickle
from safepickle.references import Reference, find, importable, leads_to, load, pickled_by_value, static_vars, walk

from .helpers import fresh_load, run_python

Importer = Callable[..., types.ModuleType]


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Importer]:
    """A function that writes a module and imports it."""
    names: list[str] = []
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(name: str, text: str) -> types.ModuleType:
        file = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        for folder in file.relative_to(tmp_path).parents:
            if str(folder) != ".":
                (tmp_path / folder).mkdir(exist_ok=True)
                (tmp_path / folder / "__init__.py").touch()
        file.write_text(text)
        names.append(name)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield write
    for name in names:
        sys.modules.pop(name, None)


# -- modules -----------------------------------------------------------------------------------------------------------


def test_modules_that_any_process_finds() -> None:
    import collections.abc
    import json.decoder
    import os.path

    assert collections.abc and os.path and json.decoder
    for name in (
        "sys",
        "json",
        "json.decoder",
        "os.path",
        "posixpath",
        "collections.abc",
        "importlib._bootstrap",
        "builtins",
        "_thread",
    ):
        if name in sys.modules:
            assert importable(name), name


def test_the_main_script_is_none_of_them() -> None:
    assert not importable("__main__") and not importable("__mp_main__")


def test_a_module_that_is_not_imported_is_none_of_them() -> None:
    assert not importable("this_module_does_not_exist")
    run_python(
        """
        import sys
        from safepickle.references import importable
        assert "ftplib" not in sys.modules and not importable("ftplib")
        """
    )


def test_modules_that_only_this_process_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "generated.py").write_text("x = 1\n")
    by_hand = types.ModuleType("by_hand_module")
    spec = importlib.util.spec_from_file_location("_gen_module_7", tmp_path / "generated.py")
    loaded = importlib.util.module_from_spec(spec)
    fake = types.ModuleType("ftplib")
    for name, module in (
        ("by_hand_module", by_hand),
        ("_gen_module_7", loaded),
        ("json.by_hand", by_hand),
        ("ftplib", fake),
    ):
        monkeypatch.setitem(sys.modules, name, module)
        assert not importable(name), name
    import json

    monkeypatch.setattr(json, "by_hand", by_hand, raising=False)
    assert not importable("json.by_hand"), "an attribute that somebody has set is not what an import makes"


def test_a_module_of_the_same_name_in_another_file(
    imported: Importer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported("twofold", "x = 1\n")
    assert importable("twofold")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "twofold.py").write_text("x = 2\n")
    spec = importlib.util.spec_from_file_location("twofold", tmp_path / "elsewhere" / "twofold.py")
    monkeypatch.setitem(sys.modules, "twofold", importlib.util.module_from_spec(spec))
    assert not importable("twofold")


def test_a_module_that_its_package_puts_in_place(imported: Importer) -> None:
    imported("aliasing", "import sys, json.decoder\nsys.modules['aliasing.inner'] = inner = json.decoder\n")
    assert importable("aliasing.inner")


def test_the_answer_follows_the_search_path(imported: Importer, tmp_path: Path) -> None:
    imported("moved_away", "x = 1\n")
    sys.path.remove(str(tmp_path))
    assert not importable("moved_away")
    sys.path.insert(0, str(tmp_path))
    assert importable("moved_away")


# -- walking -----------------------------------------------------------------------------------------------------------


def test_a_name_is_followed_by_attributes_and_then_by_what_instances_hold() -> None:
    import json

    assert walk(json, "JSONDecoder.decode") is json.JSONDecoder.decode
    assert walk(json, "_default_encoder", ("skipkeys",)) is False
    for qualname, path in (
        ("nothing", ()),
        ("f.<locals>.g", ()),
        ("_default_encoder", ("encode",)),
        ("loads", ("__class__",)),
    ):
        with pytest.raises(AttributeError):
            walk(json, qualname, path)


def test_looking_at_an_object_runs_none_of_its_code() -> None:
    class Proxy:
        def __getattribute__(self, name):
            raise RuntimeError(f"asked for {name}")

        __eq__ = __hash__ = __bool__ = lambda *args: pytest.fail("compared or hashed")

    proxy = Proxy()
    object.__getattribute__(proxy, "__dict__")["x"] = 1
    assert static_vars(proxy) == {"x": 1} and static_vars(5) == {} and static_vars(Proxy) == {}
    assert find(proxy) is None


def test_load_gives_the_module_and_not_what_its_parent_shows(imported: Importer) -> None:
    imported("hiding.abs", "def abs(x): return x\n")
    package = sys.modules["hiding"]
    package.abs = sys.modules["hiding.abs"].abs
    assert load("hiding.abs") is sys.modules["hiding.abs"]
    with pytest.raises(ImportError):
        load("hiding.nothing")


# -- from an object to its name ----------------------------------------------------------------------------------------


def test_functions_classes_and_methods_under_their_own_names(imported: Importer) -> None:
    m = imported(
        "plain",
        "def f(): pass\nclass C:\n    def m(self): pass\n    class D:\n        @staticmethod\n        def s(): pass\n",
    )
    assert find(m.f) == ("plain", "f", ()) and find(m.C) == ("plain", "C", ()) and find(m.C.m) == ("plain", "C.m", ())
    assert find(m.C.D.s) == ("plain", "C.D.s", ()) and str(find(m.C.D)) == "plain:C.D"


def test_the_function_below_what_took_its_place(imported: Importer) -> None:
    m = imported(
        "decorated",
        "import functools\nclass Wrapper:\n    def __init__(self, fn):\n        self.fn, self.calls = fn, 0\n"
        "def wrap(fn):\n    return Wrapper(Wrapper(fn))\n@wrap\ndef f(): pass\n"
        "def wraps(fn):\n    @functools.wraps(fn)\n    def inner(): return fn()\n    return inner\n"
        "@wraps\ndef g(): pass\n"
        "@functools.lru_cache\ndef h(): pass\n",
    )
    assert (
        find(m.f.fn.fn) == ("decorated", "f", ("fn", "fn"))
        and find(m.f) == ("decorated", "f", ())
        and find(m.f.fn) == ("decorated", "f", ("fn",))
    )
    assert find(m.g) == ("decorated", "g", ()) and find(m.g.__wrapped__) == ("decorated", "g", ("__wrapped__",))
    assert find(m.h) == ("decorated", "h", ()) and find(m.h.__wrapped__) == ("decorated", "h", ("__wrapped__",))


def test_another_name_in_the_same_module(imported: Importer) -> None:
    m = imported(
        "renamed",
        "def cos_(): pass\nkernel = _long_name = cos_\ndef cos_(): pass\nf = lambda: 0\n"
        "class C:\n    m = lambda self: 0\n",
    )
    assert (
        find(m.kernel) == ("renamed", "kernel", ())
        and find(m.cos_) == ("renamed", "cos_", ())
        and find(m.f) == ("renamed", "f", ())
    )


def test_a_name_that_was_there_and_leads_elsewhere_now(imported: Importer) -> None:
    m = imported("changing_names", "def f(): pass\ndef g(): pass\n")
    f = m.f
    assert find(f) == ("changing_names", "f", ())
    m.f = m.g
    assert find(f) is None and not leads_to(Reference("changing_names", "f"), f)
    m.f = f
    assert find(f) == ("changing_names", "f", ())


def test_local_functions_and_functions_of_modules_made_by_hand_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = types.ModuleType("by_hand_2")
    exec("def f(): pass", by_hand.__dict__)
    monkeypatch.setitem(sys.modules, "by_hand_2", by_hand)
    assert find(by_hand.f) is None and find(lambda: 0) is None


def test_modules_that_the_user_wants_by_value_have_none(imported: Importer) -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    m = imported("valued_package.inner", "def f(): pass\n")
    parent = sys.modules["valued_package"]
    assert find(m.f) is not None and not pickled_by_value("valued_package.inner")
    cloudpickle.register_pickle_by_value(parent)
    try:
        assert (
            pickled_by_value("valued_package.inner") and not pickled_by_value("valued_package_2") and find(m.f) is None
        )
    finally:
        cloudpickle.unregister_pickle_by_value(parent)
    assert find(m.f) is not None


def test_objects_without_a_module_are_found_by_identity_in_others(imported: Importer) -> None:
    m = imported(
        "holding",
        "class Op:\n    def __init__(self, fn): self.fn = fn\ndef make():\n    return Op(None)\nop = make()\n",
    )
    assert find(m.op, everywhere=False) is None
    assert find(m.op) == ("holding", "op", ()) and find(m.make()) is None


def test_references_load_in_a_fresh_process(imported: Importer, tmp_path: Path) -> None:
    m = imported(
        "fresh_names",
        "class Wrapper:\n    def __init__(self, fn): self.fn = fn\n@Wrapper\ndef f(): return 1\n"
        "def g(): return 2\nkept = g\ndef g(): return 3\nclass C:\n    class D:\n        def m(self): return 4\n",
    )
    things = [m.f.fn, m.kept, m.g, m.C.D.m, m.C.D]
    for protocol in (2, 4, 5):
        data = safepickle.dumps(things, protocol)
        back = pickle.loads(data)
        assert all(a is b for a, b in zip(back, things, strict=True)) and b"make_code" not in data
    fresh_load(
        data,
        "import fresh_names as m\nassert obj == [m.f.fn, m.kept, m.g, m.C.D.m, m.C.D]",
        tmp_path,
        [tmp_path],
        loader="pickle",
    )


def test_nothing_is_imported_while_pickling() -> None:
    run_python(
        """
        import sys, safepickle
        def f():
            return 1
        f.__module__ = "ftplib"
        before = set(sys.modules)
        data = safepickle.dumps([f, functools_partial := __import__("functools").partial(f)])
        assert "ftplib" not in sys.modules
        assert safepickle.loads(data)[0]() == 1
        """
    )


def test_the_cache_keeps_nothing_alive() -> None:
    import gc
    import weakref

    def make():
        def local():
            pass

        return local

    function = make()
    find(function)
    partial = functools.partial(function)
    find(partial)
    refs = [weakref.ref(function), weakref.ref(partial)]
    del function, partial
    gc.collect()
    assert [ref() for ref in refs] == [None, None]
