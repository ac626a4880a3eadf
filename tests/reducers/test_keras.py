"""Keras objects go whole: equal predictions, same next step, running state kept, nothing of the original shared."""

from __future__ import annotations

import io

import numpy as np
import pytest

pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

import safepickle
from tests.helpers import run_python
from tests.travel import travel

from .ways import WAYS, every_way

layers = keras.layers

#: Where a model is trained, which takes seconds; all protocols are tried in a fresh process below.
two_ways = pytest.mark.parametrize("way", [WAYS["protocol 2"], WAYS["deepcopy"]], ids=["protocol 2", "deepcopy"])

NUMBERS = np.random.RandomState(0)
X = NUMBERS.rand(8, 4).astype("float32")
Y = NUMBERS.rand(8, 2).astype("float32")


def array(value):
    """As an array, whichever the backend."""
    return keras.ops.convert_to_numpy(value.value if isinstance(value, keras.Variable) else value)


def fitted(model, **options):
    """A model that was compiled, trained, evaluated and asked: it holds compiled functions and running state."""
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], **options)
    model.fit(X, Y, batch_size=4, verbose=0)
    model.evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)
    return model


def assert_same_next_step(one, other):
    """Equal predictions; then a training step of each changes both in the same way."""
    np.testing.assert_array_equal(one.predict(X, verbose=0), other.predict(X, verbose=0))
    np.testing.assert_allclose(one.train_on_batch(X, Y), other.train_on_batch(X, Y), rtol=1e-6)
    for ours, theirs in ((one.variables, other.variables), (one.optimizer.variables, other.optimizer.variables)):
        assert len(ours) == len(theirs)
        assert len(ours) >= 2
        for a, b in zip(ours, theirs, strict=True):
            assert a is not b
            assert a.path == b.path
            np.testing.assert_allclose(array(a), array(b), rtol=1e-5, atol=1e-7)


def assert_independent(old, new):
    """Changing the weights of one model changes its predictions and not those of the other."""
    before = old.predict(X, verbose=0)
    for variable in new.trainable_variables:
        variable.assign(array(variable) * 0 + 1)
    assert not np.allclose(new.predict(X, verbose=0), before)
    np.testing.assert_array_equal(old.predict(X, verbose=0), before)


class Net(keras.Model):
    """A subclassed model with layers and variables in containers, and an attribute that no configuration knows."""

    def __init__(self, width):
        super().__init__()
        self.first = layers.Dense(width, activation="relu")
        self.drop = layers.Dropout(0.5, seed=3)
        self.heads = [layers.Dense(2), layers.Dense(2)]
        self.named = {"third": layers.Dense(2)}
        self.scale = keras.Variable(2.0)
        self.notes = ["made here"]

    def call(self, x, training=False):
        x = self.drop(self.first(x), training=training)
        return self.heads[0](x) + self.heads[1](x) * self.scale + self.named["third"](x)


# -- models ------------------------------------------------------------------------------------------------------------


@two_ways
def test_a_sequential_model_after_fit_and_predict(way, tmp_path):
    hidden = [layers.Dense(3, activation="relu"), layers.BatchNormalization(), layers.Dropout(0.5, seed=1)]
    model = fitted(keras.Sequential([keras.Input((4,)), *hidden, layers.Dense(2)]))
    twin = way({"model": model, "layer": model.layers[0], "kernel": model.layers[0].kernel})
    assert twin["layer"] is twin["model"].layers[0]
    assert twin["kernel"] is twin["layer"].kernel
    twin = twin["model"]
    assert type(twin) is keras.Sequential
    assert twin.name == model.name
    assert twin.history.history == model.history.history
    assert_same_next_step(model, twin)
    twin.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), twin.predict(X, verbose=0))
    assert_independent(model, twin)


