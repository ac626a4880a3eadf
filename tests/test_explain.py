"""Does the report tell all that will go wrong, and does the check find what only a fresh interpreter shows?"""

from __future__ import annotations

import collections
import io
import json
import os
import re
import sys
import threading
import time
import types

import pytest

import safepickle
from tests.helpers import run_python


class Box:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Bad:
    """Can be neither pickled nor copied."""

    def __reduce_ex__(self, protocol):
        raise TypeError("this one stays")


class CopiesOnly:
    def __reduce_ex__(self, protocol):
        raise TypeError("not to disk")

    def __deepcopy__(self, memo):
        return CopiesOnly()


class PicklesOnly:
    def __deepcopy__(self, memo):
        raise RuntimeError("one is enough")


def named(value):
    return value


def paths(report, verb):
    return [problem.path for problem in report.problems if problem.verb == verb]


# -- what cannot go ----------------------------------------------------------------------------------------------------


def test_all_problems_are_reported_and_not_only_the_first():
    obj = Box(a=Bad(), b=[1, Bad()], c={"k": Bad()}, fine=1)
    report = safepickle.explain(obj)
    expected = ["obj.a", "obj.b[1]", "obj.c['k']"]
    assert paths(report, "pickle") == expected
    assert paths(report, "copy") == expected
    assert not report.can("pickle")
    assert not report.can("copy")


def test_each_verb_has_its_own_problems():
    obj = {"one": CopiesOnly(), "two": PicklesOnly()}
    report = safepickle.explain(obj)
    assert paths(report, "pickle") == ["obj['one']"]
    assert paths(report, "copy") == ["obj['two']"]


@pytest.mark.parametrize("verb", ["pickle", "copy"])
def test_a_report_agrees_with_what_then_happens(verb):
    act = {"pickle": safepickle.dumps, "copy": safepickle.deepcopy}[verb]
    for obj in (Box(a=1), [Bad()], {"x": CopiesOnly()}, (PicklesOnly(),), lambda: 1, threading.Lock(), (x for x in ())):
        report = safepickle.explain(obj)
        if report.can(verb):
            act(obj)
            continue
        with pytest.raises(safepickle.PicklingError) as caught:
            act(obj)
        assert caught.value.path in paths(report, verb)


def test_a_problem_says_what_an_error_would_say():
    obj = Box(part=Bad())
    problem = safepickle.explain(obj).problems[0]
    with pytest.raises(safepickle.PicklingError) as caught:
        safepickle.dumps(obj)
    assert (problem.path, problem.reason, problem.hint) == (caught.value.path, caught.value.reason, caught.value.hint)


def test_a_problem_in_a_function_names_the_function():
    stuck = Bad()
    problem = safepickle.explain({"hook": lambda: stuck}).problems[0]
    assert problem.notes == (
        "in closure variable 'stuck' of function 'test_a_problem_in_a_function_names_the_function.<locals>.<lambda>'",
    )


def test_a_rule_of_a_registry_counts():
    registry = safepickle.Registry()
    registry.register(Bad, lambda bad: (Bad, ()))
    assert safepickle.explain([Bad()], registry=registry).problems == []
    assert len(safepickle.explain([Bad()]).problems) == 2


def test_nothing_is_consumed_or_changed():
    numbers = iter([1, 2])
    state = {"numbers": numbers, "generator": (n for n in [1, 2])}
    before = dict(state)
    safepickle.explain(state)
    assert state == before
    assert list(state["generator"]) == [1, 2]


# -- what goes, and how ------------------------------------------------------------------------------------------------


def test_what_goes_by_name_is_listed_with_the_name_that_is_written():
    report = safepickle.explain({"f": named, "box": Box(), "max": max, "join": os.path.join})
    names = {one.name: one.path for one in report.by_name}
    assert names[f"{__name__}:named"] == "obj['f']"
    assert names[f"{__name__}:Box"] == "obj['box'].__class__"
    assert names[f"{os.path.__name__}:join"] == "obj['join']"
    data = safepickle.dumps({"f": named, "box": Box(), "max": max, "join": os.path.join})
    for name in names:
        assert all(part.encode() in data for part in name.split(":"))


