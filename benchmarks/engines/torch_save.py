"""``torch.save`` and ``torch.load`` with ``pickle_module=safepickle``."""

from __future__ import annotations

from typing import Any

import torch

import safepickle

from .trips import through_files

__all__ = ["ENGINE", "NEEDS", "carry"]

ENGINE = "torch.save"
NEEDS = ("torch", "triton")


def carry(make_payload: str, installed: bool) -> dict[str, Any]:
    return through_files(make_payload, *((_save, _load) if installed else (_save_today, _load_today)))


def _save(obj: object, path: str) -> None:
    torch.save(obj, path, pickle_module=safepickle)


def _load(path: str) -> Any:
    return torch.load(path, pickle_module=safepickle, weights_only=False)


def _save_today(obj: object, path: str) -> None:
    torch.save(obj, path)


def _load_today(path: str) -> Any:
    return torch.load(path, weights_only=False)
