"""``python -m safepickle.engines``: what it lists, and that it leaves nothing behind."""

from __future__ import annotations

import copyreg
import sys
import threading

import pytest

from safepickle.engines import MODULES
from safepickle.engines.__main__ import main
from tests.helpers import run_python


def test_each_engine_is_listed_with_its_line(capsys):
    assert main([]) == 0
    printed = capsys.readouterr().out
    for name in MODULES:
        assert f'safepickle.install("{name}")' in printed


def test_listing_the_engines_imports_none_of_them():
    code = """
        import sys
        from safepickle.engines.__main__ import main
        main([])
        print([name for name in ("joblib", "torch", "distributed", "ray", "pyspark") if name in sys.modules])
    """
    assert run_python(code).splitlines()[-1] == "[]"


def test_what_an_engine_changes_is_listed_and_undone(capsys):
    from multiprocessing.reduction import ForkingPickler

    before = ForkingPickler.dump
    assert main(["multiprocessing"]) == 0
    assert "multiprocessing.reduction.ForkingPickler.reducer_override" in capsys.readouterr().out
    assert ForkingPickler.dump is before
    assert type(threading.Lock()) not in copyreg.dispatch_table


def test_an_engine_that_is_not_here_is_said_to_be_missing(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["ray"]) == 1
    assert capsys.readouterr().err == "not here: ray\n"


def test_a_name_that_is_no_engine_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["spark"])
    assert "no such engine: spark; there are multiprocessing, joblib" in capsys.readouterr().err
