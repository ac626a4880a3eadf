"""One Python worker of Spark's where no daemon forks them, with safepickle in it.

Spark runs it, as ``spark.python.worker.module`` says.
"""

from __future__ import annotations

import runpy

import safepickle

__all__: list[str] = []

if __name__ == "__main__":
    safepickle.install("pyspark")
    runpy.run_module("pyspark.worker", run_name="__main__", alter_sys=True)
