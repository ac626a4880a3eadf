"""``tf.function`` objects: by name or rebuilt, untraced, with all options; those of an instance follow the instance."""

from __future__ import annotations

import functools
import gc
import pickletools
import weakref

import pytest

tf = pytest.importorskip("tensorflow")

import safepickle
from tests.helpers import fresh_load
from tests.travel import travel

from . import tensorflow_examples as examples
from .tensorflow_examples import Counter, Doubler
from .ways import WAYS, every_way, pickled_ways

ONE = tf.constant(1.0)
TWO = tf.constant(2.0)


@tf.function
def named(x):
    return x + 1


def traces(function):
    return function.experimental_get_tracing_count()


def is_independent(old, new, x=TWO):
    """The counter computes with its own variable, and changing it changes nothing about the old one."""
    before = float(old.step(x)), float(old.scaled(x))
    assert (float(new.step(x)), float(new.scaled(x))) == before
    new.v.assign(10.0)
    assert float(new.step(x)) == 12.0, "calls the original's variable"
    assert float(new.scaled(x)) == 20.0
    return (float(old.step(x)), float(old.scaled(x))) == before


# -- functions that a name leads to ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["double", "total", "aliased"])
@pytest.mark.parametrize("called", [False, True], ids=["before the first call", "after it"])
@every_way
def test_a_decorated_global_is_that_function(way, name, called):
    function = getattr(examples, name)
    if called:
        function(tf.constant([1.0]))
    count = traces(function)
    twin = way({"f": function, "again": function})
    assert twin["f"] is function
    assert twin["again"] is function
    assert traces(function) == count


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_decorated_global_is_written_as_a_bare_name(protocol):
    data = safepickle.dumps(examples.double, protocol)
    assert len(data) < 90
    assert b"safepickle" not in data
    called = {opcode.name for opcode, _, _ in pickletools.genops(data)}
    assert called.isdisjoint({"REDUCE", "NEWOBJ", "BUILD", "INST", "OBJ"})


def test_a_decorated_global_is_found_in_a_fresh_process(tmp_path):
    functions = [examples.double, examples.total, examples.aliased]
    functions += [Counter.scaled, Counter.of_class, Counter.of_nothing]
    code = """
        import tensorflow as tf
        from tests.reducers import tensorflow_examples as examples
        assert obj[0] is examples.double and obj[1] is examples.total and obj[2] is examples.aliased
        counter = examples.Counter
        assert obj[3] is counter.scaled and obj[4] is counter.of_class and obj[5] is counter.of_nothing
        assert obj[1](tf.constant([1.0, 2.0])).numpy() == 6.0 and obj[2](1) == 2
        assert obj[4](2.0) == 6.0 and obj[5](2.0) == 8.0
        print("used")
    """
    assert "used" in fresh_load(safepickle.dumps(functions), code, tmp_path, loader="pickle")


def test_loading_checks_that_the_name_leads_to_a_tf_function():
    with pytest.raises(safepickle.UnpicklingError, match=r"not to a tf[.]function"):
        safepickle.restore.tf_function_by_name(examples.__name__, "plain", ())
    with pytest.raises(safepickle.UnpicklingError, match=r"not decorated with tf[.]function"):
        safepickle.restore.tf_method(Counter(1), None, "_step")


@every_way
def test_the_python_function_below_is_that_one(way):
    assert way(examples.double.python_function) is examples.double.python_function


@every_way
def test_class_and_static_methods_are_those_of_the_class(way):
    twin = way([Counter.of_class, Counter.of_nothing, Counter.scaled])
    assert twin[0](ONE) == 3.0
    assert twin[1] is Counter.of_nothing
    assert twin[2] is Counter.scaled


# -- functions without a name ------------------------------------------------------------------------------------------


def test_a_deep_copy_is_untraced_and_the_original_stays_traced():
    function = tf.function(lambda x: x * 3)
    function(ONE)
    twin = safepickle.deepcopy(function)
    assert twin is not function
    assert (traces(twin), traces(function)) == (0, 1)
    assert twin(TWO) == 6.0


