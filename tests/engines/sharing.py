"""What else do tests send through engines: things that share, things that cannot go, and functions that workers run."""

from __future__ import annotations

import socket
import threading
from typing import Any

import torch

from .payloads import Kernel, Lambda, Tied, check

__all__ = [
    "Everything", "Failure", "Keeper", "OneWay", "fail", "is_tied", "low_precision", "make_socket", "opens_a_socket",
    "same", "steps", "tied", "trained",
]  # fmt: skip


class Everything(Kernel):
    """A module that holds a kernel, a lambda and a lock at once."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.inner = Lambda()

    def check(self) -> str:
        assert self.lock.acquire(timeout=1)
        self.lock.release()
        self.inner.check()
        return "everything" if super().check() == "kernel" else ""


class Keeper:
    """An actor: it keeps something, which is used where it is."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept

    def check(self) -> Any:
        return check(self.kept)

    def replace(self, other: Any) -> Any:
        before, self.kept = self.kept, other
        return before


def tied() -> Tied:
    return Tied()


def is_tied(module: Tied) -> bool:
    return module.linear.weight is module.head.weight


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A module, and the optimizer that trains it."""
    module = torch.nn.Linear(2, 2)
    return module, torch.optim.SGD(module.parameters(), lr=0.5)


def steps(pair: tuple[torch.nn.Module, torch.optim.Optimizer]) -> bool:
    """Whether a step of the optimizer changes the module."""
    module, optimizer = pair
    before = module.weight.detach().clone()
    module(torch.ones(2)).sum().backward()
    optimizer.step()
    return torch.equal(module.weight, before - 0.5)


def same(obj: Any) -> Any:
    return obj


def low_precision() -> torch.Tensor:
    return torch.arange(4, dtype=torch.bfloat16)


def make_socket() -> socket.socket:
    return socket.socket()


def opens_a_socket(_: Any) -> str:
    return "never called with one"


class OneWay:
    """Can be pickled once: what it comes back as cannot."""

    def __reduce__(self) -> Any:
        return make_socket, ()


class Failure(Exception):
    """An exception that is made with other arguments than it passes on."""

    def __init__(self, code: int, lock: Any = None) -> None:
        super().__init__(f"failed with {code}")
        self.code = code
        self.lock = lock


def fail(code: int) -> None:
    raise Failure(code, threading.Lock())
