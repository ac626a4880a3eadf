"""accelerate's ``save`` and ``load``, which end in ``torch.save`` and ``torch.load``."""

from __future__ import annotations

from typing import Any

from accelerate import PartialState
from accelerate.utils import load, save

import safepickle

from .trips import through_files

__all__ = ["ENGINE", "NEEDS", "carry"]

ENGINE = "accelerate"
NEEDS = ("torch", "triton", "accelerate")


def carry(make_payload: str, installed: bool) -> dict[str, Any]:
    start = _install if installed else _start
    start()
    return through_files(make_payload, save, _load, start)


def _start() -> None:
    PartialState(cpu=True)


def _install() -> None:
    _start()
    safepickle.install("torch.save")


def _load(path: str) -> Any:
    return load(path, weights_only=False)
