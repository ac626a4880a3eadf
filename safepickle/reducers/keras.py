"""Rules for Keras 3, with any of its backends: what does a model hold, and what of that belongs to this process?

- layers, models, operations, metrics, losses, optimizers: all their attributes, as plain objects have them, so that
  running state, moments and whatever a user has set are kept; no configuration, and no registration of custom classes,
  is needed. Compiled training functions are dropped and made again
- what Keras keeps by the addresses of objects (trackers, node keys, optimizer indices) is made anew
- symbolic tensors and nodes: the graph that leads to them
- seed generators: the stream continues
"""

from __future__ import annotations

import types
from typing import Any, Final

from .. import restore
from ..copier import deepcopy
from ..references import inner_function, static_vars
from ..registry import Registry

__all__ = ["add_rules"]

ORIGIN: Final = __name__

#: Attributes that are made again: what can be derived, and what is known by the addresses of objects.
MADE_AGAIN: Final = frozenset(
    {"_inbound_nodes", "_outbound_nodes", "_call_signature", "_nodes", "_trainable_variables_indices"}
)
#: What training compiles.
COMPILED: Final = ("train_function", "test_function", "predict_function")
#: Where TensorFlow notes the attributes that it tracks, by name.
TF_TRACKED: Final = ("_self_unconditional_checkpoint_dependencies", "_self_unconditional_dependency_names")


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    whole = ("all attributes; compiled functions are made again", "independent, as when pickled")
    # Each by its own base: the rule of a backend's base class (``torch.nn.Module``) must not come before.
    for name in (
        "ops.operation:Operation",
        "layers.layer:Layer",
        "metrics.metric:Metric",
        "losses.loss:Loss",
        "optimizers.base_optimizer:BaseOptimizer",
    ):
        registry.add(
            f"keras.src.{name}", reduce_object, shallow=deepcopy, subclasses=True, with_pickler=True, origin=ORIGIN,
            summary=whole,
        )  # fmt: skip
    registry.add("keras.src.backend.common.keras_tensor:KerasTensor", reduce_tensor, subclasses=True, origin=ORIGIN,
                 summary=("with the graph that leads to it", "independent"))  # fmt: skip
    registry.add("keras.src.ops.node:Node", reduce_node, origin=ORIGIN)
    registry.add("keras.src.utils.tracking:Tracker", reduce_tracker, origin=ORIGIN)
    for name in ("TrackedList", "TrackedDict", "TrackedOrderedDict", "TrackedSet"):
        registry.add(f"keras.src.utils.tracking:{name}", reduce_container, shallow=_copy_container, origin=ORIGIN)
    registry.add("keras.src.utils.backend_utils:DynamicBackend", reduce_backend, origin=ORIGIN)
    # A plain object, since modules go by name; this is here for the policy table, and tested.
    registry.add("keras.src.random.seed_generator:SeedGenerator", decline, origin=ORIGIN,
                 summary=("whole: the stream continues", "the same, independent"))  # fmt: skip


def decline(obj: Any) -> Any:
    """For the standard library's way."""
    return NotImplemented


# -- objects -----------------------------------------------------------------------------------------------------------


def reduce_object(obj: Any, pickler: Any) -> tuple[Any, ...]:
    """The class and all attributes."""
    attributes = {name: value for name, value in static_vars(obj).items() if not _is_made_again(name, value)}
    _drop_what_runs(attributes)
    if pickler is not None:
        _drop_strategy(attributes)
    state: dict[str, Any] = {}
    own = static_vars(obj)
    inputs = [node for node in own.get("_inbound_nodes", ()) if node.is_input]
    if "_nodes_by_depth" in own:
        # Inputs first, so that no node is reached through a chain of others.
        by_depth = own["_nodes_by_depth"]
        state["graph"] = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
    if inputs:
        state["inputs"] = inputs
    state["attributes"] = attributes
    if "_call_signature" in own:
        state["signature"] = True
    if "_trainable_variables_indices" in own:
        state["indices"] = True
    arguments = (type(obj), True) if "graph" in state else (type(obj),)
    return restore.keras_object, arguments, state, None, None, restore.fill_keras_object


def _is_made_again(name: str, value: Any) -> bool:
    if name in ("build", "quantize"):
        return type(value) is types.FunctionType and value.__code__.co_name in ("build_wrapper", "quantize_wrapper")
    return name in MADE_AGAIN


