"""Equal objects have equal digests, in every process; others have others."""

from __future__ import annotations

import collections
import copy
import datetime
import decimal
import enum
import fractions
import random
import sys
import threading
import time

import pytest

import safepickle
from safepickle import digest

from .helpers import run_python


class Node:
    def __init__(self, value=None):
        self.value = value


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Pair:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


VALUES = [
    None, True, False, 0, 1, -1, 255, 256, -128, 2**100, -(2**100), 0.0, -0.0, 1.0, float("inf"), float("nan"),
    1j, 1 + 0j, "", "a", "1", "é", "\ud800", b"", b"a", bytearray(b"a"), (), (1,), [], [1], [[1]], {}, {"a": 1},
    {1: "a"}, set(), {1}, frozenset(), frozenset({1}),
    ..., NotImplemented, range(3), slice(1, 2), int, Node, len, Color.RED, Color.BLUE, datetime.date(2020, 1, 1),
    decimal.Decimal("1.0"), decimal.Decimal("1.00"), fractions.Fraction(1, 3), collections.OrderedDict(a=1),
    collections.deque([1]), collections.deque([1], 5), collections.Counter("aab"), Node(), Node(1), Pair(1, 2),
    Pair(2, 1), "x" * 63, "x" * 64, "x" * 65, "x" * 66, [1, 2], [2, 1], ["ab", "c"], ["a", "bc"], [["a"], "b"],
    ["a", ["b"]], {"a": 1, "b": 2}, {"b": 2, "a": 1}, {1, 2}, {frozenset({1}), 2}, {(1, 2), 3}, {Color.RED, 1},
]  # fmt: skip


def test_different_values_have_different_digests() -> None:
    digests = [digest(value) for value in VALUES]
    assert len(set(digests)) == len(digests)
    assert all(len(d) == 64 and int(d, 16) >= 0 for d in digests)


def test_a_copy_has_the_digest_of_the_original() -> None:
    for value in VALUES:
        assert (
            digest(safepickle.loads(safepickle.dumps(value))) == digest(value) == digest(safepickle.deepcopy(value))
        ), value
    assert digest(VALUES) == digest(safepickle.deepcopy(VALUES))


def test_the_order_of_dictionaries_counts_that_of_sets_does_not() -> None:
    words = [f"word {i}" for i in range(50)]
    backwards = words[::-1]
    assert digest(set(words)) == digest(set(backwards)) == digest({*words})
    assert digest(dict.fromkeys(words)) != digest(dict.fromkeys(reversed(words)))
    one, two = set(range(1000)), set(range(1000, 2000))
    two.update(range(1000))
    two.difference_update(range(1000, 2000))
    assert list(one) == sorted(one) and digest(one) == digest(two)


def test_the_order_in_which_attributes_were_set_does_not_count() -> None:
    one, two = Node(), Node()
    one.a, one.b = 1, 2
    two.b, two.a = 2, 1
    assert digest(one) == digest(two)


def test_which_equal_parts_are_one_object_does_not_count() -> None:
    a, b = "some text with spaces", "".join(["some text ", "with spaces"])
    assert a is not b and digest([a, a]) == digest([a, b])
    items, twin = [1, (2, 3)], [1, (2, 3)]
    assert digest([items, items]) == digest([items, twin])
    day = datetime.date(2020, 1, 1)
    assert digest([day, day]) == digest([day, datetime.date(2020, 1, 1)])
    big, other = 10**40, int("1" + "0" * 40)
    assert big is not other and digest((big, big)) == digest((big, other))


def test_types_count_where_values_are_equal() -> None:
    assert len({digest(x) for x in (1, 1.0, True, decimal.Decimal(1), 1 + 0j, fractions.Fraction(1))}) == 6
    assert digest((1, 2)) != digest([1, 2]) and digest({1}) != digest(frozenset({1}))

    class Sub(list):
        pass

    assert digest(Sub([1])) != digest([1])


# -- cycles and depth --------------------------------------------------------------------------------------------------


def chain(length: int, value: object = None):
    head = node = Node(0)
    for i in range(1, length):
        node.next = Node(i if value is None else value)
        node = node.next
    return head


def nested(depth: int, core: object):
    for _ in range(depth):
        core = [core]
    return core


