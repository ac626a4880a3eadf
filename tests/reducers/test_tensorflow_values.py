"""What TensorFlow programs hold besides functions: variables, tensors, tables, datasets, modules, singletons."""

from __future__ import annotations

import io

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import safepickle
from tests.travel import travel

from .ways import every_way

verbs = pytest.mark.parametrize("verb", [safepickle.dumps, safepickle.deepcopy], ids=["pickle", "deepcopy"])


def listed(dataset):
    return [np.asarray(element).tolist() for element in dataset]


def refused(verb, obj, reason):
    """The verb raises an error with the path to the object and what to do."""
    with pytest.raises(safepickle.PicklingError) as raised:
        verb({"held": [obj]})
    assert "obj['held'][0]" in str(raised.value)
    assert reason in str(raised.value)


# -- variables ---------------------------------------------------------------------------------------------------------


def projected(value):
    return tf.clip_by_value(value, 0.0, 1.0)


VARIABLES = {
    "open shape": lambda: tf.Variable([[1.0, 2.0]], shape=[None, 2], name="rows", trainable=False),
    "any rank": lambda: tf.Variable(1, shape=tf.TensorShape(None)),
    "on read": lambda: tf.Variable(
        1.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM
    ),
    "strings": lambda: tf.Variable(["a", "b"]),
    "bfloat16": lambda: tf.Variable([1.5, 2.5], dtype=tf.bfloat16),
    "constraint": lambda: tf.Variable([0.5], constraint=projected),
    "empty": lambda: tf.Variable(tf.zeros([0, 3])),
}


@pytest.mark.parametrize("kind", list(VARIABLES))
@every_way
def test_a_variable_keeps_value_shape_and_options(way, kind):
    old = VARIABLES[kind]()
    new = way({"v": old, "again": old})
    assert new["v"] is new["again"]
    new = new["v"]
    assert new is not old
    assert str(new.shape) == str(old.shape)
    for name in ("dtype", "name", "trainable", "synchronization", "aggregation", "constraint", "device"):
        assert getattr(new, name) == getattr(old, name), name
    assert np.array_equal(new.numpy(), old.numpy())


@every_way
def test_a_variable_may_grow_where_its_declared_shape_is_open(way):
    old = VARIABLES["open shape"]()
    new = way(old)
    new.assign([[1.0, 2.0], [3.0, 4.0]])
    assert new.numpy().tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert old.numpy().tolist() == [[1.0, 2.0]]


@every_way
def test_a_variable_and_its_copy_are_independent(way):
    old = tf.Variable([1.0, 2.0])
    new = way(old)
    old.assign_add([1.0, 1.0])
    assert new.numpy().tolist() == [1.0, 2.0]
    new.assign([9.0, 9.0])
    assert old.numpy().tolist() == [2.0, 3.0]


@every_way
def test_attributes_of_a_variable_are_kept(way):
    old = tf.Variable(1.0)
    old.rate = {"scale": [0.5]}
    new = way(old)
    assert new.rate == {"scale": [0.5]}
    assert new.rate is not old.rate


@every_way
def test_a_dictionary_by_variable_reference_finds_the_new_variable(way):
    variable = tf.Variable(1.0)
    new = way([variable, {variable.ref(): "here"}])
    assert new[1][new[0].ref()] == "here"


def test_a_variable_is_loaded_outside_of_the_graph_in_which_it_is_loaded():
    data = safepickle.dumps(tf.Variable(3.0))
    loaded = []

    @tf.function
    def load(x):
        if not loaded:
            loaded.append(safepickle.loads(data))
        return x * loaded[0]

    assert load(tf.constant(2.0)) == 6.0
    assert loaded[0].numpy() == 3.0


def test_the_bytes_of_a_variable_go_out_of_band():
    buffers = []
    variable = tf.Variable(tf.range(10_000))
    data = safepickle.dumps(variable, 5, buffer_callback=buffers.append)
    assert len(data) < 1000
    assert safepickle.loads(data, buffers=buffers).numpy().tolist() == list(range(10_000))


@verbs
def test_a_variable_of_a_graph_is_an_error(verb):
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("x", initializer=1.0, use_resource=True)
    refused(verb, variable, "save a checkpoint")


# -- tensors -----------------------------------------------------------------------------------------------------------


