"""joblib: its workers take and return everything, and large arrays are still mapped from files."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("joblib")

from tests.helpers import run_python

pytestmark = pytest.mark.timeout(240)

has_torch = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "triton")), reason="torch or triton is missing"
)
has_numpy = pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="numpy is missing")

HEAD = """
import sys, threading, warnings
import joblib
from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor
import safepickle
from safepickle.changes import Changes
from safepickle.engines import joblib as engine

class Local:
    def __init__(self, factor):
        self.scale = lambda x: factor * x
        self.lock = threading.Lock()

def use(obj):
    assert obj.scale(14) == 42
    assert obj.lock.acquire(timeout=1)
    assert not obj.lock.acquire(blocking=False)
    obj.lock.release()
    return obj

def make(i):
    return Local(3)
"""


def script(body, define="", install="    safepickle.install('joblib')", **options):
    options.setdefault("timeout", 110)
    environment = {"OMP_NUM_THREADS": "1", "LOKY_MAX_CPU_COUNT": "2", **options.pop("env", {})}
    code = f"{HEAD}\n{define}\nif __name__ == '__main__':\n{install}\n{body}"
    return run_python(code, env=environment, **options)


@pytest.mark.parametrize("backend", ["loky", "multiprocessing"])
def test_locks_and_lambdas_go_there_and_come_back(backend):
    assert script(f"""
    safepickle.install("multiprocessing")
    with Parallel(2, backend={backend!r}) as parallel:
        for obj in parallel(delayed(use)(Local(3)) for _ in range(3)):
            use(obj)
        for obj in parallel(delayed(make)(i) for i in range(3)):  # made there, and only sent back
            use(obj)
        print(parallel(delayed(lambda x, lock=threading.Lock(): x + 1)(i) for i in range(3)))
    """) == "[1, 2, 3]\n"


@has_torch
def test_the_payloads_go_there_and_come_back():
    define = "from tests.engines import payloads\n"
    assert script("""
    names = ["kernel", "lambda", "lock", "small"]
    executor = get_reusable_executor(max_workers=1)
    for name in names:
        print(payloads.check(executor.submit(payloads.check_and_return, payloads.make(name)).result(60)), end=" ")
        print(payloads.check(executor.submit(payloads.make_and_check, name).result(60)))
    executor.shutdown()
    """, define) == "kernel kernel\nlambda lambda\nlock lock\nbig big\n"  # fmt: skip


@has_numpy
def test_large_arrays_are_still_mapped_from_a_file():
    define = """
import numpy as np

def kind(data, lock):
    with lock:
        return type(data["array"]).__name__, data["array"].filename is not None, float(data["array"][-1])

def doubled(array):
    return 2 * array
"""
    assert script("""
    array = np.arange(300_000.0)
    data = {"array": array, "scale": lambda x: x}
    print(Parallel(2, max_nbytes="1M")(delayed(kind)(data, threading.Lock()) for _ in range(2)))
    print(float(Parallel(2)(delayed(doubled)(array) for _ in range(2))[1][-1]))
    """, define) == "[('memmap', True, 299999.0), ('memmap', True, 299999.0)]\n599998.0\n"  # fmt: skip


@has_numpy
def test_large_arrays_are_still_mapped_with_the_workers_of_multiprocessing():
    define = "import numpy as np\ndef kind(data):\n    return type(data['array']).__name__, data['scale'](21)\n"
    assert script("""
    data = {"array": np.arange(300_000.0), "scale": lambda x: 2 * x}
    print(Parallel(2, backend="multiprocessing", max_nbytes="1M")(delayed(kind)(data) for _ in range(2)))
    """, define) == "[('memmap', 42), ('memmap', 42)]\n"  # fmt: skip


def test_the_error_names_the_path():
    printed = script("""
    for work in (lambda: Parallel(2)(delayed(use)({"model": [threading.current_thread()]}) for _ in range(2)),
                 lambda: Parallel(2)(delayed(bad)() for _ in range(2))):
        try:
            work()
        except Exception as error:
            chain = []
            while error is not None:
                chain.append(str(error))
                error = error.__cause__
            print("['model'][0]" in "".join(chain))
    print(Parallel(2)(delayed(len)("abc") for _ in range(2)))
    """, define="def bad():\n    return {'model': [threading.current_thread()]}\n")  # fmt: skip
    assert printed == "True\nTrue\n[3, 3]\n"


def test_workers_that_run_already_change_with_the_next_task():
    """The name of the pickler goes with each task."""
    assert script("""
    executor = get_reusable_executor(max_workers=1)
    print(executor.submit(len, "abc").result(60))
    changes = Changes()
    engine.install(changes)
    use(executor.submit(make, 0).result(60))
    print(get_reusable_executor(max_workers=1) is executor, changes.undo())
    try:
        executor.submit(make, 0).result(60)
    except Exception as error:
        print("cannot pickle '_thread.lock'" in str(error))
    executor.shutdown()
    """, install="") == "3\nTrue []\nTrue\n"  # fmt: skip


def test_the_environment_variable_does_the_same():
    assert script("""
    use(Parallel(2)(delayed(use)(make(0)) for _ in range(2))[1])
    print("works")
    """, install="", env={"LOKY_PICKLER": "safepickle"}) == "works\n"  # fmt: skip


def test_installing_before_joblib_is_imported():
    assert run_python("""
        import safepickle
        installation = safepickle.install("joblib")
        print(installation.waiting)
        from joblib.externals.loky.backend.reduction import get_loky_pickler_name
        print(installation.waiting, get_loky_pickler_name())
    """) == "('joblib',)\n() safepickle\n"  # fmt: skip


def test_taking_it_back():
    assert script("""
    import joblib.pool
    from joblib.externals.loky.backend.reduction import get_loky_pickler_name
    before = get_loky_pickler_name(), dict(vars(joblib.pool.CustomizablePickler))
    changes = Changes()
    engine.install(changes)
    engine.install(changes)
    print(get_loky_pickler_name(), [change.where for change in changes])
    print(changes.undo(), (get_loky_pickler_name(), dict(vars(joblib.pool.CustomizablePickler))) == before)
    """, install="") == (
        "safepickle [\"joblib.externals.loky.set_loky_pickler('safepickle')\", "
        "'joblib.pool.CustomizablePickler.reducer_override', 'joblib.pool.CustomizablePickler.dump']\n[] True\n"
    )  # fmt: skip
