"""How do tensors, parameters and storages travel and copy?

In a plain pickle the bytes of a storage are written once, as a buffer (in-band, or out-of-band where the caller asked
for that), by the first tensor that uses it; the others refer to that one, so views, tied parameters and overlapping
tensors share memory again after loading. Under ``torch.save``, or wherever somebody else takes care of tensors, these
rules stand back.

What is loaded can be written to and, below a megabyte, resized; a larger one that came as a buffer stays in that
buffer, without a copy; ``resize_`` then raises. Out-of-band buffers are the tensors' own memory, as with numpy: what
is changed before they are sent is sent changed.

Copies share storages as their originals do, and keep what ``Parameter.__deepcopy__`` loses: attributes, gradients,
hooks.
"""

from __future__ import annotations

import copyreg
import ctypes
import io
import pickle
import sys
import weakref
from typing import Any, Final

import torch
from torch.utils.hooks import warn_if_has_hooks

from .. import restore
from .._native import core
from ..copier import deepcopy, running_call
from ..entries import foreign
from ..errors import CopyError
from ..registry import Registry
from .torch_staging import Staging, Transfers

__all__ = ["add_rules", "stands_aside"]

ORIGIN: Final = __name__

Memo = dict[Any, Any]


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    tensors = (
        "bytes once a storage, views share again; attributes, `.grad`, hooks kept; under `torch.save` as torch does",
        "as `copy.deepcopy`; attributes, `.grad`, hooks, sharing kept; of a non-leaf a detached copy (`nonleaf=`)",
    )
    copier = tensor_copier()
    reducer = tensor_reducer(copier)
    for cls in (torch.Tensor, torch.nn.Parameter):
        registry.add(cls, reducer, copy=copier, shallow=copy_tensor_once, subclasses=True, with_pickler=True,
                     origin=ORIGIN, summary=tensors)  # fmt: skip
    lazy = ("class, device and dtype", "the same")
    for cls in (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer):
        registry.add(cls, reduce_uninitialized, copy=copy_uninitialized, with_pickler=True, origin=ORIGIN, summary=lazy)
    storages = ("its bytes, once", "copied once in a call")
    registry.add(torch.UntypedStorage, reduce_storage, copy=copy_storage, with_pickler=True, origin=ORIGIN,
                 summary=storages)  # fmt: skip
    registry.add(torch.TypedStorage, reduce_typed_storage, copy=copy_typed_storage, with_pickler=True, origin=ORIGIN,
                 summary=storages)  # fmt: skip


# -- what kind of tensor is this? --------------------------------------------------------------------------------------

_OPAQUE: Final = 0  # not simply strided memory: sparse, quantized, nested, meta, wrapped, with a dispatch of its own
_PLAIN: Final = 1
_MARKED: Final = 2  # strided memory to be read as conjugated or negated

#: Devices whose storages are plain memory that can be copied from and to the CPU.
_DEVICES: Final = frozenset({"cpu", "cuda", "xpu"})

_dispatch_keys: Final = torch._C._dispatch_keys
_kinds: dict[int, int] = {}


def _kind(tensor: torch.Tensor) -> int:
    """Which of the three kinds; the dispatch keys of a tensor decide, so it is found out once for each set of them."""
    keys = _dispatch_keys(tensor).raw_repr()
    kind = _kinds.get(keys)
    if kind is None:
        kind = _kinds[keys] = _classify(tensor)
    return kind


def _classify(tensor: torch.Tensor) -> int:
    keys = torch._C._dispatch_keys(tensor)
    if (
        tensor.layout is not torch.strided
        or tensor.is_quantized
        or tensor.is_nested
        or tensor.device.type not in _DEVICES
        or any(keys.has(getattr(torch._C.DispatchKey, name)) for name in ("Python", "ZeroTensor", "Functionalize"))
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    ):
        return _OPAQUE
    return _MARKED if tensor.is_conj() or tensor.is_neg() else _PLAIN


_ordinary: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()

#: A subclass that overrides one of these wants to have a say in how it is copied.
_SAY: Final = ("__torch_function__", "__torch_dispatch__", "new_empty", "clone", "detach")


