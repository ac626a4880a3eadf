"""Queues, views, wrappers, memory views, iterators: the same contents, as independent as each verb promises."""

from __future__ import annotations

import array
import collections
import csv
import functools
import itertools
import os
import pickle
import queue
import random
import re
import struct
import sys
import threading
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

import safepickle
from safepickle.reducers import containers
from tests.helpers import call_with_timeout, fresh_load

from .ways import Way, every_way, pickled_ways

__all__: list[str] = []


class Jobs(queue.Queue):  # type: ignore[type-arg]
    """A queue that holds each item once."""

    def __init__(self, name: str) -> None:
        super().__init__(10)
        self.name = name

    def _init(self, maxsize: int) -> None:
        self.queue: Any = set()

    def _put(self, item: Any) -> None:
        self.queue.add(item)

    def _get(self) -> Any:
        return self.queue.pop()


class Mail(queue.SimpleQueue):  # type: ignore[type-arg]
    """A simple queue with an attribute."""


def drained(obj: Any) -> list[Any]:
    items = []
    while not obj.empty():
        items.append(obj.get_nowait())
    return items


# -- queues -----------------------------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize(
    "make", [queue.Queue, queue.LifoQueue, queue.PriorityQueue, queue.SimpleQueue, queue._PySimpleQueue], ids=str
)
def test_a_queue_keeps_its_items_and_works(way: Way, make: Any) -> None:
    obj = make()
    for number in (3, 1, 2):
        obj.put(number)
    twin = way(obj)
    assert type(twin) is make
    assert drained(twin) == drained(obj)
    threading.Timer(0.01, lambda: twin.put(7)).start()
    assert call_with_timeout(lambda: twin.get(timeout=5)) == 7
    assert obj.empty()


@every_way
def test_a_full_queue_stays_bounded_and_its_join_ends(way: Way) -> None:
    obj: queue.Queue[Any] = queue.Queue(2)
    obj.put("taken")
    obj.get()  # never reported done
    obj.put(1)
    obj.put([2])
    with obj.mutex:
        twin = way(obj)
    assert twin.full()
    with pytest.raises(queue.Full):
        twin.put_nowait(3)
    first, second = twin.get(timeout=5), twin.get(timeout=5)
    assert (first, second) == (1, [2])
    assert second is not obj.queue[1]
    twin.task_done()
    twin.task_done()
    call_with_timeout(twin.join)


@every_way
def test_a_queue_of_another_shape_keeps_it(way: Way) -> None:
    obj = Jobs("once")
    for number in (1, 2, 1):
        obj.put(number)
    twin = way(obj)
    assert (twin.name, twin.maxsize) == ("once", 10)
    assert sorted(drained(twin)) == [1, 2]
    assert obj.qsize() == 2


@every_way
def test_a_simple_queue_with_none_in_it_after_items_were_taken(way: Way) -> None:
    obj = Mail()
    obj.owner = [obj]  # type: ignore[attr-defined]
    for item in (None, "a", None, {}, None):
        obj.put(item)
    obj.get()
    twin = way(obj)
    assert twin.owner[0] is twin
    assert drained(twin) == ["a", None, {}, None]
    assert drained(obj) == ["a", None, {}, None]


@every_way
def test_an_empty_simple_queue(way: Way) -> None:
    obj: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(100):
        obj.put(number)
        obj.get()
    assert way(obj).empty()


@every_way
def test_a_queue_that_holds_itself(way: Way) -> None:
    for make in (queue.Queue, queue.SimpleQueue):
        obj: Any = make()
        obj.put(obj)
        twin = way(obj)
        assert twin.get(timeout=5) is twin


def test_copy_of_a_queue_has_the_same_items_in_a_queue_of_its_own() -> None:
    for make in (queue.Queue, queue.PriorityQueue, queue.SimpleQueue):
        obj: Any = make()
        item = [1]
        obj.put(item)
        twin = safepickle.copy(obj)
        assert twin.get(timeout=5) is item
        assert obj.qsize() == 1


def test_a_queue_works_in_a_fresh_process(tmp_path: Path) -> None:
    obj: queue.PriorityQueue[int] = queue.PriorityQueue()
    obj.put(2)
    obj.put(1)
    code = "print(obj.get(timeout=5), obj.get(timeout=5)); obj.put(3); print(obj.get(timeout=5))"
    assert fresh_load(safepickle.dumps(obj), code, tmp_path).split() == ["1", "2", "3"]


# -- views ------------------------------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("kind", ["keys", "values", "items"])
@pytest.mark.parametrize("make", [dict, collections.OrderedDict, collections.Counter], ids=str)
def test_a_view_is_of_the_same_kind_and_shows_its_dictionary(way: Way, kind: str, make: Any) -> None:
    mapping = make({"b": 1, "a": 2})
    view = getattr(mapping, kind)()
    twin_mapping, twin = way([mapping, view])
    assert type(twin) is type(view)
    assert list(twin) == list(view)
    twin_mapping["c"] = 3
    assert list(twin) == list(getattr(twin_mapping, kind)())
    assert len(view) == 2


