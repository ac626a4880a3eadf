"""The source text of functions that travel by value: it is theirs, and it is found where they are loaded."""

from __future__ import annotations

import inspect
import linecache
import os
import pickle
import sys
import textwrap
import time
import types
from pathlib import Path

import pytest

import safepickle
from safepickle import restore
from safepickle.sources import source_of

from .helpers import run_python
from .travel import travel


def round_trip(obj):
    return pickle.loads(safepickle.dumps(obj))


def define(text: str, filename: str, **names: object) -> dict[str, object]:
    """Execute a text as a notebook does: under a made-up file name that only linecache knows."""
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    space: dict[str, object] = {"__name__": "__main__", **names}
    exec(compile(text, filename, "exec"), space)
    return space


def test_functions_lambdas_and_methods_have_their_source_in_a_fresh_process(tmp_path: Path) -> None:
    travel(
        """
        import functools
        def decorate(function):
            return function
        @decorate
        def f(x):
            # a comment
            return x + 1
        g = lambda x: x * 2
        class Box:
            def get(self):
                '''A docstring
                of two lines.'''
                return 1
            @property
            def value(self):
                return 2
        def outer():
            def inner():
                return "inner"
            return inner
        obj = [f, g, Box, outer, outer()]
        LINES = [f.__code__.co_firstlineno, g.__code__.co_firstlineno, Box.get.__code__.co_firstlineno]
        f.lines = LINES
        """,
        """
        import inspect, linecache
        for _ in range(2):
            f, g, Box, outer, inner = obj
            assert inspect.getsource(f) == "@decorate\\ndef f(x):\\n    # a comment\\n    return x + 1\\n"
            assert inspect.getsource(g) == "g = lambda x: x * 2\\n"
            assert inspect.getsource(Box.get) == (
                "    def get(self):\\n        '''A docstring\\n        of two lines.'''\\n        return 1\\n")
            assert "return 2" in inspect.getsource(Box.value.fget) and 'return "inner"' in inspect.getsource(inner)
            assert inspect.getsource(outer()) == inspect.getsource(inner)
            assert [inspect.getsourcelines(x)[1] for x in (f, g, Box.get)] == f.lines
            assert inspect.getdoc(Box.get) == "A docstring\\nof two lines."
            linecache.checkcache()
        """,
        tmp_path,
    )


def test_tracebacks_show_the_lines(tmp_path: Path) -> None:
    travel(
        """
        def fail(x):
            y = x + 1
            raise ValueError(y)  # the culprit
        obj = lambda x: fail(x)
        """,
        """
        import traceback, re
        try:
            obj(1)
        except ValueError:
            text = traceback.format_exc()
        assert "raise ValueError(y)  # the culprit" in text and "obj = lambda x: fail(x)" in text, text
        assert re.search(r'File "<safepickle fail [0-9a-f]+>", line 4, in fail', text), text
        """,
        tmp_path,
    )


@pytest.mark.skipif(sys.version_info < (3, 13), reason="the interpreter itself reads only files before Python 3.13")
def test_an_uncaught_error_shows_the_lines(tmp_path: Path) -> None:
    file = tmp_path / "f.pkl"
    run_python(
        f"""
        import safepickle
        def fail():
            raise SystemError("no")  # the culprit
        open(r"{file}", "wb").write(safepickle.dumps(fail))
        """
    )
    with pytest.raises(AssertionError, match="the culprit"):
        run_python(f"import pickle\npickle.load(open(r'{file}', 'rb'))()")


