"""How do objects get to the other ranks of ``torch.distributed``, and what if one of them cannot be pickled?

The object collectives (``broadcast_object_list``, ``all_gather_object``, ``gather_object``, ``scatter_object_list``,
``send_object_list``) pickle with two names of their module, made to be set: :func:`install` sets them to
:class:`safepickle.Pickler` and :class:`safepickle.Unpickler`. What is sent is a plain pickle, so only senders need it.

A rank that cannot pickle its object raises before it sends anything, while the others wait for it until the group's
time is up, or its process has ended. :func:`checked` asks first, on all ranks: then all of them raise.
"""

from __future__ import annotations

import json
import pickle
from typing import Any, Final, TypeVar

import torch.distributed.distributed_c10d as c10d

from ..changes import Changes
from ..errors import PicklingError
from ..pickler import Pickler
from ..unpickler import Unpickler

__all__ = ["checked", "install"]

ENGINE: Final = "torch.distributed"
T = TypeVar("T")


def install(changes: Changes) -> None:
    """Change the pickler pair of ``torch.distributed`` in this process."""
    for name, ours in (("_pickler", Pickler), ("_unpickler", Unpickler)):
        changes.set_attribute(ENGINE, c10d, name, ours, where=f"torch.distributed.distributed_c10d.{name}")


# -- all ranks raise, or none ------------------------------------------------------------------------------------------


def checked(obj: T, group: Any = None) -> T:
    """The object itself, if every rank can pickle its own; else an error on every rank.

    A collective: all ranks of the group call it, each with what it is about to send (or with whatever it has to pass
    where it only receives). If all is well it costs one ``all_reduce`` of as many numbers as there are ranks, and one
    run of the pickler to nowhere, which does not copy tensors and arrays.

    Args:
        obj: what a rank is about to pass to an object collective.
        group: the process group; the default one unless given.

    Returns:
        ``obj``.

    Raises:
        PicklingError: on the rank whose object cannot be pickled, as pickling it raises; on the others one that
            names that rank and the path to the culprit.

    Example::

        models = [model if rank == 0 else None]
        torch.distributed.broadcast_object_list(checked(models), src=0)
    """
    if c10d._rank_not_in_group(group):
        return obj
    error = _error_of(obj)
    reports = _exchange(b"" if error is None else json.dumps(_report(error)).encode(), group)
    if error is not None:
        raise error
    for rank, report in reports.items():
        raise _as_error(rank, json.loads(report))
    return obj


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


def _error_of(obj: Any) -> Exception | None:
    """What pickling the object, as the collectives would, raises."""
    kind = c10d._pickler
    try:
        if issubclass(kind, Pickler):
            kind(_Nowhere(), 5, buffer_callback=lambda buffer: None).dump(obj)  # large contents are not even read
        else:
            kind(_Nowhere()).dump(obj)
    except Exception as error:
        return error
    return None


def _report(error: Exception) -> dict[str, Any]:
    said = str(error) if isinstance(error, pickle.PickleError) else f"{type(error).__name__}: {error}"
    known = {name: getattr(error, name, None) for name in ("path", "type_name", "reason", "hint")}
    return {"message": said, **{name: value for name, value in known.items() if isinstance(value, str)}}


def _as_error(rank: int, report: dict[str, Any]) -> PicklingError:
    made = PicklingError(f"rank {rank} cannot send its object: {report.pop('message')}")
    for name, value in report.items():
        setattr(made, name, value)
    return made


def _exchange(report: bytes, group: Any) -> dict[int, bytes]:
    """The reports that are not empty, by rank in the group: the same on all ranks."""
    import torch

    device = _device(group)
    rank, size = c10d.get_rank(group), c10d.get_world_size(group)
    lengths = torch.zeros(size, dtype=torch.int64, device=device)
    lengths[rank] = len(report)
    c10d.all_reduce(lengths, group=group)
    found: dict[int, bytes] = {}
    for sender, length in enumerate(lengths.tolist()):
        if length:
            text = torch.zeros(length, dtype=torch.uint8, device=device)
            if sender == rank:
                text.copy_(torch.frombuffer(bytearray(report), dtype=torch.uint8))
            source = sender if group is None else c10d.get_global_rank(group, sender)
            c10d.broadcast(text, src=source, group=group)
            found[sender] = bytes(text.tolist())
    return found


def _device(group: Any) -> Any:
    """Where tensors of this group's collectives must be."""
    find = getattr(c10d, "_get_object_coll_device", None) or c10d._get_pg_default_device
    return find(group)