@two_ways
def test_a_functional_model_with_a_shared_layer_and_operations(way):
    inputs = keras.Input((4,), name="x")
    shared = layers.Dense(4)
    once = shared(inputs)
    twice = shared(once)
    outputs = layers.Dense(2)(keras.ops.relu(layers.Add()([once, twice])) + 1.0)
    model = fitted(keras.Model(inputs, outputs))
    inner = keras.Model(inputs, twice)
    twin = way({"inner": inner, "model": model})
    assert twin["inner"].layers[1] is twin["model"].layers[1], "the layer is no longer shared"
    np.testing.assert_array_equal(twin["inner"].predict(X, verbose=0), inner.predict(X, verbose=0))
    assert_same_next_step(way(model), model)
    assert_independent(model, twin["model"])


@every_way
def test_the_graph_of_a_functional_model_can_be_used(way):
    inputs = keras.Input((4,), name="x")
    hidden = layers.Dense(3, name="hidden")(inputs)
    model = keras.Model({"x": inputs}, {"a": hidden, "b": [layers.Dense(2)(hidden)]})
    twin = way(model)
    expected = model({"x": X})
    np.testing.assert_array_equal(array(twin({"x": X})["b"][0]), array(expected["b"][0]))
    part = keras.Model(twin.inputs, twin.get_layer("hidden").output)
    np.testing.assert_array_equal(array(part([X])), array(expected["a"]))
    assert twin.get_config() == model.get_config()
    assert len(hidden._keras_history.operation._inbound_nodes) == 1, "the copy has added nodes to the original"


@every_way
def test_a_model_inside_a_model(way):
    inputs = keras.Input((4,))
    inner = keras.Sequential([layers.Dense(3), layers.Dense(3)])
    model = keras.Model(inputs, layers.Dense(1)(inner(inputs)))
    np.testing.assert_array_equal(array(way(model)(X)), array(model(X)))


@every_way
def test_a_symbolic_tensor_brings_its_graph(way):
    inputs = keras.Input((4,))
    outputs = layers.Dense(2)(layers.Dense(3)(inputs))
    new_inputs, new_outputs = way([inputs, outputs])
    expected = keras.Model(inputs, outputs)(X)
    np.testing.assert_array_equal(array(keras.Model(new_inputs, new_outputs)(X)), array(expected))


@every_way
def test_a_model_of_many_layers(way):
    x = inputs = keras.Input((4,))
    for _ in range(150):
        x = layers.Activation("tanh")(x)
    model = keras.Model(inputs, layers.Dense(1)(x))
    np.testing.assert_array_equal(array(way(model)(X)), array(model(X)))


@two_ways
def test_a_subclassed_model_keeps_what_no_configuration_knows(way):
    model = fitted(Net(5))
    model.extra = {"rows": [1, 2]}
    twin = way(model)
    assert twin.notes == ["made here"]
    assert twin.extra == {"rows": [1, 2]}
    twin.notes.append("there")
    assert model.notes == ["made here"]
    assert len(twin.layers) == len(model.layers)
    assert_same_next_step(way(twin), model)
    assert_independent(model, twin)


@every_way
def test_models_that_are_not_built_are_built_later(way):
    for model in (Net(3), keras.Sequential([layers.Dense(3)])):
        twin = way(model)
        twin(X)
        assert twin.built
        assert not model.built
    model = keras.Sequential([keras.Input((4,))])
    twin = way(model)
    twin.add(layers.Dense(2))
    assert twin(X).shape == (8, 2)
    assert not model.layers


