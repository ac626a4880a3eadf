"""How does what is around tensors travel and copy: optimizers, parametrized modules, generators, streams, groups?

- optimizers: everything they have, not only what ``Optimizer.__getstate__`` names
- parametrized modules: torch refuses to pickle them, as their classes are made at run time; here the class is made
- data loaders without their running workers, handles of hooks whose module is gone
- streams and events, process groups: what stands for them in the process that loads them
- generators, ``torch.finfo``, memory formats, dictionaries with weak keys
- what belongs to one process and to one moment: an error that says what to do
"""

from __future__ import annotations

import copyreg
import types
from collections.abc import Callable, Generator
from typing import Any, Final

import torch
from torch.nn.utils import parametrize
from torch.utils.hooks import RemovableHandle

from .. import restore, sources
from ..errors import PicklingError
from ..references import find, static_vars
from ..registry import SHARE, Registry
from . import weakrefs
from .marked import MARKS
from .torch_tensors import stands_aside

__all__ = ["add_rules"]

ORIGIN: Final = __name__
_new: Final[Any] = copyreg.__newobj__  # type: ignore[attr-defined]


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    add_module_rules(registry)
    add_training_rules(registry)
    add_device_rules(registry)
    add_value_rules(registry)
    add_weak_rules(registry)
    add_refusals(registry)


# -- parametrized modules ----------------------------------------------------------------------------------------------


def add_module_rules(registry: Registry) -> None:
    """Parametrized modules, quantized ones, handles of hooks."""
    registry.add_made_classes(
        torch.nn.Module, is_parametrized_class, reduce_parametrized, origin=ORIGIN,
        name="torch.nn.utils.parametrize:parametrized modules",
        summary=("whole: parametrizations and originals", "whole, with a class of its own"),
    )  # fmt: skip
    registry.add("torch.ao.nn.quantized.modules.conv:_ConvNd", reduce_quantized, subclasses=True, origin=ORIGIN,
                 summary=("whole; weights packed again", "the same"))  # fmt: skip
    handles = ("to the restored hooks if they are in the pickle, else dead", "to the copied hooks")
    registry.add(RemovableHandle, reduce_handle, origin=ORIGIN, summary=handles)


def is_parametrized_class(cls: type) -> bool:
    """Whether ``torch.nn.utils.parametrize`` made the class, for one module."""
    refusal = vars(cls).get("__getstate__")
    return bool(getattr(refusal, "__module__", None) == parametrize.__name__)


def reduce_parametrized(module: Any) -> tuple[Any, ...]:
    """The class below the one that torch made, and the module's state."""
    made = type(module)
    base = made.__bases__[0]
    getstate = getattr(base, "__getstate__", None)
    state = dict(static_vars(module)) if getstate is None else getstate(module)
    compiled = static_vars(module).get("_compiled_call_impl")
    if compiled is not None and isinstance(state, dict):
        state = {**state, "_compiled_call_impl": compiled}
    return restore.torch_parametrized, (base,), state, None, None, restore.fill_torch_parametrized


def reduce_quantized(module: Any) -> tuple[Any, ...]:
    """A quantized convolution: torch's own way forgets all that modules have, so that it cannot even be called."""
    attributes = dict(static_vars(module))
    attributes.pop("_packed_params", None)
    weight, bias = module._weight_bias()
    return _new, (type(module),), (attributes, weight, bias), None, None, restore.fill_torch_quantized


def reduce_handle(handle: RemovableHandle) -> tuple[Any, ...]:
    """A handle that can be used to remove a hook; torch's own way fails where the hooks are gone."""
    others = [hooks for reference in handle.extra_dict_ref if (hooks := reference()) is not None]
    hooks = handle.hooks_dict_ref()
    # torch makes a dead handle of None; further dictionaries are of no use to it then.
    state = (None, handle.id, ()) if hooks is None else (hooks, handle.id, tuple(others))
    return _new, (type(handle),), state


# -- training ----------------------------------------------------------------------------------------------------------


def add_training_rules(registry: Registry) -> None:
    """Optimizers and data loaders."""
    registry.add("torch.optim.optimizer:Optimizer", reduce_optimizer, subclasses=True, origin=ORIGIN,
                 summary=("all its state; groups point to the restored parameters", "the same"))  # fmt: skip
    registry.add(MARKS["hooked"], reduce_hooked_step, with_pickler=True, origin=ORIGIN,
                 summary=("the function of the class; hooked again by the next optimizer", "shared"))  # fmt: skip
    registry.add("torch.utils.data.dataloader:DataLoader", reduce_loader, subclasses=True, origin=ORIGIN,
                 summary=("whole, without running workers", "the same"))  # fmt: skip
    refuse = _refusal("keep the DataLoader and start a new iteration")
    for name in ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"):
        registry.add(f"torch.utils.data.dataloader:{name}", refuse, origin=ORIGIN, summary=("an error", "an error"))