TENSORS = {
    "float": lambda: tf.constant([1.0, 2.0]),
    "string": lambda: tf.constant(["a", b"\xff"]),
    "bfloat16": lambda: tf.constant([1.5], tf.bfloat16),
    "scalar string": lambda: tf.constant("a"),
    "qint8": lambda: tf.bitcast(tf.constant([1, -2], tf.int8), tf.qint8),
    "quint8": lambda: tf.bitcast(tf.constant([1, 200], tf.uint8), tf.quint8),
    "qint32": lambda: tf.bitcast(tf.constant([1, 2]), tf.qint32),
}


@pytest.mark.parametrize("kind", list(TENSORS))
@every_way
def test_a_tensor_keeps_its_value_and_type(way, kind):
    old = TENSORS[kind]()
    new = way(old)
    assert new.dtype == old.dtype
    assert new.shape == old.shape
    assert np.array_equal(new.numpy(), old.numpy())


def test_a_copied_tensor_is_shared_because_it_cannot_change():
    tensor = tf.constant(1.0)
    assert safepickle.deepcopy([tensor])[0] is tensor
    assert safepickle.copy(tensor) is tensor


@every_way
def test_composite_tensors(way):
    ragged = tf.ragged.constant([[[1]], [[2, 3], []]])
    sparse = tf.sparse.from_dense([[0, 1], [2, 0]])
    slices = tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([1]), tf.constant([3, 1]))
    array = tf.TensorArray(tf.float32, 2).unstack([1.0, 2.0])
    new = way([ragged, sparse, slices, array])
    assert new[0].to_list() == ragged.to_list()
    assert new[0].shape == ragged.shape
    assert tf.sparse.to_dense(new[1]).numpy().tolist() == [[0, 1], [2, 0]]
    assert tf.convert_to_tensor(new[2]).numpy().tolist() == [[0.0], [1.0], [0.0]]
    assert new[3].stack().numpy().tolist() == [1.0, 2.0]


def test_handles_are_an_error_when_pickled():
    refused(safepickle.dumps, tf.Variable(1.0).handle, "pickle the object that it belongs to")
    refused(safepickle.dumps, tf.data.Dataset.range(1)._variant_tensor, "pickle the object that it belongs to")


@verbs
def test_a_symbolic_tensor_that_was_kept_is_an_error(verb):
    kept = []

    @tf.function
    def trace(x):
        kept.append(x)
        return x

    trace(tf.constant(1.0))
    refused(verb, kept[0], "return it from the function")


@every_way
def test_a_generator_goes_on_with_the_same_numbers(way):
    old = tf.random.Generator.from_seed(3)
    old.normal([2])
    new = way(old)
    numbers = new.normal([3]).numpy()
    assert np.array_equal(numbers, old.normal([3]).numpy())
    new.normal([100])
    assert np.array_equal(old.normal([3]).numpy(), way(old).normal([3]).numpy()) is False
    assert not np.array_equal(new.normal([3]).numpy(), old.normal([3]).numpy()), "shares its state"


# -- lookup tables -----------------------------------------------------------------------------------------------------


def static_table():
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), -1, name="codes")


def file_initializer(folder):
    (folder / "words.txt").write_text("x\ny\n")
    index = tf.lookup.TextFileIndex
    return tf.lookup.TextFileInitializer(
        str(folder / "words.txt"), tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER
    )


def mutable_table(**contents):
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    if contents:
        table.insert(tf.constant(list(contents)), tf.constant(list(contents.values()), tf.int64))
    return table


@every_way
def test_static_tables_keep_their_contents(way):
    table = static_table()
    new = way([table, table])
    assert new[0] is new[1]
    assert new[0].lookup(tf.constant(["b", "c"])).numpy().tolist() == [2, -1]


@every_way
def test_tables_from_a_file_go_without_the_file(way, tmp_path):
    initializer = file_initializer(tmp_path)
    table = tf.lookup.StaticHashTable(initializer, -1, experimental_is_anonymous=True)
    vocabulary = tf.lookup.StaticVocabularyTable(initializer, 3)
    words = tf.constant(["y", "unknown"])
    expected = table.lookup(words).numpy().tolist(), vocabulary.lookup(words).numpy().tolist()
    (tmp_path / "words.txt").unlink()
    new = way([table, vocabulary])
    assert new[0].lookup(words).numpy().tolist() == expected[0] == [1, -1]
    assert new[1].lookup(words).numpy().tolist() == expected[1]