def test_copy_of_a_function_is_untraced_or_the_named_one():
    function = tf.function(lambda x: x * 3)
    function(ONE)
    twin = safepickle.copy(function)
    assert twin is not function
    assert traces(twin) == 0
    assert twin(TWO) == 6.0
    assert safepickle.copy(named) is named
    counter = Counter(1)
    assert safepickle.copy(counter.scaled) is counter.scaled


@pickled_ways
def test_loading_at_home_gives_the_living_function_which_is_not_traced_again(way):
    function = tf.function(lambda x: x * 3)
    function(ONE)
    assert way(function) is function
    assert way([function, 1])[0](TWO) == 6.0
    assert traces(function) == 1


def test_functions_of_a_loop_stay_apart():
    functions = [tf.function(lambda x, k=k: x * k) for k in range(3)]
    twins = safepickle.loads(safepickle.dumps(functions))
    assert [float(f(TWO)) for f in twins] == [0.0, 2.0, 4.0]


OPTIONS = {
    "input_signature": [tf.TensorSpec([None], tf.float32)],
    "autograph": False,
    "jit_compile": False,
    "reduce_retracing": True,
    "experimental_autograph_options": tf.autograph.experimental.Feature.EQUALITY_OPERATORS,
}


@pytest.mark.parametrize("called", [False, True], ids=["before the first call", "after it"])
@every_way
def test_every_option_is_kept(way, called):
    state = tf.Variable(0.0)  # with it, even the process that made it does not get the living function back
    function = tf.function((lambda s: lambda x: x + 1 + s)(state), **OPTIONS)
    function.note = {"by": ["user"]}
    if called:
        function(tf.constant([1.0]))
    twin = way([function, state])[0]
    assert twin is not function
    assert twin.input_signature == function.input_signature
    options = ("autograph", "jit_compile", "reduce_retracing", "experimental_autograph_options", "attributes", "name")
    for name in (f"_{option}" for option in options):
        assert getattr(twin, name) == getattr(function, name), name
    assert twin.note == {"by": ["user"]}
    assert twin.note is not function.note
    assert twin(tf.constant([1.0, 2.0])).numpy().tolist() == [2.0, 3.0]
    with pytest.raises((TypeError, ValueError)):
        twin(tf.constant([[1.0]]))


@every_way
def test_a_closure_over_a_variable_uses_the_one_that_came_along(way):
    def scaler(factor, shift):
        @tf.function
        def scale(x, times=3.0):
            return x * factor * times + shift

        return scale

    variable = tf.Variable(2.0)
    function = scaler(variable, 1.0)
    function(TWO)
    for order in (("f", "v"), ("v", "f")):
        parts = {"f": function, "v": variable}
        twin = way({name: parts[name] for name in order})
        twin["v"].assign(10.0)
        assert twin["f"](TWO) == 61.0, "calls the original's variable"
        assert function(TWO) == 13.0


def test_a_closure_that_is_copied_alone_shares_the_variable():
    variable = tf.Variable(2.0)
    function = (lambda v: tf.function(lambda x: x * v))(variable)
    function(TWO)
    twin = safepickle.deepcopy([function])[0]
    variable.assign(5.0)
    assert twin(TWO) == 10.0


@every_way
def test_a_callable_object_and_a_partial_method_travel_with_their_object(way):
    class Scale:
        def __init__(self):
            self.v = tf.Variable(2.0)

        def __call__(self, x):
            return x * self.v

        def plus(self, k, x):
            return x * self.v + k

    scale = Scale()
    parts = [scale, tf.function(scale), tf.function(functools.partial(scale.plus, 1.0))]
    for part in parts[1:]:
        part(TWO)
    twin = way(parts)
    twin[0].v.assign(5.0)
    assert [float(f(TWO)) for f in twin[1:]] == [10.0, 11.0]
    assert [float(f(TWO)) for f in parts[1:]] == [4.0, 5.0]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("way", [WAYS["protocol 5"], WAYS["deepcopy"]], ids=["protocol 5", "deepcopy"])
