"""joblib, with its own workers (loky)."""

from __future__ import annotations

from typing import Any

from joblib import Parallel, delayed
from joblib.externals.loky.backend import reduction

import safepickle

from .trips import make, trip, use

__all__ = ["ENGINE", "NEEDS", "carry"]

ENGINE = "joblib"
NEEDS = ("joblib", "torch", "triton")


def carry(make_payload: str, installed: bool) -> dict[str, Any]:
    if installed:
        safepickle.install("joblib")
    with Parallel(n_jobs=2, backend="loky") as parallel:
        return trip(
            make_payload,
            lambda payload: str(parallel([delayed(use)(payload)])[0]),
            lambda name: parallel([delayed(make)(name)])[0],
            lambda payload: len(reduction.dumps(payload)),
        )
