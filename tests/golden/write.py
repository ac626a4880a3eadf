"""Write the golden files of this version of safepickle and of the Python that runs this script.

    python -m tests.golden.write [kind ...]

A file that exists stays as it is; ``--again`` writes anew, which is for formats that no release has had. What goes by
value is defined here, because this is the main script. Run it before a release, with each version of Python and with
the libraries.
"""

from __future__ import annotations

import abc
import array
import collections
import contextvars
import dataclasses
import enum
import functools
import os
import queue
import re
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, NamedTuple, NewType, Protocol, TypedDict, TypeVar, runtime_checkable

import safepickle
from tests.golden import named
from tests.golden.kinds import CHECKS, NEEDS, SINCE

PROTOCOLS = (2, 4, 5)
MAKERS: dict[str, Callable[[], Any]] = {}


def makes(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Enter a function that makes the object of a kind."""

    def enter(make: Callable[[], Any]) -> Callable[[], Any]:
        MAKERS[name] = make
        return make

    return enter


# -- by reference ------------------------------------------------------------------------------------------------------


@makes("references")
def references() -> Any:
    return {
        "plain": named.plain, "alias": named.alias, "class": named.Methods, "below": named.decorated.fn,
        "function of a method": named.Methods.method, "bound": named.Methods().method,
        "class method": named.Methods.made, "property": named.Methods.prop, "getter": named.Methods.prop.fget,
        "raw class method": vars(named.Methods)["made"], "module": named, "lazy": named.lazy,
        "type": types.FunctionType, "builtins": [len, str.join, dict.fromkeys],
        "descriptor": vars(type)["__dict__"],
    }  # fmt: skip


@makes("markers")
def markers() -> Any:
    return [dataclasses.MISSING, dataclasses._FIELD]  # type: ignore[attr-defined]


# -- by value, with code -----------------------------------------------------------------------------------------------

FACTOR = 1


def helper(x):
    return x + FACTOR


def add(x: int, y=2) -> int:
    """Add."""
    return helper(x) + y


add.note = "kept"  # type: ignore[attr-defined]


def make_counter(count=0):
    def up():
        nonlocal count
        count += 1
        return count

    def now():
        return count

    return up, now


@makes("function")
def function() -> Any:
    return [add, helper, make_counter]


@makes("closures")
def closures() -> Any:
    up, now = make_counter(10)
    return [up, now, up.__closure__[0]]


def generate(n):
    yield from range(n)


async def fetch(x):
    return 2 * x


@makes("coroutines")
def coroutines() -> Any:
    return [generate, fetch]


class Base:
    def up(self):
        return ["base"]


class Child(Base):
    registry: typing.ClassVar[dict[str, Any]] = {}

    def __init__(self, value):
        self.value = value

    def get(self):
        return self.value

    @property
    def twice(self):
        return 2 * self.value

    @classmethod
    def make(cls):
        return cls(0)

    def up(self):
        return [*super().up(), "child"]


Child.registry["self"] = Child


@makes("class")
def class_() -> Any:
    child = Child(5)
    return [Child, child, child.get]


class Meta(type):
    def __new__(cls, name, bases, namespace, *, need=0, **options):
        made = super().__new__(cls, name, bases, namespace, **options)
        made.need = need
        return made

    def __init__(cls, name, bases, namespace, *, need=0, **options):
        super().__init__(name, bases, namespace)


class Hooked(metaclass=Meta):
    calls: typing.ClassVar[list[str]] = []

    def __init_subclass__(cls, *, tag):
        cls.tag = tag
        Hooked.calls.append(cls.__name__)


def make_hooked():
    class Child(Hooked, need=1, tag="t"):
        def get(self):
            return self.tag

    return Child


@makes("class with hooks")
def hooks() -> Any:
    Hooked.calls.clear()
    return [make_hooked(), Hooked]


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...


Shape.register(int)


class Square(Shape):
    def area(self):
        return 4


@makes("abstract class")
def abstract() -> Any:
    return [Shape, Square()]


class Unit:
    base: Any = None
    known: dict[Any, int] = {}

    def __init__(self, name):
        self.name, self.way = name, "init"
        self.known[self] = len(self.known) + 1

    def __getstate__(self):
        return (self.name,)

    def __setstate__(self, state):
        (self.name,), self.way = state, "setstate"

    def __hash__(self):
        return hash(self.name)

    def __eq__(self, other):
        return type(other) is type(self) and self.name == other.name


@makes("class with instances")
def class_with_instances() -> Any:
    if Unit.base is None:
        Unit.base = Unit("m")
    return Unit("s")


@dataclasses.dataclass
class Config:
    lr: float
    tags: list = dataclasses.field(default_factory=list)


@makes("dataclass")
def dataclass() -> Any:
    return Config(0.5, ["a"])


class Body(enum.Enum):
    LIGHT = (1.0, 0)
    HEAVY = (2.0, 1)

    def __init__(self, mass, order):
        self.mass = mass

    def heavy(self):
        return self.mass > 1


@makes("enum with methods")
def enum_with_methods() -> Any:
    return Body.HEAVY


T = TypeVar("T")
Number = TypeVar("Number", int, str)


class Box(Generic[T]):
    def __init__(self, item):
        self.item = item

    def get(self):
        return self.item


@makes("generic")
def generic() -> Any:
    return [Box, Box[int], Box(3)]


@runtime_checkable
class Closes(Protocol):
    def close(self): ...


class Door:
    def close(self):
        return "shut"


@makes("protocol")
def protocol() -> Any:
    return [Closes, Door()]


@makes("module")
def module() -> Any:
    made = types.ModuleType("by_hand", "By hand.")
    exec("count = 0\ndef up():\n    global count\n    count += 1\n    return count\n", made.__dict__)
    return [made, made.up]


class Slow:
    calls = 0

    @functools.cached_property
    def slow(self):
        self.calls += 1
        return self.calls


@makes("wrapped functions")
def wrapped() -> Any:
    @functools.singledispatch
    def dispatch(x):
        return "any"

    @dispatch.register
    def _(x: int):
        return "int"

    cache = functools.lru_cache(maxsize=3)(lambda x: 2 * x)
    return [cache, dispatch, Slow(), functools.partial(lambda a, b: (a, b), b=2), property(lambda self: 5)]


# -- by value, without code --------------------------------------------------------------------------------------------


class Plain:
    rows: typing.ClassVar[list[int]] = [1]


class Slotted:
    __slots__ = ("a",)


@makes("plain class")
def plain_class() -> Any:
    plain, slotted = Plain(), Slotted()
    plain.x, slotted.a = 1, 2  # type: ignore[attr-defined]
    return [Plain, plain, slotted]


class Color(enum.Enum):
    RED = "r"
    GREEN = "g"
    CRIMSON = "r"  # noqa: PIE796


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Perm(enum.Flag):
    R = 1
    W = 2
    X = 4


@makes("enum")
def enum_() -> Any:
    return [Color, Color.RED, Level.HIGH, Perm.R | Perm.X]


class Point(NamedTuple):
    """A point."""

    x: int
    y: int = 2


Pair = collections.namedtuple("Pair", "a b")  # noqa: PYI024


@makes("named tuple")
def named_tuple() -> Any:
    return [Point(1), Pair(1, 2)]


UserId = NewType("UserId", int)


class Movie(TypedDict):
    title: str


@makes("annotations")
def annotations() -> Any:
    return [T, Number, UserId, Movie]


# -- the standard library ----------------------------------------------------------------------------------------------


@makes("locks")
def locks() -> Any:
    return [
        threading.Lock(), threading.RLock(), threading.Condition(), threading.Event(), threading.Semaphore(2),
        threading.BoundedSemaphore(2), threading.Barrier(2),
    ]  # fmt: skip


@makes("sealed")
def sealed() -> Any:
    rows = array.array("d", range(4000))
    parts = ({"add": lambda x: x + 1}, memoryview(rows))
    return [safepickle.seal(part, lazy) for part in parts for lazy in (False, True)]


@makes("queues")
def queues() -> Any:
    fifo, simple, lifo = queue.Queue(), queue.SimpleQueue(), queue.LifoQueue()
    fifo.put(1), fifo.put(2), simple.put(3), lifo.put(4), lifo.put(5)
    return [fifo, simple, lifo]


@makes("thread locals")
def thread_locals() -> Any:
    local = threading.local()
    local.x = 1
    return local


@makes("weak references")
def weak_references() -> Any:
    kept, dead = Plain(), Plain()
    refs = [kept, weakref.ref(kept), weakref.WeakValueDictionary(k=kept), weakref.WeakKeyDictionary({kept: 1})]
    return [*refs, weakref.ref(dead)]


@makes("more weak references")
def more_weak_references() -> Any:
    owner, gone = named.Methods(), named.Methods()
    parts = [owner, weakref.WeakMethod(owner.method), weakref.proxy(owner), weakref.WeakSet([owner])]
    return [*parts, weakref.finalize(owner, print), weakref.finalize(gone, print)]


class Documented(property):
    pass


class Marked(staticmethod):
    pass


@makes("odd parts")
def odd_parts() -> Any:
    documented = Documented(lambda self: 7)
    documented.note = "kept"  # type: ignore[attr-defined]
    released = memoryview(b"x")
    released.release()
    method = types.MethodType(lambda self: self, 5)
    return [method, types.CellType(6), vars(Plain), documented, Marked(lambda: 8), released, named.held.fn]


LOCAL: contextvars.ContextVar[int] = contextvars.ContextVar("local", default=3)


@makes("a variable of a script")
def script_variable() -> Any:
    return [LOCAL, LOCAL]


@makes("files")
def files_() -> Any:
    closed = open(os.devnull)  # noqa: SIM115
    closed.close()
    return [
        open(os.devnull, "rb", buffering=0),
        open(os.devnull, "rb"),
        open(os.devnull, encoding="utf-8"),
        closed,
    ]


class CodedError(Exception):
    def __init__(self, message, code):
        super().__init__(message)
        self.code = code

    def __reduce__(self):
        return CodedError, (self.args[0], self.code)

    def __str__(self):
        return f"{self.args[0]} ({self.code})"


@makes("errors")
def errors() -> Any:
    own = CodedError("message", 5)
    own.__cause__ = KeyError("inner")
    try:
        safepickle.dumps(i for i in ())
    except safepickle.PicklingError as error:
        return [error.with_traceback(None), own]
    raise AssertionError("a generator was pickled")


@makes("type alias")
def type_alias() -> Any:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("type Pairs = list[tuple[int, int]]", namespace)
    return namespace["Pairs"]


@makes("views and proxies")
def views() -> Any:
    table = {"a": 1}
    return [types.MappingProxyType(table), table.keys(), table.values(), table.items(), memoryview(b"abc")]


@makes("context variables")
def context_variables() -> Any:
    context = contextvars.Context()
    context.run(named.variable.set, 9)
    return [named.variable, context]


@makes("exceptions")
def exceptions() -> Any:
    error = ValueError("outer")
    error.__cause__ = KeyError("inner")
    error.__notes__ = ["a note"]  # type: ignore[attr-defined]
    return error


@makes("streams and matches")
def streams() -> Any:
    return [sys.stdout, re.search("a(b)", "abc")]


@makes("containers")
def containers() -> Any:
    return [collections.OrderedDict(a=1), collections.deque([1, 2], 3), collections.Counter("aab"), functools.partial]


# -- libraries ---------------------------------------------------------------------------------------------------------


@makes("tensors")
def tensors() -> Any:
    import torch

    base = torch.arange(4.0)
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.note = "kept"  # type: ignore[attr-defined]
    return [base, base[1:3], parameter]


@makes("torch module")
def torch_module() -> Any:
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    module[1].weight = module[0].weight
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return [module, optimizer]


@makes("torch code")
def torch_code() -> Any:
    import torch

    def scripted(x):
        return x + 1

    return [torch.compile(scripted, backend="eager"), torch.jit.script(scripted), torch.Generator()]


@makes("torch modules of all kinds")
def torch_modules() -> Any:
    import torch

    plain = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    parametrized = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))
    return [
        plain,
        torch.compile(plain, backend="eager"),
        torch.jit.script(plain),
        torch.fx.symbolic_trace(plain),
        parametrized,
    ]


@makes("torch quantized")
def torch_quantized() -> Any:
    import torch

    conv = torch.ao.nn.quantized.Conv1d(1, 1, 1)
    conv.set_weight_bias(torch.quantize_per_tensor(torch.full((1, 1, 1), 2.0), 0.5, 0, torch.qint8), torch.ones(1))
    conv.note = "kept"
    return conv


@makes("torch parts")
def torch_parts() -> Any:
    import torch

    traced = torch.jit.trace(lambda x: x + 2, torch.zeros(1))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5 ** (2 * epoch))
    storage = torch.tensor([1], dtype=torch.int32).untyped_storage()
    typed = torch.tensor([1, 2]).storage()
    return [torch.ops.aten.add.Tensor, torch.ops.aten.add, storage, typed, traced, torch.nn.LazyLinear(2), scheduler]


@makes("kernels")
def kernels() -> Any:
    import triton
    import triton.language as tl

    @triton.jit
    def add_one(x_ptr, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(x_ptr + i, tl.load(x_ptr + i) + 1)

    tuned = triton.autotune([triton.Config({"BLOCK": 8})], key=[])(add_one)
    return [add_one, tuned, add_one[(1,)]]


@makes("tf.function")
def tf_function() -> Any:
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec(None, tf.int32)])
    def down(x):
        while x > 0:
            x -= 1
        return x

    return [down, tf.Variable(5.0, shape=tf.TensorShape(None))]


@makes("tensorflow values")
def tensorflow_values() -> Any:
    import tensorflow as tf

    class Scale(tf.Module):
        def __init__(self):
            super().__init__()
            self.v = tf.Variable(1.0)
            self.step = tf.function(self._step)

        def _step(self, x):
            return x * self.v

    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [1]), default_value=-1)
    return [tf.constant([1, 2]), Scale(), table, tf.data.Dataset.range(3), tf.ragged.constant([[1], [2, 3]])]


@makes("keras")
def keras() -> Any:
    import keras
    import numpy

    layer = keras.layers.Dense(2)
    layer(numpy.ones((1, 3)))
    return layer


@makes("torch compiled")
def torch_compiled() -> Any:
    import torch
    from torch._inductor import config

    from tests.golden import named_torch

    def halved(x):
        return x / 2

    optimized = torch.compile(torch.nn.Linear(2, 2), backend="eager")
    optimized.note = "kept"  # type: ignore[attr-defined]
    contexts = [torch._dynamo.disable(), config.patch(max_autotune=True)]
    return [named_torch.Held.compiled, torch.compiler.disable(halved), torch._dynamo.run(halved), optimized, contexts]


@makes("torch operators")
def torch_operators() -> Any:
    import torch

    from tests.golden import named_torch

    @torch.library.custom_op("safepickle_golden::quadrupled", mutates_args=(), schema="(Tensor x) -> Tensor")
    def quadrupled(x):
        return x * 4

    quadrupled.register_fake(torch.empty_like)
    higher = torch.ops.higher_order.cond
    named = [named_torch.library, named_torch.scripted]
    return [named_torch.doubled, quadrupled, higher, torch.ops.aten, torch.ops, *named]


@makes("torch kernels as operators")
def torch_kernel_operators() -> Any:
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def add_one(x_ptr, y_ptr, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(y_ptr + i, tl.load(x_ptr + i) + 1)

    def plus_one(x):
        y = torch.empty_like(x)
        torch.library.wrap_triton(add_one)[(1,)](x, y, BLOCK=8)
        return y

    # torch reads the annotations, which are strings in this module
    plus_one.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
    plus_one = torch.library.triton_op("safepickle_golden::plus_one", mutates_args=())(plus_one)
    wrapped = torch.library.wrap_triton(add_one)
    return [plus_one, wrapped, wrapped[(1,)]]


@makes("torch on devices")
def torch_devices() -> Any:
    import torch

    generator = torch.Generator().manual_seed(7)
    torch.rand(3, generator=generator)
    return [generator, torch.Stream(device="cpu"), torch.Event(device="cpu"), torch.ones(2, 2).to_mkldnn()]


@makes("torch graphs")
def torch_graphs() -> Any:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Plus(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x + self.w

    class Method(Plus):
        @torch.jit.export
        def twice(self, x: torch.Tensor):
            return x * 2

    program = torch.export.export(Plus(), (torch.zeros(2),))
    with FakeTensorMode() as mode:
        fake = torch.empty(2, 3)
    return [program, mode, fake, torch.jit.script(Method()).twice]


@makes("torch weak keys")
def torch_weak_keys() -> Any:
    import torch
    from torch.utils.weak import WeakIdKeyDictionary

    key = torch.nn.Parameter(torch.ones(1))
    return [key, WeakIdKeyDictionary({key: "value"})]


@makes("tensorflow functions")
def tensorflow_functions() -> Any:
    import tensorflow as tf

    from tests.golden import named_tensorflow

    module = named_tensorflow.Scale()
    concrete = named_tensorflow.plus_one.get_concrete_function(tf.TensorSpec([], tf.float32))
    return [named_tensorflow.plus_one, module.__call__, module, concrete, vars(named_tensorflow.Scale)["__call__"]]


@makes("tensorflow tables")
def tensorflow_tables() -> Any:
    import tensorflow as tf

    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    table.insert(tf.constant(["a"]), tf.constant([1], tf.int64))
    return [table, tf.constant(["a", "b"]), tf.distribute.get_strategy()]


@makes("keras model")
def keras_model() -> Any:
    import keras

    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(2)(inputs))


# -- writing -----------------------------------------------------------------------------------------------------------


def folder() -> Path:
    """Where the files of this version of safepickle and of Python are."""
    return Path(__file__).parent / "files" / f"{safepickle.__version__}-{sys.implementation.cache_tag}"


def installed(library: str | None) -> bool:
    """Whether there is such a library; Triton is imported before TensorFlow, which must come after it."""
    try:
        for name in ("triton", library) if library == "tensorflow" else (library,):
            if name is not None:
                __import__(name)
    except ImportError:
        return False
    return True


def files(kinds: list[str]) -> Iterator[tuple[Path, bytes]]:
    """The files of these kinds and what is to be in them."""
    for name in kinds:
        if installed(NEEDS.get(name)) and sys.version_info >= SINCE.get(name, (3,)):
            obj = MAKERS[name]()
            for protocol in PROTOCOLS:
                yield folder() / f"{name}.{protocol}.pkl", safepickle.dumps(obj, protocol)


def main(arguments: list[str]) -> None:
    """Write the files that are missing, or all."""
    again = "--again" in arguments
    assert MAKERS.keys() == CHECKS.keys(), MAKERS.keys() ^ CHECKS.keys()
    folder().mkdir(parents=True, exist_ok=True)
    for file, data in files([name for name in arguments if name != "--again"] or list(MAKERS)):
        if again or not file.exists():
            file.write_bytes(data)
            print(f"{file.parent.name}/{file.name}: {len(data)} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
