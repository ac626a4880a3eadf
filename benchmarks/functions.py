"""The `tf.function` objects whose retraces are counted. Needs TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["KINDS", "HandWritten", "Holder", "Network", "argument", "layers", "traces"]


@tf.function
def layers(x):
    """A function at the top of a module, with some dozens of operations."""
    for _ in range(20):
        x = tf.nn.relu(tf.linalg.matmul(x, x)) + 1.0
        x = x / tf.reduce_max(x)
    return x


def scaled(factor: float) -> Any:
    """A function from a factory, which no name leads to."""

    @tf.function
    def scale(x):
        for _ in range(20):
            x = tf.nn.relu(tf.linalg.matmul(x, x)) * factor
            x = x / (tf.reduce_max(x) + 1.0)
        return x

    return scale


class Network(tf.Module):
    """A module that holds a function of its own method, which is bound to the module's variables."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(tf.ones([8, 8]))
        self.function = tf.function(self.call)

    def call(self, x):
        for _ in range(20):
            x = tf.nn.relu(tf.linalg.matmul(x, self.weight))
            x = x / (tf.reduce_max(x) + 1.0)
        return x


class Holder:
    """An object with a function, as users' programs have it."""

    def __init__(self, function: Any) -> None:
        self.function = function


class HandWritten:
    """The same with the usual workaround: the function is dropped from the state and made again."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.function = KINDS[kind]().function

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["function"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.function = tf.function(KINDS[self.kind]().function.python_function)


#: name -> an object whose attribute `function` is a `tf.function` of that kind.
KINDS: dict[str, Any] = {
    "importable tf.function": lambda: Holder(layers),
    "closure tf.function": lambda: Holder(scaled(1.5)),
    "tf.function of a method": Network,
}


def argument() -> Any:
    return tf.ones([8, 8])


def traces(function: Any) -> int:
    return int(function.experimental_get_tracing_count())
