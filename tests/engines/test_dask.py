"""Dask: tasks by way of a scheduler that is a process of its own, results, what is scattered."""

from __future__ import annotations

import asyncio
import copyreg
import fractions
import socket
import sys
import threading
import traceback

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
distributed = pytest.importorskip("distributed")
tblib = pytest.importorskip("tblib.pickling_support")

import dask
import dask.array
import numpy
from dask._task_spec import Task
from distributed.protocol import dask_deserialize, dask_serialize, deserialize
from distributed.protocol.serialize import deserialize_bytes, families, serialize_bytelist, to_serialize

import safepickle
from safepickle.changes import Changes
from safepickle.engines import dask as adapter
from tests.engines import payloads, sharing
from tests.engines.dask_clusters import cluster

pytestmark = pytest.mark.filterwarnings("ignore:Sending large graph", "ignore:Port 8787")

LIMIT = 60  # seconds for one task; most take a hundredth of one, the first imports torch
KINDS = ["kernel", "lambda", "lock", "small"]


#: What Dask's import told ``copyreg`` about every exception class that there was. Other tests must not notice.
OF_TBLIB = {
    cls: copyreg.dispatch_table.pop(cls)
    for cls, reducer in list(copyreg.dispatch_table.items())
    if getattr(reducer, "func", reducer) in (tblib.pickle_exception, tblib.pickle_traceback)
}


@pytest.fixture(scope="module", autouse=True)
def exceptions():
    """``copyreg`` as Dask has left it, and as it was again when these tests are over."""
    before = dict(copyreg.dispatch_table)
    copyreg.dispatch_table.update(OF_TBLIB)
    yield
    copyreg.dispatch_table.clear()
    copyreg.dispatch_table.update(before)


@pytest.fixture(scope="module")
def plain_cluster():
    """A cluster that safepickle is never installed on."""
    with cluster() as made:
        yield made


@pytest.fixture(scope="module")
def our_cluster():
    """A cluster that safepickle is installed on, by the first client."""
    with cluster() as made:
        yield made


@pytest.fixture
def today(plain_cluster):
    """A client without safepickle."""
    with connected(plain_cluster) as client:
        client.wait_for_workers(2, timeout=LIMIT)
        yield client


@pytest.fixture
def client(our_cluster):
    """A client that has installed safepickle on the cluster."""
    with connected(our_cluster) as client:
        client.wait_for_workers(2, timeout=LIMIT)
        adapter.install_on(client)
        yield client
    safepickle.uninstall()


@pytest.fixture
def installed():
    """Safepickle installed in this process, and no cluster."""
    safepickle.install("dask")
    yield
    safepickle.uninstall()


def workers(client):
    return sorted(client.scheduler_info(n_workers=-1)["workers"])


def take(lock):
    """Whether a lock is free and can be held by one only."""
    return lock.acquire(timeout=1) and not lock.acquire(blocking=False)


def locks_travel(client, **options):
    """Whether locks go there and back, in functions by value: workers that import little start quickly."""
    there = ask(client, lambda lock: lock.acquire(timeout=1) and lock.locked(), threading.Lock(), **options)
    return there and take(ask(client, lambda: threading.Lock(), **options))


def connected(made, **options):
    """A client of a cluster."""
    return distributed.Client(scheduler_file=made.file, timeout=LIMIT, **options)


def ask(client, function, *arguments, **options):
    return client.submit(function, *arguments, pure=False, **options).result(timeout=LIMIT)


# -- what happens without ----------------------------------------------------------------------------------------------


def test_today_the_weights_of_a_result_are_no_longer_tied(today):
    assert sharing.is_tied(sharing.tied())
    assert not sharing.is_tied(ask(today, sharing.tied))


def test_today_the_weights_of_an_input_from_another_worker_are_no_longer_tied(today):
    first, second = workers(today)
    module = today.submit(sharing.tied, workers=[first])
    assert not ask(today, sharing.is_tied, module, workers=[second])


