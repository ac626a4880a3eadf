"""Rules for ``tf.data``: what of a pipeline can run in another process?

- datasets: the graph of the pipeline, with the functions in it and the values of the tables and variables that they
  read; one that calls Python code is an error when pickled, and shared by a copy unless that code belongs to what is
  being copied
- iterators: an error
"""

from __future__ import annotations

from typing import Any, Final

from .. import restore
from ..copier import running_call
from ..errors import CopyError, PicklingError
from ..reachability import reachable_ids, reaches
from ..references import static_vars
from ..registry import SHARE, Registry
from .tensorflow_functions import decline, refuse

__all__ = ["add_rules"]

ORIGIN: Final = __name__
AN_ERROR: Final = "an error that says what to do"

#: Operations that call a Python function of this process by a number.
PYTHON_OPS: Final = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    module = "tensorflow.python.data.ops"
    registry.add(
        f"{module}.dataset_ops:DatasetV2", reduce_dataset, copy=copy_dataset, shallow=SHARE, subclasses=True,
        origin=ORIGIN,
        summary=("the graph of its pipeline; an error if that calls Python", "independent; shared if it calls Python"),
    )  # fmt: skip
    for name, message in {
        f"{module}.iterator_ops:IteratorBase": ITERATOR,
        f"{module}.dataset_ops:NumpyIterator": ITERATOR,
        f"{module}.dataset_ops:_NumpyIterator": ITERATOR,
        "tensorflow.python.distribute.input_lib:DistributedDatasetInterface": DISTRIBUTED,
    }.items():
        registry.add(
            name, refuse(message), shallow=decline, subclasses=True, origin=ORIGIN, summary=(AN_ERROR, AN_ERROR)
        )


ITERATOR: Final = (
    "an iterator is a place in a running pipeline: pickle the dataset, and call iter(dataset) where it is needed"
)
DISTRIBUTED: Final = (
    "a distributed dataset belongs to a strategy: pickle the dataset that it was made from, and distribute that where "
    "it is needed"
)


def reduce_dataset(dataset: Any) -> tuple[Any, ...]:
    """The graph of the pipeline, and what its elements look like."""
    graph, culprit = graph_of(dataset)
    if culprit:
        raise PicklingError(
            f"cannot pickle a {type(dataset).__name__}: {culprit}. Pickle the function that builds the pipeline and "
            "call it where the data is read, or write the elements with dataset.save(path)"
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
            return graph, (
                "its pipeline calls a Python function (from_generator, py_function or numpy_function), which only "
                "this process has"
            )
    return graph, None


def copy_dataset(dataset: Any, memo: dict[Any, Any]) -> Any:
    """Rebuilt from its graph; one that calls Python is shared, unless that code belongs to what is being copied."""
    graph, culprit = graph_of(dataset)
    if culprit is None:
        return restore.tf_dataset(graph, dataset.element_spec)
    if _uses_what_is_copied(dataset, memo):
        raise CopyError(
            f"cannot copy a {type(dataset).__name__}: {culprit}, and its copy would go on reading the object that is "
            "being copied. Build the dataset anew for the copy"
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
