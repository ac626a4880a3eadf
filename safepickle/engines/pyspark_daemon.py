"""The process that forks Spark's Python workers, with safepickle in it.

Spark runs it, as ``spark.python.daemon.module`` says. The workers have what is installed here before the first fork.
"""

from __future__ import annotations

import safepickle

__all__: list[str] = []

if __name__ == "__main__":
    safepickle.install("pyspark")

    from pyspark.daemon import manager

    manager()
