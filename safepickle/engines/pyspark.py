"""How does PySpark carry kernels, lambdas and locks on each of its paths?

Closures, data, results, the shuffle, accumulators and UDFs are pickled by Spark's own copy of cloudpickle, on the
driver and in the workers; broadcasts by plain pickle, on the driver. ``safepickle.install("pyspark")`` serves the
driver. Spark starts the workers itself, and :func:`configure` says how::

    safepickle.install("pyspark")
    spark = configure(SparkSession.builder).getOrCreate()

safepickle must be importable where the workers run. :class:`Serializer` is for the data, results and shuffle of one
context, with nothing installed: ``SparkContext(serializer=Serializer())``.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.serializers import FramedSerializer

import safepickle

from .foreign_picklers import adopt

if TYPE_CHECKING:
    from ..changes import Changes

__all__ = ["SETTINGS", "Serializer", "configure", "install"]

C = TypeVar("C")

#: Spark's settings -> the modules that its workers run. The second serves where there is no daemon (Windows, or
#: ``spark.python.use.daemon=false``).
SETTINGS = {
    "spark.python.daemon.module": "safepickle.engines.pyspark_daemon",
    "spark.python.worker.module": "safepickle.engines.pyspark_worker",
}


def install(changes: Changes) -> None:
    """Change what pickles in this process, a driver or a worker: Spark's cloudpickle, and the pickler of broadcasts."""
    import pyspark.cloudpickle.cloudpickle as cloudpickle
    import pyspark.core.broadcast as broadcast

    adopt(changes, "pyspark", cloudpickle.Pickler, where="pyspark.cloudpickle.Pickler")
    changes.set_attribute("pyspark", broadcast, "pickle", safepickle, where="pyspark.core.broadcast.pickle")


def configure(conf: C) -> C:
    """Have the workers of a context or session that is to be made serve what safepickle knows.

    Args:
        conf: a ``SparkConf``, or a ``SparkSession.builder``.

    Returns:
        The same.
    """
    put: Any = getattr(conf, "config", None) or conf.set  # type: ignore[attr-defined]
    for key, value in SETTINGS.items():
        put(key, value)
    return conf


class Serializer(FramedSerializer):  # type: ignore[misc]
    """A serializer of Spark's kind: what it writes, plain pickle reads.

    It travels to the workers with every task, so that they need no settings.
    """

    def dumps(self, obj: Any) -> bytes:
        """The pickle of an object, or of a batch of them.

        Raises:
            safepickle.PicklingError: some part of it cannot be pickled; the message says which and where.
        """
        return safepickle.dumps(obj, pickle.HIGHEST_PROTOCOL)

    def loads(self, obj: bytes, encoding: str = "bytes") -> Any:
        """The object of a pickle.

        Raises:
            safepickle.UnpicklingError: the pickle names something that is not here.
        """
        return safepickle.loads(obj, encoding=encoding)