def test_depth_does_not_matter() -> None:
    assert digest(chain(3_000)) == digest(chain(3_000)) != digest(chain(2_999))
    assert digest(nested(100_000, 1)) == digest(nested(100_000, 1)) != digest(nested(100_000, 2))
    deep: object = ()
    for i in range(20_000):
        deep = (deep, i) if i % 2 else {i: deep}
    assert digest(deep)
    deep_set: object = frozenset()
    for i in range(5_000):
        deep_set = frozenset({deep_set, i})
    assert digest(deep_set)


def test_parts_that_are_shared_many_times_are_hashed_once() -> None:
    shared: object = ("leaf",)
    for _ in range(200):
        shared = (shared, shared)
    assert digest(shared)
    other: object = frozenset({"leaf"})
    for i in range(200):
        other = frozenset({(other, i), (other, -i - 1)})
    assert digest(other)


def test_cycles() -> None:
    def loop(*values):
        items = list(values)
        items.append(items)
        return items

    assert digest(loop(1)) == digest(loop(1)) != digest(loop(2))
    a, b = [], []
    a.append(b)
    b.append(a)
    c: list = []
    c.append(c)
    assert digest(a) == digest(b) and digest(a) != digest(c)
    node = Node()
    node.me = node
    twin = Node()
    twin.me = twin
    assert digest(node) == digest(twin) == digest(copy.deepcopy(node))
    table: dict = {}
    table["self"] = (table, [table])
    assert digest(table) == digest(copy.deepcopy(table))


def ring(values):
    nodes = [Node(v) for v in values]
    for left, right in zip(nodes, nodes[1:] + nodes[:1], strict=True):
        left.next, right.previous = right, left
    return nodes


def test_a_ring_with_both_directions_is_told_apart_by_its_contents_and_length() -> None:
    first = ring(range(3_000))[0]
    assert digest(first) == digest(ring(range(3_000))[0])
    changed = ring(range(3_000))
    changed[1_500].value = -1
    assert digest(first) != digest(changed[0])
    assert digest(ring([0] * 100)[0]) != digest(ring([0] * 101)[0])
    assert digest(ring([1, 1, 2, 2])[0]) != digest(ring([1, 2, 1, 2])[0])


def test_where_one_enters_a_ring_counts() -> None:
    nodes = ring(range(5))
    assert len({digest(node) for node in nodes}) == 5
    assert digest(nodes) == digest(ring(range(5))) != digest(nodes[::-1])


def test_sets_whose_elements_lead_back_to_the_set() -> None:
    def family(names):
        members = {Node(name) for name in names}
        for member in members:
            member.family = members
        return members

    names = [f"n{i}" for i in range(20)]
    assert digest(family(names)) == digest(family(reversed(names))) != digest(family(names[1:]))
    same = family(["x"] * 5)
    assert digest(same) == digest(family(["x"] * 5)) != digest(family(["x"] * 6))


def graph(edges, labels=None):
    nodes = {n: Node(labels[n] if labels else None) for edge in edges for n in edge}
    for node in nodes.values():
        node.neighbours = set()
    for a, b in edges:
        nodes[a].neighbours.add(nodes[b])
        nodes[b].neighbours.add(nodes[a])
    return set(nodes.values())


def test_graphs_with_sets_of_neighbours() -> None:
    rng = random.Random(5)
    edges = [(rng.randrange(60), rng.randrange(60)) for _ in range(200)]
    labels = {i: f"node {i % 7}" for i in range(60)}
    shuffled = edges[:]
    rng.shuffle(shuffled)
    renamed = list(range(60))
    rng.shuffle(renamed)
    same = [(renamed[a], renamed[b]) for a, b in shuffled]
    same_labels = {renamed[i]: label for i, label in labels.items()}
    assert digest(graph(edges, labels)) == digest(graph(same, same_labels))
    assert digest(graph(edges, labels)) != digest(graph(edges[1:], labels))
    assert digest(graph(edges)) == digest(graph(same)) != digest(graph(edges, labels))
    path = [(i, i + 1) for i in range(30)]
    assert digest(graph(path)) != digest(graph([*path, (30, 31)]))


