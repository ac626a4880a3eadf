"""Rules for PyTorch: which modules hold them?

Loaded by the registry when the first object of a type of torch turns up; torch is then imported already.

- :mod:`.torch_tensors`: tensors, parameters and storages
- :mod:`.torch_state`: what is around tensors: parametrized modules, optimizers, loaders, generators, streams, groups
- :mod:`.torch_modules`: what the state methods of modules do
- :mod:`.torch_code`: compiled, scripted and traced code, ops, hooks
"""

from __future__ import annotations

from ..registry import Registry
from . import torch_code, torch_modules, torch_state, torch_tensors

__all__ = ["add_rules"]


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    torch_tensors.add_rules(registry)
    torch_state.add_rules(registry)
    torch_code.add_rules(registry)
    torch_modules.add_rules(registry)
