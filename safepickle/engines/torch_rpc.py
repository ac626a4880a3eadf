"""How do functions, arguments and results get through ``torch.distributed.rpc``?

Its pickler is made of two names of ``torch.distributed.rpc.internal``, which :func:`install` sets to ours. Tensors and
remote references still go beside the pickle, as RPC wants it: it hands each pickler a table with its own reducers, and
those go first. That table is a copy of ``copyreg``'s from when RPC was imported; what has been entered there since is
added.
"""

from __future__ import annotations

import copyreg
from typing import Final

import torch.distributed.rpc.internal as internal

from ..changes import Changes
from ..entries import foreign
from ..pickler import Pickler
from ..unpickler import Unpickler

__all__ = ["install"]

ENGINE: Final = "torch.distributed.rpc"


def install(changes: Changes) -> None:
    """Change the pickler of RPC in this process."""
    for name, ours in (("_pickler", Pickler), ("_unpickler", Unpickler)):
        changes.set_attribute(ENGINE, internal, name, ours, where=f"torch.distributed.rpc.internal.{name}")
    table = internal._internal_rpc_pickler._dispatch_table
    for cls, reducer in list(copyreg.dispatch_table.items()):
        if cls not in table and foreign(reducer) is reducer:  # our own entries come by themselves
            where = f"torch.distributed.rpc.internal._internal_rpc_pickler._dispatch_table[{cls.__qualname__}]"
            changes.set_item(ENGINE, table, cls, reducer, where=where)
