"""joblib's own workers (loky): one of them, so that each trip meets the same."""

from __future__ import annotations

from typing import Any

from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.backend import reduction

import safepickle

from .trips import make, trip, use

__all__ = ["ENGINE", "NEEDS", "carry"]

ENGINE = "joblib"
NEEDS = ("joblib", "torch", "triton")


def carry(make_payload: str, installed: bool) -> dict[str, Any]:
    if installed:
        safepickle.install("joblib")
    with get_reusable_executor(max_workers=1) as worker:
        return trip(
            make_payload,
            lambda payload: str(worker.submit(use, payload).result()),
            lambda name: worker.submit(make, name).result(),
            lambda payload: len(reduction.dumps(payload)),
        )