@every_way
def test_mutable_tables_are_independent(way):
    old = mutable_table(z=4, q=5)
    new = way(old)
    assert new.lookup(tf.constant(["q", "z", "?"])).numpy().tolist() == [5, 4, -1]
    new.insert(tf.constant(["q"]), tf.constant([55], tf.int64))
    assert old.lookup(tf.constant(["q"])).numpy().tolist() == [5]
    assert new.lookup(tf.constant(["q"])).numpy().tolist() == [55]


@every_way
def test_tables_of_vectors_empty_tables_and_dense_tables(way):
    vectors = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, [0.0, 0.0])
    vectors.insert(tf.constant([1], tf.int64), tf.constant([[4.0, 5.0]]))
    dense = tf.lookup.experimental.DenseHashTable(
        tf.int64, tf.int64, -1, empty_key=-2, deleted_key=-3, initial_num_buckets=16
    )
    dense.insert(tf.constant([7, 9], tf.int64), tf.constant([8, 10], tf.int64))
    dense.remove(tf.constant([9], tf.int64))
    new = way({"vectors": vectors, "dense": dense, "empty": mutable_table()})
    assert new["vectors"].lookup(tf.constant([1, 2], tf.int64)).numpy().tolist() == [[4.0, 5.0], [0.0, 0.0]]
    assert new["dense"].lookup(tf.constant([7, 9], tf.int64)).numpy().tolist() == [8, -1]
    new["dense"].insert(tf.constant([7], tf.int64), tf.constant([1], tf.int64))
    assert dense.lookup(tf.constant([7], tf.int64)).numpy().tolist() == [8]
    assert new["empty"].size() == 0


@every_way
def test_a_function_of_a_module_looks_up_in_the_table_of_the_copy(way):
    class Coder(tf.Module):
        def __init__(self):
            super().__init__()
            self.table = mutable_table(q=5)

        @tf.function
        def __call__(self, x):
            return self.table.lookup(x)

    coder, word = Coder(), tf.constant(["q"])
    coder(word)
    new = way(coder)
    new.table.insert(word, tf.constant([6], tf.int64))
    assert (new(word).numpy().tolist(), coder(word).numpy().tolist()) == ([6], [5])


# -- datasets ----------------------------------------------------------------------------------------------------------


def table_of_numbers():
    keys, values = tf.constant([0, 1], tf.int64), tf.constant([5, 6], tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), -1)


DATASETS = {
    "batches": lambda source: source.range(5).batch(2),
    "strings": lambda source: source.from_tensor_slices(["a", "b"]),
    "a map that reads a variable": lambda source: (lambda v: source.range(3).map(lambda x: x + v))(
        tf.Variable(3, dtype=tf.int64)
    ),
    "a map that reads a table": lambda source: (lambda t: source.range(3).map(t.lookup))(table_of_numbers()),
    "shuffled with a seed": lambda source: source.range(9).shuffle(9, seed=3, reshuffle_each_iteration=False),
    "zipped": lambda source: source.zip((source.range(2), source.range(2))).map(lambda a, b: a + b),
    "interleaved": lambda source: source.range(4).interleave(source.range, cycle_length=1),
    "cached": lambda source: source.range(3).cache().prefetch(1),
    "windows": lambda source: source.range(9).window(3, drop_remainder=True).flat_map(lambda w: w.batch(3)),
    "random": lambda source: source.range(3).map(lambda x: tf.cast(tf.random.uniform([]) * 0, tf.int64) + x),
}


@pytest.mark.parametrize("kind", list(DATASETS))
@every_way
def test_a_dataset_is_rebuilt_from_its_graph(way, kind):
    dataset = DATASETS[kind](tf.data.Dataset)
    expected = listed(dataset)
    new = way({"data": dataset})["data"]
    assert listed(new) == expected
    assert new.element_spec == dataset.element_spec
    assert new.cardinality() == dataset.cardinality()
    assert listed(way(new)) == expected
    assert listed(new.take(1)) == expected[:1]


@every_way
def test_a_dataset_of_ragged_rows(way):
    dataset = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]]))
    assert [row.numpy().tolist() for row in way(dataset)] == [[1], [2, 3]]