def test_code_that_goes_by_value_is_listed_with_its_size():
    class Local:
        pass

    def local(x):
        return x

    report = safepickle.explain([local, Local()])
    found = {(code.kind, code.name.rpartition(".")[2]): code for code in report.by_value}
    assert found.keys() == {("function", "local"), ("class", "Local")}
    assert found["function", "local"].path == "obj[0]"
    assert found["function", "local"].size == len(safepickle.dumps(local))


LARGE_GLOBAL = bytes(100_000)


def test_a_large_global_is_named_with_the_function_that_takes_it_along():
    report = safepickle.explain({"step": lambda: LARGE_GLOBAL})
    (code,) = report.by_value
    assert code.size > 100_000
    ((path, size),) = code.takes
    assert path == "obj['step'].__globals__['LARGE_GLOBAL']"
    assert 100_000 <= size < 100_100
    assert "takes along obj['step'].__globals__['LARGE_GLOBAL']  100.0 kB" in str(report)


def test_what_a_copy_shares_is_listed():
    report = safepickle.explain([named, max, named, Box()])
    shared = {one.type_name: one for one in report.shared}
    assert shared["function"].count == 1
    assert shared["function"].path == "obj[0]"
    obj = [named]
    assert safepickle.deepcopy(obj)[0] is named


def test_sizes_add_up_to_the_pickle():
    obj = {"small": [1, 2, 3], "large": b"x" * 50_000, "text": "y" * 1000}
    report = safepickle.explain(obj)
    sizes = {part.path: part.size for part in report.parts}
    assert 50_000 <= sizes["obj['large']"] < 50_050
    assert abs(report.size - len(safepickle.dumps(obj))) < 200
    assert sum(sizes.values()) <= report.size


def test_sizes_go_down_into_the_parts():
    report = safepickle.explain(Box(outer=Box(inner=[b"x" * 30_000, b"y" * 20_000])))
    (outer,) = report.parts
    (inner,) = outer.parts
    assert [part.path for part in inner.parts] == ["obj.outer.inner[0]", "obj.outer.inner[1]"]
    assert inner.size >= 50_000


def test_what_two_parts_share_is_counted_once():
    shared = b"x" * 50_000
    report = safepickle.explain({"first": [shared], "second": [shared]})
    sizes = {part.path: part.size for part in report.parts}
    assert sizes["obj['first']"] >= 50_000
    assert sizes["obj['second']"] < 100


def test_the_size_is_known_although_something_cannot_go():
    report = safepickle.explain({"bad": Bad(), "data": b"x" * 50_000})
    assert 50_000 <= report.size < 50_300


def test_a_report_on_a_large_graph_ends():
    report = safepickle.explain([[number, str(number)] for number in range(20_000)])
    assert report.problems == []
    assert report.parts == ()


def test_a_report_on_a_deep_graph_ends():
    obj = [Bad()]
    for _ in range(3000):
        obj = [obj]
    report = safepickle.explain(obj)
    assert paths(report, "pickle") == ["obj([0] × 3001)"]


def test_a_report_on_a_cycle_ends():
    box = Box()
    box.itself, box.part = box, Bad()
    assert paths(safepickle.explain(box), "pickle") == ["obj.part"]
    assert paths(safepickle.explain(box), "copy") == ["obj.part"]


def test_large_objects_are_not_copied_to_find_out(monkeypatch):
    from safepickle import reports

    monkeypatch.setattr(reports, "MOST_COPIED", 1000)
    copied = []

    class Large:
        def __init__(self):
            self.data = b"x" * 2000

        def __deepcopy__(self, memo):
            copied.append(self)
            return self

    report = safepickle.explain([Large(), Bad()])
    assert paths(report, "copy") == ["obj[1]"]
    assert copied == []
    assert "no copy was tried" in report.remarks[0]


# -- how it looks ------------------------------------------------------------------------------------------------------


def test_the_text_begins_with_the_answer():
    assert str(safepickle.explain([1, 2])).startswith("'list': can be pickled, can be deep-copied; ")
    lines = str(safepickle.explain([Bad(), CopiesOnly()])).splitlines()
    assert lines[0].startswith("'list': cannot be pickled (2 problems), cannot be deep-copied (1 problem)")
    assert lines[1:4] == [
        "  cannot be pickled",
        f"    obj[0]  '{__name__}.Bad'",
        "      reason: TypeError: this one stays",
    ]


