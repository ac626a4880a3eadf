"""The ways of :mod:`.ways`, and through a file of ``torch.save``; what a test of a module looks at after each."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

import safepickle

from .ways import PICKLED, WAYS, Way

__all__ = ["TORCH_WAYS", "assert_independent", "every_torch_way", "fill", "saved"]


def saved(obj: Any) -> Any:
    """Through ``torch.save``, which writes protocol 2, and ``torch.load``."""
    file = io.BytesIO()
    torch.save(obj, file, pickle_module=safepickle)
    file.seek(0)
    return torch.load(file, pickle_module=safepickle, weights_only=False)


TORCH_WAYS: dict[str, Way] = {**PICKLED, "torch.save": saved, "deepcopy": WAYS["deepcopy"]}
every_torch_way = pytest.mark.parametrize("way", list(TORCH_WAYS.values()), ids=list(TORCH_WAYS))


def fill(module: Any, value: float) -> None:
    """Give all parameters of a module one value."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(value)


def assert_independent(module: Any, other: Any, *inputs: Any) -> None:
    """The other module computes the same, then with its own weights; values and gradients of the module stay."""
    expected = module(*inputs).detach().clone()
    assert torch.allclose(other(*inputs), expected)
    other(*inputs).sum().backward()
    assert all(parameter.grad is None for parameter in module.parameters()), "trained the original"
    assert any(parameter.grad is not None for parameter in other.parameters())
    fill(other, 0.5)
    assert not torch.allclose(other(*inputs), expected), "does not compute with its own weights"
    assert torch.allclose(module(*inputs), expected), "changed the original"
