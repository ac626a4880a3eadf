"""How does ``torch.distributed.checkpoint`` save a state that holds kernels, lambdas and locks?

By its own extension points, call by call, with nothing installed::

    dcp.save(state, checkpoint_id=folder, planner=SavePlanner())
    dcp.load(state, checkpoint_id=folder, planner=LoadPlanner())

Tensors do not come this way. What is no tensor is written as ``torch.save(pickle_module=safepickle)`` writes it, so
that the checkpoint is read by the default planner too, and is the same as without where nothing special is in it.
"""

from __future__ import annotations

import io
from typing import Any

import torch
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.planner import ReadItem, WriteItem, WriteItemType

import safepickle

__all__ = ["LoadPlanner", "SavePlanner"]


class SavePlanner(DefaultSavePlanner):  # type: ignore[misc]
    """The default planner, but for objects that are no tensors. Arguments as for the default planner."""

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        """The bytes that are written for an object; a tensor as the default planner has it.

        Raises:
            safepickle.PicklingError: some part of the object cannot be pickled; the message says which and where.
        """
        if write_item.type != WriteItemType.BYTE_IO:
            return super().transform_object(write_item, object)
        stream = io.BytesIO()
        torch.save(object, stream, pickle_module=safepickle)
        return stream


class LoadPlanner(DefaultLoadPlanner):  # type: ignore[misc]
    """The default planner, with our errors: they name what is missing here. Arguments as for the default planner.

    Loading runs code, with this planner and with the default one: both read pickles with ``weights_only=False``.
    """

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Put what the bytes hold into the state.

        Raises:
            safepickle.UnpicklingError: the bytes name something that is not here.
        """
        loaded = torch.load(value, pickle_module=safepickle, weights_only=False)
        name = read_item.dest_index.fqn
        if self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[name], loaded)
        else:
            self.state_dict[name] = loaded