def test_today_the_optimizer_of_a_result_trains_another_module(today):
    assert sharing.steps(sharing.trained())
    assert not sharing.steps(ask(today, sharing.trained))


def test_today_a_view_in_a_result_is_a_copy(today):
    with pytest.raises(AssertionError):
        payloads.check(ask(today, payloads.small))


def test_today_a_kernel_cannot_be_submitted(today):
    with pytest.raises(TypeError, match="Could not serialize"):
        ask(today, payloads.check, payloads.Kernel())


def test_today_a_kernel_cannot_be_a_result(today):
    with pytest.raises(TypeError, match="Could not serialize"):
        ask(today, payloads.Kernel)


def test_today_bfloat16_cannot_be_a_result(today):
    with pytest.raises(TypeError, match="Could not serialize"):
        ask(today, sharing.low_precision)


# -- there and back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_payloads_work_where_they_are_submitted_to_and_when_they_are_back(client, kind):
    back = ask(client, payloads.check_and_return, payloads.make(kind))
    assert payloads.check(back)


@pytest.mark.parametrize("kind", KINDS)
def test_payloads_made_by_workers_work_here(client, kind):
    assert payloads.check(ask(client, payloads.make_and_check, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_scattered_payloads_work_in_workers(client, kind):
    [future] = client.scatter([payloads.make(kind)])
    assert ask(client, payloads.check, future)


@pytest.mark.parametrize("kind", KINDS)
def test_payloads_work_where_they_go_from_worker_to_worker(client, kind):
    first, second = workers(client)[:2]
    payload = client.submit(payloads.make, kind, workers=[first], pure=False)
    assert ask(client, payloads.check, payload, workers=[second])


def test_a_kernel_a_lambda_and_a_lock_go_together(client):
    assert ask(client, payloads.check_and_return, sharing.Everything()).check() == "everything"


def test_functions_without_a_name_run_in_workers_and_come_back(client):
    module = sharing.Everything()
    assert ask(client, lambda: module.check()) == "everything"
    assert ask(client, lambda factor: lambda x: x * factor, 3)(4) == 12


def test_broadcast_payloads_reach_every_worker(client):
    [future] = client.scatter([payloads.Kernel()], broadcast=True)
    checks = [client.submit(payloads.check, future, workers=[worker], pure=False) for worker in workers(client)]
    assert set(client.gather(checks)) == {"kernel"}


def test_client_run_sends_kernels(client):
    module = payloads.Kernel()
    assert set(client.run(lambda: module.check()).values()) == {"kernel"}
    assert client.run_on_scheduler(lambda: module.check()) == "kernel"


def test_tasks_submit_tasks_with_payloads(client):
    def outer():
        with distributed.worker_client() as inner:
            return inner.submit(payloads.check_and_return, payloads.Kernel(), pure=False).result(timeout=LIMIT)

    assert ask(client, outer).check() == "kernel"


def test_payloads_reach_actors(client):
    actor = client.submit(sharing.Keeper, sharing.Everything(), actor=True).result(timeout=LIMIT)
    assert actor.check().result(timeout=LIMIT) == "everything"
    assert payloads.check(actor.replace(payloads.Lambda()).result(timeout=LIMIT)) == "everything"
    assert actor.check().result(timeout=LIMIT) == "lambda"


def test_variables_and_queues_carry_futures_of_payloads(client):
    variable, queue = distributed.Variable("kept"), distributed.Queue("queued")
    variable.set(client.scatter([payloads.Kernel()])[0])
    queue.put(client.submit(payloads.make, "lock"))
    assert payloads.check(variable.get(timeout=LIMIT).result(timeout=LIMIT)) == "kernel"
    assert payloads.check(queue.get(timeout=LIMIT).result(timeout=LIMIT)) == "lock"


# -- what shares goes on sharing ---------------------------------------------------------------------------------------


def test_weights_stay_tied_on_each_way(client):
    first, second = workers(client)[:2]
    assert ask(client, sharing.is_tied, sharing.tied())
    assert sharing.is_tied(ask(client, sharing.tied))
    assert ask(client, sharing.is_tied, client.scatter([sharing.tied()])[0])
    assert ask(client, sharing.is_tied, client.submit(sharing.tied, workers=[first], pure=False), workers=[second])


def test_an_optimizer_trains_the_module_that_it_came_with(client):
    assert sharing.steps(ask(client, sharing.trained))
    assert sharing.steps(ask(client, sharing.same, sharing.trained()))
    assert ask(client, sharing.steps, client.scatter([sharing.trained()])[0])


def test_the_same_object_twice_in_a_list_comes_back_as_one(client):
    one, two = ask(client, lambda: [sharing.Keeper(1)] * 2)
    assert one is two


def test_tensors_that_numpy_has_no_type_for_come_back(client):
    back = ask(client, sharing.low_precision)
    assert back.dtype is torch.bfloat16 and back.tolist() == [0, 1, 2, 3]
    sparse = ask(client, lambda: torch.eye(3).to_sparse())
    assert sparse.is_sparse and torch.equal(sparse.to_dense(), torch.eye(3))


def test_gradients_and_attributes_of_parameters_come_back(client):
    def make():
        parameter = torch.nn.Parameter(torch.ones(2))
        (3 * parameter).sum().backward()
        parameter.note = "kept"
        return parameter

    back = ask(client, make)
    assert type(back) is torch.nn.Parameter
    assert back.note == "kept" and back.grad.tolist() == [3, 3]


# -- what Dask does goes on --------------------------------------------------------------------------------------------


def test_arrays_delayed_and_futures_as_arguments_work(client):
    array = dask.array.ones((40, 40), chunks=20) @ dask.array.eye(40, chunks=20)
    assert float(array.sum().compute()) == 1600
    module = dask.delayed(payloads.Kernel)()
    assert dask.delayed(payloads.check)(module).compute() == "kernel"
    numbers = client.map(lambda x: x + 1, range(5))
    assert client.submit(sum, numbers).result(timeout=LIMIT) == 15


def test_an_error_of_a_task_comes_back_with_its_traceback_and_fields(client):
    with pytest.raises(sharing.Failure, match="failed with 7") as caught:
        ask(client, sharing.fail, 7)
    assert caught.value.code == 7
    assert caught.value.lock.acquire(timeout=1)
    assert "in fail" in "".join(traceback.format_exception(caught.value))


def test_workers_that_come_later_have_it_too(client, our_cluster):
    before = set(workers(client))
    our_cluster.start_worker()
    client.wait_for_workers(len(before) + 1, timeout=LIMIT)
    [late] = set(workers(client)) - before
    assert locks_travel(client, workers=[late])
    client.retire_workers([late])


def test_installing_again_does_nothing(client):
    adapter.install_on(client)
    names = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.plugins))
    assert names.count(adapter.OnScheduler.name) == 1
    assert ask(client, payloads.check, payloads.Kernel()) == "kernel"


