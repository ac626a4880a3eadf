"""A ``DataLoader`` with a worker that is spawned: there with the dataset, back as an item.

Each trip starts a worker, which imports torch: that is nearly all of its time.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

from torch.utils.data import DataLoader, Dataset

import safepickle

from .trips import make, trip, use

__all__ = ["ENGINE", "NEEDS", "carry"]

ENGINE = "DataLoader workers"
NEEDS = ("torch", "triton")


class _Used(Dataset):  # type: ignore[type-arg]
    def __init__(self, payload: Any) -> None:
        self.payload = payload

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> str:
        return use(self.payload)


class _Made(_Used):
    def __getitem__(self, index: int) -> Any:
        return make(self.payload)


def carry(make_payload: str, installed: bool) -> dict[str, Any]:
    if installed:
        safepickle.install("multiprocessing")
    return trip(
        make_payload,
        lambda payload: str(_only_item(_Used(payload))),
        lambda name: _only_item(_Made(name)),
        lambda payload: len(ForkingPickler.dumps(payload)),
    )


def _only_item(dataset: _Used) -> Any:
    (item,) = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn", collate_fn=_as_it_is)
    return item


def _as_it_is(item: Any) -> Any:
    return item
