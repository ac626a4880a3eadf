"""PySpark, in local mode: modules with kernels, lambdas and locks are used at the end of each of its paths."""

from __future__ import annotations

import io
import os
import shutil
import sys
import threading

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
pyspark = pytest.importorskip("pyspark")
if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
    pytest.skip("Spark needs Java, which is not here", allow_module_level=True)

import safepickle
from tests.engines import payloads
from tests.helpers import REPOSITORY, run_python

#: The first job in a worker imports torch and triton there.
pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore::FutureWarning")]

KINDS = ["kernel", "lambda", "lock"]

ENVIRONMENT = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
#: No web interface, nothing that listens but on loopback.
SETTINGS = {
    "spark.master": "local[2]",
    "spark.app.name": "safepickle",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # no time to optimize in
    "spark.sql.adaptive.enabled": "false",
}


def stop(context):
    """Stop Spark, and the Java process in which it ran."""
    gateway = pyspark.SparkContext._gateway
    context.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)
    pyspark.SparkContext._gateway = pyspark.SparkContext._jvm = None


@pytest.fixture(scope="module")
def context():
    from safepickle.engines.pyspark import configure

    with pytest.MonkeyPatch.context() as patch, safepickle.installed("pyspark"):
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", str(REPOSITORY), prepend=os.pathsep)
        made = pyspark.SparkContext(conf=configure(pyspark.SparkConf().setAll(SETTINGS.items())))
        made.setLogLevel("OFF")
        yield made
        stop(made)


@pytest.fixture
def modules():
    return {kind: payloads.make(kind) for kind in KINDS}


# -- the six paths -----------------------------------------------------------------------------------------------------


def test_a_closure_uses_modules_that_it_holds(context, modules):
    used = context.parallelize(KINDS, 1).map(lambda kind: payloads.check(modules[kind])).collect()
    assert used == KINDS


def test_data_is_used_in_the_worker(context, modules):
    assert context.parallelize(list(modules.values()), 1).map(payloads.check).collect() == KINDS


def test_results_are_used_in_the_driver(context):
    made = context.parallelize(KINDS, 1).map(payloads.make_and_check).collect()
    assert [payloads.check(module) for module in made] == KINDS


def test_modules_are_used_behind_a_shuffle(context):
    pairs = context.parallelize(KINDS, 1).map(lambda kind: (len(kind), payloads.make(kind)))
    used = pairs.groupByKey(1).mapValues(lambda found: sorted(map(payloads.check, found))).collect()
    assert sorted(used) == [(4, ["lock"]), (6, ["kernel", "lambda"])]


def test_a_broadcast_is_used_in_the_worker_and_on_the_driver(context, modules):
    broadcast = context.broadcast(modules)
    used = context.parallelize(KINDS, 1).map(lambda kind: payloads.check(broadcast.value[kind])).collect()
    assert used == KINDS
    assert [payloads.check(broadcast.value[kind]) for kind in KINDS] == KINDS
    broadcast.destroy(blocking=True)


@pytest.fixture(scope="module")
def session(context):
    sql = pytest.importorskip("pyspark.sql")
    return sql.SparkSession(context)


def test_a_udf_uses_modules_that_it_holds(session, modules):
    from pyspark.sql.functions import udf

    frame = session.createDataFrame([(kind,) for kind in KINDS], "kind string").coalesce(1)
    used = frame.select(udf(lambda kind: payloads.check(modules[kind]))("kind")).collect()
    assert [row[0] for row in used] == KINDS


def test_a_udf_over_arrow_uses_modules_that_it_holds(session, modules):
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    from pyspark.sql.functions import pandas_udf

    frame = session.createDataFrame([(kind,) for kind in KINDS], "kind string").coalesce(1)
    check = pandas_udf(lambda kinds: kinds.map(lambda kind: payloads.check(modules[kind])), "string")
    assert [row[0] for row in frame.select(check("kind")).collect()] == KINDS


# -- what else goes these ways -----------------------------------------------------------------------------------------


class Joined(pyspark.AccumulatorParam):
    def zero(self, value):
        return {}

    def addInPlace(self, one, other):
        return {**one, **other}


def test_accumulators_bring_locks_back(context):
    gathered = context.accumulator({}, Joined())
    context.parallelize(KINDS, 1).foreach(lambda kind: gathered.add({kind: payloads.make(kind)}))
    assert sorted(payloads.check(module) for module in gathered.value.values()) == KINDS


def test_kernels_and_lambdas_travel_together_in_one_batch(context, modules):
    scale = modules["lambda"].scale
    rows = [{"f": lambda x: scale(x) + 1, "kernel": payloads.compiled_kernel, "lock": threading.Lock()}] * 2

    def use(row):
        assert row["kernel"] is payloads.compiled_kernel
        return row["f"](2.0), row["lock"].acquire(timeout=1)

    assert context.parallelize(rows, 1).map(use).collect() == [(7.0, True), (7.0, False)]


def test_a_view_of_a_tensor_in_one_row_stays_one(context):
    made = context.parallelize([1], 1).map(lambda _: payloads.small()).collect()
    assert payloads.check(made[0]) == "big"


