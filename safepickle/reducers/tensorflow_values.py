"""Rules for the values of TensorFlow: variables, tensors, lookup tables.

- variables: value, declared shape and every option; a copy is independent
- tensors: by value, those of quantized types too; handles are refused, and symbolic tensors on both verbs
- lookup tables: with their contents; those that can be changed are independent when copied
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from .. import restore
from ..errors import PicklingError
from ..references import static_vars
from ..registry import SHARE, Registry
from .tensorflow_functions import decline

__all__ = ["add_rules"]

ORIGIN: Final = __name__
AN_ERROR: Final = "an error that says what to do"


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    add_variable_rules(registry)
    add_tensor_rules(registry)
    add_table_rules(registry)


# -- variables ---------------------------------------------------------------------------------------------------------


def add_variable_rules(registry: Registry) -> None:
    """Variables, also those of a strategy."""
    registry.add(
        "tensorflow.python.ops.resource_variable_ops:BaseResourceVariable", reduce_variable, copy=copy_variable,
        shallow=SHARE, subclasses=True, origin=ORIGIN, summary=("by value, with shape and options", "independent"),
    )  # fmt: skip
    registry.add(
        "tensorflow.python.distribute.values:DistributedVariable", reduce_distributed, subclasses=True,
        pickles_only=True, origin=ORIGIN, summary=("its value, as a plain variable", "as TensorFlow does"),
    )  # fmt: skip


#: What TensorFlow itself keeps in the dictionary of a variable; everything else is the user's.
VARIABLE_INTERNALS: Final = frozenset(
    {
        "_in_graph_mode", "_trainable", "_synchronization", "_aggregation", "_save_slice_info", "_initial_value",
        "_initializer_op", "_is_initialized_op", "_graph_element", "_caching_device", "_cached_value",
        "_distribute_strategy", "_graph_key", "_shape", "_dtype", "_handle", "_unique_id", "_handle_name",
        "_constraint", "_cached_shape_as_list", "_validate_shape", "_xla_sharding", "_variable_read",
        "_handle_deleter", "_self_setattr_tracking",
    }
)  # fmt: skip


def reduce_variable(variable: Any) -> tuple[Any, ...]:
    """The value, and what the constructor takes. Attributes that users or libraries have set follow."""
    value = _value(variable)
    options = {**_options(variable), "device": _local_device(variable.device)}
    if not variable.dtype.is_quantized:
        value = value.numpy()  # a tensor would become one of a graph where it is loaded within a tf.function
    attributes = _attributes(variable)
    return (restore.tf_variable, (value, options), *([attributes] if attributes else []))


def copy_variable(variable: Any, memo: dict[Any, Any]) -> Generator[Any, Any, Any]:
    """The same value, options and strategy; TensorFlow copies the memory when one of the two is assigned to."""
    options = {**_options(variable), "device": _local_device(variable.device)}
    if variable._distribute_strategy is not None:
        options["distribute_strategy"] = variable._distribute_strategy
    twin = memo[id(variable)] = restore.tf_variable(_value(variable), options)
    twin.__dict__.update((yield _attributes(variable)))
    return twin


def _attributes(variable: Any) -> dict[str, Any]:
    return {name: value for name, value in static_vars(variable).items() if name not in VARIABLE_INTERNALS}


def _value(variable: Any) -> Any:
    if variable._in_graph_mode:
        raise PicklingError(
            f"cannot pickle the variable {variable.name!r}: it belongs to a graph, not to eager execution; save a "
            "checkpoint instead"
        )
    try:
        return variable.read_value()
    except Exception as error:
        raise PicklingError(
            f"cannot pickle the variable {variable.name!r}: it has no value yet ({type(error).__name__})"
        ) from error


def _options(variable: Any) -> dict[str, Any]:
    options = {
        "trainable": variable.trainable,
        "name": variable._shared_name,
        "dtype": variable.dtype,
        "shape": variable.shape,
        "synchronization": variable.synchronization,
        "aggregation": variable.aggregation,
    }
    if variable.constraint is not None:
        options["constraint"] = variable.constraint
    return options


def reduce_distributed(variable: Any) -> tuple[Any, ...]:
    """What the replicas of a strategy agree on; the reading process has other devices, or a strategy of its own."""
    return restore.tf_variable, (variable.numpy(), _options(variable))


def _local_device(name: str) -> str | None:
    """``/device:GPU:0``: what the processes of different machines call their own device."""
    _, found, device = (name or "").rpartition("/device:")
    return f"/device:{device}" if found else None


# -- tensors -----------------------------------------------------------------------------------------------------------


def add_tensor_rules(registry: Registry) -> None:
    """Eager and symbolic tensors, and what describes them."""
    framework = "tensorflow.python.framework"
    registry.add(
        f"{framework}.ops:EagerTensor", reduce_tensor, copy=SHARE, origin=ORIGIN,
        summary=("by value; an error for a handle", "shared: it cannot change"),
    )  # fmt: skip
    registry.add(
        f"{framework}.ops:SymbolicTensor", refuse_symbolic, copy=refuse_symbolic, shallow=decline, origin=ORIGIN,
        summary=(AN_ERROR, AN_ERROR),
    )  # fmt: skip
    for name in ("dtypes:DType", "tensor_shape:TensorShape", "type_spec:TypeSpec"):  # they cannot change
        registry.add(f"{framework}.{name}", copy=SHARE, subclasses=True, origin=ORIGIN)
    # What TensorFlow does is right; these are here for the policy table, and tested.
    registry.add(
        "tensorflow.python.ops.ragged.ragged_tensor:RaggedTensor", decline, origin=ORIGIN,
        summary=("by value", "by value"),
    )  # fmt: skip
    registry.add(
        "tensorflow.python.ops.stateful_random_ops:Generator", decline, origin=ORIGIN,
        summary=("its state: the same next numbers", "the same, independent"),
    )  # fmt: skip


def reduce_tensor(tensor: Any) -> Any:
    """As TensorFlow does, but for types that NumPy does not know."""
    dtype = tensor.dtype
    if dtype.is_quantized:
        import tensorflow as tf

        return restore.tf_tensor, (tf.convert_to_tensor(tensor.numpy()), dtype.name)
    if dtype.name in ("resource", "variant"):
        raise PicklingError(
            f"cannot pickle a tensor of type {dtype.name}: it is a handle to something in the memory of this process; "
            "pickle the object that it belongs to (a variable, a lookup table, a dataset)"
        )
    return NotImplemented


def refuse_symbolic(tensor: Any, memo: Any = None) -> Any:
    """A tensor of a graph stands for values that do not exist yet."""
    raise PicklingError(
        f"cannot pickle the symbolic tensor {tensor.name!r}: it has no value outside of its graph. It was kept in an "
        "attribute or a list while a function was traced: return it from the function instead, or assign it to a "
        "tf.Variable"
    )


# -- lookup tables -----------------------------------------------------------------------------------------------------


def add_table_rules(registry: Registry) -> None:
    """Tables of every kind, and what initializes them."""
    module = "tensorflow.python.ops.lookup_ops"
    registry.add(
        f"{module}:StaticHashTable", reduce_static_table, copy=SHARE, subclasses=True, origin=ORIGIN,
        summary=("with its contents", "shared: it cannot change"),
    )  # fmt: skip
    for name in ("MutableHashTable", "DenseHashTable"):
        registry.add(
            f"{module}:{name}", reduce_table, subclasses=True, shallow=SHARE, origin=ORIGIN,
            summary=("with its contents", "independent"),
        )  # fmt: skip
    registry.add(f"{module}:KeyValueTensorInitializer", reduce_initializer, copy=SHARE, origin=ORIGIN)


def reduce_static_table(table: Any) -> tuple[Any, ...]:
    """A table and what initializes it; a text file goes as what was read from it."""
    from tensorflow.python.ops.lookup_ops import KeyValueTensorInitializer, TextFileInitializer

    initializer = table._initializer
    if isinstance(initializer, TextFileInitializer):
        initializer = KeyValueTensorInitializer(*_contents(table))
    return restore.tf_static_table, (type(table), initializer, table._default_value, table._name, table._is_anonymous)


def reduce_initializer(initializer: Any) -> tuple[Any, ...]:
    """Keys and values; the number in its name is of this process."""
    return type(initializer), (initializer._keys, initializer._values)


def reduce_table(table: Any) -> tuple[Any, ...]:
    """The options of the constructor, and the contents."""
    options = {
        "key_dtype": table._key_dtype,
        "value_dtype": table._value_dtype,
        "default_value": table._default_value,
        "name": table._name,
        "checkpoint": table._checkpoint,
        "experimental_is_anonymous": table._is_anonymous,
    }
    if hasattr(table, "_empty_key"):
        options["empty_key"] = table._empty_key
        options["deleted_key"] = table._deleted_key
        options["initial_num_buckets"] = table._initial_num_buckets
    return restore.tf_table, (type(table), options, _contents(table))


def _contents(table: Any) -> tuple[Any, Any]:
    """Keys and values in the order of the keys: the table's own order is of this process."""
    import tensorflow as tf

    keys, values = table.export()
    for marker in ("_empty_key", "_deleted_key"):
        if hasattr(table, marker):  # a dense table exports its free places too
            free = tf.equal(keys, tf.cast(getattr(table, marker), keys.dtype))
            taken = tf.logical_not(tf.reduce_all(tf.reshape(free, [tf.shape(free)[0], -1]), axis=1))
            keys, values = tf.boolean_mask(keys, taken), tf.boolean_mask(values, taken)
    if keys.shape.rank != 1:
        return keys, values
    order = keys.numpy().argsort(kind="stable")
    return tf.gather(keys, order), tf.gather(values, order)