@every_way
def test_a_view_alone_and_one_of_a_dictionary_that_holds_it(way: Way) -> None:
    mapping: dict[str, Any] = {"x": [1]}
    mapping["values"] = mapping.values()
    twin = way(mapping)
    assert next(iter(twin["values"])) is twin["x"]
    assert list(way({"only": {}}.keys())) == ["only"]


@every_way
def test_a_dict_view_of_an_ordered_dictionary(way: Way) -> None:
    ordered = collections.OrderedDict(a=1)
    twin = way(dict.keys(ordered))
    assert type(twin) is type({}.keys())
    assert list(twin) == ["a"]


@every_way
def test_abstract_views_of_other_mappings(way: Way) -> None:
    view = collections.ChainMap({"a": 1}, {"b": 2}).items()
    assert sorted(way(view)) == [("a", 1), ("b", 2)]


@every_way
def test_a_read_only_view_shows_its_own_mapping(way: Way) -> None:
    inner = {"layers": [1]}
    twin_inner, twin = way([inner, types.MappingProxyType(inner)])
    twin_inner["more"] = 2
    assert twin == {"layers": [1], "more": 2}
    assert twin["layers"] is not inner["layers"]
    with pytest.raises(TypeError):
        twin["layers"] = 0


@every_way
def test_the_namespace_of_a_class_is_that_of_the_class(way: Way) -> None:
    for cls in (Jobs, int, collections.OrderedDict):
        twin = way(vars(cls))
        assert type(twin) is types.MappingProxyType
        assert twin == vars(cls)


# -- memory -----------------------------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize(
    "view",
    [
        memoryview(b"abcdef"),
        memoryview(bytearray(b"abcdef")),
        memoryview(bytearray(b"abcdef")).toreadonly(),
        memoryview(b"abcdefgh").cast("i"),
        memoryview(bytearray(24)).cast("d"),
        memoryview(bytes(range(12))).cast("B", (3, 4)),
        memoryview(array.array("f", [1.5, 2.5])),
        memoryview(b"abcdef")[::2],
        memoryview(bytearray(b"abcdef"))[1:4],
        memoryview(b""),
        memoryview(bytearray(8)).cast("c"),
    ],
    ids=lambda view: f"{view.format}{view.shape}{'r' if view.readonly else 'w'}",
)
def test_a_memoryview_keeps_its_form_and_contents(way: Way, view: memoryview) -> None:
    twin = way(view)
    assert (twin.format, twin.shape, twin.readonly) == (view.format, view.shape, view.readonly)
    assert twin.tolist() == view.tolist()
    if not view.readonly:
        before = bytes(view)
        twin.cast("B")[0] = 77
        assert bytes(view) == before


@every_way
def test_a_memoryview_goes_on_sharing_its_buffer(way: Way) -> None:
    buffer = bytearray(b"abcd")
    twin_buffer, twin = way([buffer, memoryview(buffer)])
    twin_buffer[0] = ord("z")
    assert bytes(twin) == b"zbcd"
    assert buffer == b"abcd"


@every_way
def test_a_memoryview_goes_on_sharing_its_array(way: Way) -> None:
    numbers = array.array("d", [1.0, 2.0])
    twin_numbers, twin = way([numbers, memoryview(numbers)])
    twin_numbers[0] = 9.0
    assert twin.tolist() == [9.0, 2.0]
    assert numbers.tolist() == [1.0, 2.0]


def test_a_memoryview_goes_out_of_band() -> None:
    view = memoryview(array.array("d", range(1000)))
    buffers: list[pickle.PickleBuffer] = []
    data = safepickle.dumps(view, 5, buffer_callback=buffers.append)
    assert len(data) < 200
    assert len(buffers) == 1
    twin = safepickle.loads(data, buffers=buffers)
    assert twin.tolist() == view.tolist()


@every_way
def test_a_released_memoryview_is_released(way: Way) -> None:
    view = memoryview(b"x")
    view.release()
    with pytest.raises(ValueError, match="released"):
        len(way(view))


def test_a_memoryview_that_cannot_be_made_again_is_refused() -> None:
    numpy = pytest.importorskip("numpy")
    view = memoryview(numpy.zeros(2, dtype=[("a", "i4"), ("b", "f8")]))
    with pytest.raises(safepickle.PicklingError, match="keep that one"):
        safepickle.dumps({"view": view})


# -- small things -----------------------------------------------------------------------------------------------------


@every_way
def test_a_match_is_the_same_match(way: Way) -> None:
    pattern = re.compile(r"(?P<word>\w+?)(\d)?\b")
    for match in [
        *pattern.finditer("ab1 cd, ef2"),
        pattern.match("ab1 cd", 4),
        pattern.fullmatch("xyz9"),
        pattern.search("  q ", 1, 3),
    ]:
        assert match is not None
        twin = way(match)
        assert twin.regs == match.regs
        assert twin.groupdict() == match.groupdict()
        assert twin.string == match.string
        assert twin.expand(r"<\g<word>>") == match.expand(r"<\g<word>>")


