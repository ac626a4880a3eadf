"""The models and tensors that the benchmarks copy and pickle. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["MODELS", "PAYLOADS", "conv_blocks", "encoder", "large_linear", "small_layers", "tensor_bytes", "tensors_of"]


def small_layers(count: int, device: str = "cpu") -> torch.nn.Module:
    return torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(count)]).to(device)


def conv_blocks(count: int, device: str = "cpu") -> torch.nn.Module:
    """Convolutions with batch norms, whose running statistics are buffers."""

    def block() -> list[torch.nn.Module]:
        conv = torch.nn.Conv2d(4, 4, 3, padding=1)
        return [conv, torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Conv2d(4, 4, 1), torch.nn.BatchNorm2d(4)]

    return torch.nn.Sequential(*[layer for _ in range(count) for layer in block()]).to(device)


def encoder(layers: int, width: int, device: str = "cpu") -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True)
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device)


def large_linear(count: int, device: str = "cpu") -> torch.nn.Module:
    """Few large parameters: 16.8 MB a layer."""
    return torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(count)]).to(device)


#: name -> what makes it, how many; and how many times as fast as copy.deepcopy a copy should be.
MODELS: dict[str, tuple[Callable[[int, str], torch.nn.Module], int, float | None]] = {
    "200 small Linear layers": (small_layers, 200, 10),
    "20 blocks of conv and BatchNorm": (conv_blocks, 20, 6),
    "small encoder, 12 layers": (lambda count, device: encoder(count, 32, device), 12, 7),
    "encoder of 6 MB": (lambda count, device: encoder(count, 128, device), 8, None),
    "large parameters, 67 MB": (large_linear, 4, None),
}


def tensors_of(obj: Any) -> list[torch.Tensor]:
    """The parameters and buffers of a module; a tensor itself; the tensors of a list."""
    if isinstance(obj, torch.nn.Module):
        return [*obj.parameters(), *obj.buffers()]
    if isinstance(obj, torch.Tensor):
        return [obj]
    return [tensor for part in obj for tensor in tensors_of(part)]


def tensor_bytes(obj: Any) -> int:
    """The bytes of all storages, each counted once."""
    storages = {storage._cdata: storage.nbytes() for storage in (t.untyped_storage() for t in tensors_of(obj))}
    return sum(storages.values())


def small_tensors(count: int, device: str = "cpu") -> list[torch.Tensor]:
    return [torch.randn(8, 8, device=device) for _ in range(count)]


def small_parameters(count: int, device: str = "cpu") -> list[torch.Tensor]:
    return [torch.nn.Parameter(tensor) for tensor in small_tensors(count, device)]


def views(count: int, device: str = "cpu") -> list[torch.Tensor]:
    """Storages that four tensors share each: the whole, a row, a transposed and a strided view."""
    found: list[torch.Tensor] = []
    for _ in range(max(1, count // 4)):
        whole = torch.randn(8, 8, device=device)
        found += [whole, whole[3], whole.t(), whole[::2, ::2]]
    return found


#: name -> what makes it, how many; and which part of pickle's time dumps and loads may take.
PAYLOADS: dict[str, tuple[Callable[[int, str], Any], int, float, float]] = {
    "400 small tensors": (small_tensors, 400, 0.11, 0.07),
    "400 small parameters": (small_parameters, 400, 0.11, 0.07),
    "400 views of 100 shared storages": (views, 400, 0.25, 0.10),
    "module with 200 layers": (small_layers, 200, 0.16, 0.08),
}
