"""Whatever a program holds, in whatever arrangement: does it come through both verbs with its shape, and on its own?

The kinds are those of the policy table that need no framework, mixed with plain data, shared and in cycles.
"""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import enum
import functools
import logging
import pickle
import queue
import threading
import types
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import safepickle
from tests import graphs

VARIABLE = contextvars.ContextVar("VARIABLE")


def module_function(*args):
    return args


def local_kinds():
    """Classes that no name leads to."""

    class Local:
        def __init__(self):
            self.made = "here"

        def method(self):
            return self.made

    class Derived(Local):
        __slots__ = ("slot",)

    @dataclasses.dataclass
    class LocalData:
        first: object = None
        second: object = None

    class LocalEnum(enum.Enum):
        ONE = 1
        TWO = "two"

    class LocalList(list):
        pass

    class LocalError(Exception):
        pass

    return Local, Derived, LocalData, LocalEnum, LocalList, LocalError


Local, Derived, LocalData, LocalEnum, LocalList, LocalError = local_kinds()


def fill_attributes(obj, parts):
    for index, part in enumerate(parts):
        setattr(obj, f"attribute_{index}", part)


def fill_queue(obj, parts):
    for part in parts:
        obj.put(part)


def fill_error(obj, parts):
    obj.args = tuple(parts)
    obj.attribute = parts[:1]
    causes = [part for part in parts if isinstance(part, BaseException) and part is not obj]
    obj.__cause__ = causes[0] if causes else None


def fill_cell(obj, parts):
    if parts:
        obj.cell_contents = parts[0]


def fill_derived(obj, parts):
    fill_attributes(obj, parts)
    obj.slot = parts


def fill_data(obj, parts):
    obj.first, obj.second = [*parts, None, None][:2]


def first_that(parts, is_it):
    return next((part for part in parts if is_it(part)), None)


def make_reference(parts):
    referent = first_that(parts, lambda part: type(part) in (graphs.Plain, Local, graphs.Data))
    return None if referent is None else weakref.ref(referent)


def make_method(parts):
    owner = first_that(parts, lambda part: type(part) is Local)
    return None if owner is None else owner.method


def make_closure(parts):
    first, second = [*parts, None, None][:2]

    def closure(default=second, *, keyword=first):
        return first, default, keyword, module_function

    return closure


def make_counter(parts):
    count = 0
    held = parts

    def up():
        nonlocal count
        count += 1
        return held

    def read():
        return count

    return [up, read]


def make_cached(parts):
    held = parts
    return functools.lru_cache(maxsize=7)(lambda: held)


MUTABLE = {
    "lock": (threading.Lock, lambda obj, parts: None),
    "rlock": (threading.RLock, lambda obj, parts: None),
    "condition": (threading.Condition, lambda obj, parts: None),
    "event": (threading.Event, lambda obj, parts: None),
    "queue": (queue.Queue, fill_queue),
    "simple queue": (queue.SimpleQueue, fill_queue),
    "exception": (ValueError, fill_error),
    "local exception": (LocalError, fill_error),
    "cell": (types.CellType, fill_cell),
    "local": (Local, fill_attributes),
    "derived": (Derived, fill_derived),
    "local data": (LocalData, fill_data),
    "local list": (LocalList, lambda obj, parts: obj.extend(parts)),
    "user dict": (collections.UserDict, lambda obj, parts: obj.data.update(enumerate(parts))),
}

IMMUTABLE = {
    "mapping proxy": lambda parts: types.MappingProxyType(dict(enumerate(parts))),
    "reference": make_reference,
    "local method": make_method,
    "closure": make_closure,
    "counter": make_counter,
    "cached": make_cached,
    "partial of a closure": lambda parts: functools.partial(make_closure(parts), *parts),
    "named function": lambda parts: module_function,
    "class": lambda parts: Local,
    "member": lambda parts: LocalEnum.TWO,
    "property": lambda parts: property(module_function),
    "context variable": lambda parts: VARIABLE,
    "logger": lambda parts: logging.getLogger("safepickle.tests"),
    "module": lambda parts: types,
}

FRESH = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event)

PARTS = {
    **dict.fromkeys(FRESH, lambda obj: []),
    queue.Queue: lambda obj: [obj.maxsize, *obj.queue],
    queue.SimpleQueue: lambda obj: queued(obj),
    ValueError: lambda obj: [obj.args, *vars(obj).values(), obj.__cause__],
    LocalError: lambda obj: [obj.args, *vars(obj).values(), obj.__cause__],
    types.MappingProxyType: lambda obj: [part for pair in obj.items() for part in pair],
    weakref.ref: lambda obj: [obj()],
    type(functools.lru_cache(len)): lambda obj: [obj.__wrapped__, *obj.cache_parameters().values()],
    property: lambda obj: [obj.fget, obj.fset, obj.fdel],
    contextvars.ContextVar: lambda obj: [obj.name],
    logging.Logger: lambda obj: [obj.name],
    types.ModuleType: lambda obj: [obj.__name__],
    LocalEnum: lambda obj: [obj.value],
}


