"""Do both verbs reach any depth, from the default stack and a small one, and do without recursion as with it?"""

from __future__ import annotations

import collections
import copyreg
import functools
import gc
import io
import pickle
import sys
import threading
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import safepickle
from safepickle import copier, deep
from safepickle.deep import DeepPickler
from safepickle.registry import Registry, default_registry
from tests import graphs
from tests.helpers import call_with_timeout, run_python

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
LEVELS = 3000
#: Levels of very long chains. The collector of garbage makes those of instances slow.
FAR = {"list": 100_000, "tuple": 100_000, "dict": 50_000, "instance": 20_000, "slots": 20_000, "reduced": 20_000}


# -- the deep pickler writes what the C pickler writes ---------------------------------------------------------------


def deeply(obj, protocol, **options):
    file = io.BytesIO()
    DeepPickler(file, protocol, **options).dump(obj)
    return file.getvalue()


@given(graph=graphs.graphs(graphs.kinds_at(0)), protocol=st.sampled_from([0, 1]))
@settings(max_examples=200, deadline=None)
def test_the_deep_pickler_writes_the_bytes_of_the_c_pickler_at_old_protocols(graph, protocol):
    assert deeply(graph, protocol) == pickle.dumps(graph, protocol)


@given(graph=graphs.graphs(graphs.kinds_at(2)), protocol=st.sampled_from([2, 3, 4, 5]))
@settings(max_examples=400, deadline=None)
def test_the_deep_pickler_writes_the_bytes_of_the_c_pickler(graph, protocol):
    assert deeply(graph, protocol) == pickle.dumps(graph, protocol)


class ExtendingList(list):
    pass


class KeywordNew:
    def __new__(cls, *, a):
        self = super().__new__(cls)
        self.a = a
        return self

    def __getnewargs_ex__(self):
        return (), {"a": self.a}


class Six:
    def __reduce__(self):
        return Six, (), {"a": 1}, None, None, set_state


def set_state(obj, state):
    obj.__dict__.update(state)


class Items:
    def __init__(self, count):
        self.count = count

    def __reduce__(self):
        return ExtendingList, (), None, iter(range(self.count)), None


class Pairs:
    def __init__(self, count):
        self.count = count

    def __reduce__(self):
        return dict, (), None, None, iter({number: number for number in range(self.count)}.items())


class ByName:
    def __reduce__(self):
        return "THE_ONE"


THE_ONE = ByName()


class Outer:
    class Inner:
        def method(self):
            return 1

    @classmethod
    def made(cls):
        return cls()


class InArguments:
    """Its only argument leads back to itself."""

    def __init__(self, box):
        self.box = box

    def __reduce__(self):
        return InArguments, (self.box,)


def in_arguments():
    box = []
    it = InArguments(box)
    box.append(it)
    return it


def tuple_cycle(size):
    inner = []
    outer = (inner, *range(size - 1))
    inner.append(outer)
    return outer


def frozenset_cycle():
    part = Plain()
    outer = frozenset([part])
    part.outer = outer
    return outer


class Plain:
    pass


