"""``torch.distributed.checkpoint`` with our planners.

What is no tensor is saved whole and on its own; a tensor is saved without what shares its memory, with any planner.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from safepickle.engines.torch_checkpoint import LoadPlanner, SavePlanner

from .trips import through_files

__all__ = ["ENGINE", "NEEDS", "carry"]

ENGINE = "torch.distributed.checkpoint"
NEEDS = ("torch", "triton")


def carry(make_payload: str, installed: bool) -> dict[str, Any]:
    return through_files(make_payload, *((_save, _load) if installed else (_save_today, _load_today)))


def _save(obj: object, path: str) -> None:
    dcp.save({"state": {"payload": obj}}, checkpoint_id=path, planner=SavePlanner())


def _load(path: str) -> Any:
    return _loaded(path, LoadPlanner())


def _save_today(obj: object, path: str) -> None:
    dcp.save({"state": {"payload": obj}}, checkpoint_id=path)


def _load_today(path: str) -> Any:
    return _loaded(path, None)


def _loaded(path: str, planner: Any) -> Any:
    """The payload: a state with its keys, and tensors of its sizes, has to be there before."""
    metadata = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    sizes = {name.removeprefix("state.payload."): getattr(found, "size", None) for name, found in metadata.items()}
    if sizes.keys() == {"state.payload"}:
        state: dict[str, Any] = {"state": {"payload": None}}
    else:
        state = {"state": {"payload": {name: torch.empty(size) for name, size in sizes.items()}}}
    dcp.load(state, checkpoint_id=path, planner=planner)
    return state["state"]["payload"]
