"""Equal programs write equal bytes, and small ones."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import safepickle

from .helpers import run_python

PROGRAM = """
import abc, dataclasses, enum, functools, hashlib, sys, typing
import safepickle

T = typing.TypeVar("T", bound="Box")
NAMES = {"alpha", "beta", "gamma", "delta", "epsilon"}
FROZEN = frozenset(NAMES)

class Color(enum.Enum):
    RED = "r"
    BLUE = "b"
    known = staticmethod(lambda: NAMES)

class Perm(enum.Flag):
    R = 1
    W = 2

class Shape(abc.ABC):
    kinds = {"round", "square", "flat", "tall"}
    pairs = {("a", 1), ("b", 2), ("c", 3)}
    @abc.abstractmethod
    def area(self): ...
    @abc.abstractmethod
    def bounds(self): ...
Shape.register(int)
Shape.register(str)
Shape.register(float)

@dataclasses.dataclass(frozen=True)
class Config:
    name: str = "n"
    colors = {Color.RED, Color.BLUE}

class Point(typing.NamedTuple):
    x: int

class Runs(typing.Protocol):
    a: int
    b: int
    def run(self, x): ...
    def stop(self): ...
    def wait(self): ...

class Box(typing.Generic[T]):
    def __init__(self, *items):
        self.items, self.first, self.last, self.size = items, None, None, 0
    def contains(self, x):
        return x in {"one", "two", "three", "four"} and x in NAMES

def make(n):
    seen = {"p", "q", "r"}
    def inner(x, y=frozenset({"d", "e", "f"})):
        seen.add(x)
        return x in FROZEN, [c for c in "abc" if c in {"a", "b", "c"}], n
    return inner

things = {
    "lambda": lambda x: x in {"a", "b", "c", "d"}, "closure": make(1), "enum": Color.RED, "flag": Perm.R | Perm.W,
    "abstract": Shape, "dataclass": Config(), "named tuple": Point(1), "protocol": Runs, "generic": Box[T],
    "instance": Box(1), "partial": functools.partial(make, 2), "type variable": T,
}
for name, thing in things.items():
    print(name, hashlib.sha256(safepickle.dumps(thing)).hexdigest(), safepickle.digest(thing))
print("all", hashlib.sha256(safepickle.dumps(list(things.values()))).hexdigest())
"""


def test_two_processes_with_other_hash_seeds_write_the_same_bytes() -> None:
    outputs = [run_python(PROGRAM, env={"PYTHONHASHSEED": seed}).splitlines() for seed in ("0", "1", "12345")]
    for lines in zip(*outputs, strict=True):
        assert len(set(lines)) == 1, lines


def test_a_module_by_value_gives_the_same_bytes_compiled_or_read_from_a_cache(tmp_path: Path) -> None:
    (tmp_path / "valued.py").write_text(
        "TEXT = 'a text with spaces'\n"
        "class Box:\n    'A docstring with spaces.'\n    def get(self, x='a text with spaces'):\n"
        "        'a text with spaces'\n        return x, 'a text with spaces', ('a text with spaces', TEXT)\n"
        "def f():\n    return lambda: ('a text with spaces', Box)\n"
    )
    code = """
        import cloudpickle, hashlib, safepickle, valued
        cloudpickle.register_pickle_by_value(valued)
        data = safepickle.dumps([valued.Box, valued.f, valued.f()])
        print(valued.__cached__ is not None, hashlib.sha256(data).hexdigest())
    """
    options = {
        "pythonpath": [tmp_path],
        "env": {"PYTHONDONTWRITEBYTECODE": None, "PYTHONPYCACHEPREFIX": str(tmp_path / "cache")},
    }
    outputs = {run_python(code, **options) for _ in range(3)}
    assert list((tmp_path / "cache").rglob("valued*.pyc")) and len(outputs) == 1


def test_dumping_twice_gives_the_same_bytes() -> None:
    class Local:
        names = {"a", "b"}

        def method(self):
            return Local

    k = [1]
    things = [Local, Local().method, lambda: k, Local()]
    first = safepickle.dumps(things)
    safepickle.loads(first)
    assert safepickle.dumps(things) == first


def test_a_set_that_somebody_else_holds_too_stays_one_set() -> None:
    shared = {"a", "b", "c"}

    class Local:
        alone = {"x", "y", "z"}
        seen = shared

    function = eval("lambda: NAMES", {"NAMES": shared})
    back, names, other = safepickle.loads(safepickle.dumps([function, shared, lambda: shared]))
    assert back() is names is other()
    assert function() is shared


@pytest.mark.parametrize("kind", ["function", "class"])
def test_an_importable_function_or_class_costs_microseconds(kind: str) -> None:
    import json

    from safepickle.classes import reduce_class
    from safepickle.sources import reduce_function

    class Pickler:
        canonical, protocol, registry = False, 4, safepickle.registry.default_registry

    reduce, obj = (reduce_function, json.loads) if kind == "function" else (reduce_class, json.JSONDecoder)
    assert reduce(obj, Pickler) is NotImplemented
    best = min(_seconds(lambda: [reduce(obj, Pickler) for _ in range(1000)]) for _ in range(5))
    assert best / 1000 < 50e-6


def _seconds(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


NESTED = """
import enum, hashlib, safepickle

