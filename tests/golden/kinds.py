"""What must come back from a golden file: one function for each kind, which uses what was loaded."""

from __future__ import annotations

import asyncio
import collections
import contextvars
import dataclasses
import enum
import functools
import inspect
import os
import sys
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

import safepickle

from ..helpers import call_with_timeout
from . import named

__all__ = ["CHECKS", "NEEDS", "SINCE"]

CHECKS: dict[str, Callable[[Any], None]] = {}
#: Kind -> the first version of Python that has such things.
SINCE = {"type alias": (3, 12)}
#: Kind -> the library that must be installed to load it.
NEEDS: dict[str, str] = {}


def kind(name: str, needs: str | None = None) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Enter a check under the name of its files."""

    def enter(check: Callable[[Any], None]) -> Callable[[Any], None]:
        CHECKS[name] = check
        if needs is not None:
            NEEDS[name] = needs
        return check

    return enter


# -- by reference ------------------------------------------------------------------------------------------------------


@kind("references")
def check_references(obj: Any) -> None:
    assert obj["plain"] is named.plain and obj["alias"] is named.alias and obj["class"] is named.Methods
    assert obj["below"] is named.decorated.fn and obj["below"](4) == 8
    assert obj["function of a method"] is named.Methods.method and obj["bound"]() == "method"
    assert obj["class method"] == named.Methods.made and obj["class method"]() is named.Methods
    assert obj["property"] is named.Methods.prop and obj["getter"] is named.Methods.prop.fget
    assert obj["raw class method"].__func__ is named.Methods.made.__func__
    assert obj["module"] is named and obj["lazy"] is named.lazy
    assert obj["type"] is types.FunctionType and obj["builtins"] == [len, str.join, dict.fromkeys]
    assert obj["descriptor"] is vars(type)["__dict__"] or obj["descriptor"] is type.__dict__["__dict__"]


@kind("markers")
def check_markers(obj: Any) -> None:
    assert obj[0] is dataclasses.MISSING and obj[1] is dataclasses._FIELD  # type: ignore[attr-defined]


# -- by value, with code: of one version of Python --------------------------------------------------------------------


@kind("function")
def check_function(obj: Any) -> None:
    f, g, make = obj
    assert f(1) == 4 and g is f.__globals__["helper"] and f.__defaults__ == (2,) and f.note == "kept"
    assert f.__doc__ == "Add." and f.__annotations__ == {"x": "int", "return": "int"} and f.__module__ == "__main__"
    assert inspect.getsource(g) == "def helper(x):\n    return x + FACTOR\n" and g(1) == 2
    up, now = make()
    assert (up(), up(), now()) == (1, 2, 2)


@kind("closures")
def check_closures(obj: Any) -> None:
    up, now, cell = obj
    assert (up(), now(), cell.cell_contents) == (11, 11, 11)


@kind("coroutines")
def check_coroutines(obj: Any) -> None:
    generate, fetch = obj
    assert list(generate(3)) == [0, 1, 2] and asyncio.run(fetch(2)) == 4


@kind("class")
def check_class(obj: Any) -> None:
    cls, instance, method = obj
    assert (
        type(instance) is cls
        and instance.get() == 5
        and method() == 5
        and instance.twice == 10
        and cls.make().get() == 0
    )
    assert isinstance(instance, cls.__mro__[1]) and cls.registry == {"self": cls} and instance.up() == ["base", "child"]


@kind("class with hooks")
def check_hooks(obj: Any) -> None:
    child, base = obj
    assert child.tag == "t" and base.calls == ["Child"] and child.__bases__ == (base,) and child().get() == "t"
    assert type(child).__name__ == "Meta" and child.need == 1


@kind("abstract class")
def check_abstract(obj: Any) -> None:
    shape, square = obj
    assert isinstance(3, shape) and square.area() == 4 and shape.__abstractmethods__ == {"area"}


@kind("class with instances")
def check_class_with_instances(obj: Any) -> None:
    cls = type(obj)
    assert (obj.name, obj.way) == ("s", "setstate") and (cls.base.name, cls.base.way) == ("m", "setstate")
    assert cls.known[cls.base] == 1 and cls.known[obj] == 2


@kind("dataclass")
def check_dataclass(obj: Any) -> None:
    assert dataclasses.asdict(obj) == {"lr": 0.5, "tags": ["a"]} and type(obj)(1.0).tags == []
    assert obj == type(obj)(0.5, ["a"])


@kind("enum with methods")
def check_enum_with_methods(obj: Any) -> None:
    assert obj.mass == 2.0 and obj.heavy() and type(obj)((2.0, 1)) is obj and type(obj).LIGHT.mass == 1.0


@kind("generic")
def check_generic(obj: Any) -> None:
    cls, alias, instance = obj
    assert alias.__origin__ is cls and alias.__args__ == (int,) and instance.get() == 3 and len(cls.__parameters__) == 1


@kind("protocol")
def check_protocol(obj: Any) -> None:
    protocol, other = obj
    assert isinstance(other, protocol) and not isinstance(3, protocol)


@kind("module")
def check_module(obj: Any) -> None:
    module, up = obj
    assert up() == 1 and module.count == 1 and module.up is up and module.__name__ == "by_hand"


@kind("wrapped functions")
def check_wrapped(obj: Any) -> None:
    cache, dispatch, cached_property_owner, partial, prop = obj
    assert cache(2) == 4 and cache.cache_info().misses == 1 and (dispatch(1), dispatch("")) == ("int", "any")
    assert cached_property_owner.slow == 1 and cached_property_owner.slow == 1 and partial(1) == (1, 2)
    assert prop.fget(None) == 5


# -- by value, without code: for every version -------------------------------------------------------------------------


@kind("plain class")
def check_plain_class(obj: Any) -> None:
    cls, instance, slotted = obj
    assert type(instance) is cls and cls.rows == [1] and instance.x == 1 and cls.__module__ == "__main__"
    assert slotted.a == 2 and not hasattr(slotted, "__dict__")


@kind("enum")
def check_enum(obj: Any) -> None:
    color, red, level, perm = obj
    assert (
        red is color.RED is color("r")
        and list(color.__members__) == ["RED", "GREEN", "CRIMSON"]
        and color.CRIMSON is red
    )
    assert level == 10 and isinstance(level, enum.IntEnum) and perm == type(perm).R | type(perm).X and perm.value == 5


@kind("named tuple")
def check_named_tuple(obj: Any) -> None:
    point, plain = obj
    assert point == (1, 2) and point.x == 1 and point._replace(x=5) == (5, 2) and type(point)(3) == (3, 2)
    assert point.__doc__ == "A point." and plain._fields == ("a", "b")


@kind("annotations")
def check_annotations(obj: Any) -> None:
    variable, bound, new_type, movie = obj
    assert isinstance(variable, typing.TypeVar) and bound.__constraints__ == (int, str) and new_type(3) == 3
    assert new_type.__supertype__ is int and movie(title="x") == {"title": "x"} and movie.__required_keys__ == {"title"}


# -- the standard library ----------------------------------------------------------------------------------------------


@kind("locks")
def check_locks(obj: Any) -> None:
    assert len(obj) == 7
    for lock in obj[:2]:
        assert call_with_timeout(lambda: lock.acquire() and lock.release() is None)  # noqa: B023
    _, _, condition, event, semaphore, bounded, barrier = obj
    with condition:
        condition.notify_all()
    assert not event.is_set() or event.wait(1)
    assert semaphore.acquire(timeout=1) and bounded.acquire(timeout=1) and barrier.parties == 2


@kind("sealed")
def check_sealed(obj: Any) -> None:
    functions, rows = obj[:2], obj[2:]
    assert functions[0]["add"](1) == functions[1].get()["add"](1) == 2
    assert repr(functions[1]).startswith("<sealed builtins.dict, ")
    assert rows[0].tolist() == rows[1].get().tolist() == list(range(4000))


@kind("queues")
def check_queues(obj: Any) -> None:
    fifo, simple, lifo = obj
    assert [fifo.get(timeout=1), fifo.get(timeout=1)] == [1, 2]
    assert simple.get(timeout=1) == 3 and lifo.get(timeout=1) == 5
    fifo.put(7, timeout=1)
    assert fifo.get(timeout=1) == 7


@kind("thread locals")
def check_thread_locals(obj: Any) -> None:
    assert obj.x == 1 and not call_with_timeout(lambda: hasattr(obj, "x"))


@kind("weak references")
def check_weak(obj: Any) -> None:
    kept, ref, values, keys, dead = obj
    assert ref() is kept and isinstance(ref, weakref.ref) and values["k"] is kept and keys[kept] == 1 and dead() is None


@kind("more weak references")
def check_more_weak(obj: Any) -> None:
    owner, method, proxy, members, finalizer, dead = obj
    assert method()() == "method" and proxy.method() == "method" and list(members) == [owner] and finalizer.alive
    assert not dead.alive and isinstance(method, weakref.WeakMethod)
    finalizer.detach()


@kind("odd parts")
def check_odd_parts(obj: Any) -> None:
    method, cell, namespace, prop, wrapped, released, cache = obj
    assert method() == 5 and cell.cell_contents == 6 and namespace["rows"] == [1]
    assert type(prop).__name__ == "Documented" and prop.fget(None) == 7 and prop.note == "kept"
    assert type(wrapped).__name__ == "Marked" and wrapped.__func__() == 8 and isinstance(wrapped, staticmethod)
    assert cache is named.held.fn and cache(2) == 6
    try:
        released.tobytes()
    except ValueError:
        pass
    else:
        raise AssertionError("not released")


@kind("a variable of a script")
def check_script_variable(obj: Any) -> None:
    variable, again = obj
    assert variable is again and variable.name == "local" and variable.get() == 3


@kind("files")
def check_files(obj: Any) -> None:
    raw, buffered, text, closed = obj
    assert raw.read() == b"" and buffered.read() == b"" and text.read() == "" and text.encoding == "utf-8"
    assert closed.closed and closed.name == os.devnull
    for file in (raw, buffered, text):
        file.close()


@kind("errors")
def check_errors(obj: Any) -> None:
    ours, own = obj
    assert isinstance(ours, safepickle.PicklingError) and isinstance(ours, TypeError) and "generator" in str(ours)
    assert own.code == 5 and own.__cause__.args == ("inner",) and str(own) == "message (5)"


@kind("type alias")
def check_type_alias(obj: Any) -> None:
    assert obj.__name__ == "Pairs" and obj.__value__ == list[tuple[int, int]] and obj.__module__ == "__main__"


@kind("views and proxies")
def check_views(obj: Any) -> None:
    proxy, keys, values, items, view = obj
    assert proxy["a"] == 1 and type(proxy) is types.MappingProxyType and list(keys) == ["a"] and list(values) == [1]
    assert list(items) == [("a", 1)] and view.tobytes() == b"abc"


@kind("context variables")
def check_context(obj: Any) -> None:
    variable, context = obj
    assert variable is named.variable and context[named.variable] == 9 and isinstance(context, contextvars.Context)


@kind("exceptions")
def check_exceptions(obj: Any) -> None:
    assert obj.args == ("outer",) and obj.__cause__.args == ("inner",) and obj.__notes__ == ["a note"]


@kind("streams and matches")
def check_streams(obj: Any) -> None:
    out, match = obj
    assert out is sys.stdout and match.group(1) == "b" and match.string == "abc"


@kind("containers")
def check_containers(obj: Any) -> None:
    assert obj == [
        collections.OrderedDict(a=1),
        collections.deque([1, 2], 3),
        collections.Counter("aab"),
        functools.partial,
    ]


# -- libraries ---------------------------------------------------------------------------------------------------------


@kind("tensors", needs="torch")
def check_tensors(obj: Any) -> None:
    import torch

    base, view, parameter = obj
    assert base.tolist() == [0.0, 1.0, 2.0, 3.0] and view.tolist() == [1.0, 2.0]
    base[1] = 9
    assert view[0] == 9 and isinstance(parameter, torch.nn.Parameter) and parameter.note == "kept"


@kind("torch module", needs="torch")
def check_torch_module(obj: Any) -> None:
    import torch

    module, optimizer = obj
    assert module[0].weight is module[1].weight and module(torch.ones(1, 2)).shape == (1, 2)
    assert optimizer.param_groups[0]["params"][0] is module[0].weight
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()


@kind("torch code", needs="torch")
def check_torch_code(obj: Any) -> None:
    import torch

    compiled, scripted, generator = obj
    assert callable(compiled) and scripted(torch.ones(2)).tolist() == [2.0, 2.0]
    assert isinstance(generator, torch.Generator) and torch.rand(1, generator=generator).shape == (1,)


@kind("torch modules of all kinds", needs="torch")
def check_torch_modules(obj: Any) -> None:
    import torch

    x = torch.ones(1, 2)
    plain, optimized, scripted, graph, parametrized = obj
    expected = plain(x)
    for module in (optimized, scripted, graph):
        assert torch.allclose(module(x), expected), type(module)
    assert parametrized.weight.shape == (2, 2) and parametrized.parametrizations.weight.original0.shape == (2, 1)
    parametrized(x).sum().backward()


@kind("torch quantized", needs="torch")
def check_torch_quantized(obj: Any) -> None:
    import torch

    x = torch.quantize_per_tensor(torch.ones(1, 1, 2), 1.0, 0, torch.quint8)
    assert obj.note == "kept" and obj(x).dequantize().tolist() == [[[3.0, 3.0]]]


@kind("torch parts", needs="torch")
def check_torch_parts(obj: Any) -> None:
    import torch

    overload, packet, storage, typed, traced, lazy, scheduler = obj
    assert overload is torch.ops.aten.add.Tensor and packet is torch.ops.aten.add and storage.tolist() == [1, 0, 0, 0]
    assert typed.tolist() == [1, 2] and traced(torch.ones(1)).item() == 3.0
    assert isinstance(lazy, torch.nn.LazyLinear) and lazy(torch.ones(1, 3)).shape == (1, 2)
    assert scheduler.get_last_lr() == [0.5] and scheduler.lr_lambdas[0](1) == 0.25


@kind("kernels", needs="triton")
def check_kernels(obj: Any) -> None:
    kernel, tuned, launcher = obj
    assert kernel.fn.__name__ == "add_one" and tuned.fn is kernel and tuned.configs[0].kwargs == {"BLOCK": 8}
    assert "tl.store" in kernel.src and callable(launcher)


@kind("tf.function", needs="tensorflow")
def check_tf_function(obj: Any) -> None:
    import tensorflow as tf

    function, variable = obj
    assert function(tf.constant(3)).numpy() == 0 and variable.numpy() == 5.0 and variable.shape == tf.TensorShape(None)
    variable.assign(6.0)
    assert variable.numpy() == 6.0


@kind("tensorflow values", needs="tensorflow")
def check_tensorflow_values(obj: Any) -> None:
    import tensorflow as tf

    tensor, module, table, dataset, ragged = obj
    assert tensor.numpy().tolist() == [1, 2] and table.lookup(tf.constant(["a"])).numpy().tolist() == [1]
    module.v.assign(3.0)
    assert module.step(tf.constant(2.0)).numpy() == 6.0, "bound to another module"
    assert list(dataset.as_numpy_iterator()) == [0, 1, 2] and ragged.to_list() == [[1], [2, 3]]


@kind("keras", needs="tensorflow")
def check_keras(obj: Any) -> None:
    import numpy

    assert obj(numpy.ones((1, 3))).shape == (1, 2)


@kind("torch compiled", needs="torch")
def check_torch_compiled(obj: Any) -> None:
    import torch

    from . import named_torch

    compiled, disabled, run, optimized, (context, patch) = obj
    x = torch.ones(2)
    assert compiled is named_torch.Held.compiled and compiled(x).tolist() == [2.0, 2.0]
    assert disabled(x).tolist() == [0.5, 0.5] and run(x).tolist() == [0.5, 0.5]
    assert optimized(torch.ones(1, 2)).shape == (1, 2) and optimized.note == "kept"
    assert context(lambda y: y + 3)(x).tolist() == [4.0, 4.0]
    from torch._inductor import config

    with patch:
        assert config.max_autotune


@kind("torch operators", needs="torch")
def check_torch_operators(obj: Any) -> None:
    import torch

    from . import named_torch

    doubled, quadrupled, higher, aten, ops, library, scripted = obj
    x = torch.ones(2)
    assert doubled is named_torch.doubled and doubled(x).tolist() == [2.0, 2.0] and quadrupled(x).tolist() == [4.0, 4.0]
    assert higher is torch.ops.higher_order.cond and aten is torch.ops.aten and ops is torch.ops
    assert library is named_torch.library and scripted is named_torch.scripted


@kind("torch kernels as operators", needs="triton")
def check_torch_kernel_operators(obj: Any) -> None:
    operator, wrapped, launcher = obj
    assert operator._qualname == "safepickle_golden::plus_one" and "tl.store" in wrapped.kernel.src
    assert launcher.grid == (1,) and launcher.kernel is wrapped.kernel


@kind("torch on devices", needs="torch")
def check_torch_devices(obj: Any) -> None:
    import torch

    generator, stream, event, dense = obj
    fresh = torch.Generator().manual_seed(7)
    torch.rand(3, generator=fresh)
    assert torch.equal(torch.rand(2, generator=generator), torch.rand(2, generator=fresh)), "not at the same place"
    assert stream.device.type == event.device.type == "cpu" and dense.to_dense().tolist() == [[1.0, 1.0], [1.0, 1.0]]


@kind("torch graphs", needs="torch")
def check_torch_graphs(obj: Any) -> None:
    import torch

    program, mode, fake, twice = obj
    assert program.module()(torch.ones(2)).tolist() == [2.0, 2.0] and twice(torch.ones(2)).tolist() == [2.0, 2.0]
    with mode:
        assert (fake + 1).shape == (2, 3) and fake.fake_mode is mode


@kind("torch weak keys", needs="torch")
def check_torch_weak_keys(obj: Any) -> None:
    key, mapping = obj
    assert mapping[key] == "value" and len(mapping) == 1


@kind("tensorflow functions", needs="tensorflow")
def check_tensorflow_functions(obj: Any) -> None:
    import tensorflow as tf

    from . import named_tensorflow

    plus_one, call, module, concrete, of_class = obj
    assert of_class is vars(named_tensorflow.Scale)["__call__"]
    assert plus_one is named_tensorflow.plus_one and plus_one(tf.constant(1.0)).numpy() == 2.0
    module.v.assign(5.0)
    assert call(tf.constant(2.0)).numpy() == 10.0 and concrete(tf.constant(1.0)).numpy() == 2.0


@kind("tensorflow tables", needs="tensorflow")
def check_tensorflow_tables(obj: Any) -> None:
    import tensorflow as tf

    table, strings, strategy = obj
    assert table.lookup(strings).numpy().tolist() == [1, -1] and strategy is tf.distribute.get_strategy()


@kind("keras model", needs="tensorflow")
def check_keras_model(obj: Any) -> None:
    import numpy

    assert obj(numpy.ones((1, 3))).shape == (1, 2) and obj.input_shape == (None, 3)