def test_going_on_to_a_third_process_keeps_text_lines_and_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first.pkl", tmp_path / "second.pkl"
    run_python(
        f"""
        import safepickle
        import enum
        K = 3
        class Mode(enum.Enum):
            A = 1
        class Box:
            mode = Mode.A
            def get(self):
                return K
            def maker(self):
                def inner(x):
                    return x, "inner"
                return inner
        def f(x):
            return x + K
        open(r"{first}", "wb").write(safepickle.dumps([f, Box, lambda: f]))
        """
    )
    run_python(
        f"""
        import linecache, pickle, safepickle
        obj = pickle.load(open(r"{first}", "rb"))
        linecache.clearcache()
        inner = obj[1]().maker()
        data = safepickle.dumps(obj)
        assert data == open(r"{first}", "rb").read(), "the bytes have changed on the way"
        open(r"{second}", "wb").write(safepickle.dumps([*obj, inner]))
        """
    )
    run_python(
        f"""
        import inspect, pickle
        f, Box, g, inner = pickle.load(open(r"{second}", "rb"))
        assert inspect.getsource(f) == "def f(x):\\n    return x + K\\n" and f(1) == 4 and g() is f
        assert "return K" in inspect.getsource(Box.get) and Box().get() == 3
        assert inspect.getsource(inner).strip() == 'def inner(x):\\n            return x, "inner"'
        assert inner(1) == (1, "inner")
        """
    )


def test_a_file_that_has_changed_never_gives_another_functions_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    old = "def make():\n    def f(x):\n        return x + 1\n    return f\n\ndef make2():\n    return lambda x: x - 1\n"
    for number, new in enumerate([
        old.replace("x + 1", "x * 1"),
        old.replace("x + 1", "x + 2"),
        "\n" + old,
        "# shorter\n",
        "this is (not Python",
        "def make():\n    def f(x):\n        return x + 1  # the same\n    return f\n",
    ]):  # fmt: skip
        name = f"changing_{number}"
        file = tmp_path / f"{name}.py"
        file.write_text(old)
        os.utime(file, (time.time() - 100, time.time() - 100))
        module = __import__(name)
        function = module.make()
        file.write_text(new)
        text = source_of(function)
        if "the same" in new:
            assert text == ("    def f(x):\n        return x + 1  # the same\n", 2)
        else:
            assert text is None
            loaded = round_trip(function)
            assert loaded(1) == 2
            with pytest.raises(OSError):
                inspect.getsource(loaded)


def test_a_text_without_a_trace_of_where_it_came_from_stays_without(tmp_path: Path) -> None:
    travel(
        """
        space = {}
        exec("def f():\\n    return 1\\n", space)
        exec(compile("def g():\\n    return 2\\n", "/nowhere/file.py", "exec"), space)
        obj = [space["f"], space["g"]]
        """,
        """
        import inspect
        f, g = obj
        assert f() == 1 and g() == 2 and "nowhere" not in g.__code__.co_filename
        for function in obj:
            try:
                inspect.getsource(function)
            except OSError:
                pass
            else:
                raise AssertionError("found a text")
        """,
        tmp_path,
    )


def test_equal_code_of_two_files_keeps_its_own_text() -> None:
    one = define("# one\nf = lambda x: x + 1  # first\n", "<cell one>")["f"]
    two = define("# two\nf = lambda x: x + 1  # second\n", "<cell two>")["f"]
    assert one.__code__ == two.__code__
    assert (source_of(one)[0], source_of(two)[0]) == (
        "f = lambda x: x + 1  # first\n",
        "f = lambda x: x + 1  # second\n",
    )


def test_a_cell_that_leaves_linecache_after_the_first_time_keeps_its_text() -> None:
    function = define("def f():\n    return 'cell'\n", "<cell gone>")["f"]
    first = safepickle.dumps(function)
    del linecache.cache["<cell gone>"]
    assert (
        safepickle.dumps(function) == first
        and inspect.getsource(pickle.loads(first)) == "def f():\n    return 'cell'\n"
    )


def test_future_imports_of_an_earlier_cell_count() -> None:
    text = "def f(x: Unknown) -> 'None':\n    return x\n"
    name = "<cell future>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space: dict[str, object] = {}
    import __future__

    exec(compile(text, name, "exec", __future__.annotations.compiler_flag), space)
    assert source_of(space["f"]) == (text, 1)
    assert round_trip(space["f"]).__annotations__ == {"x": "Unknown", "return": "'None'"}