def test_long_lists_are_cut():
    text = str(safepickle.explain([Bad() for _ in range(30)]))
    assert "... and 10 more" in text
    assert text.count("obj[19]  ") == 2
    assert "obj[20]  " not in text


def test_a_notebook_shows_a_table_with_everything_escaped():
    html = safepickle.explain({"<b>": Bad()})._repr_html_()
    assert html.startswith("<table>")
    assert html.count("<tr>") == html.count("</tr>") >= 2
    assert "<b>" not in html.replace("<br>", "")
    assert "obj[&#x27;&lt;b&gt;&#x27;]" in html


def test_rich_shows_a_tree():
    rich = pytest.importorskip("rich")
    from rich.console import Console

    console = Console(file=io.StringIO(), width=100)
    report = safepickle.explain({"part": Bad()})
    console.print(report)
    text = console.file.getvalue()
    assert text.startswith("'dict': cannot be pickled")
    assert re.search(r"├── cannot be pickled\n│   └── obj\['part'\]  'tests", text)
    assert rich.get_console is not None


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1234, "1.2 kB"), (5_000_000, "5.0 MB"), (12e12, "12000.0 GB")],
)
def test_sizes_are_readable(count, text):
    from safepickle.reports import readable_size

    assert readable_size(count) == text


def test_a_model_is_reported_by_its_layers():
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(100, 10), torch.nn.ReLU(), torch.nn.Linear(10, 200))
    net[2].stuck = Bad()
    report = safepickle.explain(net)
    assert paths(report, "pickle") == ["obj[2].stuck"]
    assert paths(report, "copy") == ["obj[2].stuck"]
    sizes = {part.path: part.size for part in report.parts}
    assert sizes["obj[2]"] > sizes["obj[0]"] > 4000
    first = next(part for part in report.parts if part.path == "obj[0]")
    weights = {part.path: part.size for part in first.parts}
    assert 4000 < weights["obj[0].weight"] < 5000


# -- check -------------------------------------------------------------------------------------------------------------


def test_check_uses_the_object_in_a_fresh_interpreter():
    checked = safepickle.check(
        {"lock": threading.Lock(), "n": 2}, use=lambda it: (it["lock"].acquire(timeout=5), os.getpid())
    )
    acquired, pid = checked.value
    assert acquired
    assert pid != os.getpid()
    assert checked.size > 0
    assert checked.seconds.keys() == {"dumping", "loading", "using"}


def test_check_without_use_only_loads():
    checked = safepickle.check([1, 2])
    assert (checked.value, checked.value_repr) == (None, None)
    assert str(checked).startswith("fine: ")


def test_check_brings_back_the_repr_where_the_value_stays():
    checked = safepickle.check(3, use=lambda count: (n for n in range(count)))
    assert checked.value is None
    assert checked.value_repr.startswith("<generator object")


def test_check_keeps_what_was_printed():
    assert safepickle.check("hello", use=print).output == "hello\n"


def test_check_refuses_what_cannot_be_pickled_with_the_path():
    with pytest.raises(safepickle.PicklingError, match=r"at obj\[0\]"):
        safepickle.check([Bad()])


def test_check_says_when_it_is_the_function_that_cannot_be_pickled():
    stuck = Bad()
    with pytest.raises(safepickle.PicklingError, match="the function that is to use the object cannot pickle"):
        safepickle.check(1, use=lambda it: (it, stuck))


@pytest.mark.parametrize("in_subprocess", [True, False])
def test_check_raises_what_use_raised_with_the_traceback(in_subprocess):
    with pytest.raises(safepickle.CheckError) as caught:
        safepickle.check({"n": 0}, use=lambda it: 1 / it["n"], in_subprocess=in_subprocess)
    assert caught.value.stage == "using"
    assert caught.value.reason == "ZeroDivisionError: division by zero"
    assert 'use=lambda it: 1 / it["n"]' in caught.value.details


def hang(it):
    it.acquire()
    it.acquire()


@pytest.mark.parametrize("in_subprocess", [True, False])
def test_check_ends_a_lock_that_hangs_and_says_where(in_subprocess):
    with pytest.raises(safepickle.CheckError) as caught:
        safepickle.check(threading.Lock(), use=lambda it: hang_here(it), timeout=1.5, in_subprocess=in_subprocess)
    assert caught.value.stage == "using"
    assert caught.value.reason == "it was not done after 1.5 s"
    assert "hang_here" in caught.value.details