SAMPLES = {
    "sizes of lists": [list(range(n)) for n in (0, 1, 2, 999, 1000, 1001, 1002, 2000, 2001)],
    "sizes of dicts": [dict.fromkeys(range(n)) for n in (0, 1, 2, 999, 1000, 1001, 1002, 2000, 2001)],
    "sizes of sets": [set(range(n)) for n in (0, 1, 2, 999, 1000, 1001, 2001)],
    "sizes of frozensets": [frozenset(range(n)) for n in (0, 1, 2, 1001)],
    "sizes of tuples": [tuple(range(n)) for n in (0, 1, 2, 3, 4, 1001)],
    "sizes of list items": [Items(n) for n in (0, 1, 2, 1000, 1001, 2000, 2001)],
    "sizes of dict items": [Pairs(n) for n in (0, 1, 2, 1000, 1001, 2000, 2001)],
    "subclasses of lists": [ExtendingList(range(n)) for n in (0, 1, 2, 1000, 1001, 2001)],
    "ordered dicts": [collections.OrderedDict.fromkeys(range(n)) for n in (0, 1, 2, 1000, 1001, 2001)],
    "tuples in themselves": [tuple_cycle(n) for n in (1, 2, 3, 4, 5)],
    "a frozenset in itself": frozenset_cycle(),
    "an object in its own arguments": in_arguments(),
    "keywords": [KeywordNew(a=[1])],
    "six items": [Six(), Six()],
    "a name": [THE_ONE, THE_ONE],
    "nested names": [Outer.Inner, Outer.Inner.method, Outer.made, Outer.Inner().method, int.from_bytes],
    "numbers": [
        0,
        1,
        255,
        256,
        -1,
        65535,
        65536,
        2**31 - 1,
        2**31,
        -(2**31),
        2**63,
        -(2**63) - 1,
        10**30,
        10**700,
        1.5,
        -0.0,
        1e300,
    ],
    "text": ["", "a", "a" * 255, "a" * 256, "ä" * 130, "\ud800", "\\u0000\n\r\x1a", "x" * 70000],
    "bytes": [b"", b"a", b"a" * 255, b"a" * 256, b"\xff\n", b"x" * 70000, bytearray(b"a"), bytearray(b"x" * 70000)],
    "the same text": ["same", "same", {"same": "same"}],
    "types": [type(None), type(...), type(NotImplemented), int, Plain, None, ..., NotImplemented, len, sys.exc_info],
    "frames": [
        [str(n) * 20 for n in range(20000)],
        b"y" * 65536,
        [b"z" * 65535] * 3,
        ["w" * 40000, "v" * 40000, "u" * 40000],
    ],
    "frames of tuples": [
        ("a" * 30000, ("b" * 30000, ("c" * 30000, ("d" * 30000,)))),
        {"e" * 65536: ["f" * 65530, 1, 2]},
    ],
    "frames of instances": [Pairs(5000), Items(5000), [Six() for _ in range(3000)]],
    "a large bytearray after text": ["a" * 65000, bytearray(b"x" * 66000), "b"],
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", SAMPLES)
def test_the_deep_pickler_agrees_about(name, protocol):
    try:
        expected = pickle.dumps(SAMPLES[name], protocol)
    except (TypeError, pickle.PicklingError) as error:
        pytest.skip(f"the C pickler refuses: {error}")
    assert deeply(SAMPLES[name], protocol) == expected


def test_the_deep_pickler_agrees_about_frames_of_all_sizes():
    for size in [*range(65500, 65560), 131000, 131072]:
        obj = ["a" * size, "b", [b"c" * size, "d"], ("e" * (size // 2),) * 2, {"f": "g" * (size // 3)}]
        for protocol in (4, 5):
            assert deeply(obj, protocol) == pickle.dumps(obj, protocol)


@given(
    sizes=st.lists(st.integers(0, 70000), max_size=8),
    kind=st.sampled_from([str, bytes, bytearray]),
    nested=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_the_deep_pickler_agrees_about_frames(sizes, kind, nested):
    parts = [kind(b"x" * size) if kind is not str else "x" * size for size in sizes]
    obj = parts
    if nested:
        obj = ()
        for part in parts:
            obj = (part, obj, [part], {"k": len(part)})
    for protocol in (3, 4, 5):
        assert deeply(obj, protocol) == pickle.dumps(obj, protocol)


class Twice(pickle.Pickler):
    """A C pickler with everything that can be set."""

    def __init__(self, *args, override=None, pid=None, table=None, **options):
        super().__init__(*args, **options)
        self._override, self._pid = override, pid
        if table is not None:
            self.dispatch_table = table

    def reducer_override(self, obj):
        return NotImplemented if self._override is None else self._override(obj)

    def persistent_id(self, obj):
        return None if self._pid is None else self._pid(obj)


def c_pickle(obj, protocol, *, buffer_callback=None, **options):
    file = io.BytesIO()
    Twice(file, protocol, buffer_callback=buffer_callback, **options).dump(obj)
    return file.getvalue()


def special_override(obj):
    if type(obj) is Plain:
        return list, ([vars(obj)],)
    if obj is len:
        return "len"
    return NotImplemented


def special_pid(obj):
    return "a pid" if type(obj) is bytes else None


TABLE = {Plain: lambda obj: (list, ([1],)), complex: lambda c: (complex, (c.real, c.imag))}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "options",
    [
        {"override": special_override},
        {"pid": special_pid},
        {"table": TABLE},
        {"table": collections.ChainMap({}, TABLE)},
        {"override": special_override, "pid": special_pid, "table": TABLE},
    ],
    ids=["override", "persistent ids", "table", "ChainMap", "all"],
)
def test_the_deep_pickler_asks_as_the_c_pickler_does(options, protocol):
    part = Plain()
    part.items = [b"bytes", Plain(), len]
    obj = [part, part, (Plain(), b"bytes"), {"complex": 1j, "plain": part}, len, b"bytes"]
    names = {"override": "override", "pid": "persistent_id", "table": "dispatch_table"}
    ours = deeply(obj, protocol, **{names[key]: value for key, value in options.items()})
    assert ours == c_pickle(obj, protocol, **options)


def test_a_pid_may_be_any_object_in_binary_protocols():
    def pid(obj):
        return ("pid", [1], Plain) if type(obj) is bytes else None

    for protocol in PROTOCOLS[1:]:
        assert deeply([b"a", b"a"], protocol, persistent_id=pid) == c_pickle([b"a", b"a"], protocol, pid=pid)


def test_the_deep_pickler_hands_out_buffers():
    class Zero:
        def __init__(self, data):
            self.data = data

        def __reduce_ex__(self, protocol):
            return bytearray, (pickle.PickleBuffer(self.data),)

    obj = [Zero(b"read only"), Zero(bytearray(b"writable")), pickle.PickleBuffer(b"bare")]

    def taken(write, answer):
        buffers = []
        data = write(obj, 5, buffer_callback=lambda buffer: buffers.append(bytes(buffer)) or answer)
        return data, buffers

    for answer in (None, True):
        assert taken(deeply, answer) == taken(c_pickle, answer)
        assert taken(deeply, answer)[1] == [b"read only", b"writable", b"bare"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("fix_imports", [True, False])
def test_the_deep_pickler_maps_names_for_python_2(protocol, fix_imports):
    obj = [range(3), collections.OrderedDict(), ValueError, map, collections.UserDict]
    assert deeply(obj, protocol, fix_imports=fix_imports) == pickle.dumps(obj, protocol, fix_imports=fix_imports)


def test_the_deep_pickler_knows_extension_codes():
    copyreg.add_extension(__name__, "Plain", 0xF0)
    copyreg.add_extension(__name__, "Outer", 0x1234)
    try:
        for protocol in PROTOCOLS:
            assert deeply([Plain, Outer, Plain()], protocol) == pickle.dumps([Plain, Outer, Plain()], protocol)
    finally:
        copyreg.remove_extension(__name__, "Plain", 0xF0)
        copyreg.remove_extension(__name__, "Outer", 0x1234)


class Wrong:
    def __init__(self, value):
        self.value = value

    def __reduce_ex__(self, protocol):
        return self.value


@pytest.mark.parametrize(
    "value",
    [
        5,
        None,
        (),
        (1,),
        (list,),
        (list, ()) + (None,) * 5,
        (5, ()),
        (list, [1]),
        (list, (), None, 5),
        (list, (), None, None, 5),
    ],
    ids=repr,
)
def test_the_deep_pickler_refuses_what_the_c_pickler_refuses(value):
    for protocol in PROTOCOLS:
        with pytest.raises(Exception) as theirs:
            pickle.dumps(Wrong(value), protocol)
        with pytest.raises(type(theirs.value)):
            deeply(Wrong(value), protocol)


@pytest.mark.parametrize(
    "obj", [lambda: 1, threading.Lock(), sys._getframe(), (n for n in ())], ids=["lambda", "lock", "frame", "generator"]
)
def test_the_deep_pickler_refuses_the_same_objects(obj):
    for protocol in PROTOCOLS:
        with pytest.raises(Exception) as theirs:
            pickle.dumps([obj], protocol)
        with pytest.raises(type(theirs.value)):
            deeply([obj], protocol)


@given(graph=graphs.graphs(graphs.kinds_at(2)), protocol=st.sampled_from([2, 3, 4, 5]))
@settings(max_examples=100, deadline=None)
def test_the_deep_pickler_asks_our_rules_in_the_same_way(graph, protocol):
    """With everything that a dump sets up: what comes after a recursion error is what would have come without one."""
    expected = safepickle.dumps(graph, protocol)
    pickler = safepickle.Pickler(io.BytesIO(), protocol)
    assert deeply(graph, protocol, override=pickler.reducer_override) == expected


# -- the copier without recursion does what the one with recursion does ----------------------------------------------


def copied(obj, *, iteratively, registry=default_registry):
    """A copy by one of the two ways, as a call of `deepcopy` would run it."""
    call = copier._Call(registry, {}, obj, copier._options(registry, None))
    call.deep = iteratively
    return copier._run(call)


@given(graph=graphs.graphs())
@settings(max_examples=300, deadline=None)
def test_the_copier_without_recursion_agrees_with_the_one_with_it(graph):
    expected = graphs.shape(graph)
    assert graphs.shape(copied(graph, iteratively=False)) == expected
    assert graphs.shape(copied(graph, iteratively=True)) == expected


@given(graph=graphs.graphs())
@settings(max_examples=100, deadline=None)
def test_both_copiers_share_the_same_objects_with_the_original(graph):
    original = {id(part): part for part in _all_parts(graph)}
    shared = []
    for iteratively in (False, True):
        parts = _all_parts(copied(graph, iteratively=iteratively))
        shared.append({id(part) for part in parts if id(part) in original})
    assert shared[0] == shared[1]


def _all_parts(root):
    seen = {}
    stack = [root]
    while stack:
        obj = stack.pop()
        if id(obj) not in seen:
            seen[id(obj)] = obj
            if not isinstance(obj, graphs.LEAVES):
                stack.extend(graphs.parts_of(obj))
    return list(seen.values())


def test_where_all_rules_decline_both_copiers_share_atoms():
    registry = Registry()
    for cls in (property, range, types.FunctionType, int):
        registry.register(cls, copy=lambda obj, memo: NotImplemented)
    obj = [property(), range(3), len, graphs.parts_of, 5]
    for iteratively in (False, True):
        twins = copied(obj, iteratively=iteratively, registry=registry)
        assert all(twin is part for twin, part in zip(twins, obj, strict=True))


@pytest.mark.parametrize("iteratively", [False, True])
@pytest.mark.parametrize("size", [1, 7, 8])
def test_both_copiers_refuse_reduce_values_of_a_wrong_size(iteratively, size):
    obj = [Wrong((list, (), None, None, None, None, None, None)[:size])]
    with pytest.raises(TypeError):
        copied(obj, iteratively=iteratively)


# -- chains of every kind --------------------------------------------------------------------------------------------


class Node:
    def __init__(self, below=None):
        self.below = below


class SlotNode:
    __slots__ = ("below",)

    def __init__(self, below=None):
        self.below = below


class ReducedNode(Node):
    def __reduce__(self):
        return type(self), (self.below,)


class StatefulNode(Node):
    def __getstate__(self):
        return {"inner": self.below}

    def __setstate__(self, state):
        self.below = state["inner"]


class Module:
    """As `torch.nn.Module`: sub-modules in a dictionary, found through `__getattr__`."""

    def __init__(self, below=None):
        self._modules = collections.OrderedDict()
        self._parameters = {}
        if below is not None:
            self._modules["below"] = below

    def __getattr__(self, name):
        modules = self.__dict__.get("_modules")
        if modules is not None and name in modules:
            return modules[name]
        raise AttributeError(name)


def call(function):
    return function


def closure_over(below):
    holder = [below]

    def inner():
        return holder[0]

    return inner


def plain_closure(below):
    return lambda: below


class Linked:
    """A chain of bound methods."""

    def __init__(self, below=None):
        self.below = below

    def method(self):
        return self.below


def method_chain(levels, end):
    chain = Linked(end).method
    for _ in range(levels - 1):
        chain = Linked(chain).method
    return chain


#: kind -> (wrap one level, unwrap one level)
CHAINS = {
    "list": (lambda x: [x], lambda x: x[0]),
    "tuple": (lambda x: (x,), lambda x: x[0]),
    "dict": (lambda x: {"below": x}, lambda x: x["below"]),
    "long tuple": (lambda x: (0, 1, 2, x), lambda x: x[3]),
    "deque": (lambda x: collections.deque([x]), lambda x: x[0]),
    "OrderedDict": (lambda x: collections.OrderedDict(below=x), lambda x: x["below"]),
    "instance": (Node, lambda x: x.below),
    "slots": (SlotNode, lambda x: x.below),
    "dataclass": (lambda x: graphs.Data(x), lambda x: x.first),
    "frozen dataclass": (lambda x: graphs.Frozen(x), lambda x: x.first),
    "reduced": (ReducedNode, lambda x: x.below),
    "stateful": (StatefulNode, lambda x: x.below),
    "list subclass": (lambda x: ExtendingList([x]), lambda x: x[0]),
    "namespace": (lambda x: types.SimpleNamespace(below=x), lambda x: x.below),
    "module": (Module, lambda x: x.below),
    "partial": (lambda x: functools.partial(call, x), lambda x: x.args[0]),
    "method": (lambda x: Linked(x).method, lambda x: x()),
    "closure": (plain_closure, lambda x: x()),
    "closure over a list": (closure_over, lambda x: x()),
    "exception": (lambda x: ValueError(x), lambda x: x.args[0]),
}


def chain_of(kind, levels, end):
    wrap, _ = CHAINS[kind]
    for _ in range(levels):
        end = wrap(end)
    return end


def unwrapped(kind, chain, levels):
    _, unwrap = CHAINS[kind]
    for _ in range(levels):
        chain = unwrap(chain)
    return chain


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("kind", CHAINS)
def test_a_chain_is_pickled_from_the_default_stack(kind, protocol):
    chain = chain_of(kind, LEVELS, end=["end"])
    restored = pickle.loads(safepickle.dumps(chain, protocol))
    assert unwrapped(kind, restored, LEVELS) == ["end"]


@pytest.mark.parametrize("kind", CHAINS)
def test_a_chain_is_copied_from_the_default_stack(kind):
    end = Node()
    chain = [chain_of(kind, LEVELS, end), end]
    twin = safepickle.deepcopy(chain)
    assert unwrapped(kind, twin[0], LEVELS) is twin[1] is not end
    assert unwrapped(kind, chain[0], LEVELS) is end


@pytest.mark.parametrize("kind", CHAINS)
def test_a_chain_that_is_copied_before_its_end_ends_at_the_copy(kind):
    end = Node()
    twin = safepickle.deepcopy([end, chain_of(kind, LEVELS, end)])
    assert unwrapped(kind, twin[1], LEVELS) is twin[0] is not end


def test_a_chain_of_all_kinds_goes_both_ways():
    end = ["end"]
    chain = end
    for number in range(LEVELS):
        chain = CHAINS[[*CHAINS][number % len(CHAINS)]][0](chain)
    for twin in (safepickle.deepcopy([end, chain])[1], pickle.loads(safepickle.dumps(chain))):
        for number in reversed(range(LEVELS)):
            twin = CHAINS[[*CHAINS][number % len(CHAINS)]][1](twin)
        assert twin == ["end"] and twin is not end


@pytest.mark.parametrize("kind", FAR)
def test_a_very_long_chain_goes_both_ways(kind):
    chain = chain_of(kind, FAR[kind], end=["end"])
    assert unwrapped(kind, safepickle.deepcopy(chain), FAR[kind]) == ["end"]
    assert unwrapped(kind, pickle.loads(safepickle.dumps(chain)), FAR[kind]) == ["end"]


def test_a_long_linked_list_that_is_a_ring_goes_both_ways():
    first = Node()
    last = first
    for _ in range(LEVELS):
        last = Node(last)
    first.below = last
    for ring in (safepickle.deepcopy(last), pickle.loads(safepickle.dumps(last))):
        node = ring
        for _ in range(LEVELS + 1):
            node = node.below
        assert node is ring


# -- from a small stack ----------------------------------------------------------------------------------------------


#: A small stack. The C pickler of 3.13 looks at a counter, not at the stack, and overflows all that are smaller.
SMALL = 512 * 1024 if sys.version_info < (3, 13) else 2 * 1024 * 1024


def in_small_thread(function):
    """Run a function in a thread with a small stack; a crash takes the whole process, so this runs in a child."""
    result = []
    before = threading.stack_size(SMALL)
    try:
        thread = threading.Thread(target=lambda: result.append(function()))
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    return result[0]


@pytest.mark.parametrize("kind", CHAINS)
def test_a_chain_goes_both_ways_from_a_small_stack(kind):
    printed = run_python(
        f"""
        import os, pickle, safepickle
        from tests import test_deep
        kind, levels = {kind!r}, test_deep.LEVELS
        end = ["end"]
        chain = test_deep.chain_of(kind, levels, end)

        def work():
            return safepickle.deepcopy([end, chain]), pickle.loads(safepickle.dumps(chain))

        copied, restored = test_deep.in_small_thread(work)
        print(test_deep.unwrapped(kind, copied[1], levels) is copied[0])
        print(test_deep.unwrapped(kind, restored, levels), flush=True)
        os._exit(0)  # letting go of a chain is the interpreter's business, and takes more stack than ours
        """
    )
    assert printed == "True\n['end']\n"


@pytest.mark.parametrize("kind", FAR)
@pytest.mark.parametrize("verb", ["dumps", "deepcopy"])
def test_a_very_long_chain_does_not_crash_a_small_stack(verb, kind):
    printed = run_python(
        f"""
        import os, safepickle
        from tests import test_deep
        chain = test_deep.chain_of({kind!r}, test_deep.FAR[{kind!r}], ["end"])
        print(type(test_deep.in_small_thread(lambda: safepickle.{verb}(chain))).__name__, flush=True)
        os._exit(0)
        """
    )
    assert printed == ("bytes" if verb == "dumps" else type(chain_of(kind, 1, None)).__name__) + "\n"


# -- where only the user's code recurses -----------------------------------------------------------------------------


class Recursive:
    """Copies and pickles its part by a method of its own, which recurses."""

    def __init__(self, below=None):
        self.below = below

    def __deepcopy__(self, memo):
        return Recursive(safepickle.deepcopy(self.below, memo))

    def __reduce__(self):
        return safepickle.loads, (safepickle.dumps(self.below),)


def recursive_chain(levels):
    chain = None
    for _ in range(levels):
        chain = Recursive(chain)
    return chain


def test_a_deepcopy_method_that_recurses_too_deep_is_a_recursion_error():
    chain = recursive_chain(20_000)
    with pytest.raises(RecursionError):
        call_with_timeout(lambda: safepickle.deepcopy(chain), 60)
    assert copier._running == {}


def test_a_reduce_method_that_recurses_too_deep_is_a_recursion_error():
    chain = recursive_chain(2_000)
    with pytest.raises(RecursionError):
        call_with_timeout(lambda: safepickle.dumps(chain), 60)


class Endless:
    def __reduce__(self):
        return list, ((Endless(),),)


def test_an_object_without_an_end_is_a_recursion_error(monkeypatch):
    monkeypatch.setattr(copier, "MOST_LEVELS", 20_000)
    monkeypatch.setattr(deep, "_MOST_LEVELS", 20_000)
    with pytest.raises(RecursionError):
        call_with_timeout(lambda: safepickle.deepcopy(Endless()), 60)


def test_a_getattr_that_recurses_is_a_recursion_error():
    class Forwards:
        def __getattr__(self, name):
            return getattr(self.inner, name)

    with pytest.raises(RecursionError):
        call_with_timeout(lambda: safepickle.deepcopy([Forwards()]), 60)


def test_a_memo_that_the_caller_gave_is_no_reason_to_give_up():
    chain = chain_of("list", LEVELS, ["end"])
    memo = {}
    twin = safepickle.deepcopy(chain, memo)
    assert unwrapped("list", twin, LEVELS) == ["end"]
    assert memo[id(chain)] is twin
    assert safepickle.deepcopy(chain, memo) is twin


def test_what_the_callers_memo_knew_is_still_known_after_a_deep_copy():
    part, other = ["part"], ["other"]
    chain = [chain_of("list", LEVELS, part), part]
    memo = {id(part): other, "hook": {"own": 1}}
    twin = safepickle.deepcopy(chain, memo)
    assert twin[1] is other
    assert unwrapped("list", twin[0], LEVELS) is other
    assert memo["hook"] == {"own": 1}


def test_hooks_in_a_deep_object_find_the_memo_and_the_registry():
    registry = Registry()
    registry.register(Node, lambda node: (Node, ("by rule",)))
    end = Node("end")

    class Hooked:
        def __init__(self, below, end):
            self.below, self.end = below, end

        def __deepcopy__(self, memo):
            assert type(memo) is dict
            return Hooked(safepickle.deepcopy(self.below, memo), safepickle.deepcopy(self.end, memo))

    chain = [chain_of("list", LEVELS, Hooked(["x"], end)), end]
    twin = safepickle.deepcopy(chain, registry=registry)
    hooked = unwrapped("list", twin[0], LEVELS)
    assert hooked.end is twin[1]
    assert hooked.end.below == "by rule"


def test_a_deep_copy_leaves_nothing_behind():
    class Refuses:
        def __deepcopy__(self, memo):
            raise ValueError("no")

    chain = chain_of("list", LEVELS, Refuses())
    with pytest.raises(ValueError, match="no"):
        safepickle.deepcopy(chain)
    assert copier._running == {}
    assert default_registry._live == set()


def test_many_levels_do_not_take_a_time_that_grows_with_their_square():
    """Counted in calls, not in seconds: twice the depth, twice the work."""

    def work(levels):
        chain = chain_of("closure", levels, Node())
        calls = 0

        def count(frame, event, arg):
            nonlocal calls
            calls += 1

        gc.disable()
        sys.setprofile(count)
        try:
            safepickle.deepcopy([chain])
        finally:
            sys.setprofile(None)
            gc.enable()
        return calls

    work(10)
    assert work(4000) < 3 * work(2000)
