"""Weak references stay weak, lead to what was restored or copied, and bring nothing else into a pickle."""

from __future__ import annotations

import enum
import functools
import gc
import itertools
import pickle
import sys
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import safepickle
from tests.helpers import fresh_load

from .ways import Way, every_way, pickled_ways

__all__: list[str] = []


class Node:
    """An object with any attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def method(self) -> str:
        return f"method of {self.name}"


class Named(weakref.ref):  # type: ignore[type-arg]
    """A reference with an attribute and a slot."""

    __slots__ = ("__dict__", "key")


class Table(weakref.WeakValueDictionary):  # type: ignore[type-arg]
    def __init__(self, title: str) -> None:
        super().__init__()
        self.title = title


class Sized(weakref.WeakKeyDictionary):  # type: ignore[type-arg]
    limit = 3


class Group(weakref.WeakSet):  # type: ignore[type-arg]
    """A set with an attribute."""


class Colour(enum.Enum):
    RED = 1


def function() -> None:
    """A function with a name."""


def dead(reference: Any) -> bool:
    gc.collect()
    return reference() is None


OUTSIDE = Node(name="outside")


# -- references -------------------------------------------------------------------------------------------------------


@every_way
def test_a_child_refers_to_its_new_parent(way: Way) -> None:
    parent = Node(name="parent")
    parent.child = Node(parent=weakref.ref(parent))
    twin = way(parent)
    assert twin.child.parent() is twin
    child = twin.child
    del twin
    assert dead(child.parent), "no longer weak"


@every_way
def test_a_reference_that_comes_before_its_referent(way: Way) -> None:
    node = Node(name="node")
    node.itself = weakref.ref(node)
    first, second = way([weakref.ref(node), node])
    assert first() is second
    assert second.itself() is second
    assert second is not node
    del second
    assert dead(first)


@every_way
def test_the_same_reference_stays_one_object(way: Way) -> None:
    node = Node()
    twin = way([weakref.ref(node), weakref.ref(node), node])
    assert twin[0] is twin[1]


@pickled_ways
def test_a_referent_outside_of_the_pickle_is_dead(way: Way) -> None:
    twin = way(Node(elsewhere=weakref.ref(OUTSIDE)))
    assert dead(twin.elsewhere)


def test_a_referent_outside_of_the_copy_is_the_original() -> None:
    twin = safepickle.deepcopy(Node(elsewhere=weakref.ref(OUTSIDE)))
    assert twin.elsewhere() is OUTSIDE


@every_way
def test_a_dead_reference_stays_dead(way: Way) -> None:
    reference = weakref.ref(Node())
    assert dead(reference)
    assert dead(way([reference])[0])


def test_what_only_weak_references_hold_is_not_written() -> None:
    heavy = Node(payload="x" * 100_000, unpicklable=(n for n in "abc"))
    chain = Node(next=weakref.ref(heavy))
    heavy.back = chain
    assert len(safepickle.dumps([weakref.ref(heavy), weakref.ref(chain), chain])) < 1_000


@pickled_ways
def test_a_weak_cycle_without_an_owner_is_dead(way: Way) -> None:
    one, other = Node(), Node()
    one.other, other.one = other, weakref.ref(one)
    twin = way([weakref.ref(one)])
    assert dead(twin[0])


@every_way
def test_chains_of_weak_references(way: Way) -> None:
    nodes = [Node(number=n) for n in range(50)]
    for node, following in itertools.pairwise(nodes):
        node.next = weakref.ref(following)
    twin = way(nodes)
    assert [node.next().number for node in twin[:-1]] == list(range(1, 50))
    assert all(node.next() is following for node, following in itertools.pairwise(twin))


@every_way
def test_a_doubly_linked_list_of_3000(way: Way) -> None:
    head = node = Node(number=0)
    for number in range(1, 3000):
        node.next = Node(number=number, previous=weakref.ref(node))
        node = node.next
    twin = way(head)
    count = 0
    while hasattr(twin, "next"):
        assert twin.next.previous() is twin
        twin, count = twin.next, count + 1
    assert count == 2999
    while hasattr(twin, "previous"):
        above = twin.previous()
        if above is None:
            break
        twin = above
    unlink(head)


def unlink(node: Any) -> None:
    """Take a long chain apart, so that freeing it does not recurse."""
    while node is not None:
        node, following = node.__dict__.pop("next", None), node
        del following


@every_way
def test_3000_siblings_that_refer_forward(way: Way) -> None:
    nodes = [Node() for _ in range(3000)]
    for node, following in itertools.pairwise(nodes):
        node.next = weakref.ref(following)
    twin = way(nodes)
    assert all(node.next() is following for node, following in itertools.pairwise(twin))


@every_way
def test_a_callback_is_called_for_the_new_referent(way: Way) -> None:
    node = Node()
    node.log = Node(gone=[])
    holder = Node(log=node.log, node=node)
    holder.reference = weakref.ref(node, functools.partial(note, node.log.gone))
    twin = way(holder)
    assert twin.reference() is twin.node
    del twin.node
    assert dead(twin.reference)
    assert twin.log.gone == ["gone"]
    assert node.log.gone == []


def note(log: list[str], reference: Any) -> None:
    log.append("gone")


@every_way
def test_a_subclass_keeps_what_it_has(way: Way) -> None:
    node = Node()
    reference = Named(node)
    reference.key, reference.extra = "k", [1]  # type: ignore[attr-defined]
    twin, new = way([reference, node])
    assert type(twin) is Named
    assert (twin.key, twin.extra) == ("k", [1])
    assert twin() is new


@every_way
def test_references_as_keys_of_a_dictionary(way: Way) -> None:
    node = Node()
    twin = way({"table": {weakref.ref(node): "here", weakref.ref(OUTSIDE): "there"}, "node": node})
    assert twin["table"][weakref.ref(twin["node"])] == "here"
    assert len(twin["table"]) == 2


@every_way
@pytest.mark.parametrize(
    "referent",
    [Node, function, types, Colour, len],
    ids=lambda referent: getattr(referent, "__name__", "node"),
)
def test_what_has_a_name_is_alive_where_the_name_leads(way: Way, referent: Any) -> None:
    assert way([weakref.ref(referent)])[0]() is referent


def test_what_has_a_name_is_alive_in_a_fresh_process(tmp_path: Path) -> None:
    data = safepickle.dumps(
        [weakref.ref(functools.OrderedDict if hasattr(functools, "OrderedDict") else Path), weakref.WeakSet([Path])]
    )
    code = "from pathlib import Path; print(obj[0]() is not None, list(obj[1]) == [Path])"
    assert fresh_load(data, code, tmp_path).split() == ["True", "True"]


@pytest.mark.parametrize("make", [weakref.ref, weakref.proxy])
def test_copy_leaves_references_alone(make: Callable[[Any], Any]) -> None:
    node = Node()
    reference = make(node)
    assert safepickle.copy(reference) is reference


def test_a_copy_of_a_part_refers_to_the_whole_original() -> None:
    parent = Node(name="parent")
    parent.child = Node(parent=weakref.ref(parent))
    assert safepickle.deepcopy(parent.child).parent() is parent


def test_a_referent_that_is_shared_by_its_own_wish() -> None:
    class Manager:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            return self

    manager = Manager()
    twin = safepickle.deepcopy({"to": weakref.ref(manager), "manager": manager})
    assert twin["to"]() is manager


class Vault:
    """Shares what it holds with its copies."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __deepcopy__(self, memo: dict[int, Any]) -> Vault:
        return Vault(self.item)


