"""Do sealed objects get through engines that nothing is installed in?"""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor

import pytest

import safepickle
from safepickle import installation

from ..helpers import call_with_timeout


def make():
    return {"lock": threading.Lock(), "double": lambda x: 2 * x}


def check(made):
    assert call_with_timeout(lambda: made["lock"].acquire(timeout=5))
    assert made["double"](21) == 42


def use(made):
    """In a worker: an object that arrived unwrapped goes back sealed."""
    assert not installation._asked
    check(made)
    made["lock"].release()
    return safepickle.seal(made)


def use_lazily(parcel):
    check(parcel.get())
    return safepickle.seal(parcel.get(), lazy=True)


def test_an_executor_carries_seals_there_and_back():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        check(executor.submit(use, safepickle.seal(make())).result(60))
        check(executor.submit(use_lazily, safepickle.seal(make(), lazy=True)).result(60).get())


def test_joblib_carries_seals_there_and_back():
    joblib = pytest.importorskip("joblib")
    from joblib.externals.loky import get_reusable_executor

    run = joblib.Parallel(n_jobs=2, timeout=90)
    try:
        for made in run(joblib.delayed(use)(safepickle.seal(make())) for _ in range(2)):
            check(made)
        for parcel in run(joblib.delayed(use_lazily)(safepickle.seal(make(), lazy=True)) for _ in range(2)):
            check(parcel.get())
    finally:
        get_reusable_executor().shutdown(wait=True, kill_workers=True)


def test_lazy_seals_pass_a_scheduler_of_dask_that_knows_nothing():
    distributed = pytest.importorskip("distributed")
    from .dask_clusters import cluster

    with cluster(workers=1) as made, distributed.Client(scheduler_file=made.file, timeout=60) as client:
        parcel = safepickle.seal(make(), lazy=True)
        future = client.submit(use_lazily, parcel, pure=False)
        check(future.result(60).get())
        again = client.submit(use_lazily, future, pure=False)  # from worker to worker
        check(again.result(60).get())
        [scattered] = client.scatter([parcel])
        check(client.submit(use_lazily, scattered, pure=False).result(60).get())