# -- errors, not hangs -------------------------------------------------------------------------------------------------


def test_what_cannot_be_submitted_is_an_error_that_says_where(client):
    module = payloads.Lambda()
    module.inner = torch.nn.Module()
    module.inner.connection = sharing.make_socket()
    with pytest.raises(TypeError) as caught:
        ask(client, payloads.check, module)
    assert "inner.connection" in "".join(traceback.format_exception(caught.value))


def test_a_result_that_cannot_be_sent_is_an_error(client):
    with pytest.raises(TypeError, match="a socket is a connection of this process"):
        ask(client, sharing.make_socket)


def test_an_input_that_another_worker_cannot_send_is_an_error(client):
    first, second = workers(client)[:2]
    connection = client.submit(sharing.make_socket, workers=[first], pure=False)
    with pytest.raises(TypeError, match="a socket is a connection of this process"):
        ask(client, sharing.opens_a_socket, connection, workers=[second])
    assert ask(client, payloads.check, payloads.Kernel(), workers=[second]) == "kernel"


def test_a_task_that_the_scheduler_cannot_send_is_an_error(client):
    with pytest.raises(adapter.TaskError, match=r"could not pickle this task: cannot pickle 'socket\.socket'"):
        ask(client, sharing.opens_a_socket, sharing.OneWay())
    assert ask(client, payloads.check, payloads.Kernel()) == "kernel"