def from_generator():
    return tf.data.Dataset.from_generator(lambda: iter([1, 2]), output_signature=tf.TensorSpec([], tf.int32))


@pytest.mark.parametrize(
    "make",
    [
        from_generator,
        lambda: tf.data.Dataset.range(2).map(lambda x: tf.py_function(lambda y: y, [x], tf.int64)),
        lambda: tf.data.Dataset.range(2).map(lambda x: tf.numpy_function(lambda y: y, [x], tf.int64)),
    ],
    ids=["from_generator", "py_function", "numpy_function"],
)
def test_a_dataset_that_calls_python_is_an_error_when_pickled(make):
    refused(safepickle.dumps, make(), "Pickle the function that builds the pipeline")


def test_a_dataset_that_calls_python_is_shared_by_a_copy():
    dataset = from_generator()
    assert safepickle.deepcopy([dataset])[0] is dataset


def test_a_dataset_that_calls_a_method_of_what_is_copied_is_an_error():
    class Stream:
        def __init__(self):
            self.length = 3
            signature = tf.TensorSpec([], tf.int32)
            self.data = tf.data.Dataset.from_generator(self.items, output_signature=signature).batch(2)

        def items(self):
            yield from range(self.length)

    with pytest.raises(safepickle.CopyError, match=r"obj\.data(.|\n)*would go on reading the object"):
        safepickle.deepcopy(Stream())


@verbs
def test_an_iterator_is_an_error(verb):
    refused(verb, iter(tf.data.Dataset.range(3)), "call iter(dataset)")
    refused(verb, tf.data.Dataset.range(3).as_numpy_iterator(), "call iter(dataset)")


# -- modules that track their attributes -------------------------------------------------------------------------------


class Tracking(tf.Module):
    """A module with variables in containers, one of which leads back to it."""

    def __init__(self):
        super().__init__()
        self.v = tf.Variable(1.0)
        self.items = [tf.Variable(2.0), 3]
        self.named = {"a": tf.Variable(3.0)}
        self.pair = (tf.Variable(4.0), 1)
        self.me = [self]


@every_way
def test_a_module_tracks_its_own_variables(way, tmp_path):
    old = Tracking()
    new = way(old)
    assert new.me[0] is new
    assert len(new.variables) == 4
    assert not {id(v) for v in new.variables} & {id(v) for v in old.variables}
    assert [type(getattr(new, name)) for name in ("items", "named", "pair")] == [
        type(getattr(old, name)) for name in ("items", "named", "pair")
    ]
    path = tf.train.Checkpoint(module=new).save(str(tmp_path / "saved"))
    new.pair[0].assign(100.0)
    tf.train.Checkpoint(module=new).restore(path).assert_consumed()
    assert new.pair[0].numpy() == 4.0
    assert old.pair[0].numpy() == 4.0


@every_way
def test_a_checkpoint_saves_the_new_module(way, tmp_path):
    new = way(tf.train.Checkpoint(module=Tracking()))
    path = new.save(str(tmp_path / "saved"))
    new.module.v.assign(100.0)
    new.restore(path)
    assert new.module.v.numpy() == 1.0


@every_way
def test_a_linear_operator_uses_its_own_variable(way):
    old = tf.linalg.LinearOperatorDiag(tf.Variable([1.0, 2.0]))
    new = way(old)
    new.diag.assign([5.0, 6.0])
    ones = tf.ones([2])
    assert (new.matvec(ones).numpy().tolist(), old.matvec(ones).numpy().tolist()) == ([5.0, 6.0], [1.0, 2.0])


# -- what belongs to a process -----------------------------------------------------------------------------------------


@every_way
def test_the_default_strategy_and_the_runtime_are_those_of_this_process(way):
    from tensorflow.python.eager import context

    new = way([tf.distribute.get_strategy(), context.context()])
    assert new[0] is tf.distribute.get_strategy()
    assert new[1] is context.context()


def test_another_strategy_is_shared_by_a_copy_and_an_error_when_pickled():
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    assert safepickle.deepcopy([strategy])[0] is strategy
    refused(safepickle.dumps, strategy, "make one where the object is used")


