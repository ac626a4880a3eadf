"""Arrays of Python objects: are the objects in them copied as they are elsewhere?"""

from __future__ import annotations

import copy
import threading
import weakref

import pytest

import safepickle

from .ways import every_way

np = pytest.importorskip("numpy")


class Owner:
    """Something with a method, and an attribute to see whose it was that was called."""

    def __init__(self):
        self.calls = 0

    def call(self):
        self.calls += 1


@every_way
def test_objects_in_an_array_are_usable_and_those_of_the_same_call(way):
    owner = Owner()
    array = np.array([[threading.Lock(), owner.call], [owner, weakref.ref(owner)]], dtype=object)
    array[0, 0].acquire()
    twin, twin_owner = way([array, owner])
    assert twin.shape == (2, 2) and twin.dtype == object
    assert twin[0, 0].acquire(timeout=1)
    twin[0, 1]()
    assert (twin_owner.calls, owner.calls) == (1, 0)
    assert twin[1, 0] is twin_owner is twin[1, 1]()


def calling(array):
    return lambda: array[0].call()


def calling_in_field(array):
    return lambda: array["who"][0].call()


@every_way
def test_functions_over_an_array_call_the_objects_that_came_along(way):
    owner = Owner()
    plain, fields = np.array([owner, None], dtype=object), np.zeros(1, dtype=[("number", "f4"), ("who", "O")])
    fields["who"][0] = owner
    twin, hooks = way([owner, [calling(plain), calling_in_field(fields)]])
    for hook in hooks:
        hook()
    assert (twin.calls, owner.calls) == (2, 0)


@every_way
def test_weak_references_to_what_only_an_array_holds(way):
    owner = Owner()
    twin, weak = way([np.array([owner], dtype=object), weakref.ref(owner)])
    assert weak() is twin[0] is not owner


@every_way
def test_objects_in_the_fields_of_an_array(way):
    array = np.zeros((2, 1), dtype=[("number", "i4"), ("lock", "O"), ("pair", "O", (2,))])
    array["number"], array["lock"] = [[1], [2]], threading.Lock()
    array["pair"][0, 0] = (1, [2])
    twin = way(array)
    assert twin.dtype == array.dtype and twin["number"].tolist() == [[1], [2]]
    assert twin["lock"][0, 0] is twin["lock"][1, 0] and twin["lock"][0, 0].acquire(timeout=1)
    assert twin["pair"][0, 0].tolist() == [1, [2]] and twin["pair"][0, 0, 1] is not array["pair"][0, 0, 1]


@every_way
@pytest.mark.parametrize(
    "make",
    [
        lambda a: a, lambda a: a.T, lambda a: a[::2, ::-1], np.asfortranarray, lambda a: a[:0], lambda a: a[0, 0, None],
        lambda a: np.array(None, dtype=object), lambda a: np.empty(2, dtype=object),
    ],
    ids=["plain", "transposed", "strided", "fortran", "empty", "one", "scalar", "without values"],
)  # fmt: skip
def test_arrays_of_objects_keep_shape_and_order(make, way):
    source = np.empty((3, 2), dtype=object)
    for index in np.ndindex(source.shape):
        source[index] = [index]
    array = make(source)
    twin = way(array)
    assert twin.shape == array.shape and twin.tolist() == array.tolist()
    assert all(new is not old or old is None for new, old in zip(twin.flat, array.flat, strict=True))


def test_an_array_that_holds_itself_is_copied():
    array = np.empty(2, dtype=object)
    array[0], array[1] = array, [array]
    twin = safepickle.deepcopy(array)
    assert twin is not array and twin[0] is twin and twin[1][0] is twin


def test_arrays_of_numbers_are_copied_as_numpy_does():
    array = np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1)
    twin, expected = safepickle.deepcopy(array), copy.deepcopy(array)
    assert twin.strides == expected.strides and np.array_equal(twin, array) and not np.shares_memory(twin, array)
    masked = np.ma.array([1, 2], mask=[False, True])
    assert safepickle.deepcopy(masked).mask.tolist() == [False, True]