def _drop_what_runs(attributes: dict[str, Any]) -> None:
    """Leave out what belongs to a running or compiled step of training."""
    for name in COMPILED:
        if _is_compiled_step(attributes.get(name)):
            attributes[name] = None
    if "_eval_epoch_iterator" in attributes:  # a callback may copy the model while it is fitted
        attributes["_eval_epoch_iterator"] = None
    if attributes.get("_loss_ids"):
        attributes["_loss_ids"] = set()
    losses = attributes.get("_losses")
    if losses and any(map(_is_symbolic, losses)):  # left over from tracing; cleared by the next call
        attributes["_losses"] = [loss for loss in losses if not _is_symbolic(loss)]
    for name in TF_TRACKED:
        if name in attributes:
            attributes[name] = _still_tracked(attributes[name])


def _drop_strategy(attributes: dict[str, Any]) -> None:
    """A model that was built under a strategy is a plain one elsewhere, as if Keras had saved it."""
    if attributes.get("_distribute_strategy") is not None:
        attributes["_distribute_strategy"] = None
    if "_distribution_strategy" in attributes:
        attributes["_distribution_strategy"] = restore.tf_default_strategy()


def _still_tracked(tracked: Any) -> Any:
    """What TensorFlow notes about attributes, without those that are made again."""
    gone = {*MADE_AGAIN, *COMPILED}
    if isinstance(tracked, dict):
        kept: Any = {name: value for name, value in tracked.items() if name not in gone}
    elif isinstance(tracked, list):
        kept = [reference for reference in tracked if reference.name not in gone]
    else:
        return tracked
    return tracked if len(kept) == len(tracked) else kept


def _is_compiled_step(value: Any) -> bool:
    """Whether it is what Keras makes for ``fit``, and not something that a user has put in its place."""
    function = inner_function(value)
    if function is None or "<locals>" not in function.__qualname__:
        return False
    return (function.__module__ or "").startswith("keras.")


def _is_symbolic(tensor: Any) -> bool:
    return type(tensor).__name__ == "SymbolicTensor"


# -- graphs of operations ----------------------------------------------------------------------------------------------


def reduce_tensor(tensor: Any) -> tuple[Any, ...]:
    """Shape and type, and the node that it is an output of."""
    attributes = dict(static_vars(tensor))
    history = attributes.get("_keras_history")
    node = None
    if history is not None and history.operation is not None:
        node = history.operation._inbound_nodes[history.node_index]
        del attributes["_keras_history"]
    return restore.keras_tensor, (), (attributes, node), None, None, restore.fill_keras_tensor


def reduce_node(node: Any) -> tuple[Any, ...]:
    """The operation, its arguments and its outputs."""
    histories = [static_vars(tensor).get("_keras_history") for tensor in node.outputs]
    recorded = any(history is not None and history.operation is node.operation for history in histories)
    state = {"attributes": dict(static_vars(node)), "recorded": recorded}
    return restore.keras_node, (), state, None, None, restore.fill_keras_node


# -- tracking ----------------------------------------------------------------------------------------------------------


#: Collections that restore knows the test of.
KNOWN_COLLECTIONS: Final = frozenset(
    {"variables", "trainable_variables", "non_trainable_variables", "metrics", "layers", "seed_generators"}
)


def reduce_tracker(tracker: Any) -> tuple[Any, ...]:
    """The collections, by name; their tests are functions inside of Keras, which restore makes again."""
    collections = {
        name: (None if name in KNOWN_COLLECTIONS else test, collection, tuple(collection))
        for name, (test, collection) in tracker.config.items()
    }
    attributes = {name: value for name, value in static_vars(tracker).items() if name not in ("config", "stored_ids")}
    state = {"collections": collections, "attributes": attributes}
    return restore.keras_tracker, (), state, None, None, restore.fill_keras_tracker


def reduce_container(container: Any) -> tuple[Any, ...]:
    """The items and the tracker."""
    items = list(container.items()) if isinstance(container, dict) else list(container)
    if isinstance(container, set) and all(type(item) is str for item in items):
        items.sort()  # not in the order of their hashes, which differ from process to process
    state = (items, container.tracker)
    return restore.keras_container, (type(container),), state, None, None, restore.fill_keras_container


def _copy_container(container: Any) -> Any:
    twin = type(container)(container)
    twin.tracker = container.tracker
    return twin


def reduce_backend(backend: Any) -> tuple[Any, ...]:
    """The name of the backend; it looks up everything else by that, even while it is loaded."""
    return type(backend), (static_vars(backend)["_backend"],)
