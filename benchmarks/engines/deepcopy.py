"""``copy.deepcopy``, as ``AveragedModel``, transformers' layers and hyperparameters call it.

There: the copy is used. Back: a copy of the copy is used.
"""

from __future__ import annotations

import copy
from typing import Any

import safepickle

from .trips import make, trip, use

__all__ = ["ENGINE", "NEEDS", "carry"]

ENGINE = "copy.deepcopy"
NEEDS = ("torch", "triton")


def carry(make_payload: str, installed: bool) -> dict[str, Any]:
    if installed:
        safepickle.install()
    return trip(
        make_payload,
        lambda payload: use(copy.deepcopy(payload)),
        lambda name: copy.deepcopy(copy.deepcopy(make(name))),
    )
