"""Things of torch with names, for the golden files that refer to them. Nothing here is ever renamed."""

from __future__ import annotations

import torch

__all__ = ["Held", "doubled", "library", "scripted", "tripled"]


class Held:
    """Holds a compiled function, which no global name leads to."""

    @staticmethod
    @torch.compile(backend="eager")
    def compiled(x: torch.Tensor) -> torch.Tensor:
        """Add one."""
        return x + 1


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    """Add two."""
    return x + 2


library = torch.library.Library("safepickle_golden_library", "DEF")
library.define("tripled(Tensor x) -> Tensor")
library.impl("tripled", lambda x: x * 3, "CPU")
tripled = torch.ops.safepickle_golden_library.tripled


@torch.library.custom_op("safepickle_golden::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    """Double."""
    return x * 2