def _is_ordinary(cls: type) -> bool:
    """Whether objects of the class are tensors with attributes and methods added, and nothing else."""
    if cls is torch.Tensor or cls is torch.nn.Parameter:
        return True
    answer = _ordinary.get(cls)
    if answer is None:
        base = torch.nn.Parameter if issubclass(cls, torch.nn.Parameter) else torch.Tensor
        answer = _ordinary[cls] = all(_function(cls, name) is _function(base, name) for name in _SAY)
    return answer


def _function(cls: type, name: str) -> Any:
    found = getattr(cls, name)
    return getattr(found, "__func__", found)


#: Types of elements that every kernel knows; the others (bits, 4 bit integers, ...) can only be moved as bytes.
_COMMON: Final = frozenset(
    {
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.bool, torch.complex64, torch.complex128,
    }
)  # fmt: skip


#: Those among them that no tensor is a conjugated view of.
_REAL: Final = sorted((dtype for dtype in _COMMON if not dtype.is_complex), key=str)

#: Up to this size copying bytes costs less than making a buffer of them.
_SMALL: Final = 1 << 14

# -- pickling ----------------------------------------------------------------------------------------------------------


class _Dump:
    """What one dump remembers about tensors.

    Attributes:
        aside: somebody else takes care of tensors: ``torch.save``, or a dispatch table that has an entry for them.
        indirect: somebody else may take care of plain tensors (a ``reducer_override``, a user's rule): parameters hand
            theirs over.
        staging: what brings the contents of tensors on devices, once there was one.
        owners: address of a storage -> the object that wrote its bytes, and the storage, kept alive.
    """

    __slots__ = ("aside", "indirect", "owners", "staging")

    def __init__(self, pickler: Any) -> None:
        self.aside = _has_persistent_id(pickler) or _in_dispatch_table(pickler)
        self.indirect = getattr(pickler, "overridden", False) or _user_rules(pickler.registry)
        self.owners: dict[int, tuple[Any, Any]] = {}
        self.staging: Staging | None = None


def _dump_of(pickler: Any) -> _Dump:
    notes = vars(pickler.by_value)  # made anew for each dump
    found = notes.get("torch_tensors")
    if found is None:
        found = notes["torch_tensors"] = _Dump(pickler)
        if not found.aside and not found.indirect and sys.byteorder == "little":
            notes["torch_quick"] = (found.owners, _most_in_bytes(pickler))  # for the C core
    return found  # type: ignore[no-any-return]


def stands_aside(pickler: Any) -> bool:
    """Whether somebody else takes care of tensors in this dump."""
    return _dump_of(pickler).aside


#: What picklers have that know no persistent ids.
_NO_PERSISTENT_ID: Final = (
    None, getattr(pickle.Pickler, "persistent_id", None), pickle._Pickler.persistent_id,
)  # fmt: skip


def _has_persistent_id(pickler: Any) -> bool:
    if getattr(type(pickler), "persistent_id", None) not in _NO_PERSISTENT_ID:
        return True
    found = getattr(pickler, "persistent_id", None)  # perhaps assigned to the instance
    return found is not None and getattr(found, "__self__", None) is not pickler


def _in_dispatch_table(pickler: Any) -> bool:
    table = getattr(pickler, "dispatch_table", None)
    if table is None:
        return False
    for cls in (torch.Tensor, torch.UntypedStorage, torch.TypedStorage):
        try:
            if foreign(table[cls]) is not None and table[cls] is not copyreg.dispatch_table.get(cls):
                return True
        except KeyError:
            pass
    return False


def _user_rules(registry: Registry) -> bool:
    rule = registry.rule_for(torch.Tensor)
    return rule is not None and rule.origin != ORIGIN


