"""What is pickled and copied in the benchmarks. Importable, so that every pickler sends the classes by name.

Only the standard library, for these run on every interpreter; models and tensors are in :mod:`benchmarks.models`.
"""

from __future__ import annotations

import collections
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "GRAPHS",
    "Color",
    "Config",
    "Leaf",
    "Node",
    "Plain",
    "Record",
    "Slots",
    "SlotsRecord",
    "json_record",
    "json_records",
    "records",
]


@dataclass
class Record:
    """A plain instance with containers, as programs hold them by the thousand."""

    number: int
    values: list[int]
    names: dict[str, int]


@dataclass
class Leaf:
    """A plain instance of numbers and strings."""

    number: int
    weight: float
    name: str


class Plain:
    """As `Leaf`, without the decorator."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.weight = number * 0.5
        self.name = str(number)


class Slots:
    __slots__ = ("number", "pair")

    def __init__(self, number: int) -> None:
        self.number = number
        self.pair = (number, [number])


@dataclass(slots=True)
class SlotsRecord:
    number: int
    weight: float
    name: str


class Color(enum.Enum):
    RED = 1
    GREEN = 2
    BLUE = 3


@dataclass
class Optimizer:
    name: str = "adamw"
    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    groups: list[dict[str, Any]] = field(default_factory=lambda: [{"match": "bias", "weight_decay": 0.0}])


@dataclass
class Block:
    kind: str = "attention"
    heads: int = 8
    dropout: float = 0.0
    color: Color = Color.GREEN


@dataclass
class Network:
    width: int = 512
    blocks: list[Block] = field(default_factory=lambda: [Block(), Block("mlp"), Block("norm")])


@dataclass
class Loader:
    paths: list[str] = field(default_factory=lambda: ["train/a", "train/b"])
    workers: int = 4
    options: dict[str, Any] = field(default_factory=lambda: {"shuffle": True, "seed": 1, "sizes": [256, 256]})


@dataclass
class Config:
    """The configuration of one run, as configuration libraries nest them."""

    name: str = "run"
    network: Network = field(default_factory=Network)
    optimizer: Optimizer = field(default_factory=Optimizer)
    loader: Loader = field(default_factory=Loader)
    tags: dict[str, str] = field(default_factory=lambda: {"team": "a", "stage": "dev"})


class Node:
    """A node of an object graph: it knows its neighbours, and they know it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.label = f"node {number}"
        self.neighbours: list[Node] = []
        self.data = {"weight": number * 0.5}


def records(count: int) -> list[Record]:
    return [Record(number, [number, number + 1], {"a": number}) for number in range(count)]


def leaves(count: int) -> list[Leaf]:
    return [Leaf(number, number * 0.5, str(number)) for number in range(count)]


def plain_objects(count: int) -> list[Plain]:
    return [Plain(number) for number in range(count)]


def slots(count: int) -> list[Slots]:
    return [Slots(number) for number in range(count)]


def slots_records(count: int) -> list[SlotsRecord]:
    return [SlotsRecord(number, number * 0.5, str(number)) for number in range(count)]


def configs(count: int) -> list[Config]:
    return [Config(f"run {number}") for number in range(count)]


