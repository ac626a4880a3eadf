"""What a pickle calls for tensors, storages and what is around them in torch."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any

from .. import locations
from .._native import core
from ..errors import UnpicklingError
from .checks import _check
from .names import resolve

__all__ = [
    "TORCH_ADOPT_FROM",
    "fill_torch_optimizer",
    "fill_torch_parametrized",
    "fill_torch_quantized",
    "fill_torch_tensor",
    "fill_torch_weak_keys",
    "torch_event",
    "torch_generator",
    "torch_library",
    "torch_mkldnn",
    "torch_parameter",
    "torch_parametrized",
    "torch_process_group",
    "torch_storage",
    "torch_stream",
    "torch_tensor",
    "torch_typed_storage",
    "torch_uninitialized",
    "torch_weak_keys",
    "torch_wrapped_kernel",
    "torch_wrapped_kernel_named",
]


#: From this size on a buffer that can be written to becomes a tensor's memory as it is; smaller ones are copied into
#: memory of torch's own, which can be resized and is better aligned.
TORCH_ADOPT_FROM = 1 << 20


def torch_tensor(
    cls: Any, data: Any, dtype: Any, size: tuple[int, ...], requires_grad: bool = False,
    stride: tuple[int, ...] | None = None, offset: int = 0, options: dict[str, Any] | None = None,
) -> Any:  # fmt: skip
    """A tensor or parameter on the bytes ``data``, or on the memory of the tensor or storage ``data``.

    ``stride``: contiguous unless given. ``options``: ``"device"``, ``"byteorder"`` of the bytes, ``"conj"``, ``"neg"``.
    """
    torch, common, modes = _torch or _torch_known()
    # Most often all bytes of a contiguous tensor of a common type, which this makes as fast as can be.
    tensor = None
    is_whole = (
        type(data) is bytes and type(dtype) is torch.dtype and dtype in common and type(size) is tuple
        and stride is None and options is None and 0 not in size
        and (not locations.running or locations.current() is None)
    )  # fmt: skip
    if is_whole:
        # The size not as a tuple: that takes twice the time. The device only if there may be another default.
        lengths = size or (size,)
        tensor = torch.empty(*lengths, dtype=dtype, device="cpu") if modes() else torch.empty(*lengths, dtype=dtype)
        if not _fill_memory(tensor.data_ptr(), tensor.nbytes, data):
            tensor = None
    if tensor is None:
        if type(dtype) is not torch.dtype:
            _check(dtype, torch.dtype, "the type of a tensor's elements")
        if type(size) is not tuple:
            _check(size, tuple, "the size of a tensor")
        tensor = _torch_view(data, dtype, size, stride, offset, options or {})
    if cls is torch.nn.Parameter:
        tensor.__class__ = cls  # what Parameter.__new__ makes, at a fraction of the time
    elif cls is not torch.Tensor:
        _check_torch_class(cls, torch.Tensor)
        tensor = torch.Tensor._make_subclass(cls, tensor)
    return tensor.requires_grad_() if requires_grad else tensor


#: torch, the types of elements that every kernel of it knows, and a function that tells how many modes are active.
_torch: tuple[Any, frozenset[Any], Any] | None = None


def _torch_known() -> tuple[Any, frozenset[Any], Any]:
    global _torch
    import torch

    names = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
             "complex64", "complex128")  # fmt: skip
    _torch = torch, frozenset([getattr(torch, name) for name in names]), torch._C._len_torch_function_stack
    return _torch


def _fill_memory(address: int, size: int, data: bytes) -> bool:
    import ctypes

    if len(data) == size:
        ctypes.memmove(address, data, size)
    return len(data) == size


if core is not None:
    _fill_memory = core.fill_memory


def _torch_view(
    data: Any, dtype: Any, size: tuple[int, ...], stride: tuple[int, ...] | None, offset: int, options: dict[str, Any]
) -> Any:
    import torch

    if isinstance(data, torch.Tensor):
        storage = data.untyped_storage()
    elif isinstance(data, torch.UntypedStorage):
        storage = data
    else:
        storage = _torch_memory(data)
        if options or sys.byteorder != "little" or locations.running:
            storage = _torch_place(storage, options, dtype)
    tensor = torch.empty(0, dtype=dtype, device=storage.device)
    tensor.set_(storage, offset, size, _contiguous(size) if stride is None else stride)
    if options and (marks := {name: True for name in ("conj", "neg") if options.get(name)}):
        torch._utils.set_tensor_metadata(tensor, marks)
    return tensor


def torch_parameter(cls: Any, data: Any, requires_grad: bool) -> Any:
    """A parameter of a layout that is no plain memory (sparse, quantized, ...)."""
    import torch

    _check_torch_class(cls, torch.Tensor)
    _check(data, torch.Tensor, "the data of a parameter")
    return torch.Tensor._make_subclass(cls, data, requires_grad)


def torch_mkldnn(dense: Any) -> Any:
    """A tensor in the layout that the CPU's library of kernels likes."""
    import torch

    _check(dense, torch.Tensor, "a tensor")
    return dense.to_mkldnn()