@two_ways
def test_functions_of_a_model_use_the_weights_of_the_copy(way):
    tf = pytest.importorskip("tensorflow")

    class Stepped(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(2)
            self.tracker = keras.metrics.Mean(name="loss")

        def call(self, x):
            return self.dense(x)

        @tf.function
        def decorated(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, y = data[:2]
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.tracker.update_state(loss)
            return {"loss": self.tracker.result()}

    model = Stepped()
    model.compile("adam")
    model.fit(X, Y, verbose=0)
    model.decorated(X)
    model.wrapped = tf.function(model.call)
    model.wrapped(X)
    outside = tf.function(model)
    twin = way({"outside": outside, "model": model})
    other = twin["model"]
    other.dense.kernel.assign(array(other.dense.kernel) * 0)
    for function in (other, other.decorated, other.wrapped, twin["outside"]):
        np.testing.assert_allclose(array(function(X)), np.broadcast_to(array(other.dense.bias), (8, 2)))
    for function in (model.decorated, model.wrapped, outside):
        np.testing.assert_allclose(array(function(X)), array(model(X)), rtol=1e-6)
    assert_same_next_step(way(model), model)


@two_ways
def test_mixed_precision(way):
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = fitted(keras.Sequential([layers.Dense(3), layers.Dense(2)]))
        twin = way(model)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert type(twin.optimizer) is keras.optimizers.LossScaleOptimizer
    assert_same_next_step(twin, model)


def test_a_callback_may_copy_the_model_while_it_is_fitted():
    copies = []

    class Keep(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            copies.append(safepickle.deepcopy(self.model))

    model = keras.Sequential([layers.Dense(2)])
    model.compile("adam", "mse")
    model.fit(X, Y, validation_data=(X, Y), epochs=2, verbose=0, callbacks=[Keep()])
    np.testing.assert_array_equal(copies[1].predict(X, verbose=0), model.predict(X, verbose=0))
    assert not np.array_equal(copies[0].predict(X, verbose=0), model.predict(X, verbose=0))
    copies[0].fit(X, Y, verbose=0)


def test_copy_of_a_layer_is_independent_as_keras_has_it():
    layer = layers.Dense(2)
    layer(X)
    twin = safepickle.copy(layer)
    twin.kernel.assign(array(twin.kernel) * 0)
    assert np.abs(array(layer.kernel)).sum() > 0


def test_a_model_of_a_strategy_is_a_plain_one_elsewhere_and_a_copy_is_of_the_same_strategy():
    tf = pytest.importorskip("tensorflow")
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = fitted(keras.Sequential([keras.Input((4,)), layers.Dense(2)]))
    there = safepickle.loads(safepickle.dumps(model))
    twin = safepickle.deepcopy(model)
    assert type(there.layers[0].kernel.value) is not type(model.layers[0].kernel.value)
    assert type(twin.layers[0].kernel.value) is type(model.layers[0].kernel.value)
    assert_independent(model, twin)
    np.testing.assert_array_equal(there.predict(X, verbose=0), model.predict(X, verbose=0))
    there.train_on_batch(X, Y)


# -- layers ------------------------------------------------------------------------------------------------------------

SEQUENCE = NUMBERS.rand(2, 3, 4).astype("float32")
IMAGE = NUMBERS.rand(2, 8, 8, 3).astype("float32")
LAYERS = {
    "LSTM": (lambda: layers.LSTM(3), SEQUENCE),
    "bidirectional GRU": (lambda: layers.Bidirectional(layers.GRU(2)), SEQUENCE),
    "stacked cells": (lambda: layers.RNN([layers.LSTMCell(2), layers.GRUCell(2)]), SEQUENCE),
    "time distributed": (lambda: layers.TimeDistributed(layers.Dense(2)), SEQUENCE),
    "convolution": (lambda: layers.SeparableConv2D(2, 3), IMAGE),
    "lambda": (lambda: layers.Lambda(lambda x: x * 2), X),
    "spectral normalization": (lambda: layers.SpectralNormalization(layers.Dense(2)), X),
    "random flip": (lambda: layers.RandomFlip(seed=1), IMAGE),
    "random rotation": (lambda: layers.RandomRotation(0.2, seed=2), IMAGE),
    "rescaling": (lambda: layers.Rescaling(2.0), IMAGE),
    "embedding": (lambda: layers.Embedding(5, 2), np.array([[1, 2]])),
    "regularized": (lambda: layers.Dense(2, kernel_regularizer="l2", kernel_constraint="max_norm"), X),
}


@pytest.mark.parametrize("kind", list(LAYERS))
@every_way
def test_layers_of_many_kinds_compute_the_same(way, kind):
    make, x = LAYERS[kind]
    layer = make()
    layer(x)
    twin, again = way(layer), way(layer)  # some draw random numbers, or update statistics
    np.testing.assert_array_equal(array(twin(x)), array(again(x)))
    np.testing.assert_array_equal(array(way(layer)(x)), array(layer(x)))
    assert [w.path for w in twin.weights] == [w.path for w in layer.weights]
    np.testing.assert_array_equal([array(loss) for loss in twin.losses], [array(loss) for loss in layer.losses])


@every_way
def test_layers_that_have_learned_a_vocabulary_or_a_mean(way):
    text = layers.TextVectorization()
    text.adapt(["a b c", "a b"])
    words = layers.StringLookup(vocabulary=["x", "y"])
    numbers = layers.Normalization()
    numbers.adapt(X)
    twin = way([text, words, numbers])
    assert twin[0].get_vocabulary() == text.get_vocabulary()
    np.testing.assert_array_equal(array(twin[0](["b z"])), array(text(["b z"])))
    np.testing.assert_array_equal(array(twin[1](["y", "?"])), array(words(["y", "?"])))
    np.testing.assert_array_equal(array(twin[2](X)), array(numbers(X)))
    fresh = layers.StringLookup()
    other = way(fresh)
    other.adapt(["k", "l"])
    assert (len(other.get_vocabulary()), len(fresh.get_vocabulary())) == (3, 1)


@every_way
def test_a_layer_with_a_constructor_of_its_own_and_a_closure_over_itself(way):
    class Odd(keras.Layer):
        def __new__(cls, units):
            return super().__new__(cls, units)

        def __init__(self, units):
            super().__init__()
            self.units = units
            self.product = lambda x: x @ self.w

        def build(self, shape):
            self.w = self.add_weight(shape=(shape[-1], self.units), initializer="ones")

        def call(self, x):
            self.add_loss(keras.ops.sum(x) * 0.1)
            return self.product(x)

    layer = Odd(2)
    layer(X)
    twin = way(layer)
    twin.w.assign(array(twin.w) * 0)
    assert not array(twin(X)).any(), "multiplies with the original's weights"
    assert array(layer(X)).all()
    assert len(twin.losses) == 1


# -- metrics, optimizers, seeds ----------------------------------------------------------------------------------------

METRICS = {
    "mean": (lambda: keras.metrics.Mean(name="loss"), ([1.0, 3.0],)),
    "accuracy": (lambda: keras.metrics.BinaryAccuracy(threshold=0.3), ([[1.0], [0.0]], [[0.4], [0.35]])),
    "AUC": (keras.metrics.AUC, ([1.0, 0.0], [0.4, 0.3])),
    "IoU": (lambda: keras.metrics.MeanIoU(2), ([0, 1], [0, 0])),
    "function": (
        lambda: keras.metrics.MeanMetricWrapper(lambda a, b: keras.ops.mean(a - b)),
        (np.array([1.0, 0.0], "float32"), np.array([0.4, 0.3], "float32")),
    ),
}


@pytest.mark.parametrize("kind", list(METRICS))
@every_way
def test_a_metric_keeps_its_running_state(way, kind):
    make, arguments = METRICS[kind]
    old = make()
    old.update_state(*arguments)
    result = array(old.result())
    new = way(old)
    assert new.name == old.name
    np.testing.assert_array_equal(array(new.result()), result)
    new.reset_state()
    new.update_state(*arguments)
    new.update_state(*arguments)
    np.testing.assert_array_equal(array(old.result()), result)
    np.testing.assert_array_equal(array(way(new).result()), array(new.result()))


OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "schedule and average": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.9), use_ema=True
    ),
    "weight decay": lambda: keras.optimizers.AdamW(0.1),
    "accumulation": lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=2),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1)),
    "rate from a function": lambda: keras.optimizers.RMSprop(lambda: 0.1),
}


