"""Rules for PyTorch: which modules hold them?

Loaded by the registry when the first object of a type of torch turns up; torch is then imported already.

- :mod:`.torch_tensors`: tensors, parameters and storages
- :mod:`.torch_state`: what holds or drives tensors: modules, optimizers, generators, streams, autograd nodes
- :mod:`.torch_code`: compiled, scripted and traced code, ops, hooks
"""

from __future__ import annotations

import importlib
import importlib.util

from ..registry import Registry

__all__ = ["add_rules"]


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    for name in ("torch_tensors", "torch_state", "torch_code"):
        module = f"{__package__}.{name}"
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module).add_rules(registry)