def test_sets_on_large_cycles_take_bounded_time() -> None:
    path = [(i, i + 1) for i in range(400)]
    start = time.perf_counter()
    assert digest(graph(path)) == digest(graph(path[::-1]))
    nodes = set(ring(range(300)))
    assert digest([nodes, [1]]) == digest([set(ring(range(300))), [1]])
    assert time.perf_counter() - start < 60


# -- what is more than data --------------------------------------------------------------------------------------------


def test_functions_and_classes_by_what_they_are_not_by_where() -> None:
    def define(text, name="<cell>"):
        space = {"__name__": "__main__", "K": 3}
        exec(compile(text, name, "exec"), space)
        return space["f"]

    f = define("def f(x):\n    return x + K\n")
    assert digest(f) == digest(define("\n\n# moved\ndef f(x):  # commented\n    return x + K\n", "<other>"))
    assert digest(f) != digest(define("def f(x):\n    return x - K\n"))
    changed = define("def f(x):\n    return x + K\n")
    changed.__globals__["K"] = 4
    assert digest(f) != digest(changed)
    changed.__globals__["K"] = 3
    changed.__globals__["unused"] = object
    assert digest(f) == digest(changed)
    changed.note = 1
    assert digest(f) != digest(changed)


def test_closures_by_their_contents() -> None:
    def make(n):
        return lambda x: x + n

    assert digest(make(1)) == digest(make(1)) != digest(make(2))
    assert digest([make(1), make(1)]) == digest([make(1)] * 2)


def test_classes_by_their_contents() -> None:
    def make(n):
        class Local:
            value = n
            names = {"a", "b", "c"}

            def method(self):
                return Local, n

        return Local

    assert digest(make(1)) == digest(make(1)) != digest(make(2))
    assert digest(make(1)()) == digest(make(1)()) != digest(make(1))
    cls = make(1)
    before = digest(cls)
    held = cls.names
    safepickle.dumps(cls())
    assert digest(cls) == before and held is cls.names


def test_what_has_a_name_is_that_name() -> None:
    import json

    assert digest(json.loads) != digest(json.load) and digest(json) != digest(json.decoder)
    assert digest(json.JSONDecoder) != digest(json.JSONEncoder)
    assert digest([].append) != digest([1].append) and digest("a".join) == digest("a".join)


def test_mutual_recursion_of_many_functions_takes_no_time() -> None:
    text = "".join(f"def f{i}(n):\n    return [{', '.join(f'f{j}' for j in range(30))}]\n" for i in range(30))
    space = {"__name__": "__main__"}
    exec(text, space)
    other = {"__name__": "__main__"}
    exec(text, other)
    start = time.perf_counter()
    assert digest(space["f0"]) == digest(other["f0"])
    assert digest(space["f0"]) != digest(space["f1"])
    assert time.perf_counter() - start < 20


def test_arrays_by_their_values() -> None:
    np = pytest.importorskip("numpy")
    a = np.arange(12.0).reshape(3, 4)
    assert (
        digest(a)
        == digest(a.copy())
        == digest(np.asfortranarray(a))
        == digest(np.arange(24.0).reshape(3, 8)[:, ::2] / 2)
    )
    others = [
        a.T,
        a.astype("f4"),
        a.reshape(4, 3),
        a + 1,
        a.astype(">f8"),
        a.tolist(),
        a[:2],
        np.array(1.0),
        np.float64(1.0),
    ]
    assert len({digest(x) for x in [a, *others]}) == len(others) + 1
    objects = np.array([["a", None], [{1}, 2.5]], dtype=object)
    assert digest(objects) == digest(copy.deepcopy(objects)) != digest(objects.T)
    structured = np.zeros(2, dtype=[("x", "i4"), ("y", "f8")])
    assert digest(structured) == digest(structured.copy()) and digest(np.array(["é", "b"])) == digest(
        np.array(["é", "b"])
    )
    cyclic, twin = np.empty(1, dtype=object), np.empty(1, dtype=object)
    cyclic[0], twin[0] = [cyclic], [twin]
    assert digest(cyclic) == digest(twin)