@pytest.mark.parametrize("kind", list(OPTIMIZERS))
@every_way
def test_an_optimizer_goes_on_with_its_moments_and_steps(way, kind):
    old, variable = OPTIMIZERS[kind](), keras.Variable(np.array([1.0, 2.0], "float32"))
    gradient = keras.ops.convert_to_tensor(np.array([0.1, 0.2], "float32"))
    for _ in range(3):
        old.apply([gradient], [variable])
    new = way({"optimizer": old, "v": variable})
    value = array(variable)
    new["optimizer"].apply([gradient], [new["v"]])
    np.testing.assert_array_equal(array(variable), value)
    old.apply([gradient], [variable])
    np.testing.assert_array_equal(array(new["v"]), array(variable))
    assert int(new["optimizer"].iterations) == int(old.iterations)
    assert [v.path for v in new["optimizer"].variables] == [v.path for v in old.variables]
    way(old).apply([gradient])  # on the variables that it brings


@every_way
def test_an_optimizer_that_was_not_used_takes_any_variable(way):
    new = way(keras.optimizers.Adam(0.1))
    variable = keras.Variable(np.array([1.0], "float32"))
    new.apply([keras.ops.ones((1,))], [variable])
    assert array(variable) < 1.0


@every_way
def test_a_stream_of_random_numbers_continues(way):
    seed = keras.random.SeedGenerator(7)
    drop = layers.Dropout(0.5, seed=3)
    drop(X, training=True)
    keras.random.normal((2,), seed=seed)
    new = way({"a": seed, "b": seed, "drop": drop})
    assert new["a"] is new["b"]
    numbers = array(keras.random.normal((3,), seed=new["a"]))
    np.testing.assert_array_equal(numbers, array(keras.random.normal((3,), seed=seed)))
    assert not np.array_equal(numbers, array(keras.random.normal((3,), seed=new["a"])))
    np.testing.assert_array_equal(array(new["drop"](X, training=True)), array(drop(X, training=True)))


