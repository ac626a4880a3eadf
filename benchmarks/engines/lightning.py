"""Lightning's checkpoints: its own plugin, and ours."""

from __future__ import annotations

from typing import Any

from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from safepickle.engines.lightning import CheckpointIO

from .trips import through_files

__all__ = ["ENGINE", "NEEDS", "carry"]

ENGINE = "Lightning"
NEEDS = ("torch", "triton", "lightning")


def carry(make_payload: str, installed: bool) -> dict[str, Any]:
    return through_files(make_payload, *((_save, _load) if installed else (_save_today, _load_today)))


def _save(obj: object, path: str) -> None:
    CheckpointIO().save_checkpoint({"payload": obj}, path)


def _load(path: str) -> Any:
    return CheckpointIO().load_checkpoint(path, weights_only=False)["payload"]


def _save_today(obj: object, path: str) -> None:
    TorchCheckpointIO().save_checkpoint({"payload": obj}, path)


def _load_today(path: str) -> Any:
    return TorchCheckpointIO().load_checkpoint(path, weights_only=False)["payload"]