def queued(obj):
    """What a queue holds, which stays in it."""
    items = [obj.get_nowait() for _ in range(obj.qsize())]
    for item in items:
        obj.put(item)
    return items


@pytest.fixture(autouse=True, scope="module")
def further_kinds():
    """The kinds of the table, beside those of `tests.graphs`."""
    with pytest.MonkeyPatch.context() as patch:
        for kind, value in MUTABLE.items():
            patch.setitem(graphs.MUTABLE, kind, value)
        for kind, value in IMMUTABLE.items():
            patch.setitem(graphs.IMMUTABLE, kind, value)
        for cls, parts in PARTS.items():
            patch.setitem(graphs.PARTS, cls, parts)
        yield


KINDS = [*graphs.kinds_at(2), *MUTABLE, *IMMUTABLE]

#: What a copy shares on purpose, with what it holds: code, and what has a name. (Unless it leads to what is copied.)
SHARED = (type, types.FunctionType, type(functools.lru_cache(len)), types.ModuleType, property, contextvars.ContextVar,
          logging.Logger, enum.Enum)  # fmt: skip
IMMUTABLES = (tuple, frozenset, functools.partial, types.MethodType, weakref.ref, types.MappingProxyType)


def mutable(root):
    """The objects that can change, as far as data leads to them."""
    found, seen, stack = {}, {}, [root]
    while stack:
        obj = stack.pop()
        if isinstance(obj, (*graphs.LEAVES, *SHARED)) or id(obj) in seen:
            continue
        seen[id(obj)] = obj
        if not isinstance(obj, IMMUTABLES):
            found[id(obj)] = obj
        stack.extend(graphs.parts_of(obj))
    return found


def whole(plan):
    """All objects of a plan in one list, the functions first: they meet what they hold before it is copied."""
    objects = graphs.build(plan)
    return sorted(objects, key=lambda obj: type(obj) is not types.FunctionType)


@given(plan=graphs.plans(KINDS, size=14))
@settings(max_examples=400, deadline=None)
def test_a_copy_has_the_shape_of_the_original_and_shares_nothing_that_can_change(plan):
    objects = whole(plan)
    expected = without_code(graphs.shape(objects))
    twin = safepickle.deepcopy(objects)
    assert without_code(graphs.shape(twin)) == expected
    assert without_code(graphs.shape(objects)) == expected
    assert not mutable(objects).keys() & mutable(twin).keys()


@given(plan=graphs.plans(KINDS, size=14), protocol=st.sampled_from([2, 4, 5]))
@settings(max_examples=400, deadline=None)
def test_a_restored_object_has_the_shape_of_the_original_and_plain_pickle_reads_it(plan, protocol):
    objects = whole(plan)
    expected = without_code(graphs.shape(objects))
    restored = pickle.loads(safepickle.dumps(objects, protocol))
    assert without_code(graphs.shape(restored)) == expected
    assert without_code(graphs.shape(objects)) == expected
    assert not mutable(objects).keys() & mutable(restored).keys()


@given(plan=graphs.plans(KINDS, size=10), protocol=st.sampled_from([2, 4, 5]))
@settings(max_examples=100, deadline=None)
def test_a_restored_object_can_be_pickled_and_copied_again(plan, protocol):
    objects = whole(plan)
    expected = without_code(graphs.shape(objects))
    restored = pickle.loads(safepickle.dumps(objects, protocol))
    again = pickle.loads(safepickle.dumps(safepickle.deepcopy(restored), protocol))
    assert without_code(graphs.shape(again)) == expected


@given(plan=graphs.plans(KINDS, size=10), protocol=st.sampled_from([2, 4, 5]))
@settings(max_examples=100, deadline=None)
def test_the_same_object_is_written_in_the_same_bytes(plan, protocol):
    objects = whole(plan)
    assert safepickle.dumps(objects, protocol) == safepickle.dumps(objects, protocol)


@given(plan=graphs.plans([kind for kind in KINDS if kind != "reference"], size=10))
@settings(max_examples=100, deadline=None)
def test_every_lock_in_a_graph_can_be_taken(plan):
    objects = graphs.build(plan)
    locks = [obj for obj in objects if isinstance(obj, FRESH[:2])]
    for lock in locks:
        lock.acquire(blocking=False)
    for twin in (safepickle.deepcopy(objects), pickle.loads(safepickle.dumps(objects))):
        for lock in twin:
            if isinstance(lock, FRESH[:2]):
                assert lock.acquire(blocking=False)


def without_code(shape):
    """A restored function has code and annotations of its own."""
    return [(kind, None if kind is types.FunctionType else value, parts) for kind, value, parts in shape]
