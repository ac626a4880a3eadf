"""A pool of ``multiprocessing``, with a process that is spawned. ``concurrent.futures`` pickles in the same way."""

from __future__ import annotations

import multiprocessing
from multiprocessing.reduction import ForkingPickler
from typing import Any

import safepickle

from .trips import make, trip, use

__all__ = ["ENGINE", "NEEDS", "carry"]

ENGINE = "multiprocessing.Pool"
NEEDS = ("torch", "triton")


def carry(make_payload: str, installed: bool) -> dict[str, Any]:
    if installed:
        safepickle.install("multiprocessing")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return trip(
            make_payload,
            lambda payload: pool.apply(use, (payload,)),
            lambda name: pool.apply(make, (name,)),
            lambda payload: len(ForkingPickler.dumps(payload)),
        )
