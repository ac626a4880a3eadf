"""Rules for code that PyTorch made or took over: which modules hold them?

- :mod:`.torch_compile`: ``torch.compile`` and its siblings, and modules whose calls are compiled or hooked
- :mod:`.torch_jit`: scripted and traced functions and modules
- :mod:`.torch_fx`: graphs, graph modules and exported programs
- :mod:`.torch_ops`: operators, custom operators and their libraries
"""

from __future__ import annotations

from ..registry import Registry
from . import torch_compile, torch_fx, torch_jit, torch_ops

__all__ = ["add_rules"]


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    torch_compile.add_rules(registry)
    torch_jit.add_rules(registry)
    torch_fx.add_rules(registry)
    torch_ops.add_rules(registry)