@every_way
def test_losses_policies_schedules_and_functions(way):
    loss = keras.losses.Huber(0.5)
    penalty, schedule = keras.regularizers.L2(0.1), keras.optimizers.schedules.CosineDecay(0.1, 4)
    new = way([loss, penalty, schedule, keras.activations.relu])
    assert float(new[0](Y, Y * 2)) == float(loss(Y, Y * 2))
    assert float(new[1](X)) == float(penalty(X))
    assert float(new[2](2)) == float(schedule(2))
    assert new[3] is keras.activations.relu
    symbol = keras.KerasTensor((None, 4))
    function = keras.Function(symbol, keras.ops.sigmoid(symbol * 2))
    np.testing.assert_array_equal(array(way(function)(X)), array(function(X)))


# -- from a script to another process, through torch, on torch ---------------------------------------------------------

SCRIPT = """
    import numpy as np
    import tensorflow as tf
    from tensorflow import keras
    from tensorflow.keras import layers

    class Scale(layers.Layer):
        def build(self, shape):
            self.w = self.add_weight(shape=(shape[-1],), initializer="ones")

        @tf.function
        def call(self, x):
            if tf.reduce_sum(x) < 0:  # AutoGraph must convert it
                return -x * self.w
            return x * self.w

    class Net(keras.Model):
        def __init__(self, width):
            super().__init__()
            self.scale, self.hidden, self.out = Scale(), layers.Dense(width), layers.Dense(1)
            self.drop = layers.Dropout(0.3, seed=4)

        def call(self, x, training=False):
            return self.out(self.drop(self.hidden(self.scale(x)), training=training))

    class Mild(keras.losses.Loss):
        def call(self, a, b):
            return keras.ops.mean(keras.ops.abs(a - b) ** 1.5, axis=-1)

    def difference(a, b):
        return keras.ops.mean(a - b)

    X, Y = np.arange(12, dtype="float32").reshape(4, 3) / 10, np.ones((4, 1), "float32")
    model = Net(5)
    model.compile(keras.optimizers.Adam(0.05), Mild(), metrics=[difference, "mae"])
    model.fit(X, Y, verbose=0)
    inputs = keras.Input((3,))
    functional = keras.Model(inputs, Scale()(layers.Dense(2)(inputs)))
    obj = {"model": model, "optimizer": model.optimizer, "prediction": model.predict(X, verbose=0), "X": X, "Y": Y,
           "functional": functional, "expected": functional(X).numpy(), "class": Scale}
    reference = safepickle_deepcopy(model)
    obj["loss"] = reference.train_on_batch(X, Y)
    obj["weights"] = reference.get_weights()
"""

