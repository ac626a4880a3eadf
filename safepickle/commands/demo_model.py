"""The model of ``python -m safepickle demo``: what people keep on a module and cannot pickle.

A byte-level model: it reads text, mixes it with Triton kernels (an RMS norm, and a gated activation behind heuristics
and
``autotune``), scales by a lambda, guards a counter with a lock, and scores with a ``tf.function`` where TensorFlow is
installed.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
import triton
import triton.language as tl

try:
    import tensorflow as tf
except ImportError:
    tf = None

__all__ = ["Model", "gated_kernel", "read_text", "rms_norm_kernel"]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, columns, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row a program: divide by the root of the mean square, times a weight."""
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=0.0)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / columns + eps)
    weight = tl.load(weight_ptr + offsets, mask=mask, other=0.0)
    tl.store(out_ptr + row * columns + offsets, x * scale * weight, mask=mask)


@triton.autotune(configs=[triton.Config({"BLOCK": 128})], key=["n"])
@triton.heuristics({"EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0})
@triton.jit
def gated_kernel(gate_ptr, up_ptr, out_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """``gate * sigmoid(gate) * up``, element by element."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    gate = tl.load(gate_ptr + offsets, mask=mask, other=0.0)
    up = tl.load(up_ptr + offsets, mask=mask, other=0.0)
    tl.store(out_ptr + offsets, gate / (1.0 + tl.exp(-gate)) * up, mask=mask)


class Model(torch.nn.Module):
    """Text in, one number a byte out."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, width)
        self.gate = torch.nn.Linear(width, width)
        self.up = torch.nn.Linear(width, width)
        self.weight = torch.nn.Parameter(torch.rand(width))
        self.norm_kernel = rms_norm_kernel
        self.gated_kernel = gated_kernel
        self.temper = lambda x: x * 0.5
        self.lock = threading.Lock()
        self.calls = 0
        self.score: Any = (
            tf.function(lambda x: tf.math.log1p(tf.nn.relu(x)), jit_compile=False) if tf is not None else None
        )

    @torch.no_grad()
    def forward(self, text: bytes) -> torch.Tensor:
        with self.lock:
            self.calls += 1
        x = self.embedding(torch.tensor(list(text), device=self.weight.device))
        rows, columns = x.shape
        normed = torch.empty_like(x)
        self.norm_kernel[(rows,)](x, self.weight, normed, columns, 1e-6, BLOCK=triton.next_power_of_2(columns))
        gate, up = self.gate(normed).contiguous(), self.up(normed).contiguous()
        mixed = torch.empty_like(gate)
        n = gate.numel()
        self.gated_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](gate, up, mixed, n)
        result: torch.Tensor = self.temper(mixed).sum(dim=1)
        if self.score is not None:
            result = torch.from_numpy(self.score(tf.constant(result.cpu().numpy())).numpy())
        return result.cpu()


def read_text(limit: int = 400) -> bytes:
    """Real input: the beginning of Python's licence, or of this file where there is none."""
    import builtins

    text = str(getattr(builtins, "license", ""))
    if len(text) < limit:
        text = open(__file__, encoding="utf-8").read()  # noqa: SIM115
    return text[:limit].encode()