def reduce_tensor(tensor: torch.Tensor, pickler: Any) -> Any:
    """A tensor as the bytes of its storage, or as a view of a tensor or storage that was written before."""
    if pickler is None:
        return NotImplemented
    dump, cls = _dump_of(pickler), type(tensor)
    if dump.aside or not _is_ordinary(cls):
        return NotImplemented
    kind = _kind(tensor)
    if kind == _OPAQUE:
        return _reduce_opaque(tensor, cls)
    storage = tensor.untyped_storage()
    owner = dump.owners.get(storage._cdata)
    if owner is not None and owner[0] is not tensor:
        data = owner[0]
    elif dump.indirect and cls is not torch.Tensor:
        data = pickler.by_value.keep(tensor.detach())
    else:
        dump.owners[storage._cdata] = (tensor, storage)
        data = _bytes_of(storage, pickler)
    arguments = (cls, data, tensor.dtype, tuple(tensor.size()), *_trailing(tensor, data, kind))
    state = _state_of(tensor, cls)
    if state is None:
        return restore.torch_tensor, arguments
    return restore.torch_tensor, arguments, state, None, None, restore.fill_torch_tensor


def _trailing(tensor: torch.Tensor, data: Any, kind: int) -> tuple[Any, ...]:
    """The arguments that differ from their defaults, with those before them."""
    offset = tensor.storage_offset()
    stride = None if offset == 0 and tensor.is_contiguous() else tensor.stride()
    options = None
    if kind == _MARKED or not tensor.is_cpu or sys.byteorder == "big":
        options = dict(torch._utils.get_tensor_metadata(tensor))
        if not isinstance(data, (torch.Tensor, torch.UntypedStorage)):
            options.update(_place(tensor.device))
    if options:
        return (tensor.requires_grad, stride, offset, options)
    if stride is not None:
        return (tensor.requires_grad, stride, offset)
    return (True,) if tensor.requires_grad else ()


def _place(device: torch.device) -> dict[str, Any]:
    """Where bytes come from, as far as that must be said."""
    options: dict[str, Any] = {}
    if device.type != "cpu":
        options["device"] = str(device)
    if sys.byteorder == "big":
        options["byteorder"] = "big"
    return options


def _bytes_of(storage: torch.UntypedStorage, pickler: Any) -> Any:
    """The bytes of a storage; as a buffer where the protocol knows buffers and there is something to be gained."""
    staging = _staging_of(storage, pickler) if storage.device.type != "cpu" else None
    if staging is not None:
        flat = staging.bytes_of(storage)
    else:
        flat = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage.cpu())
    size = flat.numel()
    if size <= _most_in_bytes(pickler):
        return ctypes.string_at(flat.data_ptr(), size)
    try:
        buffer = pickle.PickleBuffer(flat.numpy())
    except RuntimeError:  # torch works without numpy, and then exports its memory to nobody
        return pickle.PickleBuffer(bytearray(ctypes.string_at(flat.data_ptr(), size)))
    if staging is not None and getattr(pickler, "buffer_callback", None) is None and _copies_at_once(pickler):
        staging.written_next(buffer)
    return buffer


#: Devices from which tensors come through pinned memory, ahead of their turn.
_STAGED: Final = {"cuda"}


def _staging_of(storage: torch.UntypedStorage, pickler: Any) -> Staging | None:
    """What brings the bytes of storages on devices in this dump; ``None`` for devices that know no pinned memory."""
    if storage.device.type not in _STAGED:
        return None
    dump = _dump_of(pickler)
    if dump.staging is None:
        root = getattr(pickler, "_root", None)
        dump.staging = Staging(root, lambda storage: storage.device.type in _STAGED, Transfers())
    return dump.staging


#: Files that keep nothing of what is written to them but its bytes.
_FILES: Final = (io.BytesIO, io.BufferedWriter, io.BufferedRandom, io.FileIO)


def _copies_at_once(pickler: Any) -> bool:
    """Whether the memory of a buffer is free as soon as it is written."""
    sink = getattr(pickler, "_sink", None)
    return type(getattr(sink, "_file", None)) in _FILES or type(sink).__module__.startswith("safepickle._native")


def _most_in_bytes(pickler: Any) -> int:
    """Up to which size the bytes of a storage are written as bytes."""
    if pickler.protocol < 5:
        return sys.maxsize
    return _SMALL if getattr(pickler, "buffer_callback", None) is None else -1


def tensor_reducer(copier: Any) -> Any:
    """What reduces tensors: :func:`reduce_tensor`, without which plain ones are reduced where the C core is."""
    if core is None or copier is copy_tensor:
        return reduce_tensor
    return core.tensor_reducer(reduce_tensor, _bytes_of, restore.torch_tensor, copier)


