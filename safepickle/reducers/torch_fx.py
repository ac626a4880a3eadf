"""Rules for graphs: ``torch.fx`` and ``torch.export``.

- ``Graph``: its nodes in order, with their arguments, metadata and the attributes that somebody set on them
- ``GraphModule``: its graph and all its attributes; the code is generated again
- ``ExportedProgram``: the archive that ``torch.export.save`` writes, without tensors; the tensors beside it

Torch itself pickles a ``GraphModule`` as Python source that is traced when it is loaded: what was known about the nodes
is gone then. Metadata that means something in this process only (symbolic shapes, a compiler's records) stays behind.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import io
import types
import weakref
from collections.abc import Generator, Iterator
from typing import Any, Final

import torch
import torch.fx

from .. import restore
from ..copier import deepcopy
from ..errors import PicklingError
from ..references import static_vars
from ..registry import SHARE, Registry
from .torch_ops import custom_packets

__all__ = ["add_rules"]

ORIGIN: Final = __name__

Memo = dict[Any, Any]


#: Their own ``__deepcopy__`` forgets what else is copied in the same call.
_COPIED_WITHOUT_MEMO: Final = tuple(
    f"torch.ao.quantization.fx.graph_module:{name}GraphModule"
    for name in ("Fused", "Observed", "ObservedStandalone", "Quantized")
)


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    registry.add(
        torch.fx.Graph, reduce_graph, copy=copy_graph, shallow=_as_torch_does, subclasses=True, with_pickler=True,
        origin=ORIGIN, summary=("its nodes, their attributes and metadata", "the same, of new nodes"),
    )  # fmt: skip
    registry.add(torch.fx.Node, reduce_node, shallow=_as_torch_does, with_pickler=True, origin=ORIGIN,
                 summary=("its graph and its place there", "of the copy of its graph"))  # fmt: skip
    for target in (torch.fx.GraphModule, "torch.fx._lazy_graph_module:_LazyGraphModule", *_COPIED_WITHOUT_MEMO):
        registry.add(
            target, reduce_graph_module, copy=copy_graph_module, shallow=_as_torch_does, subclasses=True,
            origin=ORIGIN, summary=("its graph and all attributes", "independent, with all attributes"),
        )  # fmt: skip
    registry.add("torch.export.exported_program:ExportedProgram", reduce_exported_program, copy=_as_torch_copies,
                 shallow=_as_torch_does, origin=ORIGIN,
                 summary=("torch's archive, tensors beside it", "as `copy.deepcopy`"))  # fmt: skip
    registry.add("torch._subclasses.fake_tensor:FakeTensor", reduce_fake_tensor, origin=ORIGIN,
                 summary=("its mode, shape and device", "the same, of the same mode"))  # fmt: skip
    registry.add("torch._subclasses.fake_tensor:FakeTensorMode", reduce_fake_mode, copy=SHARE, origin=ORIGIN,
                 summary=("a fresh one", "shared"))  # fmt: skip
    for name in ("NodeSource", "NodeSource.NodeInfo"):
        registry.add(f"torch.fx.traceback:{name}", reduce_provenance, copy=_as_torch_copies, shallow=_as_torch_does,
                     with_pickler=True, origin=ORIGIN, summary=("graphs numbered", "as `copy.deepcopy`"))  # fmt: skip
    for cls in (torch.SymInt, torch.SymFloat, torch.SymBool):
        registry.add(cls, refuse_symbol, copy=SHARE, origin=ORIGIN, summary=("error", "shared"))
    registry.add("torch.fx.experimental.symbolic_shapes:ShapeEnv", refuse_symbol, copy=SHARE, origin=ORIGIN,
                 summary=("error", "shared"))  # fmt: skip


def _as_torch_does(obj: Any) -> Any:
    return NotImplemented


def _as_torch_copies(obj: Any, memo: Memo) -> Any:
    return NotImplemented


# -- graphs ------------------------------------------------------------------------------------------------------------

_MADE_FOR_GRAPH: Final = frozenset(
    {*vars(torch.fx.Graph()), "_owners", restore.TORCH_FX_NODES}
    - {"_tracer_cls", "_tracer_extras", "_codegen", "_co_fields"}
)
_MADE_FOR_NODE: Final = frozenset(
    {
        "graph", "name", "op", "target", "type", "meta", "users", "_args", "_kwargs", "_input_nodes", "_prev", "_next",
        "_erased", "_sort_key", "_repr_fn",
    }
)  # fmt: skip

#: What one run of a pickler knows about nodes: id of the graph -> id of the node -> its place there.
_places: weakref.WeakKeyDictionary[Any, dict[int, dict[int, int]]] = weakref.WeakKeyDictionary()


def _node_attributes(node: Any) -> dict[str, Any]:
    return {name: value for name, value in static_vars(node).items() if name not in _MADE_FOR_NODE}


def _graph_attributes(graph: Any) -> dict[str, Any]:
    """The graph's own attributes without its nodes; the module that owns it says so itself."""
    return {name: value for name, value in static_vars(graph).items() if name not in _MADE_FOR_GRAPH}