#: Made again by ``Optimizer.__setstate__``.
_MADE_AGAIN: Final = frozenset({"_zero_grad_profile_name"})


def reduce_optimizer(optimizer: Any) -> tuple[Any, ...]:
    """All that an optimizer has: ``__getstate__`` names three things, and forgets what subclasses keep."""
    state = {name: value for name, value in static_vars(optimizer).items() if name not in _MADE_AGAIN}
    noted = bool(getattr(state.get("step"), "_wrapped_by_lr_sched", False))
    if noted:
        del state["step"]  # a scheduler has put a function there that is tied to this very optimizer
    if noted or any(hooks for name, hooks in state.items() if name.endswith("_hooks")):
        return _new, (type(optimizer),), (state, noted), None, None, restore.fill_torch_optimizer
    return _new, (type(optimizer),), state


def reduce_hooked_step(function: types.FunctionType, pickler: Any) -> Any:
    """The ``step`` of a class without what its first optimizer put around it: equal classes are then equal bytes."""
    inner = function.__dict__.get("__wrapped__")
    hooks = function.__globals__.get("__name__") == "torch.optim.optimizer"
    if not hooks or type(inner) is not types.FunctionType or find(function, everywhere=False) is not None:
        return NotImplemented
    return sources.reduce_function(inner, pickler)


def reduce_loader(loader: Any) -> Any:
    """A data loader without the iterator that it keeps for persistent workers."""
    state = static_vars(loader)
    if state.get("_iterator") is None:
        return NotImplemented
    return _new, (type(loader),), {**state, "_iterator": None}


# -- devices -----------------------------------------------------------------------------------------------------------


def add_device_rules(registry: Registry) -> None:
    """Streams, events and process groups."""
    streams = ("device and priority; one object inside one pickle", "shared")
    for name in ("torch:Stream", "torch.cuda.streams:Stream"):
        registry.add(name, reduce_stream, copy=SHARE, subclasses=True, origin=ORIGIN, summary=streams)
    registry.add("torch.cuda.streams:ExternalStream", refuse_external_stream, copy=SHARE, origin=ORIGIN,
                 summary=("an error: it belongs to another library", "shared"))  # fmt: skip
    fresh = ("a fresh one of that device", "the same")
    registry.add("torch:Event", reduce_event, subclasses=True, origin=ORIGIN, summary=fresh)
    registry.add("torch.cuda.streams:Event", reduce_event, subclasses=True, origin=ORIGIN, summary=fresh)
    registry.add("torch.distributed.distributed_c10d:ProcessGroup", reduce_process_group, copy=SHARE, origin=ORIGIN,
                 summary=("the group of that name and those ranks in the process that loads it", "shared"))  # fmt: skip


def reduce_stream(stream: Any) -> tuple[Any, ...]:
    """A stream by its device and priority; the default stream of a device as that."""
    is_default = stream.stream_id == 0 and stream.device.type != "cpu"
    return restore.torch_stream, (type(stream), str(stream.device), getattr(stream, "priority", 0), is_default)


def refuse_external_stream(stream: Any) -> Any:
    """A stream that is only borrowed from another library."""
    raise PicklingError(
        "cannot pickle a torch.cuda.ExternalStream: it is an address in this process; make it again where it is needed"
    )


def reduce_event(event: Any) -> tuple[Any, ...]:
    """An event that has not happened: what an event waits for is in this process."""
    device = event.device
    return restore.torch_event, (type(event), None if device is None else str(device))


def reduce_process_group(group: Any) -> tuple[Any, ...]:
    """A process group by its name and its ranks."""
    import torch.distributed as distributed

    try:
        ranks = distributed.get_process_group_ranks(group)
        name = group.group_name
    except Exception as error:
        raise PicklingError(
            f"cannot pickle a process group that is not registered in this process ({error}): pickle what it was made "
            "of, and make it again with torch.distributed.new_group"
        ) from error
    return restore.torch_process_group, (name, tuple(ranks))


# -- values ------------------------------------------------------------------------------------------------------------


def add_value_rules(registry: Registry) -> None:
    """Generators, and small descriptions that torch forgot to make picklable."""
    registry.add(torch.Generator, reduce_generator, copy=copy_generator, with_pickler=True, origin=ORIGIN,
                 summary=("device and state: the same next numbers", "the same"))  # fmt: skip
    registry.add(torch.finfo, reduce_info, copy=SHARE, origin=ORIGIN, summary=("its type", "shared"))
    registry.add(torch.iinfo, reduce_info, copy=SHARE, origin=ORIGIN, summary=("its type", "shared"))
    registry.add(torch.memory_format, reduce_memory_format, copy=SHARE, origin=ORIGIN, summary=("by name", "shared"))
    registry.add("torch.distributions.transforms:Transform", reduce_transform, subclasses=True, origin=ORIGIN,
                 summary=("whole; an inverse with what it inverts", "the same"))  # fmt: skip