def test_what_cannot_be_pickled_is_named_on_each_path(context):
    row = {"parts": [(number for number in ())]}
    for action in (
        lambda: context.parallelize([row]),
        lambda: context.broadcast(row),
        lambda: context.parallelize([1]).map(lambda _: row).collect(),
    ):
        with pytest.raises(safepickle.PicklingError, match=r"(?s)'generator' at .*\['parts'\]\[0\]"):
            action()


def test_what_a_worker_cannot_send_is_named_in_the_drivers_error(context):
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PythonException  # what becomes of the former once there has been a session

    results = context.parallelize([1], 1).map(lambda _: {"parts": [(number for number in ())]})
    named = r"cannot pickle 'generator' at obj\[0\]\['parts'\]\[0\]"
    with pytest.raises((Py4JJavaError, PythonException), match=named):
        results.collect()


def test_spark_reads_what_workers_write_into_frames(session):
    """Java has a reader of pickles of its own, which knows only what the standard library writes."""
    from pyspark.sql import Row

    rows = session.sparkContext.parallelize([1, 2], 1).map(lambda n: Row(number=n, name="n" * n, list=[n + 0.5]))
    assert [tuple(row) for row in rows.toDF().collect()] == [(1, "n", [1.5]), (2, "nn", [2.5])]


# -- without and beside the installation -------------------------------------------------------------------------------


def test_uninstalling_gives_spark_its_picklers_back():
    code = """
        import pickle, threading, safepickle
        from pyspark.cloudpickle import cloudpickle
        from pyspark.core import broadcast
        from pyspark.serializers import CloudPickleSerializer
        before = vars(cloudpickle.Pickler).copy()
        with safepickle.installed("pyspark"):
            CloudPickleSerializer().dumps(threading.Lock())
            assert broadcast.pickle is safepickle
        assert broadcast.pickle is pickle and vars(cloudpickle.Pickler) == before
        try:
            CloudPickleSerializer().dumps(threading.Lock())
        except pickle.PicklingError as error:
            print(error)
    """
    assert "cannot pickle '_thread.lock' object" in run_python(code)


def test_the_serializer_frames_what_it_writes_for_any_reader_of_pickles():
    from pyspark.serializers import AutoBatchedSerializer, PickleSerializer

    from safepickle.engines.pyspark import Serializer

    stream = io.BytesIO()
    AutoBatchedSerializer(Serializer()).dump_stream([threading.Lock(), lambda: 5, {"a": 1}], stream)
    for reader in (Serializer(), PickleSerializer()):
        stream.seek(0)
        lock, function, plain = AutoBatchedSerializer(reader).load_stream(stream)
        assert lock.acquire(timeout=1) and function() == 5 and plain == {"a": 1}
    assert Serializer() == Serializer()


@pytest.fixture(scope="module")
def printed_by_a_program():
    """A program with two contexts, one after the other: it starts Java, which takes long."""
    code = f"""
        import threading
        from pyspark import SparkConf, SparkContext
        import safepickle
        from safepickle.engines.pyspark import Serializer, configure

        def conf(**more):
            return SparkConf().setAll([*{SETTINGS!r}.items(), *more.items()])

        def parts():
            return {{"lock": threading.Lock(), "double": lambda x: 2 * x}}

        def use(found):
            return found["double"](4) if found["lock"].acquire(timeout=1) else None

        context = SparkContext(conf=conf(), serializer=Serializer())
        context.setLogLevel("OFF")
        numbers = context.parallelize([1], 1)
        print("data", context.parallelize([parts()], 1).map(use).collect())
        print("result", [use(found) for found in numbers.map(lambda _: parts()).collect()])
        pairs = numbers.map(lambda n: (n, parts())).groupByKey(1)
        print("shuffle", pairs.mapValues(lambda found: [*map(use, found)]).collect())
        context.stop()

        safepickle.install("pyspark")
        context = SparkContext(conf=configure(conf(**{{"spark.python.use.daemon": "false"}})))
        context.setLogLevel("OFF")
        held = parts()
        found = context.parallelize([1], 1).map(lambda _: use(held) and parts()).collect()
        print("no daemon", [use(one) for one in found])

        class Mine:
            def __init__(self):
                self.parts = parts()

        broadcast = context.broadcast((Mine(), Mine, use))
        def again(_):
            mine, cls, use = broadcast.value
            return isinstance(mine, cls) and use(mine.parts) and cls()
        found = context.parallelize([1], 1).map(again).collect()
        print("main", [(type(one) is Mine, use(one.parts)) for one in found])
        context.stop()
    """
    return run_python(code, env=ENVIRONMENT).splitlines()


def test_the_serializer_carries_data_results_and_shuffles_with_nothing_installed(printed_by_a_program):
    assert printed_by_a_program[:3] == ["data [8]", "result [8]", "shuffle [(1, [8])]"]


def test_workers_that_no_daemon_forks_are_served_too(printed_by_a_program):
    assert printed_by_a_program[3] == "no daemon [8]"


def test_what_a_script_defines_is_the_same_class_when_it_comes_back(printed_by_a_program):
    assert printed_by_a_program[4:] == ["main [(True, 8)]"]