@every_way
def test_a_struct_and_a_csv_dialect(way: Way) -> None:
    assert way(struct.Struct("<2if")).pack(1, 2, 3.0) == struct.pack("<2if", 1, 2, 3.0)
    dialect = csv.reader([], delimiter=";", quoting=csv.QUOTE_NONE).dialect
    twin = way(dialect)
    assert (twin.delimiter, twin.quoting) == (";", csv.QUOTE_NONE)
    assert list(csv.reader(["a;b"], twin)) == [["a", "b"]]


@every_way
def test_system_randomness_needs_no_state(way: Way) -> None:
    assert 0 <= way(random.SystemRandom()).random() < 1
    seeded = random.Random(3)
    assert way(seeded).random() == random.Random(3).random()


# -- iterators --------------------------------------------------------------------------------------------------------


def iterators() -> dict[str, Any]:
    """Iterators that are in the middle."""
    made = {
        "list": iter([1, 2, 3]),
        "tuple": iter((1, 2, 3)),
        "dict": iter({"a": 1, "b": 2}),
        "items": iter({"a": 1, "b": 2}.items()),
        "str": iter("abc"),
        "range": iter(range(5)),
        "reversed": reversed([1, 2, 3]),
        "enumerate": enumerate("abc"),
        "zip": zip([1, 2, 3], "abc", strict=True),
        "map": map(abs, [-1, -2, -3]),
        "filter": filter(None, [1, 0, 2, 3]),
        "call": iter(functools.partial(next, itertools.count()), 5),
        "deque": iter(collections.deque([1, 2, 3])),
    }
    for iterator in made.values():
        next(iterator)
    return made


@every_way
@pytest.mark.parametrize("name", list(iterators()))
def test_an_iterator_goes_on_where_it_was(way: Way, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        twin = way(iterators()[name])
    expected = list(iterators()[name])
    assert list(twin) == expected
    original = iterators()[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        way(original)
    assert list(original) == expected, "the attempt consumed the iterator"


@every_way
def test_two_iterators_over_one_list_still_share_it(way: Way) -> None:
    rows = [1, 2, 3]
    first = iter(rows)
    next(first)
    twin_rows, twin = way([rows, first])
    twin_rows.append(4)
    assert list(twin) == [2, 3, 4]


def itertools_in_the_middle() -> dict[str, Any]:
    """Iterators of :mod:`itertools` whose state shows, each in the middle."""
    made = {
        "count": itertools.count(5),
        "count by 2": itertools.count(5, 2),
        "count floats": itertools.count(0.5, 0.25),
        "count far": itertools.count(10**20),
        "count down": itertools.count(5, -1),
        "repeat": itertools.repeat("x", 4),
        "repeat for ever": itertools.repeat(None),
        "starmap": itertools.starmap(pow, [(1, 2), (2, 3), (3, 2)]),
        "filterfalse": itertools.filterfalse(None, [0, 1, 0, 2, 0]),
        "compress": itertools.compress("abcde", [1, 0, 1, 0, 1]),
        "chain": itertools.chain([1, 2], [3], [4, 5]),
        "chain lists": itertools.chain.from_iterable([[1], [2, 3]]),
        "pairwise": itertools.pairwise([1, 2, 3, 4]),
    }
    for iterator in made.values():
        next(iterator)
    return {
        **made,
        "chain at its start": itertools.chain([1], [2]),
        "pairwise at its start": itertools.pairwise([1, 2, 3]),
    }


REDUCERS = {**containers._ITERTOOLS, "pairwise": containers.reduce_pairwise}


@pytest.mark.parametrize("name", list(itertools_in_the_middle()))
def test_the_rules_for_itertools_see_the_state_without_its_help(name: str) -> None:
    iterator, original = itertools_in_the_middle()[name], itertools_in_the_middle()[name]
    function, arguments = REDUCERS[name.split()[0]](iterator)
    assert list(itertools.islice(function(*arguments), 6)) == list(itertools.islice(original, 6))


@every_way
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", list(itertools_in_the_middle()))
def test_iterators_of_itertools_go_on_where_they_were(way: Way, name: str) -> None:
    twin = way(itertools_in_the_middle()[name])
    assert list(itertools.islice(twin, 6)) == list(itertools.islice(itertools_in_the_middle()[name], 6))


@pytest.mark.skipif(sys.version_info < (3, 14), reason="Python pickles these itself before 3.14")
def test_iterators_whose_state_is_hidden_are_refused() -> None:
    with pytest.raises(safepickle.PicklingError, match="keep what it is made from"):
        safepickle.dumps([itertools.product("ab", repeat=2)])


@pickled_ways
def test_an_iterator_over_a_generator_is_refused_and_not_consumed(way: Way) -> None:
    squares = (n * n for n in range(3))
    with pytest.raises(safepickle.PicklingError, match="generator"):
        way(zip(squares, squares))  # noqa: B905
    assert list(squares) == [0, 1, 4]


def test_directory_entries_are_refused() -> None:
    with os.scandir(os.curdir) as entries:
        entry = next(entries)
        with pytest.raises(safepickle.PicklingError, match="path"):
            safepickle.dumps(entry)
