"""Things of TensorFlow with names, for the golden files that refer to them. Nothing here is ever renamed."""

from __future__ import annotations

import tensorflow as tf

__all__ = ["Scale", "plus_one"]


@tf.function
def plus_one(x: tf.Tensor) -> tf.Tensor:
    """Add one."""
    return x + 1


class Scale(tf.Module):
    """A variable and a decorated method."""

    def __init__(self) -> None:
        super().__init__()
        self.v = tf.Variable(2.0)

    @tf.function
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Scale."""
        return self.v * x
