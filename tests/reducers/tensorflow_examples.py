"""A module with decorated functions, as a user's module has them, for tests that pickle them by name."""

import tensorflow as tf

__all__ = ["Counter", "Doubler", "aliased", "double", "plain", "total"]


@tf.function
def double(x):
    return x * 2


@tf.function(jit_compile=False, input_signature=[tf.TensorSpec([None], tf.float32)])
def total(x):
    return tf.reduce_sum(double(x))


def plain(x):
    return x + 1


aliased = tf.function(plain)  # the name of the Python function leads to that, not to this


class Counter(tf.Module):
    """A module whose class has a decorated method, and whose instances have a function of a method."""

    def __init__(self, start):
        super().__init__()
        self.v = tf.Variable(float(start))
        self.step = tf.function(self._step, reduce_retracing=True)

    def _step(self, x):
        return x + self.v

    @tf.function(jit_compile=False)
    def scaled(self, x):
        return x * self.v

    @classmethod
    @tf.function
    def of_class(cls, x):
        return x * 3

    @staticmethod
    @tf.function
    def of_nothing(x):
        return x * 4


class Doubler(Counter):
    """Overrides the decorated method."""

    @tf.function
    def scaled(self, x):
        return super().scaled(x) * 2
