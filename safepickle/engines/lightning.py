"""How does Lightning save checkpoints that hold kernels, lambdas and locks?

By a plugin of its own kind, one trainer at a time, with nothing installed::

    Trainer(plugins=[CheckpointIO()])

It serves the package that the program uses: ``lightning``, or ``pytorch_lightning`` with ``lightning_fabric``. Where
both are imported, ``lightning``.
"""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import fsspec
import torch

import safepickle

__all__ = ["CheckpointIO"]

#: The package that a program uses -> where its plugins are.
_FABRICS = {
    "lightning": "lightning.fabric",
    "pytorch_lightning": "lightning_fabric",
    "lightning_fabric": "lightning_fabric",
}


def _base() -> Any:
    """The plugin that writes ``torch.save`` files, of the package that is in use."""
    used = [package for package in _FABRICS if package in sys.modules] or list(_FABRICS)
    for package in used:
        try:
            return import_module(f"{_FABRICS[package]}.plugins.io.torch_io").TorchCheckpointIO
        except ModuleNotFoundError as error:
            if package == used[-1]:
                raise ModuleNotFoundError("neither lightning nor pytorch_lightning is installed") from error
    raise AssertionError


if TYPE_CHECKING:
    TorchCheckpointIO: Any = object
else:
    TorchCheckpointIO = _base()


class CheckpointIO(TorchCheckpointIO):  # type: ignore[misc]
    """Lightning's own plugin for files of ``torch.save``, with safepickle as their pickler.

    A checkpoint that holds nothing special is the same as without, byte for byte, and loads with ``weights_only=True``.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Save a checkpoint: whole, or not at all. Arguments as for Lightning's own plugin.

        Raises:
            safepickle.PicklingError: some part of it cannot be pickled; the message says which and where.
            TypeError: ``storage_options`` is given.
        """
        if storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        stream = io.BytesIO()
        torch.save(checkpoint, stream, pickle_module=safepickle)
        files, name = fsspec.core.url_to_fs(str(path))
        files.makedirs(os.path.dirname(name), exist_ok=True)
        with files.transaction, files.open(name, "wb") as file:
            file.write(stream.getbuffer())

    def load_checkpoint(
        self, path: Any, map_location: Any = lambda storage, _: storage, weights_only: bool | None = None
    ) -> Any:
        """Load a checkpoint. Arguments as for Lightning's own plugin.

        What holds more than weights needs ``weights_only=False``, as ever: ``trainer.fit(..., weights_only=False)``.

        Raises:
            safepickle.UnpicklingError: with ``weights_only=False``, the checkpoint names something that is not here.
        """
        if weights_only is not False or str(path).startswith("http"):
            return super().load_checkpoint(path, map_location, *(() if weights_only is None else (weights_only,)))
        files, name = fsspec.core.url_to_fs(str(path))
        if not files.exists(name):
            raise FileNotFoundError(f"Checkpoint file not found: {path}")
        with files.open(name, "rb") as file:
            return torch.load(file, map_location=map_location, pickle_module=safepickle, weights_only=False)
