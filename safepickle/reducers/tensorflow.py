"""Rules for TensorFlow: which modules hold them, what tracks its attributes, and what belongs to a process.

- ``tf.Module`` and all else that tracks its attributes: a plain object. A shallow copy has its own bookkeeping, and
  functions that were bound to the original are bound to it
- the default strategy and the runtime: those of the reading process
- other strategies, queues, tapes that have recorded: an error when pickled

Loaded by the registry when the first object of a type of TensorFlow turns up.

- :mod:`.tensorflow_functions`: what ``tf.function`` makes
- :mod:`.tensorflow_values`: variables, tensors, lookup tables
- :mod:`.tensorflow_data`: datasets and iterators
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Generator
from typing import Any, Final

from .. import restore
from ..errors import PicklingError
from ..references import static_vars
from ..registry import SHARE, Registry
from . import tensorflow_data, tensorflow_functions, tensorflow_values
from .tensorflow_functions import decline, refuse

__all__ = ["add_rules"]

ORIGIN: Final = __name__
AN_ERROR: Final = "an error that says what to do"


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    tensorflow_functions.add_rules(registry)
    tensorflow_values.add_rules(registry)
    tensorflow_data.add_rules(registry)
    add_tracking_rules(registry)
    add_process_rules(registry)


# -- what tracks its attributes ----------------------------------------------------------------------------------------


def add_tracking_rules(registry: Registry) -> None:
    """``tf.Module``, checkpoints, and the lists and dictionaries that they put in the place of plain ones."""
    registry.add(
        "tensorflow.python.trackable.autotrackable:AutoTrackable", shallow=copy_module_once, subclasses=True,
        origin=ORIGIN, summary=("all attributes", "all attributes; functions bound to it are bound to the copy"),
    )  # fmt: skip
    module = "tensorflow.python.trackable.data_structures"
    for name in ("List", "ListWrapper", "Mapping"):
        registry.add(f"{module}:{name}", copy=_copy_container("_storage"), origin=ORIGIN)
    for name in ("_DictWrapper", "_TupleWrapper"):
        registry.add(f"{module}:{name}", reduce_proxy, copy=_copy_container("__wrapped__"), origin=ORIGIN)
    registry.add("tensorflow.python.checkpoint.graph_view:ObjectGraphView", copy=copy_graph_view, origin=ORIGIN)


#: What a tracking container remembers besides its contents.
CONTAINER_MARKS: Final = (
    "_non_append_mutation", "_external_modification", "_self_non_append_mutation", "_self_external_modification",
    "_self_non_string_key",
)  # fmt: skip


def reduce_proxy(proxy: Any) -> tuple[Any, ...]:
    """A proxy of a container; TensorFlow's own way names the type of what is wrapped, which tracks nothing."""
    return type(proxy), (proxy.__wrapped__,)


def _copy_container(contents: str) -> Callable[[Any, dict[Any, Any]], Generator[Any, Any, Any]]:
    """A copier for containers; their own calls ``copy.deepcopy`` on the contents, which knows no rules."""

    def copy_container(container: Any, memo: dict[Any, Any]) -> Generator[Any, Any, Any]:
        inner = yield getattr(container, contents)
        known = memo.get(id(container))  # the contents may lead back to the container
        if known is not None:
            return known
        twin = type(container)(inner)
        for name in CONTAINER_MARKS:
            if hasattr(container, name):
                setattr(twin, name, getattr(container, name))
        return twin

    return copy_container


def copy_graph_view(view: Any, memo: dict[Any, Any]) -> Generator[Any, Any, Any]:
    """What a checkpoint saves, on the copy of its root, which it holds weakly."""
    yield view._root_ref()
    twin = memo[id(view)] = object.__new__(type(view))
    for name, value in static_vars(view).items():
        twin.__dict__[name] = yield value
    return twin


def copy_module_once(module: Any) -> Any:
    """A shallow copy that shares variables, but neither bookkeeping nor functions that are bound to the original."""
    twin = copy.copy(module)
    state = static_vars(twin)
    if twin is module or not state:
        return twin
    rebound = {id(old): new for old in state.values() if (new := _rebound(old, module, twin)) is not old}
    for name, value in list(state.items()):
        if name.startswith("_self_") and type(value) in (list, dict, set):
            value = state[name] = value.copy()
            _replace_tracked(value, rebound)
        elif id(value) in rebound:
            state[name] = rebound[id(value)]
    return twin


def _rebound(value: Any, old: Any, new: Any) -> Any:
    """A method, or a ``tf.function`` of a method, of the new object in the place of one of the old."""
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    if type(value) is types.MethodType and value.__self__ is old:
        return types.MethodType(value.__func__, new)
    if type(value) is Function:
        binding = tensorflow_functions.binding_of(value)
        if binding is not None:
            return restore.tf_method(new, *binding[1:]) if binding.instance is old else value
        inner = tensorflow_functions.python_function(value)
        bound = _rebound(inner, old, new)
        return value if bound is inner else tensorflow_functions.rebound(value, bound)
    return value


def _replace_tracked(tracked: Any, rebound: dict[int, Any]) -> None:
    """Put rebound functions into the list, or dictionary, of tracked attributes too."""
    if type(tracked) is dict:
        tracked.update({name: rebound[id(value)] for name, value in tracked.items() if id(value) in rebound})
    elif type(tracked) is list:
        for index, item in enumerate(tracked):
            if id(getattr(item, "ref", None)) in rebound:
                tracked[index] = type(item)(item.name, rebound[id(item.ref)])


# -- what belongs to a process -----------------------------------------------------------------------------------------


def add_process_rules(registry: Registry) -> None:
    """Singletons go as that of the reading process; what runs or records does not go."""
    lib = "tensorflow.python.distribute.distribute_lib"
    own = ("that of the reading process", "shared")
    for name in ("_DefaultDistributionStrategy", "_DefaultDistributionStrategyV1"):
        registry.add(f"{lib}:{name}", reduce_default_strategy, copy=SHARE, origin=ORIGIN, summary=own)
    registry.add("tensorflow.python.eager.context:Context", reduce_context, copy=SHARE, origin=ORIGIN, summary=own)
    registry.add(
        f"{lib}:StrategyBase",
        refuse("a strategy is a set of devices of this process: make one where the object is used"),
        copy=SHARE, subclasses=True, origin=ORIGIN, summary=(AN_ERROR, "shared"),
    )  # fmt: skip
    registry.add(
        "tensorflow.python.eager.backprop:GradientTape", reduce_tape, origin=ORIGIN,
        summary=("an idle one; else an error", "an idle one; else an error"),
    )  # fmt: skip
    registry.add(
        "tensorflow.python.ops.data_flow_ops:QueueBase",
        refuse("a queue lives in the memory of this process: pickle its elements, or use a tf.data.Dataset"),
        shallow=decline, subclasses=True, origin=ORIGIN, summary=(AN_ERROR, AN_ERROR),
    )  # fmt: skip


def reduce_default_strategy(strategy: Any) -> tuple[Any, ...]:
    """The strategy that is in use where none was chosen."""
    return restore.tf_default_strategy, ()


def reduce_context(context: Any) -> tuple[Any, ...]:
    """The eager runtime."""
    return restore.tf_context, ()


def reduce_tape(tape: Any) -> Any:
    """A tape that has recorded nothing; what it has recorded are operations on tensors of this process."""
    if tape._tape is None:
        return NotImplemented
    raise PicklingError("cannot pickle a GradientTape that has recorded: compute the gradients and pickle those")
