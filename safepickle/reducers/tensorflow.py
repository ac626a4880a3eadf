"""Rules for TensorFlow: variables, tensors, tables, datasets, and what belongs to a process.

- variables: value, declared shape and every option; a copy is independent
- tensors: by value, quantized types too; handles and symbolic tensors are refused
- lookup tables: with their contents; those that can be changed are independent when copied
- datasets: the graph of the pipeline; one that runs Python code is refused
- ``tf.Module`` and whatever tracks its attributes: a shallow copy gets its own bookkeeping, and its own bound functions
- the default strategy, the runtime: those of the reading process; other strategies, iterators, tapes that record: an error

What ``tf.function`` makes has rules of its own in :mod:`.tensorflow_functions`.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Generator
from typing import Any, Final

from .. import restore
from ..copier import deepcopy, running_call
from ..errors import CopyError, PicklingError
from ..reachability import reachable_ids, reaches
from ..references import static_vars
from ..registry import SHARE, Registry
from . import tensorflow_functions

__all__ = ["add_rules"]

ORIGIN: Final = __name__
REFUSED: Final = ("an error that says what to do", "an error that says what to do")


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    tensorflow_functions.add_rules(registry)
    add_value_rules(registry)
    add_table_rules(registry)
    add_dataset_rules(registry)
    add_tracking_rules(registry)
    add_process_rules(registry)


# -- variables and tensors ---------------------------------------------------------------------------------------------------------


def add_value_rules(registry: Registry) -> None:
    """Variables, eager tensors, symbolic tensors."""
    registry.add(
        "tensorflow.python.ops.resource_variable_ops:BaseResourceVariable", reduce_variable, copy=copy_variable,
        shallow=SHARE, subclasses=True, origin=ORIGIN, summary=("by value, with declared shape and options", "independent"),
    )  # fmt: skip
    registry.add("tensorflow.python.distribute.values:DistributedVariable", reduce_distributed, subclasses=True, pickles_only=True,
                 origin=ORIGIN, summary=("its value, as a plain variable", "as TensorFlow does"))  # fmt: skip
    registry.add("tensorflow.python.framework.ops:EagerTensor", reduce_tensor, copy=SHARE, origin=ORIGIN,
                 summary=("by value; a handle is refused", "shared: it cannot change"))  # fmt: skip
    for name in ("dtypes:DType", "tensor_shape:TensorShape", "type_spec:TypeSpec"):  # they cannot change
        registry.add(f"tensorflow.python.framework.{name}", copy=SHARE, subclasses=True, origin=ORIGIN)
    registry.add("tensorflow.python.framework.ops:SymbolicTensor", refuse_symbolic, copy=refuse_symbolic, shallow=_decline, origin=ORIGIN,
                 summary=REFUSED)  # fmt: skip


#: What TensorFlow itself keeps in the dictionary of a variable; everything else is the user's.
VARIABLE_INTERNALS: Final = frozenset(
    {
        "_in_graph_mode", "_trainable", "_synchronization", "_aggregation", "_save_slice_info", "_initial_value", "_initializer_op",
        "_is_initialized_op", "_graph_element", "_caching_device", "_cached_value", "_distribute_strategy", "_graph_key", "_shape",
        "_dtype", "_handle", "_unique_id", "_handle_name", "_constraint", "_cached_shape_as_list", "_validate_shape", "_xla_sharding",
        "_variable_read", "_handle_deleter", "_self_setattr_tracking",
    }
)  # fmt: skip


def reduce_variable(variable: Any) -> tuple[Any, ...]:
    """The value, and what the constructor takes. Attributes that users or libraries have set follow."""
    value = _value(variable)
    options = {**_options(variable), "device": _local_device(variable.device)}
    if not variable.dtype.is_quantized:
        value = value.numpy()  # a tensor would become one of a graph where it is loaded within a tf.function
    arguments = (value, options)
    attributes = _attributes(variable)
    return (restore.tf_variable, arguments, attributes) if attributes else (restore.tf_variable, arguments)


def copy_variable(variable: Any, memo: dict[Any, Any]) -> Generator[Any, Any, Any]:
    """The same value, options and strategy; TensorFlow copies the memory when one of them is assigned to."""
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
            f"cannot pickle the variable {variable.name!r}: it belongs to a graph, not to eager execution; save a checkpoint instead"
        )
    try:
        return variable.read_value()
    except Exception as error:
        raise PicklingError(f"cannot pickle the variable {variable.name!r}: it has no value yet ({type(error).__name__})") from error


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


def reduce_tensor(tensor: Any) -> Any:
    """As TensorFlow does, but for types that NumPy does not know."""
    dtype = tensor.dtype
    if dtype.is_quantized:
        import tensorflow as tf

        return restore.tf_tensor, (tf.convert_to_tensor(tensor.numpy()), dtype.name)
    if dtype.name in ("resource", "variant"):
        raise PicklingError(
            f"cannot pickle a tensor of type {dtype.name}: it is a handle to something in the memory of this process; pickle the object that it "
            "belongs to (a variable, a lookup table, a dataset)"
        )
    return NotImplemented


def refuse_symbolic(tensor: Any, memo: Any = None) -> Any:
    """A tensor of a graph stands for values that do not exist yet."""
    raise PicklingError(
        f"cannot pickle the symbolic tensor {tensor.name!r}: it has no value outside of its graph. It was kept in an attribute or a list while a "
        "function was traced: return it from the function instead, or assign it to a tf.Variable"
    )


def _decline(obj: Any, memo: Any = None) -> Any:
    return NotImplemented


# -- lookup tables -----------------------------------------------------------------------------------------------------------------


def add_table_rules(registry: Registry) -> None:
    """Tables of every kind, and what initializes them."""
    module = "tensorflow.python.ops.lookup_ops"
    registry.add(f"{module}:StaticHashTable", reduce_static_table, copy=SHARE, subclasses=True, origin=ORIGIN,
                 summary=("with its contents", "shared: it cannot change"))  # fmt: skip
    for name in ("MutableHashTable", "DenseHashTable"):
        registry.add(f"{module}:{name}", reduce_table, subclasses=True, shallow=SHARE, origin=ORIGIN, summary=("with its contents", "independent"))
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


# -- datasets ------------------------------------------------------------------------------------------------------------------------


def add_dataset_rules(registry: Registry) -> None:
    """Datasets and iterators over them."""
    module = "tensorflow.python.data.ops"
    registry.add(f"{module}.dataset_ops:DatasetV2", reduce_dataset, copy=copy_dataset, shallow=SHARE, subclasses=True, origin=ORIGIN,
                 summary=("the graph of its pipeline; refused if that calls Python", "independent; shared if it calls Python"))  # fmt: skip
    refused = _refuse("an iterator is a place in a running pipeline: pickle the dataset, and call iter(dataset) where it is needed")
    for name in ("iterator_ops:IteratorBase", "dataset_ops:NumpyIterator", "dataset_ops:_NumpyIterator"):
        registry.add(f"{module}.{name}", refused, shallow=_decline, subclasses=True, origin=ORIGIN, summary=REFUSED)
    registry.add("tensorflow.python.distribute.input_lib:DistributedDatasetInterface", _refuse(
        "a distributed dataset belongs to a strategy: pickle the dataset it was made from, and distribute that where it is needed"
    ), shallow=_decline, subclasses=True, origin=ORIGIN, summary=REFUSED)  # fmt: skip


#: Operations that call a Python function of this process by a number.
PYTHON_OPS: Final = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


def reduce_dataset(dataset: Any) -> tuple[Any, ...]:
    """The graph of the pipeline, with the functions in it and the values of tables and variables that they read."""
    graph, culprit = graph_of(dataset)
    if culprit:
        raise PicklingError(
            f"cannot pickle a {type(dataset).__name__}: {culprit}. Pickle the function that builds the pipeline and call it where the data is "
            "read, or write the elements with dataset.save(path)"
        )
    return restore.tf_dataset, (graph, dataset.element_spec)


def graph_of(dataset: Any) -> tuple[bytes, str | None]:
    """The serialized graph of a dataset, and what keeps it from running in another process."""
    import tensorflow as tf

    ignore_state = 1  # a random operation starts a new stream; what is bound to this process is looked for below
    try:
        graph: bytes = tf.raw_ops.DatasetToGraphV2(
            input_dataset=dataset._variant_tensor, external_state_policy=ignore_state, strip_device_assignment=True
        ).numpy()
    except Exception as error:
        return b"", f"its pipeline cannot be written as a graph ({' '.join(str(error).split())[:200]})"
    definition = tf.compat.v1.GraphDef.FromString(graph)
    definition.library.function.sort(key=lambda function: function.signature.name)
    graph = definition.SerializeToString(deterministic=True)  # its own order differs from process to process
    for nodes in (definition.node, *(function.node_def for function in definition.library.function)):
        if not PYTHON_OPS.isdisjoint(node.op for node in nodes):
            return graph, "its pipeline calls a Python function (from_generator, py_function or numpy_function), which only this process has"
    return graph, None


def copy_dataset(dataset: Any, memo: dict[Any, Any]) -> Any:
    """Rebuilt from its graph; one that calls Python is shared, unless that code belongs to what is being copied."""
    graph, culprit = graph_of(dataset)
    if culprit is None:
        return restore.tf_dataset(graph, dataset.element_spec)
    if _uses_what_is_copied(dataset, memo):
        raise CopyError(
            f"cannot copy a {type(dataset).__name__}: {culprit}, and its copy would go on reading the object that is being copied. Build the "
            "dataset anew for the copy"
        )
    return dataset


def _uses_what_is_copied(dataset: Any, memo: dict[Any, Any]) -> bool:
    """Whether the Python code of a pipeline belongs to something that is copied in the same call."""
    import tensorflow as tf

    call = running_call(memo)
    if call is None:
        return False
    shared = call.is_shared_type
    # Only what is found without going through datasets: what the dataset itself holds is no argument.
    copied = reachable_ids([call.root], lambda cls: shared(cls) or issubclass(cls, tf.data.Dataset))
    return reaches(static_vars(dataset).values(), lambda part: id(part) in copied, shared) is not None


# -- what tracks its attributes --------------------------------------------------------------------------------------------------------


def add_tracking_rules(registry: Registry) -> None:
    """``tf.Module``, checkpoints, and the lists and dictionaries that they put in the place of plain ones."""
    registry.add("tensorflow.python.trackable.autotrackable:AutoTrackable", shallow=copy_module_once, subclasses=True, origin=ORIGIN,
                 summary=("as a plain object", "as a plain object; functions bound to it are bound to the copy"))  # fmt: skip
    module = "tensorflow.python.trackable.data_structures"
    for name in ("List", "ListWrapper", "Mapping"):
        registry.add(f"{module}:{name}", copy=_copy_container("_storage"), origin=ORIGIN)
    for name in ("_DictWrapper", "_TupleWrapper"):
        registry.add(f"{module}:{name}", reduce_proxy, copy=_copy_container("__wrapped__"), origin=ORIGIN)


#: What a tracking container remembers besides its contents.
CONTAINER_MARKS: Final = (
    "_non_append_mutation", "_external_modification", "_self_non_append_mutation", "_self_external_modification", "_self_non_string_key"
)  # fmt: skip


def reduce_proxy(proxy: Any) -> tuple[Any, ...]:
    """A proxy of a dictionary or tuple; what TensorFlow says names the type of the wrapped object, which tracks nothing."""
    return type(proxy), (proxy.__wrapped__,)


def _copy_container(contents: str) -> Callable[[Any, dict[Any, Any]], Any]:
    """A copier for containers; theirs calls ``copy.deepcopy`` on the contents, which knows no rules."""

    def copy_container(container: Any, memo: dict[Any, Any]) -> Any:
        inner = deepcopy(getattr(container, contents), memo)
        known = memo.get(id(container))  # the contents may lead back to the container
        if known is not None:
            return known
        twin = type(container)(inner)
        for name in CONTAINER_MARKS:
            if hasattr(container, name):
                setattr(twin, name, getattr(container, name))
        return twin

    return copy_container


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


# -- what belongs to a process -----------------------------------------------------------------------------------------------------------


def add_process_rules(registry: Registry) -> None:
    """Singletons go as that of the reading process; what runs or records does not go."""
    lib = "tensorflow.python.distribute.distribute_lib"
    own = ("that of the reading process", "shared")
    for name in ("_DefaultDistributionStrategy", "_DefaultDistributionStrategyV1"):
        registry.add(f"{lib}:{name}", reduce_default_strategy, copy=SHARE, origin=ORIGIN, summary=own)
    registry.add("tensorflow.python.eager.context:Context", reduce_context, copy=SHARE, origin=ORIGIN, summary=own)
    registry.add(f"{lib}:StrategyBase", _refuse("a strategy is a set of devices of this process: make one where the object is used"),
                 copy=SHARE, subclasses=True, origin=ORIGIN, summary=("an error that says what to do", "shared"))  # fmt: skip
    registry.add("tensorflow.python.eager.backprop:GradientTape", reduce_tape, origin=ORIGIN,
                 summary=("an idle one; else an error", "an idle one; else an error"))  # fmt: skip
    registry.add("tensorflow.python.ops.data_flow_ops:QueueBase", _refuse(
        "a queue lives in the memory of this process: pickle its elements, or use a tf.data.Dataset"
    ), shallow=_decline, subclasses=True, origin=ORIGIN, summary=REFUSED)  # fmt: skip


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


def _refuse(message: str) -> Callable[[Any], Any]:
    def refuse(obj: Any) -> Any:
        raise PicklingError(f"cannot pickle a {type(obj).__name__}: {message}")

    return refuse