class Group(enum.Enum):
    LOW = frozenset({"a", "b", "c"})
    HIGH = frozenset({"x", "y", "z"})

TABLE = {"a": [{"x", "y", "z"}, ({"u", "v", "w"},)], "b": {"m", "n", "o"}}

class Options:
    kinds = {"fast": {"p", "q", "r"}, "slow": [{"s", "t", "u"}]}

def choose(value, allowed=[{"i", "j", "k"}], *, tags={"of": {"c", "d", "e"}}):
    return TABLE
choose.names = {"f", "g", "h"}

for thing in [Options, choose, Group, Group.LOW, [choose, Options, lambda: TABLE]]:
    print(hashlib.sha256(safepickle.dumps(thing)).hexdigest())
"""


def test_sets_inside_of_the_containers_that_code_holds_are_written_in_order() -> None:
    assert len({run_python(NESTED, env={"PYTHONHASHSEED": seed}) for seed in ("0", "1", "2", "3", "12345")}) == 1


def test_a_container_with_sets_that_two_functions_read_stays_one_container() -> None:
    variables = {"TABLE": {"a": [{"x", "y"}], "b": 1}}
    first, second = eval("lambda: TABLE", variables), eval("lambda k: TABLE[k]", variables)
    one, two = safepickle.loads(safepickle.dumps([first, second]))
    assert one() == {"a": [{"x", "y"}], "b": 1}
    one()["a"][0].add("z")
    assert two("a") == [{"x", "y", "z"}]


def test_a_container_with_sets_that_somebody_else_holds_too_stays_one_container() -> None:
    table = {"a": {"x", "y"}, "b": [{"p", "q"}]}
    inner = table["b"]
    function = eval("lambda: TABLE", {"TABLE": table})
    back, same, part = safepickle.loads(safepickle.dumps([function, table, inner]))
    assert back() is same and same["b"] is part and back() == table


def test_a_container_a_part_of_which_somebody_else_holds_shares_that_part() -> None:
    part = [{"p", "q"}]
    function = eval("lambda: TABLE", {"TABLE": {"a": {"x", "y"}, "b": part}})
    back, same = safepickle.loads(safepickle.dumps([function, part]))
    assert back()["b"] is same and back() == {"a": {"x", "y"}, "b": [{"p", "q"}]}


def test_deep_and_long_containers_that_code_holds_are_pickled() -> None:
    deep: list = [{"a"}]
    for _ in range(3000):
        deep = [deep]
    variables = {"DEEP": deep, "LONG": [[i] for i in range(20_000)]}
    del deep
    back = safepickle.loads(safepickle.dumps(eval("lambda: (DEEP, LONG)", variables)))
    node, long = back()
    for _ in range(3000):
        (node,) = node
    assert node == [{"a"}] and long[-1] == [19_999]