@pytest.mark.parametrize("kind", [tf.distribute.OneDeviceStrategy, tf.distribute.MirroredStrategy])
def test_a_variable_of_a_strategy_is_pickled_as_a_plain_one(kind):
    strategy = kind("CPU:0") if kind is tf.distribute.OneDeviceStrategy else kind(["CPU:0"])
    with strategy.scope():
        old = tf.Variable(2.0, name="w")
    new = safepickle.loads(safepickle.dumps(old))
    assert isinstance(new, tf.Variable)
    assert (new.numpy(), new.name, new.trainable) == (2.0, "w:0", True)
    assert safepickle.loads(safepickle.dumps(new)).numpy() == 2.0
    twin = safepickle.deepcopy(old)
    twin.assign(5.0)
    assert (twin.numpy(), old.numpy(), type(twin)) == (5.0, 2.0, type(old))


@verbs
def test_a_tape_that_has_recorded_is_an_error_and_an_idle_one_is_not(verb):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(tf.constant(1.0))
    refused(verb, tape, "compute the gradients")
    assert verb(tf.GradientTape()) is not None


@verbs
def test_a_queue_is_an_error(verb):
    refused(verb, tf.queue.FIFOQueue(3, [tf.float32]), "pickle its elements")


# -- from a script to another process, and through torch ---------------------------------------------------------------


def test_values_are_used_in_a_fresh_process(tmp_path):
    script = """
        import numpy as np
        import tensorflow as tf
        source = tf.data.Dataset.from_tensor_slices({"x": np.arange(6, dtype="float32"), "y": np.arange(6)})
        data = source.map(lambda row: (row["x"] * 2, row["y"])).filter(lambda x, y: y > 0).batch(2)
        table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
        table.insert(tf.constant(["b", "a"]), tf.constant([2, 1], tf.int64))
        generator = tf.random.Generator.from_seed(3)
        generator.normal([2])
        obj = {
            "data": data, "elements": [(x.numpy().tolist(), y.numpy().tolist()) for x, y in data], "table": table,
            "static": tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [1]), -1),
            "generator": generator,
            "v": tf.Variable([[1.0]], shape=[None, 1], name="rows"), "ragged": tf.ragged.constant([[1], [2, 3]]),
            "strategy": tf.distribute.get_strategy(), "quantized": tf.bitcast(tf.constant([3], tf.int8), tf.qint8),
        }
        twin = tf.random.Generator.from_state(generator.state.numpy(), generator.algorithm)
        obj["numbers"] = twin.normal([3]).numpy()
    """
    there = """
        import numpy as np
        import tensorflow as tf
        data = obj["data"]
        assert [(x.numpy().tolist(), y.numpy().tolist()) for x, y in data] == obj["elements"]
        assert data.element_spec == (tf.TensorSpec([None], tf.float32), tf.TensorSpec([None], tf.int64))
        assert [len(x) for x, y in data.unbatch().batch(5)] == [5]
        assert obj["table"].lookup(tf.constant(["a", "?"])).numpy().tolist() == [1, -1]
        assert obj["static"].lookup(tf.constant(["a", "?"])).numpy().tolist() == [1, -1]
        assert np.array_equal(obj["generator"].normal([3]).numpy(), obj["numbers"])
        obj["v"].assign([[1.0], [2.0]])
        assert obj["v"].name == "rows:0" and obj["ragged"].to_list() == [[1], [2, 3]]
        assert obj["strategy"] is tf.distribute.get_strategy() and obj["quantized"].dtype == tf.qint8
        print("used")
    """
    assert travel(script, there, tmp_path, timeout=110).split() == ["used"] * 3


def test_a_torch_file_may_hold_what_is_of_tensorflow():
    torch = pytest.importorskip("torch")
    module = Tracking()
    held = {"module": module, "v": module.v, "weight": torch.ones(2), "step": tf.function(lambda x: x * 2)}
    file = io.BytesIO()
    torch.save(held, file, pickle_module=safepickle)
    file.seek(0)
    new = torch.load(file, pickle_module=safepickle, weights_only=False)
    assert new["v"] is new["module"].v
    new["v"].assign(7.0)
    assert module.v.numpy() == 1.0
    assert new["step"](tf.constant(2.0)) == 4.0
    assert new["weight"].tolist() == [1.0, 1.0]


def test_equal_tables_have_equal_bytes():
    assert safepickle.dumps(mutable_table(z=1, a=2)) == safepickle.dumps(mutable_table(a=2, z=1))
    assert safepickle.dumps(static_table()) == safepickle.dumps(static_table())
