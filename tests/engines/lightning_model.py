"""A model for Lightning whose checkpoints hold whatever a test puts into it."""

from __future__ import annotations

import lightning
import torch

__all__ = ["Model", "WithParts", "batches", "trainer"]


class Model(lightning.LightningModule):
    """One layer; ``parts`` is in its checkpoints and nothing of it is trained."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.parts = {}

    def training_step(self, batch, index):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["parts"] = self.parts

    def on_load_checkpoint(self, checkpoint):
        self.parts = checkpoint["parts"]


class WithParts(Model):
    """The same, made from a module that Lightning keeps among the hyperparameters."""

    def __init__(self, module, width=3):
        super().__init__()
        self.save_hyperparameters()


def trainer(epochs, *plugins):
    """A trainer that writes nothing unless it is told to."""
    return lightning.Trainer(
        max_epochs=epochs,
        plugins=list(plugins),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def batches():
    return torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2)