@pytest.fixture
def without_fractions(client):
    """The name of a worker that cannot import a module that everybody else can."""
    worker = workers(client)[0]
    client.run(lambda: sys.modules.update(fractions=None), workers=[worker])
    yield worker
    client.run(lambda: sys.modules.pop("fractions"), workers=[worker])


def test_a_task_that_a_worker_cannot_load_is_an_error(client, without_fractions):
    with pytest.raises(adapter.TaskError, match="the worker could not load this task: ModuleNotFoundError"):
        ask(client, fractions.Fraction, 1, workers=[without_fractions])
    assert ask(client, payloads.check, payloads.Kernel(), workers=[without_fractions]) == "kernel"


def test_an_input_that_a_worker_cannot_load_is_an_error(client, without_fractions):
    other = workers(client)[1]
    half = client.submit(lambda: fractions.Fraction(1, 2), workers=[other], pure=False)
    with pytest.raises(ModuleNotFoundError, match="fractions"):
        ask(client, lambda _: 1, half, workers=[without_fractions])
    assert ask(client, payloads.check, payloads.Kernel(), workers=[without_fractions]) == "kernel"


def test_a_result_that_cannot_be_loaded_here_is_an_error(client, monkeypatch):
    half = client.submit(lambda: fractions.Fraction(1, 2), pure=False)
    distributed.wait(half, timeout=LIMIT)
    monkeypatch.setitem(sys.modules, "fractions", None)
    with pytest.raises(ModuleNotFoundError, match="fractions"):
        half.result(timeout=LIMIT)


def test_a_scheduler_without_the_package_is_an_error():
    block = "import sys; sys.modules['safepickle'] = None"
    refused = pytest.raises(ModuleNotFoundError, match="safepickle")
    with cluster(workers=0, scheduler=("--preload", block)) as made, connected(made) as client, refused:
        adapter.install_on(client)
    safepickle.uninstall()


# -- other ways to install ---------------------------------------------------------------------------------------------


def test_operators_preload_it():
    preload = ("--preload", "safepickle.engines.dask")
    with cluster(*preload) as made, safepickle.installed("dask"), connected(made) as client:
        client.wait_for_workers(2, timeout=LIMIT)
        assert locks_travel(client)
        first, second = workers(client)
        connection = client.submit(lambda: socket.socket(), workers=[first])
        with pytest.raises(TypeError, match="a socket is a connection of this process"):
            ask(client, lambda _: 1, connection, workers=[second])


def test_a_client_that_preloads_it_installs_it_on_the_cluster():
    preload = {"distributed.client.preload": ["safepickle.engines.dask"]}
    with cluster(workers=1) as made, dask.config.set(preload), connected(made) as client:
        assert locks_travel(client)
    safepickle.uninstall()


def test_an_asynchronous_client_awaits_it():
    async def main(file):
        async with distributed.Client(scheduler_file=file, asynchronous=True, timeout=LIMIT) as client:
            await adapter.install_on(client)
            return take(await client.submit(lambda lock: lock, threading.Lock()))

    with cluster(workers=1) as made:
        assert asyncio.run(asyncio.wait_for(main(made.file), 2 * LIMIT))
    safepickle.uninstall()


def test_it_can_be_taken_from_a_cluster_again():
    with cluster(workers=1) as made, connected(made) as client:
        client.wait_for_workers(1, timeout=LIMIT)
        adapter.install_on(client)
        assert locks_travel(client)
        one, two = ask(client, lambda: [slice(1)] * 2)
        assert one is two
        adapter.uninstall_from(client)
        names = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.plugins))
        assert not [name for name in names if "safepickle" in name]
        one, two = ask(client, lambda: [slice(1)] * 2)
        assert one is not two
    safepickle.uninstall()