def hang_here(lock):
    lock.acquire()
    lock.acquire(timeout=20)


def test_check_tells_an_interpreter_that_died():
    with pytest.raises(safepickle.CheckError, match="the interpreter died by SIGABRT") as caught:
        safepickle.check(1, use=lambda it: os.abort())
    assert caught.value.stage == "using"
    assert "Fatal Python error: Aborted" in caught.value.details


def test_check_tells_an_interpreter_that_left():
    with pytest.raises(safepickle.CheckError, match="the interpreter ended with status 3"):
        safepickle.check(1, use=lambda it: os._exit(3))


def test_check_finds_a_module_that_only_this_process_can_import(tmp_path):
    tmp_path.joinpath("only_here_for_the_check.py").write_text("class Thing:\n    pass\n")
    printed = run_python(
        """
        import sys
        import safepickle
        sys.path.insert(0, sys.argv[1])
        import only_here_for_the_check
        thing = only_here_for_the_check.Thing()
        assert type(safepickle.loads(safepickle.dumps(thing))) is type(thing)
        try:
            safepickle.check(thing)
        except safepickle.CheckError as error:
            print(error.stage, "|", error.reason)
        """,
        args=[tmp_path],
    )
    assert printed.startswith("loading | UnpicklingError: cannot load 'only_here_for_the_check.Thing' at byte ")
    assert "which this process has added to sys.path" in printed


def test_check_finds_a_name_that_only_this_script_has():
    printed = run_python("""
        import safepickle
        class Handle:
            def __reduce__(self):
                return "HANDLE"
        HANDLE = Handle()
        assert safepickle.loads(safepickle.dumps(HANDLE)) is HANDLE
        try:
            safepickle.check(HANDLE)
        except safepickle.CheckError as error:
            print(error.reason)
            print("was defined in the script that wrote the pickle" in error.details)
    """)
    assert re.fullmatch(
        r"UnpicklingError: cannot load '__main__.HANDLE' at byte \d+ \(opcode STACK_GLOBAL\)\nTrue\n", printed
    )


def test_check_passes_classes_and_functions_of_a_script():
    printed = run_python("""
        import safepickle
        class Model:
            scale = 3
            def __call__(self, x):
                return helper(x) * self.scale
        def helper(x):
            return x + 1
        print(safepickle.check(Model(), use=lambda model: model(1)).value)
    """)
    assert printed == "6\n"


def test_check_finds_modules_beside_the_script(tmp_path):
    tmp_path.joinpath("beside.py").write_text("class Thing:\n    n = 5\n")
    script = tmp_path / "main_script.py"
    script.write_text("import safepickle, beside\nprint(safepickle.check(beside.Thing(), use=lambda it: it.n).value)\n")
    from tests.helpers import run_script

    assert run_script(script) == "5\n"


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"  # nobody may have collected it yet
    except FileNotFoundError:
        return False


def test_check_leaves_no_process_behind(tmp_path):
    marker = tmp_path / "pid"

    def start_another(path):
        import subprocess

        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        with open(path, "w") as file:
            file.write(str(child.pid))
        import time

        time.sleep(60)

    with pytest.raises(safepickle.CheckError, match="not done after 3 s"):
        safepickle.check(str(marker), use=start_another, timeout=3)
    for _ in range(100):  # the end of a process takes a moment
        if not is_running(int(marker.read_text())):
            break
        time.sleep(0.05)
    assert not is_running(int(marker.read_text()))


def test_a_check_error_goes_through_a_process_pool():
    import pickle

    error = safepickle.CheckError("using", "because", "where", "printed")
    back = pickle.loads(pickle.dumps(error))
    assert (back.stage, back.reason, str(back)) == ("using", "because", str(error))


def test_a_report_can_be_made_json():
    import dataclasses

    report = safepickle.explain(collections.OrderedDict(a=Bad(), f=named, t=types.SimpleNamespace(x=b"1")))
    back = json.loads(json.dumps(dataclasses.asdict(report)))
    assert back["problems"][0]["path"] == "obj['a']"
    assert back["size"] == report.size
