"""PySpark in local mode: a payload is a row of data there, and a result back."""

from __future__ import annotations

import os
import sys
from typing import Any

import safepickle

from .trips import make, trip, use

__all__ = ["ENGINE", "NEEDS", "carry"]

ENGINE = "PySpark"
NEEDS = ("torch", "triton", "pyspark")

SETTINGS = {
    "spark.master": "local[2]",
    "spark.app.name": "safepickle",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "3g",
    "spark.driver.maxResultSize": "2g",
}


def carry(make_payload: str, installed: bool) -> dict[str, Any]:
    os.environ.update(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable)
    from pyspark import SparkConf, SparkContext
    from pyspark.serializers import CPickleSerializer

    conf = SparkConf().setAll(SETTINGS.items())
    if installed:
        from safepickle.engines.pyspark import configure

        safepickle.install("pyspark")
        configure(conf)
    context = SparkContext(conf=conf)
    context.setLogLevel("OFF")
    try:
        return trip(
            make_payload,
            lambda payload: context.parallelize([payload], 1).map(use).collect()[0],
            lambda name: context.parallelize([name], 1).map(make).collect()[0],
            lambda payload: len(CPickleSerializer().dumps([payload])),
        )
    finally:
        context.stop()