def _covers(tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
    """Whether a tensor of a common type is as large as its storage."""
    return tensor.dtype in _COMMON and tensor.nbytes == storage.nbytes()


def _reduce_opaque(tensor: torch.Tensor, cls: type) -> Any:
    """What torch says about the tensor, with the class, the attributes and the gradient that it would drop."""
    if tensor.layout is torch._mkldnn:
        dense = (tensor.detach().to_dense(),)  # the blocked layout is of this machine's making
        return restore.torch_mkldnn, dense
    if cls is torch.Tensor or not issubclass(cls, torch.nn.Parameter):
        return NotImplemented
    state = _state_of(tensor, cls)
    if state is None and cls is torch.nn.Parameter:
        return NotImplemented
    arguments = (cls, tensor.detach(), tensor.requires_grad)
    return restore.torch_parameter, arguments, state, None, None, restore.fill_torch_tensor


def _state_of(tensor: torch.Tensor, cls: type) -> dict[str, Any] | None:
    """What hangs on a tensor: attributes, gradient, hooks."""
    state: dict[str, Any] = {}
    if tensor.__dict__ and (attributes := _attributes(tensor)):
        state["attributes"] = attributes
    if cls is not torch.Tensor and cls is not torch.nn.Parameter:
        slots = _slots(tensor)
        if slots:
            state["slots"] = slots
    if tensor.requires_grad and tensor.is_leaf:
        if tensor.grad is not None:
            state["grad"] = tensor.grad
        if not tensor._backward_hooks and not tensor._post_accumulate_grad_hooks:
            return state or None
        for name, hooks in (("hooks", tensor._backward_hooks), ("after_grad", tensor._post_accumulate_grad_hooks)):
            if hooks:
                kept = {key: hook for key, hook in hooks.items() if not hasattr(hook, "__torch_unserializable__")}
                state[name] = hooks if len(kept) == len(hooks) else type(hooks)(kept)
    elif tensor._backward_hooks:
        warn_if_has_hooks(tensor)
    return state or None


def _attributes(tensor: torch.Tensor) -> dict[str, Any]:
    """What somebody set on a tensor, without the mark that a compiled module leaves on parameters when it is called."""
    attributes = dict(tensor.__dict__)
    if attributes.get("_dynamo_static_input_type") == "unguarded":
        del attributes["_dynamo_static_input_type"]
    return attributes


def _slots(tensor: torch.Tensor) -> dict[str, Any]:
    names = copyreg._slotnames(type(tensor))  # type: ignore[attr-defined]
    return {name: getattr(tensor, name) for name in names if hasattr(tensor, name)}


def reduce_storage(storage: torch.UntypedStorage, pickler: Any) -> Any:
    """A storage as its bytes, or as that of a tensor that was written before."""
    if pickler is None:
        return NotImplemented
    dump = _dump_of(pickler)
    owner = dump.owners.get(storage._cdata)
    if owner is not None and owner[0] is not storage:
        return restore.torch_storage, (owner[0],)
    if storage.device.type == "meta":
        return restore.torch_storage, (storage.nbytes(), {"device": "meta"})
    dump.owners[storage._cdata] = (storage, storage)
    options, data = _place(storage.device), _bytes_of(storage, pickler)
    return restore.torch_storage, ((data, options) if options else (data,))


def reduce_typed_storage(storage: torch.TypedStorage, pickler: Any) -> Any:
    """A typed storage as the untyped one below it, and the type."""
    if pickler is None:
        return NotImplemented
    return restore.torch_typed_storage, (storage._untyped_storage, storage.dtype)


def reduce_uninitialized(tensor: Any, pickler: Any) -> Any:
    """A parameter or buffer without a shape yet: torch forgets its device, its type and its attributes."""
    if pickler is None or _dump_of(pickler).aside:
        return NotImplemented
    data = tensor.data
    arguments = (type(tensor), tensor.requires_grad, str(data.device), data.dtype)
    attributes = _attributes(tensor)
    state = {"attributes": attributes} if attributes else None
    return restore.torch_uninitialized, arguments, state, None, None, restore.fill_torch_tensor


# -- copying -----------------------------------------------------------------------------------------------------------


def copy_tensor(tensor: torch.Tensor, memo: Memo) -> Any:
    """A deep copy that shares its storage with the copies of those that share the original's."""
    cls = type(tensor)
    if not tensor.is_leaf:
        return _copy_non_leaf(tensor, memo)
    if cls is torch.Tensor or cls is torch.nn.Parameter:
        return _copy_leaf(tensor, cls, memo)
    if not _is_ordinary(cls):
        return _copy_by_own_way(tensor, memo)
    with torch._C.DisableTorchFunctionSubclass():
        return _copy_leaf(tensor, cls, memo)


def tensor_copier(gathered: tuple[str, ...] = ("is_cuda", "is_xpu")) -> Any:
    """What copies tensors: :func:`copy_tensor`, which the C core need not call for plain ones.

    Args:
        gathered: attributes that say of a tensor that it is on a device on which many small copies are made at once.
    """
    if core is None:
        return copy_tensor
    try:
        return core.tensor_copier(copy_tensor, copy_contents, torch, tuple(_REAL), gathered)
    except (AttributeError, TypeError):  # a torch that is made differently
        return copy_tensor


def copy_contents(sources: list[torch.Tensor], copies: list[torch.Tensor]) -> None:
    """Copy between tensors on devices: a call, and so a few launches, for all of one device and type."""
    groups: dict[Any, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for source, made in zip(sources, copies, strict=True):
        of_source, of_made = groups.setdefault((source.device, source.dtype), ([], []))
        of_source.append(source)
        of_made.append(made)
    with torch.no_grad():
        for of_source, of_made in groups.values():
            torch._foreach_copy_(of_made, of_source)


def _copy_by_own_way(tensor: torch.Tensor, memo: Memo) -> Any:
    """By torch's method, which lets the class take part; it refuses classes that want no part in copying."""
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return NotImplemented
    try:
        return torch.Tensor.__deepcopy__(tensor, memo)
    except RuntimeError as error:
        if "default implementation of __deepcopy__" not in str(error):
            raise
    with torch._C.DisableTorchFunctionSubclass():
        return _copy_leaf(tensor, type(tensor), memo)


def _copy_leaf(tensor: torch.Tensor, cls: type, memo: Memo) -> Any:
    kind = _kind(tensor)
    made = _copy_opaque(tensor, memo) if kind == _OPAQUE else _copy_strided(tensor, kind, memo)
    if made is NotImplemented:
        return made
    if type(made) is not torch.Tensor:  # a mode that is active makes tensors of its own, such as fake ones
        made = torch.nn.Parameter(made, False) if issubclass(cls, torch.nn.Parameter) else made
    elif cls is torch.nn.Parameter:
        made.__class__ = cls  # what Parameter.__new__ makes, at a fraction of the time
    elif cls is not torch.Tensor:
        made = torch.Tensor._make_subclass(cls, made)
    if tensor.requires_grad:
        made.requires_grad_()
    memo[id(tensor)] = made
    if tensor.__dict__ or tensor.grad is not None or tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
        _copy_state(tensor, made, memo)
    if cls is not torch.Tensor and cls is not torch.nn.Parameter:
        for name, value in _slots(tensor).items():
            setattr(made, name, deepcopy(value, memo))
    return made


def _copy_strided(tensor: torch.Tensor, kind: int, memo: Memo) -> torch.Tensor:
    storage = tensor.untyped_storage()
    known: dict[int, Any] = memo.setdefault("torch", {})
    copied = known.get(storage._cdata)
    if copied is None:
        if kind == _PLAIN and _covers(tensor, storage):
            made: torch.Tensor = tensor.data.clone()
            if made.stride() == tensor.stride():
                known[storage._cdata] = made.untyped_storage()
                return made
        elif isinstance(tensor, torch.nn.Parameter) and _is_root(tensor, memo):
            # Nothing else is copied with it: a part of a large flat buffer must not bring the whole one along.
            return tensor.data.clone()
        copied = known[storage._cdata] = storage.clone()
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    made.set_(copied, tensor.storage_offset(), tensor.size(), tensor.stride())
    if kind == _MARKED:
        torch._utils.set_tensor_metadata(made, torch._utils.get_tensor_metadata(tensor))
    return made


def _is_root(tensor: torch.Tensor, memo: Memo) -> bool:
    call = running_call(memo)
    return call is not None and call.root is tensor and len(memo) <= 1


def _copy_opaque(tensor: torch.Tensor, memo: Memo) -> Any:
    """Sparse, nested, quantized, ...: by torch's means, without what hangs on the tensor."""
    bare = tensor.detach()
    if type(bare) is not torch.Tensor:
        bare = bare.as_subclass(torch.Tensor)
    if torch._C._functorch.is_functorch_wrapped_tensor(bare):
        return NotImplemented
    if bare.is_quantized:
        _keep(bare, memo)
        return torch.Tensor.__deepcopy__(bare, memo)
    return bare.clone()


def _copy_non_leaf(tensor: torch.Tensor, memo: Memo) -> Any:
    """The result of a computation cannot be copied with its graph: its values can."""
    if _nonleaf_policy(memo) == "error":
        raise CopyError(
            "cannot deep-copy a tensor that is no leaf of the autograd graph: a copy cannot hang on the original's "
            "graph. Detach it (x.detach()), or let deepcopy do so: nonleaf='detach'"
        )
    bare = tensor.detach()
    if type(bare) is not type(tensor):
        return NotImplemented
    _keep(bare, memo)
    made = deepcopy(bare, memo)
    memo[id(tensor)] = made
    if tensor.retains_grad and tensor.grad is not None:
        made.grad = deepcopy(tensor.grad, memo)
    if tensor.__dict__:
        made.__dict__.update(deepcopy(_attributes(tensor), memo))
    return made


def _nonleaf_policy(memo: Memo) -> Any:
    call = running_call(memo)
    return "detach" if call is None else call.options.get("nonleaf", "detach")


def _keep(temporary: Any, memo: Memo) -> None:
    """Keep a temporary as long as the memo, which knows it by its id."""
    memo.setdefault(id(memo), []).append(temporary)


def _copy_state(tensor: torch.Tensor, made: torch.Tensor, memo: Memo) -> None:
    if tensor.__dict__:
        made.__dict__.update(deepcopy(_attributes(tensor), memo))
    if tensor.grad is not None:
        made.grad = deepcopy(tensor.grad, memo)
    if tensor._backward_hooks:
        made._backward_hooks = deepcopy(tensor._backward_hooks, memo)
    if tensor._post_accumulate_grad_hooks:
        made._post_accumulate_grad_hooks = deepcopy(tensor._post_accumulate_grad_hooks, memo)


def copy_tensor_once(tensor: torch.Tensor) -> Any:
    """A shallow copy: another tensor on the same memory, with the same objects as attributes."""
    cls = type(tensor)
    if not _is_ordinary(cls) or _kind(tensor) == _OPAQUE:
        return NotImplemented
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    made.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
    if _kind(tensor) == _MARKED:
        torch._utils.set_tensor_metadata(made, torch._utils.get_tensor_metadata(tensor))
    if cls is torch.Tensor:
        made.requires_grad_(tensor.requires_grad)
    else:
        made = torch.Tensor._make_subclass(cls, made, tensor.requires_grad)
    made.__dict__.update(tensor.__dict__)
    if cls is not torch.Tensor and cls is not torch.nn.Parameter:
        for name, value in _slots(tensor).items():
            setattr(made, name, value)
    return made


def copy_storage(storage: torch.UntypedStorage, memo: Memo) -> Any:
    """A copy of a storage; the same one for all that share the original."""
    known: dict[int, Any] = memo.setdefault("torch", {})
    if storage._cdata not in known:
        known[storage._cdata] = storage.clone()
    return known[storage._cdata]


def copy_typed_storage(storage: torch.TypedStorage, memo: Memo) -> Any:
    """The same for a typed storage."""
    return torch.TypedStorage(
        wrap_storage=deepcopy(storage._untyped_storage, memo), dtype=storage.dtype, _internal=True
    )


def copy_uninitialized(tensor: Any, memo: Memo) -> Any:
    """A parameter or buffer without a shape yet."""
    data = tensor.data
    made = type(tensor)(tensor.requires_grad, data.device, data.dtype)
    memo[id(tensor)] = made
    made.__dict__.update(deepcopy(dict(tensor.__dict__), memo))
    return made