def test_a_referent_that_its_holder_shares_stays_the_original() -> None:
    node = Node()
    twin = safepickle.deepcopy([weakref.ref(node), Vault(node)])
    assert twin[1].item is node
    gc.collect()
    assert twin[0]() is node


def test_a_memo_that_knows_the_referent_decides() -> None:
    node, other = Node(), Node()
    assert safepickle.deepcopy([weakref.ref(node)], {id(node): other})[0]() is other


# -- persistent ids, several dumps, protocols of picklers -------------------------------------------------------------


def test_a_referent_with_a_persistent_id_is_not_asked_for_twice_in_a_wrong_way() -> None:
    import io

    node = Node(name="kept")
    asked: list[Any] = []

    class ByName(safepickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            if obj is node:
                asked.append(obj)
                return "node"
            return None

    class Reader(safepickle.Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            return node

    sink = io.BytesIO()
    ByName(sink).dump([weakref.ref(node), node])
    twin = Reader(io.BytesIO(sink.getvalue())).load()
    assert twin[1] is node


def test_a_second_dump_of_one_pickler_knows_what_the_first_wrote() -> None:
    import io

    node = Node()
    sink = io.BytesIO()
    pickler = safepickle.Pickler(sink)
    pickler.dump(node)
    pickler.dump(weakref.ref(node))
    reader = safepickle.Unpickler(io.BytesIO(sink.getvalue()))
    first = reader.load()
    assert reader.load()() is first


def test_a_users_override_and_dispatch_table_decide_what_is_written() -> None:
    import copyreg
    import io

    node, hidden = Node(name="seen"), Node(name="hidden")
    box = Vault([node, hidden])

    class Custom(safepickle.Pickler):
        dispatch_table = {**copyreg.dispatch_table, Vault: lambda vault: (Vault, (vault.item[0],))}

    sink = io.BytesIO()
    Custom(sink).dump([weakref.ref(node), weakref.ref(hidden), box])
    twin = safepickle.loads(sink.getvalue())
    assert twin[0]() is twin[2].item
    assert dead(twin[1])


def test_functions_by_value_are_whole_after_a_question_about_a_weak_reference() -> None:
    def make() -> tuple[Any, Any, Any]:
        count = 0

        def up() -> int:
            nonlocal count
            count += 1
            return count

        def show() -> int:
            return count

        return up, show, Node()

    up, show, node = make()
    up.to = weakref.ref(node)  # type: ignore[attr-defined]
    new_up, new_show, new_node = safepickle.loads(safepickle.dumps([up, show, node]))
    assert new_up() == 1
    assert new_show() == 1
    assert new_up.to() is new_node


# -- methods, proxies, finalizers -------------------------------------------------------------------------------------


@every_way
def test_a_weak_method_is_that_of_the_new_owner(way: Way) -> None:
    node = Node(name="old")
    log: list[str] = []
    twin = way([weakref.WeakMethod(node.method, functools.partial(note, log)), node, log])
    twin[1].name = "new"
    assert twin[0]()() == "method of new"
    assert type(twin[0]) is weakref.WeakMethod
    twin[1] = None
    assert dead(twin[0])
    assert twin[2] == ["gone"]


def test_a_weak_method_of_an_object_that_stays() -> None:
    reference = weakref.WeakMethod(OUTSIDE.method)
    assert safepickle.deepcopy([reference])[0]()() == "method of outside"
    assert dead(safepickle.loads(safepickle.dumps([reference]))[0])


@every_way
def test_a_proxy_is_of_the_new_object(way: Way) -> None:
    node = Node(name="old")
    proxy, new = way([weakref.proxy(node), node])
    assert type(proxy) is weakref.ProxyType
    proxy.name = "changed"
    assert new.name == "changed"
    assert node.name == "old"
    del new
    gc.collect()
    with pytest.raises(ReferenceError):
        proxy.name


@every_way
def test_a_proxy_of_a_dead_object_and_one_that_can_be_called(way: Way) -> None:
    for make in (Node, Called):
        proxy = weakref.proxy(make())
        twin = way([proxy])[0]
        assert type(twin) is type(proxy)
        with pytest.raises(ReferenceError):
            twin.anything
    called = Called()
    proxy, _new = way([weakref.proxy(called), called])
    assert proxy(2) == 4


class Called:
    def __call__(self, number: int) -> int:
        return number * 2

    def __repr__(self) -> str:
        raise RuntimeError("not to be asked")


@every_way
def test_a_finalizer_waits_for_the_new_object(way: Way) -> None:
    node, log = Node(), []  # type: ignore[var-annotated]
    finalizer = weakref.finalize(node, log.append, "closed")
    finalizer.atexit = False
    twin_finalizer, twin, twin_log = way([finalizer, node, log])
    assert twin_finalizer.alive
    assert not twin_finalizer.atexit
    del twin
    gc.collect()
    assert twin_log == ["closed"]
    assert not twin_finalizer.alive
    assert log == []
    assert finalizer.alive


@pickled_ways
def test_a_finalizer_without_its_object_is_finished(way: Way) -> None:
    finalizer = weakref.finalize(OUTSIDE, print, "never")
    finalizer.atexit = False
    twin = way([finalizer])[0]
    assert not twin.alive
    assert twin() is None


# -- containers -------------------------------------------------------------------------------------------------------


@every_way
def test_a_weak_dictionary_of_values_has_the_new_values(way: Way) -> None:
    node = Node()
    table = Table("parts")
    table["a"] = node
    table[("t", 1)] = node
    twin, new = way([table, node])
    assert type(twin) is Table
    assert twin.title == "parts"
    assert twin["a"] is new
    assert twin[("t", 1)] is new
    del new
    gc.collect()
    assert len(twin) == 0
    assert table["a"] is node


@every_way
def test_a_weak_dictionary_of_keys_has_the_new_keys(way: Way) -> None:
    one, other = Node(), Node()
    table: Any = weakref.WeakKeyDictionary({one: [1], other: [one]})
    twin, new, new_other = way([table, one, other])
    assert twin[new] == [1]
    assert twin[new] is not table[one]
    assert twin[new_other][0] is new
    assert one not in twin
    del new_other
    gc.collect()
    assert len(twin) == 1


@every_way
def test_a_weak_set_has_the_new_members(way: Way) -> None:
    members = [Node(n=n) for n in range(5)]
    group = Group(members)
    group.title = "all"
    twin, new = way([group, members])
    assert type(twin) is Group
    assert twin.title == "all"
    assert set(twin) == set(new)
    new.clear()
    gc.collect()
    assert len(twin) == 0


@every_way
def test_weak_containers_on_their_owner(way: Way) -> None:
    owner = Node()
    owner.values, owner.keys, owner.set = (
        weakref.WeakValueDictionary(me=owner),
        Sized({owner: 1}),
        weakref.WeakSet([owner]),
    )
    twin = way(owner)
    assert twin.values["me"] is twin
    assert twin.keys[twin] == 1
    assert list(twin.set) == [twin]


@pickled_ways
def test_weak_containers_drop_what_nothing_else_in_the_pickle_holds(way: Way) -> None:
    inside = Node()
    values = weakref.WeakValueDictionary(inside=inside, outside=OUTSIDE)
    keys: Any = weakref.WeakKeyDictionary({inside: 1, OUTSIDE: 2})
    twin_values, twin_keys, twin_set, new = way([values, keys, weakref.WeakSet([inside, OUTSIDE]), inside])
    gc.collect()
    assert dict(twin_values) == {"inside": new}
    assert dict(twin_keys) == {new: 1}
    assert list(twin_set) == [new]


def test_weak_containers_keep_what_stays_outside_of_a_copy() -> None:
    inside = Node()
    values = weakref.WeakValueDictionary(inside=inside, outside=OUTSIDE)
    keys: Any = weakref.WeakKeyDictionary({inside: 1, OUTSIDE: 2})
    twin_values, twin_keys, twin_set, new = safepickle.deepcopy(
        [values, keys, weakref.WeakSet([inside, OUTSIDE]), inside]
    )
    gc.collect()
    assert dict(twin_values) == {"inside": new, "outside": OUTSIDE}
    assert dict(twin_keys) == {new: 1, OUTSIDE: 2}
    assert set(twin_set) == {new, OUTSIDE}


@pickled_ways
def test_values_of_keys_that_are_not_written_are_not_written_either(way: Way) -> None:
    table: Any = weakref.WeakKeyDictionary({OUTSIDE: (n for n in "unpicklable")})
    assert len(way([table])[0]) == 0


@pickled_ways
def test_a_value_makes_the_next_key_part_of_the_pickle(way: Way) -> None:
    first, second, third = Node(n=1), Node(n=2), Node(n=3)
    table: Any = weakref.WeakKeyDictionary({third: "end", second: [third], first: [second]})
    twin, new = way([table, first])
    gc.collect()
    assert len(twin) == 3
    assert twin[new][0].n == 2
    assert twin[twin[new][0]][0].n == 3


@pickled_ways
def test_equal_weak_sets_give_equal_bytes(way: Way) -> None:
    members = [Node(n=n) for n in range(20)]
    for order in (members, members[::-1]):
        assert safepickle.dumps([members, weakref.WeakSet(order)]) == safepickle.dumps(
            [members, weakref.WeakSet(members)]
        )
        assert safepickle.dumps([weakref.WeakSet(order), members]) == safepickle.dumps(
            [weakref.WeakSet(members), members]
        )


@every_way
def test_a_set_of_classes(way: Way) -> None:
    assert set(way(weakref.WeakSet([Node, Table]))) == {Node, Table}


@pytest.mark.parametrize("make", [weakref.WeakValueDictionary, weakref.WeakKeyDictionary, weakref.WeakSet])
def test_copy_of_a_weak_container_is_another_one_with_the_same_entries(make: Any) -> None:
    node = Node()
    obj = make({"k": node}) if make is weakref.WeakValueDictionary else make({node: 1})
    twin = safepickle.copy(obj)
    assert twin is not obj
    assert len(twin) == 1
    assert list(twin) == list(obj)


def test_weak_containers_in_a_fresh_process(tmp_path: Path) -> None:
    import fractions
    import threading

    key = threading.Event()
    data = safepickle.dumps(
        {"key": key, "table": weakref.WeakKeyDictionary({key: fractions.Fraction(1, 2)}), "ref": weakref.ref(key)}
    )
    code = """
        import gc
        assert obj["ref"]() is obj["key"]
        print(obj["table"][obj.pop("key")])
        gc.collect()
        print(len(obj["table"]), obj["ref"]())
    """
    assert fresh_load(data, code, tmp_path).split() == ["1/2", "0", "None"]


def test_plain_pickle_does_not_see_a_change() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(weakref.ref(OUTSIDE))
    assert sys.getrefcount(OUTSIDE) < 20


def test_a_digest_depends_on_what_weak_containers_have() -> None:
    def settings(bits: int) -> Node:
        node = Node(first=Node(n=1), second=Node(n=2))
        node.bits = weakref.WeakKeyDictionary({node.second: bits, node.first: 8})
        node.active = weakref.WeakSet([node.first, node.second])
        node.elsewhere = weakref.ref(OUTSIDE)
        return node

    assert safepickle.digest(settings(4)) == safepickle.digest(settings(4))
    assert safepickle.digest(settings(4)) != safepickle.digest(settings(2))


@every_way
def test_a_weak_method_of_a_class_from_a_function(way: Way) -> None:
    class Model:
        scale = 2

        def forward(self, x: int) -> int:
            return self.scale * x

    model: Any = Model()
    model.hook = weakref.WeakMethod(model.forward)
    twin = way(model)
    twin.scale = 5
    assert twin.hook()(3) == 15
    assert model.hook()(3) == 6


@every_way
def test_closures_over_weak_references_call_the_new_object(way: Way) -> None:
    model: Any = Node(v=1)
    reference, proxy = weakref.ref(model), weakref.proxy(model)
    group, table = weakref.WeakSet([model]), weakref.WeakValueDictionary(me=model)
    model.calls = [
        lambda: reference().v,
        functools.partial(lambda ref: ref().v, reference),
        lambda: proxy.v,
        lambda ref=reference: ref().v,
        lambda: next(iter(group)).v,
        lambda: table["me"].v,
    ]
    calls, twin = way([model.calls, model])
    twin.v = 99
    assert [call() for call in calls] == [99] * 6
    assert [call() for call in model.calls] == [1] * 6