def test_a_long_chain_of_closures(way):
    def after(inner):
        return tf.function(lambda x: inner(x))

    function = tf.function(lambda x: x)
    for _ in range(500):
        function = after(function)
    twin, length = way([function, tf.Variable(1.0)])[0], 0
    while twin.python_function.__closure__:
        twin, length = twin.python_function.__closure__[0].cell_contents, length + 1
    assert length == 500
    assert twin(TWO) == 2.0


# -- functions of an instance ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("called", [False, True], ids=["before the first call", "after it"])
@every_way
def test_functions_of_an_instance_use_its_copys_variables(way, called):
    counter = Counter(1)
    if called:
        counter.step(TWO), counter.scaled(TWO)
    counts = traces(counter.step), traces(counter.scaled)
    twin = way({"step": counter.step, "scaled": counter.scaled, "counter": counter})
    assert twin["step"] is twin["counter"].step
    assert twin["scaled"] is twin["counter"].scaled
    assert (traces(twin["step"]), traces(twin["scaled"])) == (0, 0)
    assert (traces(counter.step), traces(counter.scaled)) == counts
    assert twin["step"]._reduce_retracing
    assert twin["scaled"]._jit_compile is False
    assert is_independent(counter, twin["counter"])


@every_way
def test_a_method_that_travels_alone_brings_its_instance(way):
    counter = Counter(1)
    for function, expected in ((way(counter.step), 3.0), (way(counter.scaled), 2.0)):
        gc.collect()
        assert function(TWO) == expected


def test_a_restored_method_does_not_keep_its_instance_for_ever():
    data = safepickle.dumps(Counter(1).scaled)
    function = safepickle.loads(data)
    assert function(TWO) == 2.0
    instance = weakref.ref(function.__dict__["_safepickle_instance"])
    del function
    gc.collect()
    assert instance() is None


@every_way
def test_a_method_of_a_base_class_is_that_of_the_base_class(way):
    doubler = Doubler(3)
    base = super(Doubler, doubler).scaled
    twin = way({"own": doubler.scaled, "base": base, "it": doubler})
    assert (float(twin["own"](TWO)), float(twin["base"](TWO))) == (12.0, 6.0)
    assert twin["own"] is twin["it"].scaled


def test_a_method_whose_instance_is_gone_is_an_error():
    function = Counter(1).scaled
    gc.collect()
    with pytest.raises(safepickle.PicklingError, match="no longer exists"):
        safepickle.dumps({"f": function})


@every_way
def test_an_instance_with_a_length_can_be_half_loaded(way):
    class Buffer(tf.Module):
        def __init__(self):
            super().__init__()
            self.size = tf.function(self._size)
            self.items = [1, 2, 3]

        def __len__(self):
            return len(self.items)

        def _size(self, x):
            return x * float(len(self))

    assert way(Buffer()).size(TWO) == 6.0
    assert way(Buffer().size)(TWO) == 6.0