def torch_uninitialized(cls: Any, requires_grad: bool, device: str, dtype: Any) -> Any:
    """A parameter or buffer of a lazy module that has no shape yet."""
    import torch

    _check_torch_class(cls, torch.nn.parameter.UninitializedTensorMixin)
    if locations.current() is not None:
        device = _torch_located(torch.UntypedStorage(0, device="cpu"), device).device
    return cls(requires_grad=requires_grad, device=device, dtype=dtype)


def fill_torch_tensor(tensor: Any, state: dict[str, Any]) -> None:
    """Give a tensor its attributes, its gradient and its hooks."""
    import torch

    _check(tensor, torch.Tensor, "a tensor")
    tensor.__dict__.update(state.get("attributes", {}))
    for name, value in state.get("slots", {}).items():
        setattr(tensor, name, value)
    if "grad" in state:
        tensor.grad = state["grad"]
    handles = torch.utils.hooks.RemovableHandle
    for key, name in (("hooks", "_backward_hooks"), ("after_grad", "_post_accumulate_grad_hooks")):
        if state.get(key):
            setattr(tensor, name, state[key])
            # A hook that is registered from now on must not take the number of one of these.
            handles.next_id = max(handles.next_id, 1 + max(state[key]))


def torch_storage(data: Any, options: dict[str, Any] | None = None) -> Any:
    """A storage of the bytes ``data``, or that of the tensor ``data``; a number of bytes where there is no memory."""
    import torch

    if isinstance(data, torch.Tensor):
        return data.untyped_storage()
    options = options or {}
    if isinstance(data, int):
        return torch.UntypedStorage(data, device="meta")
    return _torch_place(_torch_memory(data), options, None)


def torch_typed_storage(storage: Any, dtype: Any) -> Any:
    """A typed storage on an untyped one."""
    import torch

    _check(storage, torch.UntypedStorage, "a storage")
    _check(dtype, torch.dtype, "the type of a storage's elements")
    return torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def _check_torch_class(cls: Any, base: type) -> None:
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise UnpicklingError(f"malformed pickle: {cls!r} is not a kind of {base.__qualname__}")


def _contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for length in reversed(size):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def _torch_memory(data: Any) -> Any:
    """A storage on the CPU with those bytes. A buffer that is read-only is never written through, so it is copied."""
    import ctypes

    import torch

    view = memoryview(data)
    size = view.nbytes
    if size and not view.readonly:
        flat = torch.frombuffer(view.cast("B"), dtype=torch.uint8)
        if size < TORCH_ADOPT_FROM or flat.data_ptr() % 16:
            flat = flat.clone()
        return flat.untyped_storage()
    storage = torch.UntypedStorage(size, device="cpu")
    if size:
        ctypes.memmove(storage.data_ptr(), data if isinstance(data, bytes) else view.tobytes(), size)
    return storage


def _torch_place(storage: Any, options: dict[str, Any], dtype: Any) -> Any:
    """The storage in the byte order of this machine, on the device that the original was on."""

    if dtype is not None and options.get("byteorder", "little") != sys.byteorder:
        storage.byteswap(dtype)
    return _torch_located(storage, options.get("device", "cpu"))


