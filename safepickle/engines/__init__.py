"""Which engines can safepickle be installed into, and which module does it?

An *engine* is a library that pickles or copies on the user's behalf: worker processes, clusters, checkpoints. Each
module here is one adapter, of one shape:

``install(changes)``
    changes the engine in this process, through :class:`safepickle.changes.Changes` and nothing else. It is called when
    :data:`NEEDS` of the engine is imported: at once if it is, else by a hook right after it has been.

and beside it what the engine's users call: a serializer, a plugin, a planner. Nothing here is imported but by
:func:`safepickle.install` and by users.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DISTRIBUTIONS", "HOOKS", "MODULES", "NEEDS"]

#: The name that ``safepickle.install(name)`` takes -> the adapter.
MODULES: Final[dict[str, str]] = {
    "multiprocessing": "safepickle.engines.multiprocessing",
    "joblib": "safepickle.engines.joblib",
    "torch.distributed": "safepickle.engines.torch_distributed",
    "torch.distributed.rpc": "safepickle.engines.torch_rpc",
    "torch.save": "safepickle.engines.torch_save",
    "dask": "safepickle.engines.dask",
    "ray": "safepickle.engines.ray",
    "pyspark": "safepickle.engines.pyspark",
}

#: The module that must have been imported before the adapter's ``install`` is called.
NEEDS: Final[dict[str, str]] = {
    "multiprocessing": "multiprocessing",
    "joblib": "joblib",
    "torch.distributed": "torch.distributed.distributed_c10d",
    "torch.distributed.rpc": "torch.distributed.rpc.internal",
    "torch.save": "torch.serialization",
    "dask": "distributed",
    "ray": "ray.cloudpickle",
    "pyspark": "pyspark.core.broadcast",  # after pyspark.serializers
}

#: What is changed in the engine, in a few words.
HOOKS: Final[dict[str, str]] = {
    "multiprocessing": "multiprocessing.reduction.ForkingPickler, errors of Queue and Pool",
    "joblib": "loky's pickler, joblib.pool.CustomizablePickler",
    "torch.distributed": "torch.distributed.distributed_c10d._pickler and _unpickler",
    "torch.distributed.rpc": "torch.distributed.rpc.internal._pickler and _unpickler",
    "torch.save": "the default of torch.save's pickle_module",
    "dask": "distributed.protocol.pickle.dumps, distributed.protocol.serialize.serialize",
    "ray": "ray.cloudpickle.dumps and dump",
    "pyspark": "pyspark.cloudpickle.Pickler, pyspark.core.broadcast.pickle",
}

#: The name on the package index, where it is not that of the engine.
DISTRIBUTIONS: Final[dict[str, str]] = {
    "torch.distributed": "torch", "torch.distributed.rpc": "torch", "torch.save": "torch", "dask": "distributed",
}  # fmt: skip
