"""Functions that no name leads to, sent from one script to another."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

import safepickle

from .helpers import run_python
from .travel import PROTOCOLS, travel


def round_trip(obj, protocol=None):
    return pickle.loads(safepickle.dumps(obj, protocol))


def test_a_lambda_with_defaults_and_keywords(tmp_path: Path) -> None:
    travel(
        """
        obj = lambda a, /, b=2, *rest, c, d=4, **more: (a, b, rest, c, d, more)
        """,
        """
        assert obj(1, c=3) == (1, 2, (), 3, 4, {})
        assert obj(1, 9, 8, c=7, e=6) == (1, 9, (8,), 7, 4, {"e": 6})
        assert obj.__defaults__ == (2,) and obj.__kwdefaults__ == {"d": 4}
        """,
        tmp_path,
    )


def test_names_annotations_docstring_and_attributes(tmp_path: Path) -> None:
    travel(
        """
        def outer():
            def inner(x: int, y: "str" = "") -> list[int]:
                "What it does."
                return [x]
            inner.calls = 3
            inner.__doc__ += " And more."
            return inner
        obj = outer()
        """,
        """
        assert obj.__name__ == "inner" and obj.__qualname__ == "outer.<locals>.inner" and obj.__module__ == "__main__"
        assert obj.__annotations__ == {"x": int, "y": "str", "return": list[int]}
        assert obj.__doc__ == "What it does. And more." and obj.calls == 3 and obj(1) == [1]
        """,
        tmp_path,
    )


def test_functions_that_share_a_variable_go_on_sharing_it(tmp_path: Path) -> None:
    travel(
        """
        def counter():
            count = 10
            def up():
                nonlocal count
                count += 1
                return count
            def now():
                return count
            return up, now
        obj = counter()
        """,
        """
        up, now = obj
        assert (up(), up(), now()) == (11, 12, 12)
        """,
        tmp_path,
        home="""
        up, now = back
        assert (up(), now()) == (11, 11) and obj[1]() == 10, "the original's variable was changed"
        """,
    )


def test_two_closures_of_one_factory_do_not_share(tmp_path: Path) -> None:
    travel(
        """
        def make(n):
            def add(x):
                nonlocal n
                n += x
                return n
            return add
        obj = [make(1), make(1)]
        """,
        """
        assert obj[0](5) == 6 and obj[1](1) == 2
        """,
        tmp_path,
    )


def test_a_local_function_that_calls_itself(tmp_path: Path) -> None:
    travel(
        """
        def make():
            def factorial(n):
                return 1 if n < 2 else n * factorial(n - 1)
            return factorial
        obj = make()
        """,
        """
        assert obj(10) == 3628800 and obj.__closure__[0].cell_contents is obj
        """,
        tmp_path,
    )


def test_global_functions_that_call_each_other(tmp_path: Path) -> None:
    travel(
        """
        def even(n):
            return n == 0 or odd(n - 1)
        def odd(n):
            return n != 0 and even(n - 1)
        obj = (odd, even)
        """,
        """
        odd, even = obj
        assert odd(7) and even(8) and not odd(8)
        assert odd.__globals__ is even.__globals__ and odd.__globals__["even"] is even
        """,
        tmp_path,
    )


def test_functions_of_one_script_share_its_variables(tmp_path: Path) -> None:
    travel(
        """
        total = 0
        def add(n):
            global total
            total += n
        def read():
            return total
        def forget():
            global total
            del total
        obj = [add, read, forget]
        """,
        """
        add, read, forget = obj
        add(2), add(3)
        assert read() == 5
        forget()
        try:
            read()
        except NameError:
            pass
        else:
            raise AssertionError("still there")
        """,
        tmp_path,
    )


def test_an_empty_cell_stays_empty_until_it_is_filled(tmp_path: Path) -> None:
    travel(
        """
        def make():
            def read():
                return later
            def write(value):
                nonlocal later
                later = value
            if 0:
                later = None
            return read, write
        obj = make()
        """,
        """
        read, write = obj
        try:
            read()
        except NameError:
            pass
        else:
            raise AssertionError("the cell had a value")
        write(5)
        assert read() == 5
        """,
        tmp_path,
    )


def test_a_cell_on_its_own_and_with_its_function(tmp_path: Path) -> None:
    travel(
        """
        def make():
            x = [1]
            return lambda: x
        f = make()
        obj = [f.__closure__[0], f, f.__closure__[0]]
        """,
        """
        cell, f, again = obj
        assert cell is again is f.__closure__[0] and f() is cell.cell_contents == [1]
        """,
        tmp_path,
    )


def test_deeply_nested_closures(tmp_path: Path) -> None:
    travel(
        """
        def a(x):
            def b(y):
                def c(z):
                    return lambda w: (x, y, z, w)
                return c
            return b
        obj = a(1)(2)(3)
        """,
        """
        assert obj(4) == (1, 2, 3, 4)
        """,
        tmp_path,
    )


def test_generators_coroutines_and_asynchronous_generators(tmp_path: Path) -> None:
    travel(
        """
        def numbers(n):
            for i in range(n):
                yield i
        async def fetch(x):
            return x * 2
        async def stream(n):
            for i in range(n):
                yield await fetch(i)
        async def collect(n):
            return [x async for x in stream(n)]
        obj = (numbers, fetch, collect)
        """,
        """
        import asyncio, inspect
        numbers, fetch, collect = obj
        assert list(numbers(3)) == [0, 1, 2] and inspect.isgeneratorfunction(numbers)
        assert inspect.iscoroutinefunction(fetch)
        assert asyncio.run(collect(3)) == [0, 2, 4]
        """,
        tmp_path,
    )


def test_globals_used_in_nested_code_comprehensions_and_class_bodies(tmp_path: Path) -> None:
    travel(
        """
        import math
        A, B, C, D, E, F, G = 1, 2, 3, 4, 5, 6, 7
        def f(rows):
            squares = [A * r for r in rows if r != B]
            names = {C: (lambda: D)() for _ in rows}
            class Local(Exception):
                value = E
                def get(self, default=F):
                    return G + math.floor(default)
            return squares, names, Local.value, Local().get()
        obj = f
        """,
        """
        assert obj([1, 2, 3]) == ([1, 3], {3: 4}, 5, 13)
        """,
        tmp_path,
    )


def test_only_the_globals_that_it_uses_travel(tmp_path: Path) -> None:
    travel(
        """
        SECRET = "hunter2 " * 100_000
        class Unpicklable:
            def __reduce__(self):
                raise RuntimeError("must not be asked")
        unused = Unpicklable()
        ENCODED = "é"
        def f():
            class Local:
                unused = 1
                copy = unused
            return ENCODED, Local.copy
        obj = f
        import safepickle
        assert len(safepickle.dumps(f)) < 2_000
        """,
        """
        assert obj() == ("é", 1)
        assert obj.__globals__.keys() == {"__name__", "__package__", "__builtins__", "ENCODED"}, obj.__globals__.keys()
        """,
        tmp_path,
    )


def test_a_class_body_that_may_read_the_global_of_the_same_name(tmp_path: Path) -> None:
    travel(
        """
        value = 5
        def f(flag):
            class Local:
                value = value + 1
                if flag:
                    value = 1
                other = value
            return Local.other
        def g(flag):
            class Local:
                if flag:
                    value = 1
                other = value
            return Local.other
        def h(flag):
            class Local:
                try:
                    value = {True: 1}[flag]
                except KeyError:
                    pass
                other = value
            return Local.other
        obj = f, g, h
        """,
        """
        f, g, h = obj
        assert (f(True), f(False), g(True), g(False), h(True), h(False)) == (1, 6, 1, 5, 1, 5)
        """,
        tmp_path,
    )


def test_submodules_that_it_reaches_through_their_package(tmp_path: Path) -> None:
    package = tmp_path / "path" / "some_package" / "inner"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "deep.py").write_text("def answer():\n    return 42\n")
    (package / "other.py").write_text("raise SystemExit('must not be imported')\n")
    travel(
        """
        import some_package.inner.deep
        import concurrent.futures.thread, xml.dom.minidom
        def f():
            return some_package.inner.deep.answer()
        def g():
            return concurrent.futures.ThreadPoolExecutor, xml.dom.minidom.Document
        def make():
            import some_package as hidden
            return lambda: hidden.inner.deep.answer()
        obj = [f, g, make()]
        """,
        """
        assert obj[0]() == 42 and len(obj[1]()) == 2 and obj[2]() == 42
        """,
        tmp_path,
        pythonpath=[tmp_path / "path"],
    )


def test_file_and_builtins_of_the_script(tmp_path: Path) -> None:
    travel(
        """
        def f():
            return __file__, __builtins__, __name__
        obj = f
        FILE = __file__
        """,
        """
        import builtins
        file, found, name = obj()
        assert file.endswith("script.py") and found is builtins and name == "__main__"
        """,
        tmp_path,
    )


def test_functions_that_text_was_executed_for(tmp_path: Path) -> None:
    travel(
        """
        space = {"k": 3}
        exec("def f(x):\\n    return x * k\\ng = lambda: f(2)", space)
        obj = [space["f"], space["g"], eval("lambda: k", space)]
        """,
        """
        f, g, h = obj
        assert f(2) == 6 == g() and h() == 3 and f.__globals__ is g.__globals__ is h.__globals__
        """,
        tmp_path,
    )


def test_several_lambdas_on_one_line(tmp_path: Path) -> None:
    travel(
        """
        obj = [lambda x: x + 1, lambda x: x + 2, lambda x: x + 1]
        """,
        """
        import inspect
        assert [f(0) for f in obj] == [1, 2, 1]
        assert inspect.getsource(obj[1]) == "obj = [lambda x: x + 1, lambda x: x + 2, lambda x: x + 1]\\n"
        """,
        tmp_path,
    )


def test_decorated_functions_and_partials(tmp_path: Path) -> None:
    travel(
        """
        import functools
        def twice(function):
            @functools.wraps(function)
            def wrapper(*args):
                wrapper.calls += 1
                return function(function(*args))
            wrapper.calls = 0
            return wrapper
        @twice
        def inc(x):
            "One more."
            return x + 1
        class Scaled:
            def __init__(self, k):
                self.k = k
            def scale(self, x, y):
                return self.k * x + y
            double = functools.partialmethod(scale, 2)
        obj = [inc, functools.partial(inc), functools.partial(lambda a, b: (a, b), b=1), Scaled(3)]
        """,
        """
        inc, partial, other, scaled = obj
        assert inc(1) == 3 and inc.calls == 1 and inc.__doc__ == "One more." and inc.__wrapped__(1) == 2
        assert partial.func is inc and other(5) == (5, 1) and scaled.double(1) == 7
        """,
        tmp_path,
    )


def test_bound_methods_of_a_scripts_class(tmp_path: Path) -> None:
    travel(
        """
        class Box:
            made = 0
            def __init__(self, v):
                self.v = v
                self.own = lambda: self.v
            def get(self):
                return self.v
            def __private(self):
                return -self.v
            @classmethod
            def make(cls, v):
                return cls(v)
            @staticmethod
            def triple(v):
                return 3 * v
            alias = get
            def secret(self):
                return self.__private
        class Sub(Box):
            def get(self):
                return 100 + super().get()
        box, sub = Box(1), Sub(2)
        box.patched = box.get
        obj = [box, box.get, sub, sub.get, Box.get.__get__(sub), box.secret(), Sub.make, box.triple, box.alias, box.own]
        """,
        """
        box, get, sub, sub_get, base_get, private, make, triple, alias, own = obj
        assert get.__self__ is box and get() == 1 == alias() and box.patched.__self__ is box
        assert sub_get() == 102 and base_get() == 2 and base_get.__self__ is sub
        assert private() == -1 and private.__self__ is box
        assert make.__self__ is type(sub) and type(make(5)) is type(sub) and make(5).get() == 105 and triple(3) == 9
        box.v = 7
        assert own() == 7 and get() == 7
        """,
        tmp_path,
        home="""
        assert type(back[0]) is Box and back[6].__self__ is Sub
        """,
    )


def test_methods_patched_onto_an_importable_class(tmp_path: Path) -> None:
    travel(
        """
        import pathlib
        def shout(self):
            return self.name.upper()
        pathlib.PurePath.shout = shout
        pathlib.PurePath.whisper = lambda self: self.name.lower()
        obj = [shout, pathlib.PurePath.whisper]
        """,
        """
        import pathlib
        assert [f(pathlib.PurePath("aB")) for f in obj] == ["AB", "ab"] and not hasattr(pathlib.PurePath, "shout")
        """,
        tmp_path,
    )


def test_callable_instances_and_objects_with_call_from_the_script(tmp_path: Path) -> None:
    travel(
        """
        class Adder:
            def __init__(self, n):
                self.n = n
            def __call__(self, x):
                return x + self.n
        add = Adder(3)
        def use(x):
            return add(x) * 2
        obj = [use, add]
        """,
        """
        use, add = obj
        assert use(1) == 8
        add.n = 0
        assert use(1) == 2
        """,
        tmp_path,
    )


def test_a_worker_of_multiprocessing_sends_its_functions_home(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        """
import multiprocessing, safepickle