def _skeleton(graph: Any) -> tuple[type, tuple[tuple[str, str], ...]]:
    return type(graph), tuple((node.op, node.name) for node in graph.nodes)


def reduce_graph(graph: Any, pickler: Any) -> tuple[Any, ...]:
    """The nodes by kind and name; then, when all exist, what they do and with which others."""
    rows = [
        (node.target, node.args, dict(node.kwargs), node.type, _metadata(node.meta), _node_attributes(node))
        for node in graph.nodes
    ]
    state = {"nodes": rows, "attributes": _graph_attributes(graph)}
    return restore.torch_fx_graph, _skeleton(graph), state, None, None, restore.fill_torch_fx_graph


def reduce_node(node: Any, pickler: Any) -> tuple[Any, ...]:
    """The graph and the place of the node in it."""
    known = {} if pickler is None else _places.setdefault(pickler.by_value, {})
    places = known.get(id(node.graph))
    if places is None:
        places = known[id(node.graph)] = {id(each): place for place, each in enumerate(node.graph.nodes)}
        places[id(node.graph._root)] = restore.TORCH_FX_ROOT
    if id(node) not in places:
        raise PicklingError(f"cannot pickle the node {node.name!r}: it was erased from its graph. Drop the reference")
    return restore.torch_fx_node, (node.graph, places[id(node)])


def copy_graph(graph: Any, memo: Memo) -> Generator[Any, Any, Any]:
    """New nodes with copies of their arguments, attributes and metadata; what they call is shared."""
    twin = memo[id(graph)] = restore.torch_fx_graph(*_skeleton(graph))
    memo[id(graph._root)] = twin._root
    for old, new in zip(graph.nodes, twin.nodes, strict=True):
        memo[id(old)] = new
    rows = []
    for node in graph.nodes:
        target = node.target
        if isinstance(target, _BOUND):  # it may hold what is copied
            target = yield target
        arguments = yield [node.args, dict(node.kwargs), _node_attributes(node)]
        rows.append((target, *arguments[:2], node.type, _copy_metadata(node.meta, memo), arguments[2]))
    attributes = yield _graph_attributes(graph)
    restore.fill_torch_fx_graph(twin, {"nodes": rows, "attributes": attributes})
    return twin


_BOUND: Final = (types.FunctionType, types.MethodType, functools.partial)


