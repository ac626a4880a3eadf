"""Does the proof of the engines tell what works from what raises, hangs, dies, or arrives as something else?"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("rich")
pytest.importorskip("torch")
pytest.importorskip("triton")

from benchmarks.engines import PAYLOADS, entries, processes, proof, tables, trips


class Right:
    def check(self):
        pass


class Wrong:
    def check(self):
        raise AssertionError("the weights are no longer tied\nat all")


def test_a_payload_whose_check_fails_has_been_changed_in_silence():
    assert trips.use(Right()) == "works"
    assert trips.use(Wrong()) == "silently wrong: AssertionError: the weights are no longer tied"


def test_what_waits_for_ever_is_said_to_hang():
    assert trips.attempt("there", lambda: threading.Lock().acquire() and threading.Event().wait(), 0.2) == "hangs"


def test_what_raises_is_quoted_without_addresses():
    def action():
        raise TypeError(f"cannot send {object()!r}\nand more")

    assert trips.attempt("there", action, 5) == "TypeError: cannot send <object object at 0x..>"


class NotAnException(BaseException):
    pass


def test_what_is_no_exception_is_quoted_too():
    def action():
        raise NotAnException("no rank could write")

    said = "tests.test_proof.NotAnException: no rank could write"
    assert trips.attempt("there", action, 5) == said
    with pytest.raises(trips.Failed) as caught:
        trips._guarded(action)
    assert trips.first_line(caught.value) == said


def test_a_trip_says_what_became_of_each_direction(monkeypatch):
    monkeypatch.setattr(trips, "make", lambda name: Right())
    found = trips.trip("any:thing", trips.use, lambda name: Wrong(), lambda payload: 7)
    assert found["there"] == "works"
    assert found["back"].startswith("silently wrong")
    assert found["bytes"] == 7
    assert found["seconds"] > 0
    found = trips.trip("any:thing", lambda payload: "TypeError: no", lambda name: Right(), lambda payload: 7)
    assert (found["bytes"], found["seconds"]) == (None, None)
    found = trips.trip("any:thing", trips.use, lambda name: Right())
    assert found["seconds"] > 0


def test_what_was_under_way_when_the_process_was_killed_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(trips, "OUTPUT", str(tmp_path / "found.json"))
    trips.note(there="works")
    trips.note(back="hangs")
    found = json.loads((tmp_path / "found.json").read_text())
    assert proof._cell(found, None, "") == proof.Cell("works", "hangs")


def test_a_process_that_dies_is_not_said_to_hang():
    cell = proof._cell({"there": "works", "back": "hangs"}, -11, "")
    assert (cell.there, cell.back) == ("works", "dies by SIGSEGV")


def test_an_entry_that_fails_before_the_first_trip_is_quoted():
    cell = proof._cell({"failed": "ImportError: no engine"}, 1, "")
    assert (cell.there, cell.back) == ("ImportError: no engine",) * 2


def test_what_a_cell_has_started_ends_with_it_even_in_a_session_of_its_own():
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    cell = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    grandchild = int(cell.stdout.readline())
    proof._end(cell)
    cell.stdout.close()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and _alive(grandchild):
        time.sleep(0.05)
    assert not _alive(grandchild)


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def test_the_work_of_processes_below_is_counted_while_they_run_and_afterwards():
    code = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    before = processes.cpu_seconds()
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    assert 0.4 < processes.cpu_seconds() - before < 5
    child.communicate(b"\n")
    assert 0.4 < processes.cpu_seconds() - before < 5


def line(**changes):
    without = proof.Cell("TypeError: a | b", "hangs")
    installed = proof.Cell("works", "works", 1234, [0.2])
    return proof.Line(**{"engine": "E", "payload": "lock", "without": without, "installed": installed, **changes})


def test_the_ratio_is_the_median_over_pairs_and_needs_both():
    assert line().ratio() is None
    both = line(
        without=proof.Cell("works", "works", 1, [1.0, 2.0, 4.0]),
        installed=proof.Cell("works", "works", 1, [1.0, 1.0, 8.0]),
    )
    assert both.ratio() == 1.0


def test_the_page_shows_both_directions_where_they_differ():
    row = tables.markdown([line().as_json()]).splitlines()[-1]
    assert row == "| E | lock | there: `TypeError: a \\| b`<br>back: **hangs** | works | 1,234 |  |"


def test_what_is_silently_wrong_is_told_in_the_words_of_the_check():
    changed = proof.Cell(*["silently wrong: AssertionError: the weights are no longer tied"] * 2)
    row = tables.markdown([line(without=changed).as_json()]).splitlines()[-1]
    assert "| **silently wrong: the weights are no longer tied** | works |" in row


def test_every_entry_has_a_name_and_says_what_it_needs():
    assert entries()
    for entry in entries():
        name, needs = proof.about(entry)
        assert name
        assert proof.missing(entry) == [module for module in needs if importlib.util.find_spec(module) is None]
    assert list(PAYLOADS) == ["kernel", "lambda", "lock", "tensor"]
