"""A ``__deepcopy__`` method that calls ``copy.deepcopy`` leaves our rules, and its object is copied all the same."""

from __future__ import annotations

import copy
import threading
import types

import pytest

import safepickle


class Model:
    """Copies itself as the documentation of ``copy`` shows, with the standard library's function."""

    def __init__(self):
        self.lock = threading.Lock()
        self.ready = threading.Condition(self.lock)
        self.rows = [1, 2]
        self.same = self.rows
        self.backend = types

    def __deepcopy__(self, memo):
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        for name, value in vars(self).items():
            setattr(twin, name, copy.deepcopy(value, memo))
        return twin


def check(model, twin):
    assert type(twin) is Model and twin.backend is types
    assert twin.rows == [1, 2] and twin.rows is not model.rows and twin.same is twin.rows
    assert twin.lock is not model.lock and twin.lock.acquire(timeout=5)
    assert not twin.ready.acquire(blocking=False), "the condition is not over the copied lock"
    twin.lock.release()
    assert model.lock.acquire(timeout=5)
    model.lock.release()


def test_a_lock_below_such_a_method_is_a_fresh_one():
    model = Model()
    check(model, safepickle.deepcopy(model))


def test_such_an_object_inside_of_others():
    model = Model()
    twin = safepickle.deepcopy({"models": [model], "lock": model.lock})
    check(model, twin["models"][0])
    assert twin["lock"] is twin["models"][0].lock


def test_what_no_rule_can_copy_is_told_and_not_what_a_rule_can():
    model = Model()
    model.numbers = (n for n in [1, 2])
    with pytest.raises(TypeError, match="generator"):
        safepickle.deepcopy(model)
    assert next(model.numbers) == 1


def test_the_method_runs_once_where_nothing_fails():
    calls = []

    class Counted:
        def __deepcopy__(self, memo):
            calls.append(copy.deepcopy([1], memo))
            return self

    safepickle.deepcopy([Counted()])
    assert calls == [[1]]


def test_kernels_below_such_a_method_are_shared():
    pytest.importorskip("triton")
    from tests.fixtures.kernels.classes import Ops

    model = Model()
    model.kernel = Ops.keep
    assert safepickle.deepcopy(model).kernel is Ops.keep