def _torch_located(storage: Any, device: str) -> Any:
    """The storage, which is on the CPU, where the load that is running says, or on the device that it was on.

    Raises:
        UnpicklingError: that device is not here.
    """
    import torch

    _check(device, str, "the name of a device")
    wanted = locations.current()
    if wanted is None and device == "cpu":
        return storage
    place = torch.serialization.default_restore_location
    if isinstance(wanted, dict):
        device = wanted.get(device, device)
    elif isinstance(wanted, (str, torch.device)):
        device = str(wanted)
    elif wanted is not None:
        if not callable(wanted):
            raise TypeError(
                f"map_location must be a device, its name, a dictionary or a function, not {type(wanted).__qualname__}"
            )
        placed = wanted(storage, device)
        if placed is not None:
            return getattr(placed, "_untyped_storage", placed)
    try:
        return place(storage, str(device))
    except RuntimeError as error:
        raise UnpicklingError(
            f"this pickle holds a tensor that goes to the device {str(device)!r}, which is not here ({error}): say "
            "where it shall go, as in safepickle.loads(data, map_location='cpu')"
        ) from error


def _skip_torch_hook_ids(state: dict[str, Any]) -> None:
    """A process numbers its hooks from zero: one that is registered later must not take the place of a restored one."""
    from torch.utils.hooks import RemovableHandle

    for name, hooks in state.items():
        if name.endswith("_hooks") and isinstance(hooks, dict):
            for number in hooks:
                if isinstance(number, int) and number >= RemovableHandle.next_id:
                    RemovableHandle.next_id = number + 1


def torch_parametrized(base: Any) -> Any:
    """A module, still empty, of a class that can be parametrized; its state follows."""
    import torch
    from torch.nn.utils import parametrize

    _check_torch_class(base, torch.nn.Module)
    module = base.__new__(base)
    parametrize._inject_new_class(module)
    return module


def fill_torch_parametrized(module: Any, state: dict[str, Any]) -> None:
    """Give a parametrized module its state, and its class the properties that compute its tensors."""
    import torch
    from torch.nn.utils import parametrize

    _check(module, torch.nn.Module, "a module")
    module.__setstate__(state)
    _skip_torch_hook_ids(state)
    for name in module.__dict__["_modules"]["parametrizations"]:
        parametrize._inject_property(module, name)


def fill_torch_quantized(module: Any, state: tuple[dict[str, Any], Any, Any]) -> None:
    """Give a quantized convolution its attributes, and have its weight and bias packed for this machine."""
    import torch
    from torch.ao.nn.quantized.modules.conv import _ConvNd

    _check(module, _ConvNd, "a quantized convolution")
    attributes, weight, bias = state
    torch.nn.Module.__setstate__(module, attributes)
    _skip_torch_hook_ids(attributes)
    module.set_weight_bias(weight, bias)


def fill_torch_optimizer(optimizer: Any, state: tuple[dict[str, Any], bool]) -> None:
    """Give an optimizer its attributes, and note its steps for a learning rate scheduler if the original did so."""
    import torch

    _check(optimizer, torch.optim.Optimizer, "an optimizer")
    attributes, noted = state
    optimizer.__setstate__(attributes)
    _skip_torch_hook_ids(attributes)
    if noted:
        _note_steps(optimizer)


def _note_steps(optimizer: Any) -> None:
    """What a learning rate scheduler does to its optimizer when it is made: it wants to know whether that was used."""
    step, me = type(optimizer).step, weakref.ref(optimizer)

    @functools.wraps(step)
    def noting(*args: Any, **kwargs: Any) -> Any:
        this: Any = me()
        this._opt_called = True
        return step(this, *args, **kwargs)

    noting._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = noting


def torch_stream(cls: Any, device: str, priority: int, is_default: bool) -> Any:
    """A stream of that device and priority, or the default stream of the device."""
    import torch

    _check(cls, type, "the class of a stream")
    if not issubclass(cls, (torch.Stream, torch.cuda.Stream)):
        raise UnpicklingError(f"malformed pickle: {cls.__qualname__} is no kind of stream")
    place = torch.device(device)
    if not is_default:
        return cls(device=place) if priority == 0 else cls(device=place, priority=priority)
    if issubclass(cls, torch.cuda.Stream):
        return torch.cuda.default_stream(place)
    known = torch.Stream(device=place)  # tells the numbers of the device
    return cls(stream_id=0, device_index=known.device_index, device_type=known.device_type)