# -- metadata of nodes -------------------------------------------------------------------------------------------------


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(key)
            yield from _leaves(inner)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def _is_analysis(value: Any) -> bool:
    """Whether a value is a fake one, or a record of a compiler: they belong to the process and its passes."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, FakeTensor)) or _is_record(value)


def _is_record(value: Any) -> bool:
    return type(value).__module__.startswith(_RECORDS)


_RECORDS: Final = (
    "torch._dynamo.", "torch._guards", "torch._inductor.", "torch.fx.experimental.symbolic_shapes", "sympy.",
)  # fmt: skip


def _is_static(value: Any) -> bool:
    """Whether another process can have the value: a fake tensor can be made there if its shape is of numbers."""
    from torch._subclasses.fake_tensor import FakeTensor

    if isinstance(value, FakeTensor):
        return value.layout is torch.strided and all(type(number) is int for number in (*value.size(), *value.stride()))
    return not _is_analysis(value)


def _metadata(meta: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in meta.items() if all(map(_is_static, _leaves(value)))}


def _copy_metadata(meta: dict[str, Any], memo: Memo) -> dict[str, Any]:
    """Copies of what somebody noted; results of analysis are shared, as torch does with all metadata."""
    copied = {}
    for name, value in meta.items():
        shared = any(map(_is_analysis, _leaves(value)))
        copied[name] = value if shared else _copy_or_share(value, memo)
    return copied


def _copy_or_share(value: Any, memo: Memo) -> Any:
    try:
        return deepcopy(value, memo)
    except (PicklingError, RuntimeError, TypeError):
        return value


#: For one run of a pickler: the number that an address of a graph gets, which means nothing elsewhere.
_numbers: weakref.WeakKeyDictionary[Any, dict[int, int]] = weakref.WeakKeyDictionary()


def reduce_provenance(source: Any, pickler: Any) -> Any:
    """Where a node came from; torch tells graphs apart by their addresses, which differ from process to process."""
    if pickler is None:
        return NotImplemented
    state = dict(static_vars(source))
    if "graph_id" in state:
        numbers = _numbers.setdefault(pickler.by_value, {})
        state["graph_id"] = numbers.setdefault(state["graph_id"], len(numbers))
    if "_dict" in state:
        state["_dict"] = None  # a cache
    return copyreg.__newobj__, (type(source),), state  # type: ignore[attr-defined]


def reduce_fake_tensor(tensor: Any) -> tuple[Any, ...]:
    """A fake tensor by its mode, shape and device."""
    if not _is_static(tensor):
        raise PicklingError(
            f"cannot pickle a fake tensor of shape {tuple(tensor.shape)}: its sizes are symbols of this process. "
            "Export the program and pickle that"
        )
    arguments = (tensor.fake_mode, tuple(tensor.size()), tensor.stride(), tensor.dtype, tensor.fake_device)
    return restore.torch_fake_tensor, (*arguments, tensor.requires_grad, isinstance(tensor, torch.nn.Parameter))


def reduce_fake_mode(mode: Any) -> tuple[Any, ...]:
    """A fresh mode with the same settings."""
    return restore.torch_fake_mode, (mode.allow_fallback_kernels, mode.allow_non_fake_inputs)


def refuse_symbol(symbol: Any) -> Any:
    """Symbolic sizes mean something to the analysis that made them only."""
    raise PicklingError(
        f"cannot pickle a {type(symbol).__qualname__}: symbolic sizes belong to the process that traces. "
        "Export the program and pickle that, or trace with static shapes"
    )


# -- modules -----------------------------------------------------------------------------------------------------------

#: Generated from the graph.
_GENERATED: Final = frozenset({"_graph", "_code", "_lineno_map", "_prologue_start"})


def _module_arguments(module: Any) -> tuple[type, str]:
    """The class below the one that torch makes for each instance, and the name that this one got."""
    cls = type(module)
    base = next(c for c in cls.__mro__ if c.__qualname__.rpartition(".")[2] != "GraphModuleImpl")
    return base, cls.__name__


def _module_state(module: Any) -> dict[str, Any]:
    attributes = {name: value for name, value in static_vars(module).items() if name not in _GENERATED}
    return {"attributes": attributes, "graph": static_vars(module)["_graph"]}


def _pickled_state(module: Any) -> dict[str, Any]:
    state = _module_state(module)
    if state["attributes"].get("shape_env") is not None:
        state["attributes"]["shape_env"] = None  # symbolic shapes stay behind, here as in the metadata
    return state


def reduce_graph_module(module: Any) -> Any:
    """The graph and all attributes; the code is generated again."""
    if "_graph" not in static_vars(module):
        return NotImplemented  # not finished
    arguments = _module_arguments(module)
    return restore.torch_graph_module, arguments, _pickled_state(module), None, None, restore.fill_torch_graph_module


def copy_graph_module(module: Any, memo: Memo) -> Generator[Any, Any, Any]:
    """A module with copies of the graph and of all attributes."""
    if "_graph" not in static_vars(module):
        return NotImplemented
    twin = memo[id(module)] = restore.torch_graph_module(*_module_arguments(module))
    restore.fill_torch_graph_module(twin, (yield _module_state(module)))
    for hook in static_vars(module).get("_deepcopy_hooks", ()):
        hook(twin)
    return twin


# -- exported programs -------------------------------------------------------------------------------------------------


def reduce_exported_program(program: Any) -> tuple[Any, ...]:
    """The archive of a twin whose tensors are empty; the tensors are filled in."""
    bare = copy.copy(program)
    bare._state_dict = {name: _emptied(value) for name, value in program._state_dict.items()}
    bare._constants = {name: _emptied(value) for name, value in program._constants.items()}
    bare._example_inputs = None
    archive = io.BytesIO()
    torch.export.save(bare, archive)
    state = {
        "state_dict": program._state_dict,
        "constants": {name: value for name, value in program._constants.items() if isinstance(value, torch.Tensor)},
        "example_inputs": program._example_inputs,
    }
    operators = custom_packets(_operator_names(program.graph_module))
    arguments = (archive.getvalue(), operators) if operators else (archive.getvalue(),)
    return restore.torch_exported_program, arguments, state, None, None, restore.fill_torch_exported_program


def _operator_names(module: Any) -> Iterator[str]:
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                if isinstance(node.target, torch._ops.OpOverload):
                    yield node.target.name()


def _emptied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    empty = torch.empty(0)
    return torch.nn.Parameter(empty) if isinstance(value, torch.nn.Parameter) else empty