HOME = """
    assert back["class"] is Scale and type(back["model"]) is Net
    assert back["optimizer"] is back["model"].optimizer is not model.optimizer
"""

THERE = """
    import numpy as np
    import tensorflow as tf
    import safepickle
    model, X, Y = obj["model"], obj["X"], obj["Y"]
    np.testing.assert_array_equal(model.predict(X, verbose=0), obj["prediction"])
    np.testing.assert_array_equal(obj["functional"](X).numpy(), obj["expected"])
    assert model.optimizer is obj["optimizer"] and int(model.optimizer.iterations) == 1
    np.testing.assert_array_equal(obj["class"]()(tf.constant([[-1.0, 0.0]])).numpy(), [[1.0, 0.0]])
    twin = safepickle.deepcopy(model)
    np.testing.assert_allclose(model.train_on_batch(X, Y), obj["loss"], rtol=1e-6)
    for ours, theirs in zip(model.get_weights(), obj["weights"]):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    np.testing.assert_array_equal(twin.predict(X, verbose=0), obj["prediction"])
    print("used")
"""


def test_models_of_a_script_take_the_same_next_step_elsewhere(tmp_path):
    script = "    from safepickle import deepcopy as safepickle_deepcopy\n" + SCRIPT.lstrip("\n")
    assert travel(script, THERE, tmp_path, home=HOME, timeout=110).split() == ["used"] * 3


def test_a_torch_file_may_hold_a_model():
    torch = pytest.importorskip("torch")
    model = Net(3)
    model(X)
    file = io.BytesIO()
    torch.save({"model": model, "weight": torch.ones(2)}, file, pickle_module=safepickle)
    file.seek(0)
    twin = torch.load(file, pickle_module=safepickle, weights_only=False)
    np.testing.assert_array_equal(array(twin["model"](X)), array(model(X)))


def test_keras_on_torch():
    pytest.importorskip("torch")
    code = """
        import keras, numpy as np, pickle, torch
        import safepickle
        assert keras.backend.backend() == "torch"
        X, Y = np.ones((8, 4), "float32"), np.ones((8, 2), "float32")
        inputs = keras.Input((4,))
        dense, drop, norm = keras.layers.Dense, keras.layers.Dropout, keras.layers.LayerNormalization
        functional = keras.Model(inputs, dense(2)(drop(0.5, seed=1)(dense(3)(inputs))))
        for model in (functional, keras.Sequential([dense(3), norm(), dense(2)])):
            model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
            model.fit(X, Y, verbose=0)
            twins = [safepickle.deepcopy(model)] + [pickle.loads(safepickle.dumps(model, p)) for p in (2, 5)]
            prediction, step = model.predict(X, verbose=0), model.train_on_batch(X, Y)
            after = model.get_weights()
            for twin in twins:
                np.testing.assert_array_equal(twin.predict(X, verbose=0), prediction)
                np.testing.assert_allclose(twin.train_on_batch(X, Y), step, rtol=1e-6)
                assert len(list(twin.parameters())) == len(list(model.parameters()))
                assert not set(map(id, twin.parameters())) & set(map(id, model.parameters()))
                for ours, theirs in zip(twin.get_weights(), after):
                    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
        print("used")
    """
    assert "used" in run_python(code, env={"KERAS_BACKEND": "torch"})