def object_graph(count: int) -> list[Node]:
    """Groups of five nodes, each of which knows the others of its group, and one in an earlier group."""
    nodes: list[Node] = []
    for number in range(count):
        group = [Node(5 * number + member) for member in range(5)]
        for node in group:
            node.neighbours = [other for other in group if other is not node]
        if nodes:
            group[0].neighbours.append(nodes[number // 2])
        nodes += group
    return nodes


def json_record(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": f"user {number}",
        "active": number % 2 == 0,
        "score": number / 7,
        "tags": ["a", "b", f"tag {number % 10}"],
        "address": {"street": f"{number} High Street", "city": "Somewhere", "location": [52.5, 13.4]},
        "history": [{"when": number, "what": "created"}, {"when": number + 1, "what": "changed"}],
    }


def json_records(count: int) -> list[dict[str, Any]]:
    return [json_record(number) for number in range(count)]


def nested_list(depth: int) -> list[Any]:
    result: list[Any] = []
    for number in range(depth):
        result = [number, result]
    return result


def nested_mixed(depth: int) -> Any:
    result: Any = 0
    for number in range(depth):
        result = {"level": number, "next": [result]}
    return result


def tree(depth: int) -> list[Any]:
    return [depth] if depth == 0 else [tree(depth - 1) for _ in range(4)]


def shared_dicts(count: int) -> list[dict[str, Any]]:
    shared: list[dict[str, Any]] = [{"number": number, "values": [number]} for number in range(max(1, count // 10))]
    return [shared[number % len(shared)] for number in range(count)]


def network(count: int) -> Any:
    """A random graph of networkx with four times as many edges as nodes; ImportError where that is not installed."""
    import networkx

    return networkx.gnm_random_graph(count, 4 * count, seed=0)


def ordered_dicts(count: int) -> list[Any]:
    return [collections.OrderedDict((str(key), key) for key in range(10)) for _ in range(count)]


def sets(count: int) -> list[set[int]]:
    return [set(range(number, number + 20)) for number in range(count)]


def members(count: int) -> list[Color]:
    return [list(Color)[number % 3] for number in range(count)]


def nested_defaults(count: int) -> Any:
    return [collections.defaultdict(list, {str(key): [key] for key in range(10)}) for _ in range(count)]


#: name -> what makes it, and with which count. The sizes are those of the goals.
GRAPHS: dict[str, tuple[Callable[[int], Any], int]] = {
    "5,000 dataclasses (int, list, dict)": (records, 5_000),
    "5,000 dataclasses of atoms": (leaves, 5_000),
    "5,000 plain objects": (plain_objects, 5_000),
    "5,000 objects with slots": (slots, 5_000),
    "5,000 dataclasses with slots": (slots_records, 5_000),
    "100 nested configs of dataclasses": (configs, 100),
    "object graph with cycles, 1,500 nodes": (object_graph, 300),
    "2,000 JSON-like records": (json_records, 2_000),
    "one small JSON-like record": (lambda count: json_record(7), 1),
    "one dataclass": (lambda count: records(1)[0], 1),
    "200 lists of 1,000 ints": (lambda count: [list(range(1_000)) for _ in range(count)], 200),
    "100,000 floats": (lambda count: [number * 0.5 for number in range(count)], 100_000),
    "1,000 strings of 10 kB": (lambda count: [chr(97 + number % 26) * 10_000 for number in range(count)], 1_000),
    "5,000 immutable tuples": (lambda count: [(number, str(number), (0.5, None)) for number in range(count)], 5_000),
    "dict of 20,000 strings": (lambda count: {f"key {number}": number for number in range(count)}, 20_000),
    "500 sets of 20": (sets, 500),
    "5,000 members of an enum": (members, 5_000),
    "dict of 5,000 lists": (lambda count: {number: [number] for number in range(count)}, 5_000),
    "set of 5,000 tuples": (lambda count: {(number, str(number)) for number in range(count)}, 5_000),
    "lists nested 150 deep": (lambda count: nested_list(150), 1),
    "dicts and lists nested 100 deep": (lambda count: nested_mixed(50), 1),
    "tree of 5,461 lists": (lambda count: tree(6), 1),
    "500 OrderedDicts of 10": (ordered_dicts, 500),
    "500 defaultdicts of 10 lists": (nested_defaults, 500),
    "one list 20,000 times": (lambda count: [[1, 2, 3]] * count, 20_000),
    "500 dicts shared by 5,000": (shared_dicts, 5_000),
    "500 bytearrays of 1 kB": (lambda count: [bytearray(1_000) for _ in range(count)], 500),
    "networkx graph, 500 nodes": (network, 500),
}