@every_way
def test_variables_that_the_first_call_has_made_belong_to_the_copy(way):
    class Lazy(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = None

        @tf.function
        def __call__(self, x):
            if self.w is None:
                self.w = tf.Variable(3.0)
            return x * self.w

    lazy = Lazy()
    lazy(TWO)
    twin = way(lazy)
    twin.w.assign(5.0)
    assert twin(TWO) == 10.0
    assert lazy(TWO) == 6.0


@every_way
def test_name_scopes_around_and_inside_of_a_function(way):
    class Scoped(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable(2.0)

        @tf.Module.with_name_scope
        @tf.function
        def outside(self, x):
            return x * self.w

        @tf.function
        @tf.Module.with_name_scope
        def inside(self, x):
            return x * self.w

    module = Scoped()
    module.outside(TWO), module.inside(TWO)
    twin = way(module)
    twin.w.assign(5.0)
    assert [float(f(TWO)) for f in (twin.outside, twin.inside)] == [10.0, 10.0]
    assert [float(f(TWO)) for f in (module.outside, module.inside)] == [4.0, 4.0]


def test_copy_of_a_module_shares_variables_and_has_its_own_functions():
    counter = Counter(1)
    counter.step(TWO)
    twin = safepickle.copy(counter)
    assert twin.v is counter.v
    twin.v = tf.Variable(5.0)
    assert (float(twin.step(TWO)), float(twin.scaled(TWO))) == (7.0, 10.0), "calls the original"
    assert (float(counter.step(TWO)), float(counter.scaled(TWO))) == (3.0, 2.0)
    assert counter._self_unconditional_dependency_names["v"] is counter.v, "tracks the copy's variable"
    assert twin._self_unconditional_dependency_names["step"] is twin.step
    assert {id(r.ref) for r in twin._self_unconditional_checkpoint_dependencies} == {id(twin.v), id(twin.step)}


# -- concrete functions, graphs ----------------------------------------------------------------------------------------


@every_way
def test_the_concrete_function_of_a_named_function_is_that_one(way):
    concrete = named.get_concrete_function(ONE)
    assert way(concrete) is concrete


@every_way
def test_a_concrete_function_of_an_instance_uses_its_copys_variables(way):
    counter = Counter(1)
    counter.concrete = counter.step.get_concrete_function(tf.TensorSpec([], tf.float32))
    for twin in (way(counter), way(way(counter))):
        assert isinstance(twin.concrete, type(counter.concrete))
        twin.v.assign(10.0)
        assert twin.concrete(TWO) == 12.0
        assert type(twin.concrete) is type(counter.concrete)
        assert way(twin.concrete)(TWO) == 12.0
    assert counter.concrete(TWO) == 3.0


@pytest.mark.parametrize("verb", [safepickle.dumps, safepickle.deepcopy])
def test_a_concrete_function_whose_function_is_gone_is_an_error(verb):
    concrete = tf.function(lambda x: x).get_concrete_function(ONE)
    gc.collect()
    with pytest.raises(safepickle.PicklingError, match=r"obj\['c'\]\[0\](.|\n)*Keep that one"):
        verb({"c": [concrete]})


@pytest.mark.parametrize("verb", [safepickle.dumps, safepickle.deepcopy])
def test_a_loaded_saved_model_is_an_error_that_says_to_pickle_the_path(verb, tmp_path):
    class Served(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
        def serve(self, x):
            return x

    tf.saved_model.save(Served(), str(tmp_path))
    with pytest.raises(safepickle.PicklingError, match="pickle the path"):
        verb(tf.saved_model.load(str(tmp_path)))


@pytest.mark.parametrize("verb", [safepickle.dumps, safepickle.deepcopy])
def test_a_graph_is_an_error(verb):
    with pytest.raises(safepickle.PicklingError, match=r"obj\[0\](.|\n)*as_graph_def"):
        verb([tf.Graph()])


# -- from a script to another process ----------------------------------------------------------------------------------


SCRIPT = """
    import tensorflow as tf

    @tf.function
    def collatz(n):
        steps = tf.constant(0)
        while n != 1:
            if n % 2 == 0:
                n = n // 2
            else:
                n = 3 * n + 1
            steps += 1
        return steps

    def total(n, k=2):
        result = tf.constant(0)
        for i in tf.range(n):
            result += i * k
        return result

    total_by_loop = tf.function(total, reduce_retracing=True)
    w = tf.Variable(3.0)

    @tf.function
    def uses_global(x):
        return x * w

    @tf.function
    def fib(n, k=1):
        return n * k if n < 2 else fib(n - 1) + fib(n - 2)

    @tf.custom_gradient
    def clipped(x):
        return x * 2, lambda dy: dy * 100

    class Net(tf.Module):
        def __init__(self):
            super().__init__()
            self.v = tf.Variable(2.0)
            self.step = tf.function(self._step)

        def _step(self, n):
            x = tf.constant(0.0)
            while n > 0:
                x += self.v
                n -= 1
            return x

        @tf.function
        def power(self, n):
            x = tf.constant(1.0)
            while n > 0:
                x *= self.v
                n -= 1
            return x

    def scaler(factor):
        return tf.function(lambda x: x * factor)

    factor = tf.Variable(3.0)
    scale = scaler(factor)
    fused = tf.function(lambda x: x, experimental_implements='name: "fused" attr { key: "rate" value { i: 3 } }')
    net = Net()
    three = tf.constant(3)
    assert collatz(three) == 7 and total_by_loop(three) == 6 and net.step(three) == 6 and net.power(three) == 8
    obj = {
        "collatz": collatz, "total": total_by_loop, "raw": total, "w": w, "uses_global": uses_global, "fib": fib,
        "raw fib": fib.python_function, "clipped": clipped, "scale": scale, "factor": factor, "fused": fused,
        "net": net, "step": net.step, "power": net.power,
        "concrete": net.step.get_concrete_function(tf.TensorSpec([], tf.int32)), "train": lambda n: float(net.power(n)),
    }
"""

AT_HOME = """
    assert all(back[name] is obj[name] for name in ("collatz", "total", "uses_global", "fib"))
    assert back["step"] is back["net"].step and back["net"] is not net
    assert safepickle.deepcopy([scale])[0] is scale
    for both in (back, safepickle.deepcopy({"scale": scale, "factor": factor})):
        both["factor"].assign(7.0)
        assert both["scale"](2.0) == 14.0 and scale(2.0) == 6.0, "a named closure calls the original's variable"
    twin = safepickle.deepcopy(obj)
    assert all(twin[name] is obj[name] for name in ("collatz", "total", "uses_global", "fib"))
    twin["net"].v.assign(10.0)
    assert twin["step"](three) == 30 and net.step(three) == 6
    assert collatz.experimental_get_tracing_count() == 1
"""

ELSEWHERE = """
    import inspect
    import tensorflow as tf
    five = tf.constant(5)
    assert obj["collatz"](five) == 5, "AutoGraph did not convert the loop"
    assert "while n != 1" in inspect.getsource(obj["collatz"].python_function)
    assert obj["total"](five) == 20 and obj["total"](five, 1) == 10 and obj["total"]._reduce_retracing
    assert obj["raw"](five) == 20
    assert obj["fused"]._attributes["_implements"].func.name == "fused" and obj["fused"](five) == 5
    assert obj["fib"](5) == 5 and obj["raw fib"](4) == 3
    obj["w"].assign(7.0)
    assert obj["uses_global"](tf.constant(2.0)) == 14.0, "the global variable is another one"
    x = tf.constant(1.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = obj["clipped"](x)
    assert tape.gradient(y, x) == 100.0
    net = obj["net"]
    assert obj["step"] is net.step and obj["power"] is net.power
    net.v.assign(3.0)
    assert obj["step"](five) == 15 and obj["power"](tf.constant(2)) == 9
    assert obj["concrete"](five) == 15 and obj["train"](tf.constant(2)) == 9.0
    print("used")
"""


def test_functions_of_a_script_work_where_the_script_is_not(tmp_path):
    assert travel(SCRIPT, ELSEWHERE, tmp_path, home=AT_HOME, timeout=110).split() == ["used"] * 3


def test_a_second_payload_brings_its_own_state_and_shares_what_has_none(tmp_path):
    script = """
        import tensorflow as tf
        pure = tf.function(lambda x: x * 2)
        scale = 3.0

        @tf.function
        def scaled(x):
            return x * scale

        w = tf.Variable(1.0)

        @tf.function
        def weighted(x):
            return x * w

        import safepickle
        first = safepickle.dumps([pure, scaled, weighted])
        second = safepickle.dumps([pure, scaled, weighted])
        scale = 4.0
        obj = first, second, safepickle.dumps([pure, scaled, weighted])
    """
    there = """
        import tensorflow as tf
        x = tf.constant(1.0)
        first, second, third = [pickle.loads(data) for data in obj]
        assert first[0] is second[0] is third[0]
        assert first[1] is second[1] is not third[1]
        assert [float(f[1](x)) for f in (first, second, third)] == [3.0, 3.0, 4.0]
        assert first[2] is not second[2] and first[2](x) == 1.0
        print("used")
    """
    assert travel(script, there, tmp_path, timeout=110).split() == ["used"] * 3