FACTOR = 3

class Box:
    def __init__(self, v):
        self.v = v

def scale(x):
    return x * FACTOR

def work(queue):
    assert scale.__module__ == "__mp_main__"
    queue.put(safepickle.dumps([scale, Box(2), Box]))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    function, box, cls = safepickle.loads(queue.get(timeout=50))
    process.join()
    assert function(2) == 6 and function.__module__ == "__main__"
    assert cls is Box and type(box) is Box and box.v == 2
"""
    )
    from .helpers import run_script

    run_script(script, timeout=60)


# -- by reference ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("name", "obj"),
    [
        ("dict.fromkeys", dict.fromkeys),
        ("str.join", str.join),
        ("object.__init__", object.__init__),
        ("int.__add__", int.__add__),
        ("list.append", list.append),
        ("len", len),
        ("os.path.join", __import__("os").path.join),
        ("Path.cwd", Path.cwd),
        ("Path.exists", Path.exists),
        ("date.today", __import__("datetime").date.today),
    ],
)
def test_methods_that_have_a_name_come_back_as_they_are(name: str, obj: object, protocol: int) -> None:
    data = safepickle.dumps(obj, protocol)
    assert pickle.loads(data) == obj
    assert b"make_code" not in data and len(data) < 150, name


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_method_bound_to_a_builtin_object(protocol: int) -> None:
    items = [1]
    append, back = round_trip([items.append, items], protocol)
    append(2)
    assert back == [1, 2]
    join = round_trip("-".join, protocol)
    assert join("ab") == "a-b"


def test_methods_of_importable_classes_are_written_without_getattr() -> None:
    for method in (Path.exists, Path.cwd, Path("a").exists):
        data = safepickle.dumps(method, 4)
        if method is not Path("a").exists and not hasattr(method, "__self__"):
            assert b"getattr" not in data
        assert b"make_function" not in data
    assert b"getattr" not in safepickle.dumps(Path.cwd, 2)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_properties_and_class_methods_of_importable_classes_never_go_as_code(protocol: int) -> None:
    from fractions import Fraction

    numerator = vars(Fraction)["numerator"]
    from_float = vars(Fraction)["from_float"]
    for obj in (numerator, numerator.fget, from_float, from_float.__func__):
        data = safepickle.dumps(obj, protocol)
        assert b"make_code" not in data
        assert pickle.loads(data) is obj


def test_a_function_whose_name_was_taken_over_goes_by_its_other_name(tmp_path: Path) -> None:
    (tmp_path / "taken_over.py").write_text(
        "def cos_(x):\n    return x + 1\nkernel = cos_\ndef cos_(x):\n    return -kernel(x)\n"
        "gone = lambda: 'gone'\nholder = [gone]\ndel gone\n"
    )
    travel(
        """
        import taken_over, safepickle
        assert len(safepickle.dumps(taken_over.kernel)) < 50
        obj = [taken_over.kernel, taken_over.cos_, taken_over.holder[0]]
        """,
        """
        import taken_over
        kernel, cos_, gone = obj
        assert kernel is taken_over.kernel and cos_ is taken_over.cos_ and gone() == "gone"
        """,
        tmp_path,
        pythonpath=[tmp_path],
    )


def test_reducing_an_importable_function_reads_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    from safepickle import texts

    safepickle.dumps(json.loads)
    monkeypatch.setattr(texts, "source_of", lambda function: pytest.fail("asked for the text"))
    monkeypatch.setattr("builtins.open", lambda *args, **options: pytest.fail("opened a file"))
    assert pickle.loads(safepickle.dumps(json.loads)) is json.loads


# -- modules by value, as asked ----------------------------------------------------------------------------------------


def test_modules_that_the_user_registers_go_by_value_with_their_submodules(tmp_path: Path) -> None:
    package = tmp_path / "here" / "my_library"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from . import part\nFACTOR = 2\ndef f(x):\n    return part.inc(x) * FACTOR\n")
    (package / "part.py").write_text(
        "class Box:\n    def get(self):\n        return inc(self.v)\ndef inc(x):\n    return x + 1\n"
    )
    travel(
        """
        import cloudpickle, my_library, my_library.part, safepickle
        by_name = safepickle.dumps([my_library.f, my_library.part.Box])
        assert b"make_code" not in by_name
        cloudpickle.register_pickle_by_value(my_library)
        box = my_library.part.Box()
        box.v = 1
        obj = [my_library.f, my_library.part.inc, box, my_library.part]
        """,
        """
        import sys
        f, inc, box, part = obj
        assert "my_library" not in sys.modules
        assert f(1) == 4 and inc(1) == 2 and box.get() == 2 and type(box).__module__ == "my_library.part"
        assert part.inc is inc and part.Box is type(box) and inc.__globals__ is part.__dict__
        """,
        tmp_path,
        pythonpath=[tmp_path / "here"],
        pythonpath_there=[],
        home="""
        assert type(back[2]) is my_library.part.Box
        cloudpickle.unregister_pickle_by_value(my_library)
        assert safepickle.dumps([my_library.f, my_library.part.Box]) == by_name
        """,
    )


# -- versions of Python ------------------------------------------------------------------------------------------------


def test_code_of_another_version_of_python_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys.implementation, "cache_tag", "cpython-39")
        data = safepickle.dumps(lambda: 1)
    for loads in (pickle.loads, safepickle.loads):
        with pytest.raises(pickle.UnpicklingError, match=r"written by Python 3\.9.*cannot run under Python 3\.1\d"):
            loads(data)


def test_nothing_is_left_behind_by_a_class_that_could_not_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local:
        def method(self):
            return 1

    with monkeypatch.context() as patch:
        patch.setattr(sys.implementation, "cache_tag", "cpython-39")
        data = safepickle.dumps(Local())
    here = safepickle.dumps(Local())
    code = f"""
        import pickle, safepickle
        try:
            pickle.loads({data!r})
        except pickle.UnpicklingError as error:
            assert "written by Python 3.9" in str(error)
        else:
            raise AssertionError("loaded")
        assert pickle.loads({here!r}).method() == 1
        """
    run_python(code)


# -- size --------------------------------------------------------------------------------------------------------------


def test_a_lambda_takes_about_as_many_bytes_as_with_cloudpickle() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    k = 3
    for function in (lambda x: x + 1, lambda x: x + k):
        ours, theirs = safepickle.dumps(function), cloudpickle.dumps(function)
        text = "    for function in (lambda x: x + 1, lambda x: x + k):\n"
        assert len(ours) - len(text) < 1.5 * len(theirs)


def test_closures_of_one_factory_share_code_and_text() -> None:
    def make(n):
        return lambda x: x + n

    one, many = len(safepickle.dumps([make(0)])), len(safepickle.dumps([make(i) for i in range(100)]))
    assert many - one < 99 * 60
    assert [f(1) for f in round_trip([make(i) for i in range(100)])] == list(range(1, 101))