def test_workers_below_a_nanny_have_it():
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(host="127.0.0.1", **options) as local, distributed.Client(local) as client:
        adapter.install_on(client)
        assert locks_travel(client)
        client.restart()
        assert locks_travel(client)
    safepickle.uninstall()


# -- what is written, without a cluster --------------------------------------------------------------------------------


def serialize(*arguments, **options):
    return sys.modules["distributed.protocol.serialize"].serialize(*arguments, **options)


def test_tensors_are_sent_from_where_they_are(installed):
    payload = payloads.big(8)
    header, frames = serialize(to_serialize(payload))
    assert header["serializer"] == "pickle", "any reader of Dask's reads it"
    assert sum(len(frame) for frame in frames[:1]) < 1000
    [frame] = frames[1:]
    assert numpy.frombuffer(frame, dtype=numpy.uint8).ctypes.data == payload["base"].data_ptr()


def test_tensors_are_received_where_they_have_arrived(installed):
    header, frames = serialize(to_serialize(payloads.big(8)))
    received = bytearray(frames[1])
    back = deserialize(header, [bytes(frames[0]), received])
    assert payloads.check(back) == "big"
    assert numpy.frombuffer(received, dtype=numpy.uint8).ctypes.data == back["base"].data_ptr()


def test_what_is_written_to_disk_is_read_whole(installed):
    data = b"".join(bytes(part) for part in serialize_bytelist(sharing.trained()))
    assert sharing.steps(deserialize_bytes(data))


@pytest.mark.parametrize(
    "value",
    [numpy.arange(5), [numpy.arange(5)], {"a": numpy.arange(5), "b": 1}, b"bytes", (b"bytes", 2)],
    ids=["array", "list-of-arrays", "dict-of-arrays", "bytes", "tuple-of-bytes"],
)
def test_what_dask_has_serializers_for_is_written_as_before(value):
    header, frames = serialize(to_serialize(value))
    with safepickle.installed("dask"):
        now, frames_now = serialize(to_serialize(value))
    assert now == header
    assert [bytes(frame) for frame in frames_now] == [bytes(frame) for frame in frames]


def test_a_list_of_plain_values_is_one_frame(installed):
    header, frames = serialize(to_serialize(list(range(1000))))
    assert len(frames) == 1
    assert deserialize(header, frames) == list(range(1000))


def test_a_small_view_that_comes_alone_is_sent_alone(installed):
    view = torch.arange(1_000_000)[:10]
    header, frames = serialize(to_serialize(view))
    assert sum(memoryview(frame).nbytes for frame in frames) < 1000
    assert torch.equal(deserialize(header, frames), view)


def test_a_serializer_that_a_user_registers_wins(installed, monkeypatch):
    class Mine(torch.nn.Module):
        pass

    monkeypatch.setitem(dask_serialize._lookup, Mine, lambda module: ({"mine": True}, [b"written by me"]))
    monkeypatch.setitem(dask_deserialize._lookup, Mine, lambda header, frames: bytes(frames[0]))
    header, frames = serialize(to_serialize(Mine()))
    assert (header["serializer"], frames) == ("dask", [b"written by me"])


