"""Does the fixture ``roundtrip`` pass what survives, fail what does not, and say by which way it did not?"""

from __future__ import annotations

import copy
import dataclasses
import importlib.metadata
import pickle
import sys
import threading

import pytest

from safepickle.roundtrips import RoundTripError, round_trip

from .helpers import REPOSITORY, run_python

pytest_plugins = ["pytester"]

#: Where safepickle is installed, pytest finds the plugin by its entry point.
FOUND = any(point.value == "safepickle.pytest_plugin" for point in importlib.metadata.entry_points(group="pytest11"))
PLUGIN = () if FOUND else ("-p", "safepickle.pytest_plugin")


@pytest.fixture
def run(pytester, monkeypatch):
    """Run pytest in a process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    return lambda *arguments: pytester.runpytest_subprocess(*PLUGIN, *arguments)


class Good:
    def __init__(self):
        self.lock = threading.Lock()
        self.rows = [1, {2, 3}]


@dataclasses.dataclass
class Point:
    x: int = 0


class Forgetful(Point):
    """Loses its value on the way, by pickle and deepcopy alike."""

    def __reduce__(self):
        return Forgetful, ()


class LosesInCopies(Point):
    def __deepcopy__(self, memo):
        return LosesInCopies()


class OnlyHere:
    def __reduce__(self):
        return only_here, ()


only_here_value = "unset"


def only_here():
    """Works in the process that has set the value."""
    if only_here_value == "unset":
        raise LookupError("the registry is empty in this process")
    return OnlyHere()


# -- what it does ------------------------------------------------------------------------------------------------------


def test_an_object_that_survives_comes_back_by_every_way():
    good = Good()
    arrived = round_trip(good)
    assert list(arrived) == [*(f"pickle protocol {number}" for number in range(6)), "deepcopy", "process"]
    assert all(new is not good and new.rows == good.rows and new.lock.acquire(timeout=5) for new in arrived.values())


def test_local_classes_and_closures_make_the_journey():
    class Local:
        def __init__(self, value):
            self.value = value
            self.add = lambda x: x + value

    arrived = round_trip(Local(3), check=lambda new: new.add(1) == 4, equal=lambda old, new: old.value == new.value)
    assert type(arrived["process"]) is Local


def test_ways_and_protocols_can_be_chosen():
    arrived = round_trip(Point(1), through=["process", "copy", "pickle"], protocols=[2, 5])
    assert list(arrived) == ["pickle protocol 2", "pickle protocol 5", "copy", "process"]
    assert list(round_trip(Point(1), through=["deepcopy"])) == ["deepcopy"]
    with pytest.raises(ValueError, match="there is no way 'post'"):
        round_trip(Point(1), through=["post"])
    with pytest.raises(ValueError, match="protocols must be some of 0 to 5"):
        round_trip(Point(1), protocols=[9])


def test_another_pickler_can_be_used():
    assert list(round_trip(Point(1), using=pickle, protocols=[4])) == ["pickle protocol 4", "deepcopy", "process"]
    with pytest.raises(RoundTripError, match=r"pickle protocol 4: TypeError: cannot pickle '_thread.lock' object"):
        round_trip(Good(), using=pickle, protocols=[4])
    assert round_trip(Point(1), using=copy, through=["deepcopy"])


def test_what_has_no_equality_of_its_own_is_compared_by_what_it_holds():
    round_trip([Good(), {"x": float("nan")}], protocols=[4], through=["pickle", "deepcopy"])
    numpy = pytest.importorskip("numpy")
    round_trip({"rows": numpy.arange(3)}, protocols=[4], through=["pickle"])

    @dataclasses.dataclass
    class Rows:
        rows: object

    round_trip(Rows(numpy.arange(3)), protocols=[4], through=["pickle"])


# -- how it fails ------------------------------------------------------------------------------------------------------


def test_what_is_lost_is_said_with_the_way():
    with pytest.raises(RoundTripError) as caught:
        round_trip(Forgetful(7), protocols=[4])
    assert str(caught.value).splitlines() == [
        "pickle protocol 4: what came back is not equal to what was sent",
        "  sent: Forgetful(x=7)",
        "  came: Forgetful(x=0)",
    ]
    with pytest.raises(RoundTripError, match=r"\Adeepcopy: what came back is not equal"):
        round_trip(LosesInCopies(7))
    assert round_trip(Forgetful(7), equal=False, protocols=[4])["deepcopy"].x == 0


def test_what_cannot_be_pickled_is_said_with_the_path_to_it():
    with pytest.raises(RoundTripError, match=r"\Apickle protocol 0: PicklingError: .*rows.*\[1\]") as caught:
        round_trip({"rows": [1, (x for x in [])]})
    assert isinstance(caught.value.__cause__, pickle.PicklingError)


def test_what_works_in_this_process_alone_fails_in_the_fresh_one(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "only_here_value", "set")
    with pytest.raises(RoundTripError) as caught:
        round_trip(OnlyHere(), equal=False)
    message = str(caught.value)
    assert message.startswith("process: the object was not loaded there: ")
    assert "LookupError: the registry is empty in this process" in message and "in only_here" in message


def test_a_check_that_fails_is_said_with_the_way():
    with pytest.raises(RoundTripError, match="pickle protocol 4: the check of what came back returned False"):
        round_trip(Point(1), check=lambda new: False, protocols=[4])
    with pytest.raises(RoundTripError, match="deepcopy: the check of what came back failed: ZeroDivisionError"):
        round_trip(Point(0), check=lambda new: 1 // new.x, through=["deepcopy"])
    with pytest.raises(RoundTripError, match="process: the object failed its check there: AssertionError: it returned"):
        round_trip(Point(1), check=lambda new: False, through=["process"])


def test_what_cannot_be_compared_is_said_with_what_to_do():
    def compare(old, new):
        raise LookupError("how")

    with pytest.raises(RoundTripError, match=r"cannot be compared \(pass equal=False, or a function\): LookupError"):
        round_trip(Point(1), equal=compare)


def test_a_fresh_process_that_hangs_or_dies_is_a_failure():
    def hang(new):
        import os
        import time

        if os.environ.get("ROUNDTRIP_TEST") == "die":
            os._exit(3)
        time.sleep(600)

    with pytest.raises(RoundTripError, match="process: the fresh process has not ended within 3 s"):
        round_trip(1, check=hang, through=["process"], timeout=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROUNDTRIP_TEST", "die")
        with pytest.raises(RoundTripError, match="process: the fresh process ended with status 3"):
            round_trip(1, check=hang, through=["process"])


# -- as a plugin -------------------------------------------------------------------------------------------------------


def test_one_line_tests_a_class_of_a_users_test_file(pytester, run):
    pytester.makepyfile(
        """
        import threading

        class Mine:
            def __init__(self):
                self.lock, self.double = threading.Lock(), lambda x: 2 * x

        class Half:
            def __init__(self, x):
                self.x = x
            def __getstate__(self):
                return {"x": self.x // 2}

        def test_mine(roundtrip):
            roundtrip(Mine(), check=lambda new: new.double(2) == 4)

        def test_half(roundtrip):
            roundtrip(Half(4))

        def test_number(roundtrip):
            assert list(roundtrip(1)) == ["pickle protocol 4", "deepcopy", "process"]
        """
    )
    pytester.makeini("[pytest]\nroundtrip_protocols = 4\nroundtrip_timeout = 50\n")
    result = run()
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["E * roundtrip of test_one_line*.Half, pickle protocol 4: what came back is not *"])
    assert "in _judge" not in result.stdout.str()


def test_the_fixture_is_listed_with_what_it_is_for(run):
    result = run("--fixtures")
    result.stdout.fnmatch_lines(["roundtrip*", "*Take an object through pickle, a fresh process and deepcopy*"])


def test_the_plugin_imports_nothing_but_pytest_and_the_package():
    run_python("""
        import pytest, sys
        import safepickle
        before = set(sys.modules)
        import safepickle.pytest_plugin
        assert set(sys.modules) - before == {"safepickle.pytest_plugin"}, set(sys.modules) - before
        assert not {"numpy", "torch", "cloudpickle", "triton", "tensorflow"} & sys.modules.keys()
    """)


def test_the_entry_point_is_declared():
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.entry-points.pytest11]\nsafepickle = "safepickle.pytest_plugin"' in text
