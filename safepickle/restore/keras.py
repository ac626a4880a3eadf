"""What a pickle calls for models, layers, optimizers and metrics of Keras."""

from __future__ import annotations

import inspect
from typing import Any

from .checks import _check, _check_subclass

__all__ = [
    "fill_keras_container",
    "fill_keras_node",
    "fill_keras_object",
    "fill_keras_tensor",
    "fill_keras_tracker",
    "keras_container",
    "keras_node",
    "keras_object",
    "keras_tensor",
    "keras_tracker",
]


def _keras_kinds() -> tuple[type, ...]:
    import keras
    from keras.src.ops.operation import Operation
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    return Operation, keras.metrics.Metric, keras.losses.Loss, BaseOptimizer


def keras_object(cls: Any, functional: bool = False) -> Any:
    """A layer, model, operation, metric, loss or optimizer, empty; :func:`fill_keras_object` brings its attributes.

    A subclass of ``Model`` becomes one of ``Functional`` when its first instance is made from inputs and outputs.
    """
    _check_subclass(cls, _keras_kinds(), "an object of Keras")
    if functional:
        from keras.src.models.model import inject_functional_model_class
        from keras.src.ops.function import Function

        if not issubclass(cls, Function):
            inject_functional_model_class(cls)
    base: Any
    for base in cls.__mro__:
        # That of Keras itself: it wraps ``build``, and a user's own may want arguments.
        if "__new__" in vars(base) and (base.__module__ or "").startswith("keras."):
            made = base.__new__(cls)
            break
    else:
        made = object.__new__(cls)
    if isinstance(made, _keras_kinds()[0]):
        made.__dict__["_inbound_nodes"], made.__dict__["_outbound_nodes"] = [], []
    return made


def fill_keras_object(made: Any, state: dict[str, Any]) -> None:
    """Give an object of Keras its attributes, and what depends on the addresses of objects."""
    _check(made, _keras_kinds(), "an object of Keras")
    attributes = state["attributes"]
    made.__dict__.update(attributes)
    if state.get("signature"):
        made.__dict__["_call_signature"] = inspect.signature(made.call)
    if state.get("graph"):
        made.__dict__["_nodes"] = _keras_node_keys(made)
    if state.get("indices"):
        keys = [made._var_key(variable) for variable in made._trainable_variables]
        made.__dict__["_trainable_variables_indices"] = {key: index for index, key in enumerate(keys)}


def _keras_node_keys(function: Any) -> set[str]:
    from keras.src.ops.function import make_node_key

    nodes = [node for nodes in function._nodes_by_depth.values() for node in nodes]
    return {make_node_key(node.operation, node.operation._inbound_nodes.index(node)) for node in nodes}


def keras_tensor() -> Any:
    """A symbolic tensor before it has its shape; :func:`fill_keras_tensor` brings it."""
    import keras

    return object.__new__(keras.KerasTensor)


def fill_keras_tensor(tensor: Any, state: tuple[dict[str, Any], Any]) -> None:
    """Give a symbolic tensor its attributes; the node that made it, which comes along, has told it where it is from."""
    import keras

    _check(tensor, keras.KerasTensor, "a symbolic tensor")
    attributes, _node = state
    tensor.__dict__.update(attributes)


def keras_node() -> Any:
    """A node of a graph of operations, unconnected; :func:`fill_keras_node` connects it."""
    from keras.src.ops.node import Node

    return object.__new__(Node)


def fill_keras_node(node: Any, state: dict[str, Any]) -> None:
    """Connect a node to its operation, to the operations that its inputs come from, and to its outputs."""
    from keras.src.ops.node import KerasHistory, Node

    _check(node, Node, "a node")
    node.__dict__.update(state["attributes"])
    operation = node.operation
    index = len(operation._inbound_nodes)
    operation._inbound_nodes.append(node)
    for tensor in node.arguments.keras_tensors:
        source = tensor._keras_history.operation
        if source is not None:
            source._outbound_nodes.append(node)
    if state["recorded"]:
        for position, tensor in enumerate(node.outputs):
            tensor.__dict__["_keras_history"] = KerasHistory(operation, index, position)


def keras_tracker() -> Any:
    """What collects the variables and layers of an object, empty; :func:`fill_keras_tracker` fills it."""
    from keras.src.utils.tracking import Tracker

    return object.__new__(Tracker)


def fill_keras_tracker(tracker: Any, state: dict[str, Any]) -> None:
    """Give a tracker its collections."""
    from keras.src.utils.tracking import Tracker

    _check(tracker, Tracker, "a tracker")
    tests = _keras_tests()
    collections = state["collections"].items()
    tracker.config = {name: (tests.get(name, test), collection) for name, (test, collection, _) in collections}
    # From the members and not from the collection, which may be still incomplete here.
    tracker.stored_ids = {name: {id(member) for member in members} for name, (_, _, members) in collections}
    tracker.__dict__.update(state["attributes"])


def _keras_tests() -> dict[str, Any]:
    """Name of a collection -> whether a value belongs into it."""
    import keras
    from keras.src.backend import Variable

    return {
        "variables": lambda value: isinstance(value, Variable),
        "trainable_variables": lambda value: isinstance(value, Variable) and value.trainable,
        "non_trainable_variables": lambda value: isinstance(value, Variable) and not value.trainable,
        "metrics": lambda value: isinstance(value, keras.metrics.Metric),
        "layers": lambda value: isinstance(value, keras.Layer) and not isinstance(value, keras.metrics.Metric),
        "seed_generators": lambda value: isinstance(value, keras.random.SeedGenerator),
    }


def keras_container(cls: type) -> Any:
    """A list, dictionary or set whose items are tracked, empty; :func:`fill_keras_container` fills it."""
    from keras.src.utils import tracking

    kinds = tuple(getattr(tracking, name) for name in _KERAS_CONTAINERS if hasattr(tracking, name))
    _check_subclass(cls, kinds, "a tracked container")
    return cls()


_KERAS_CONTAINERS = ("TrackedList", "TrackedDict", "TrackedOrderedDict", "TrackedSet")


def fill_keras_container(container: Any, state: tuple[Any, Any]) -> None:
    """Give a tracked container its items, which are tracked already, and its tracker."""
    items, tracker = state
    if isinstance(container, list):
        list.extend(container, items)
    elif isinstance(container, set):
        set.update(container, items)
    else:
        _check(container, dict, "a tracked container")
        for key, value in items:
            dict.__setitem__(container, key, value)
    container.tracker = tracker