def test_tensors_by_their_values() -> None:
    torch = pytest.importorskip("torch")
    base = torch.arange(12.0).reshape(3, 4)
    assert digest(base) == digest(base.clone()) == digest(torch.arange(24.0).reshape(3, 8)[:, ::2] / 2)
    assert digest(base[1:]) == digest(base[1:].clone())
    parameter = torch.nn.Parameter(base.clone())
    others = [
        base.T,
        base.half(),
        base.bfloat16(),
        base + 1,
        parameter,
        base.clone().requires_grad_(),
        base.int(),
        base.to(torch.cfloat),
    ]
    assert len({digest(x) for x in [base, *others]}) == len(others) + 1
    assert digest(parameter) == digest(torch.nn.Parameter(base.clone()))
    assert digest(base.to(torch.cfloat).conj()) == digest(base.to(torch.cfloat).conj().resolve_conj())
    assert digest(torch.zeros(0)) == digest(torch.empty(0)) and digest(torch.tensor(1)) == digest(torch.tensor(1))
    torch.manual_seed(0)
    one = torch.nn.Linear(2, 2)
    two = torch.nn.Linear(2, 2)
    assert digest(one) != digest(two)
    two.load_state_dict(one.state_dict())
    assert digest(one) == digest(two) == digest(safepickle.deepcopy(one))


def test_objects_with_locks_and_other_rules() -> None:
    assert digest([threading.Lock()]) == digest([threading.Lock()])
    assert digest(Node(lambda: 1)) == digest(Node(lambda: 1))

    class Handle:
        def __init__(self, path):
            self.path, self.socket = path, object()

    mine = safepickle.Registry()
    mine.register(Handle, lambda handle: (Handle, (handle.path,)))
    assert (
        digest(Handle("a"), registry=mine) == digest(Handle("a"), registry=mine) != digest(Handle("b"), registry=mine)
    )


def test_a_part_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(safepickle.PicklingError, match=r"'generator' at obj\['rows'\]\[1\]"):
        digest({"rows": [1, (i for i in ())]})

    class Local:
        running = (i for i in ())

    with pytest.raises(safepickle.PicklingError, match=r"at obj\.__class__\.running"):
        digest(Local())


def test_the_same_in_every_process() -> None:
    code = """
        import collections, datetime, enum, functools, sys
        import safepickle
        class Color(enum.Enum):
            RED = "r"
            BLUE = "b"
        class Node:
            def __init__(self, **fields):
                self.__dict__.update(fields)
        nodes = [Node(name=n) for n in "abcdef"]
        for node in nodes:
            node.all = set(nodes)
        loop = []
        loop.append((loop, {"x", "y", "z"}))
        for obj in (
            {"a", "b", "c"}, [frozenset({("x", 1), ("y", 2)})], nodes, loop, Color, {Color.RED, Color.BLUE},
            lambda x: x in {"p", "q", "r"}, functools.partial(print, sep={"s"}),
            {datetime.date(2020, 1, i) for i in range(1, 9)}, Node, {Node, Color, int, str, len},
            {frozenset({frozenset({"a", "b"}), "c"}), "d"}, collections.Counter("abracadabra"),
        ):
            print(safepickle.digest(obj))
    """
    outputs = {run_python(code, env={"PYTHONHASHSEED": seed}) for seed in ("0", "1", "2", "99")}
    assert len(outputs) == 1 and len(set(outputs.pop().split())) == 13


def test_digests_of_data_are_the_same_in_every_version_of_python() -> None:
    assert digest({"lr": 0.1, "names": ["a", b"b", None, True, 2**70], "set": {1, "x", (2.5,)}, "z": 1j}) == DATA_DIGEST
    assert digest([datetime.date(2020, 1, 2), collections.OrderedDict(b=1), range(5)]) == OBJECTS_DIGEST


DATA_DIGEST = "75453b7569cfe2118a1d7d92de6807b6d9cf302ef3609828bfa14bb2a798c16c"
OBJECTS_DIGEST = "df7b478fb844ce3b55d7df423489286f2386466a40a53f5f94b5c11eb4d9d0ba"


def test_a_million_numbers_take_seconds() -> None:
    rows = list(range(1_000_000))
    start = time.perf_counter()
    digest(rows)
    assert time.perf_counter() - start < 20


def test_the_recursion_limit_is_left_alone() -> None:
    before = sys.getrecursionlimit()
    digest(chain(5_000))
    assert sys.getrecursionlimit() == before