def torch_event(cls: Any, device: str | None) -> Any:
    """An event of that device that has not been recorded; it can take times, as the original may have been able to."""
    import torch

    _check(cls, type, "the class of an event")
    if not issubclass(cls, (torch.Event, torch.cuda.Event)):
        raise UnpicklingError(f"malformed pickle: {cls.__qualname__} is no kind of event")
    if device is None or issubclass(cls, torch.cuda.Event):
        return cls(enable_timing=True)
    return cls(device=torch.device(device), enable_timing=True)


def torch_generator(device: str, state: Any) -> Any:
    """A generator that continues from that state."""
    import torch

    _check(state, torch.Tensor, "the state of a generator")
    generator = torch.Generator(device=device)
    generator.set_state(state)
    return generator


def torch_weak_keys(cls: Any, ref_type: Any) -> Any:
    """An empty dictionary that holds its keys weakly and knows them by identity."""
    from torch.utils import weak

    _check_torch_class(cls, weak.WeakIdKeyDictionary)
    _check_torch_class(ref_type, weakref.ref)
    made = cls.__new__(cls)
    weak.WeakIdKeyDictionary.__init__(made, ref_type=ref_type)
    return made


def fill_torch_weak_keys(mapping: Any, items: list[tuple[Any, Any]]) -> None:
    """Enter the items."""
    from torch.utils import weak

    _check(mapping, weak.WeakIdKeyDictionary, "a dictionary with weak keys")
    for key, value in items:
        mapping[key] = value


def torch_process_group(name: str, ranks: tuple[int, ...]) -> Any:
    """The process group of this process that has that name, or else those ranks.

    Raises:
        UnpicklingError: there is none, or more than one.
    """
    import torch.distributed as distributed

    what = f"the process group {name!r} of ranks {list(ranks)}"
    if not distributed.is_available() or not distributed.is_initialized():
        raise UnpicklingError(f"{what} is not here: call torch.distributed.init_process_group before loading")
    groups = list(distributed.distributed_c10d._world.pg_map)
    same = [group for group in groups if tuple(distributed.get_process_group_ranks(group)) == tuple(ranks)]
    named = [group for group in same if group.group_name == name]
    found = named or same
    if len(found) != 1:
        count = "more than one group has" if found else "no group has"
        raise UnpicklingError(
            f"{what} is not here: {count} these ranks; make it with torch.distributed.new_group before loading"
        )
    return found[0]


def torch_wrapped_kernel(kernel: Any, grid: Any) -> Any:
    """A Triton kernel in the wrapper that lets torch trace it, with its grid if it has one."""
    import torch
    from torch._higher_order_ops.triton_kernel_wrap import TraceableTritonKernelWrapper

    wrapped = torch.library.wrap_triton(kernel)
    if grid is None or not isinstance(wrapped, TraceableTritonKernelWrapper):
        return wrapped
    return TraceableTritonKernelWrapper(kernel, wrapped.kernel_idx, grid)


def torch_wrapped_kernel_named(module: str, qualname: str, path: tuple[str, ...]) -> Any:
    """The same by the name that leads to it."""
    from torch._higher_order_ops.triton_kernel_wrap import TraceableTritonKernelWrapper

    return _torch_named(module, qualname, path, TraceableTritonKernelWrapper)


def torch_library(module: str, qualname: str, path: tuple[str, ...]) -> Any:
    """A library of operators by the name that leads to it."""
    import torch.library

    return _torch_named(module, qualname, path, torch.library.Library)


def _torch_named(module: str, qualname: str, path: tuple[str, ...], kind: type) -> Any:
    found = resolve(module, qualname, path)
    if not isinstance(found, kind):
        raise UnpicklingError(
            f"the reference {'.'.join([f'{module}:{qualname}', *path])} leads to a {type(found).__qualname__}, "
            f"not to a {kind.__qualname__}"
        )
    return found