def test_a_type_that_only_dask_can_write_goes_in_a_task(installed, monkeypatch):
    monkeypatch.setitem(dask_serialize._lookup, OnlyDask, write_only_dask)
    monkeypatch.setitem(dask_deserialize._lookup, OnlyDask, read_only_dask)
    data = distributed.protocol.pickle.dumps([OnlyDask(), payloads.Lambda()])
    one, module = distributed.protocol.pickle.loads(data)
    assert one.content == b"content" and module.check() == "lambda"
    one, module = deserialize(*serialize(to_serialize([OnlyDask(), payloads.Lambda()])))
    assert one.content == b"content" and module.check() == "lambda"


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("with_buffers", [False, True], ids=["in-band", "out-of-band"])
@pytest.mark.parametrize("size", [10, 1_000_000])
def test_tasks_are_written_in_every_protocol(installed, protocol, with_buffers, size):
    task = Task("key", sharing.same, [bytes(size), torch.ones(size), threading.Lock()])
    buffers = []
    callback = buffers.append if with_buffers else None
    data = distributed.protocol.pickle.dumps(task, buffer_callback=callback, protocol=protocol)
    assert bool(buffers) == (with_buffers and protocol == 5)
    if buffers and size > 10:
        assert len(data) < 1000
    back = distributed.protocol.pickle.loads(data, buffers=[bytearray(buffer) for buffer in buffers])
    content, tensor, lock = back()
    assert (back.key, len(content), float(tensor.sum())) == ("key", size, size)
    assert take(lock)


class OnlyDask:
    content = None

    def __reduce__(self):
        raise TypeError("not by pickle")


def write_only_dask(_):
    return {}, [b"content"]


def read_only_dask(header, frames):
    made = OnlyDask()
    made.content = frames[0]
    return made


def test_a_caller_that_excludes_pickle_gets_none(installed):
    header, _ = serialize([threading.Lock()], serializers=("msgpack",), on_error="message", iterate_collection=False)
    assert header == {"serializer": "error"}


def test_a_family_that_is_preferred_gets_collections_with_what_it_may_know(installed):
    preferred = ("cuda", "dask", "pickle")
    header, _ = serialize(to_serialize([numpy.arange(5), threading.Lock()]), serializers=preferred)
    assert [part["serializer"] for part in header["sub-headers"]] == ["dask", "pickle"]
    header, frames = serialize(to_serialize(sharing.trained()), serializers=preferred)
    assert header["serializer"] == "pickle" and sharing.steps(deserialize(header, frames))
    header, _ = serialize(to_serialize([numpy.arange(5), threading.Lock()]))
    assert header["serializer"] == "pickle"


# -- the family --------------------------------------------------------------------------------------------------------


def test_the_family_is_asked_before_dask_and_carries_modules_whole(monkeypatch):
    monkeypatch.delitem(families, adapter.FAMILY, raising=False)
    adapter.register_family()
    assert adapter.serializers().index(adapter.FAMILY) < adapter.serializers().index("dask")
    header, frames = serialize(sharing.tied(), serializers=adapter.serializers())
    assert header["serializer"] == adapter.FAMILY
    assert sharing.is_tied(deserialize(header, frames))
    header, frames = serialize(numpy.arange(5), serializers=adapter.serializers())
    assert header["serializer"] == "dask"
    del families[adapter.FAMILY]


def test_a_client_with_the_family_sends_and_receives(client, our_cluster):
    with connected(our_cluster, serializers=adapter.serializers(), set_as_default=False) as other:
        assert sharing.is_tied(ask(other, sharing.tied))
        assert ask(other, sharing.is_tied, other.scatter([sharing.tied()])[0])
        assert ask(other, payloads.check_and_return, sharing.Everything()).check() == "everything"
        assert float(dask.array.ones(10).sum().compute()) == 10


# -- undoing -----------------------------------------------------------------------------------------------------------


def test_the_changes_are_listed_and_undone():
    serialization = sys.modules["distributed.protocol.serialize"]

    def state():
        ours = (distributed.protocol.pickle.dumps, distributed.client.dumps, distributed.scheduler.dumps)
        return *ours, serialization.serialize, distributed.protocol.serialize, dict(families)

    before = state()
    changes = Changes()
    adapter.install(changes)
    assert distributed.client.dumps is distributed.protocol.pickle.dumps is adapter.dumps
    listed = {change.where for change in changes}
    assert "distributed.protocol.pickle.dumps" in listed and "distributed.protocol.serialize.serialize" in listed
    assert changes.undo() == []
    assert state() == before