def test_a_cell_with_await_at_its_top_level() -> None:
    text = "async def g():\n    return 1\nx = await g()\n"
    import ast

    name = "<cell await>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    code = compile(text, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    function = types.FunctionType(next(c for c in code.co_consts if isinstance(c, types.CodeType)), {})
    assert source_of(function) == ("async def g():\n    return 1\n", 1)


def test_functions_of_this_module_whose_assertions_pytest_has_rewritten() -> None:
    def check(x):
        assert x == 1, "one"
        return x

    text = source_of(check)
    assert text is not None and textwrap.dedent(text[0]).startswith("def check(x):\n    assert x == 1")


def test_texts_in_an_archive(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "lib.zip", "w") as archive:
        archive.writestr("zipped_module.py", "def make():\n    def f():\n        return 'zipped'\n    return f\n")
    travel(
        """
        import zipped_module
        obj = zipped_module.make()
        """,
        """
        import inspect
        assert obj() == "zipped" and "return 'zipped'" in inspect.getsource(obj)
        """,
        tmp_path,
        pythonpath=[tmp_path / "lib.zip"],
        pythonpath_there=[],
    )


def test_a_text_in_another_encoding_and_with_odd_line_ends(tmp_path: Path) -> None:
    (tmp_path / "latin.py").write_bytes(
        "# coding: latin-1\ndef make():\n    return lambda: 'é'  # é\n".encode("latin-1")
    )
    (tmp_path / "dos.py").write_bytes(b"def make():\r\n    def f():\r\n        return 'dos'\r\n    return f\r\n")
    travel(
        """
        import latin, dos
        obj = [latin.make(), dos.make()]
        """,
        """
        import inspect
        assert obj[0]() == "é" and "# é" in inspect.getsource(obj[0])
        assert obj[1]() == "dos" and "return 'dos'" in inspect.getsource(obj[1])
        """,
        tmp_path,
        pythonpath=[tmp_path],
    )


def test_lines_of_a_text_behave_as_the_list_that_they_stand_for() -> None:
    plain = ["\n"] * 999 + ["def f():\n", "    return 1\n"]
    lines = restore.Lines("def f():\n    return 1\n", 1000)
    assert len(lines) == len(plain) and list(lines) == plain and "".join(lines) == "".join(plain)
    for index in (0, 998, 999, 1000, -1, -2, -1001):
        assert lines[index] == plain[index]
    for part in (slice(998, None), slice(None), slice(None, None, -500), slice(5, 2), slice(1000, 5000)):
        assert lines[part] == plain[part]
    with pytest.raises(IndexError):
        lines[1001]
    with pytest.raises(IndexError):
        lines[-1002]
    assert sys.getsizeof(restore.Lines("x\n", 10**7)) < 1000


def test_the_debugger_and_doctest_cope(tmp_path: Path) -> None:
    travel(
        """
        def f(x):
            '''Add one.

            >>> f(1)
            2
            '''
            return x + 1
        obj = f
        """,
        """
        import doctest, io, pdb, linecache
        f = obj
        finder = doctest.DocTestFinder(recurse=False)
        tests = finder.find(f, "f", module=False, globs={"f": f})
        assert doctest.DocTestRunner(verbose=False).run(tests[0]).failed == 0 and tests[0].examples
        out = io.StringIO()
        commands = io.StringIO("step\\nstep\\nlist\\ncontinue\\n")
        debugger = pdb.Pdb(stdin=commands, stdout=out, nosigint=True, readrc=False)
        debugger.use_rawinput = False
        debugger.runcall(f, 1)
        assert "return x + 1" in out.getvalue(), out.getvalue()
        linecache.checkcache()
        """,
        tmp_path,
    )


def test_a_made_up_pickle_cannot_replace_the_text_of_a_real_file() -> None:
    for filename in (__file__, "<string>", "x.py"):
        with pytest.raises(pickle.UnpicklingError, match="malformed"):
            restore.register_source(filename, "evil", 1)
    with pytest.raises(pickle.UnpicklingError, match="malformed"):
        restore.register_source("<safepickle x>", b"text", 1)