class _Numbers:
    """A tensor of bytes that is written as a list, and so is there as soon as it is loaded."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._numbers = tensor.tolist()

    def __reduce__(self) -> tuple[Any, ...]:
        return torch.ByteTensor, (self._numbers,)


def reduce_generator(generator: torch.Generator, pickler: Any) -> Any:
    """A generator with its state, as torch does it where torch does.

    ``torch.save`` in the old format brings the contents of tensors after all objects: too late for a state.
    """
    reduce = getattr(generator, "__reduce__", None)
    if pickler is None or "__reduce__" not in vars(type(generator)) or reduce is None:
        return restore.torch_generator, (str(generator.device), generator.get_state())
    if not stands_aside(pickler):
        return NotImplemented
    function, arguments, (seed, offset, state) = reduce()
    return function, arguments, (seed, offset, _Numbers(state))


def copy_generator(generator: torch.Generator, memo: dict[Any, Any]) -> torch.Generator:
    """Another generator that draws the same numbers from here on."""
    return restore.torch_generator(str(generator.device), generator.get_state())


def reduce_info(info: Any) -> tuple[Any, ...]:
    """``torch.finfo`` and ``torch.iinfo`` of a type."""
    return type(info), (getattr(torch, info.dtype),)


def reduce_memory_format(memory_format: torch.memory_format) -> str:
    """A memory format by its name: torch's own way needs to pickle a module below protocol 4."""
    return str(memory_format).rpartition(".")[2]


def reduce_transform(transform: Any) -> tuple[Any, ...]:
    """All that a transform has: ``__getstate__`` leaves out its inverse, and so of an inverse what it inverts."""
    return _new, (type(transform),), dict(static_vars(transform))


# -- weak references to tensors ----------------------------------------------------------------------------------------


def add_weak_rules(registry: Registry) -> None:
    """Dictionaries that hold their keys weakly, and know them by identity."""
    entries = ("those entries that something else in the pickle holds", "to the copies of what is copied")
    registry.add("torch.utils.weak:WeakIdKeyDictionary", reduce_weak_keys, copy=copy_weak_keys, shallow=_decline,
                 subclasses=True, with_pickler=True, origin=ORIGIN, summary=entries)  # fmt: skip


def _decline(mapping: Any) -> Any:
    return NotImplemented  # it has a method for shallow copies


def reduce_weak_keys(mapping: Any, pickler: Any) -> tuple[Any, ...]:
    """The items whose keys are part of the pickle."""
    survey = weakrefs._survey(pickler)
    items = [(key, value) for key, value in mapping.items() if survey.writes(key, value)]
    return restore.torch_weak_keys, (type(mapping), mapping.ref_type), items, None, None, restore.fill_torch_weak_keys


def copy_weak_keys(mapping: Any, memo: dict[Any, Any]) -> Generator[Any, Any, Any]:
    """The values, copied; the keys are the copies of those that are copied."""
    made = memo[id(mapping)] = restore.torch_weak_keys(type(mapping), mapping.ref_type)
    for key, value in list(mapping.items()):
        key = (yield key) if weakrefs.is_copied(key, memo) else key
        made[key] = yield value
    return made


# -- what cannot travel ------------------------------------------------------------------------------------------------


def _refusal(advice: str) -> Callable[[Any], Any]:
    def refuse(obj: Any) -> Any:
        raise PicklingError(f"cannot pickle or copy a {type(obj).__module__}.{type(obj).__qualname__}: {advice}")

    return refuse


def is_node_class(cls: type) -> bool:
    """Whether objects of the class are nodes of the autograd graph; most of these classes have no common base."""
    return any("next_functions" in vars(base) for base in cls.__mro__) and issubclass(cls, torch.autograd.graph.Node)


def add_refusals(registry: Registry) -> None:
    """Objects that belong to one process and one moment."""
    registry.add_made_classes(
        object, is_node_class, _refusal("it is a node of the autograd graph; keep tensors, not their grad_fn"),
        origin=ORIGIN, name="torch.autograd.graph:Node", summary=("an error", "an error"),
    )  # fmt: skip
    refused = {
        "torch.cuda.graphs:CUDAGraph": "a captured graph refers to memory of this process; capture it again",
        "torch.distributed.distributed_c10d:Work": "it is a running operation; wait() for it and keep its result",
        "torch.distributed.distributed_c10d:Store": "it is a connection of this process; make it again",
        "torch._C:Future": "it is the promise of a result; wait() for it and keep the result",
    }
    for name, advice in refused.items():
        registry.add(name, _refusal(advice), subclasses=True, origin=ORIGIN, summary=("an error", "an error"))
