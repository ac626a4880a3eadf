"""Ray: tasks, actors, what is put and what comes back, with one instance on loopback for all tests."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import threading
import traceback

import pytest

#: Read when Ray is imported: it stays on loopback.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
ray = pytest.importorskip("ray")

import numpy

import safepickle
from safepickle.changes import Changes
from safepickle.engines import ray as adapter
from tests.engines import payloads, sharing
from tests.helpers import REPOSITORY

LIMIT = 60  # seconds for one task; a worker that starts imports torch first
KINDS = ["kernel", "lambda", "lock", "small"]

#: Ray tells nobody that it runs, kills nothing for want of memory, and writes no token to the home directory.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "OMP_NUM_THREADS": "1",
}


def note_that_it_was_called():
    os.environ["OTHER_HOOK"] = "called"


@pytest.fixture(scope="module")
def instance():
    """Ray, with workers that have safepickle and a hook of the user's."""
    settings = {**SETTINGS, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # paths of sockets must be short
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    variables = {"MINE": "kept", "PYTHONPATH": path}
    try:
        ray.init(
            num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False,
            _temp_dir=folder, _node_ip_address="127.0.0.1",
            runtime_env=adapter.runtime_env(note_that_it_was_called, env_vars=variables),
        )  # fmt: skip
        safepickle.uninstall()
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture
def installed(instance):
    """Safepickle in the driver, too."""
    safepickle.install("ray")
    yield
    safepickle.uninstall()


def run(function, *arguments, **options):
    """The result of a task."""
    options = {"num_cpus": 1, "max_retries": 0, **options}
    return ray.get(ray.remote(**options)(function).remote(*arguments), timeout=LIMIT)


# -- what happens without, in the driver -------------------------------------------------------------------------------


def test_today_a_kernel_cannot_be_put(instance):
    with pytest.raises(TypeError, match="Could not serialize the put value"):
        ray.put(payloads.Kernel())


def test_today_a_view_that_is_put_is_a_copy(instance):
    with pytest.raises(AssertionError):
        payloads.check(ray.get(ray.put(payloads.small())))


# -- there and back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_payloads_work_in_tasks_and_when_they_are_back(installed, kind):
    assert payloads.check(run(payloads.check_and_return, payloads.make(kind)))


@pytest.mark.parametrize("kind", KINDS)
def test_payloads_made_by_workers_work_here(installed, kind):
    assert payloads.check(run(payloads.make_and_check, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_payloads_that_are_put_work_here_and_in_tasks(installed, kind):
    reference = ray.put(payloads.make(kind))
    assert payloads.check(ray.get(reference))
    assert run(payloads.check, reference)


def test_a_kernel_a_lambda_and_a_lock_go_together(installed):
    assert run(payloads.check_and_return, sharing.Everything()).check() == "everything"


def test_functions_hold_kernels(installed):
    module = sharing.Everything()
    assert run(lambda: module.check()) == "everything"


@ray.remote(num_cpus=0)
class Keeper(sharing.Keeper):
    def fail(self, code):
        sharing.fail(code)


def check_through(handles):
    return ray.get(handles["keeper"].check.remote(), timeout=LIMIT)


def test_actors_keep_payloads_and_are_reached_through_handles(installed):
    keeper = Keeper.remote(sharing.Everything())
    assert ray.get(keeper.check.remote(), timeout=LIMIT) == "everything"
    assert payloads.check(ray.get(keeper.replace.remote(payloads.Lambda()), timeout=LIMIT)) == "everything"
    assert run(check_through, {"keeper": keeper}) == "lambda"
    with pytest.raises(sharing.Failure, match="failed with 4"):
        ray.get(keeper.fail.remote(4), timeout=LIMIT)
    ray.kill(keeper)


def test_tasks_of_tasks_send_payloads(installed):
    def outer():
        return ray.get(ray.remote(payloads.check_and_return).remote(payloads.Kernel()), timeout=LIMIT)

    assert run(outer, num_cpus=0).check() == "kernel"


def test_generators_yield_payloads(installed):
    @ray.remote(num_returns="streaming")
    def make_all(kinds):
        for kind in kinds:
            yield payloads.make(kind)

    references = list(make_all.remote(["kernel", "lambda"]))
    assert [payloads.check(ray.get(reference, timeout=LIMIT)) for reference in references] == ["kernel", "lambda"]


# -- what shares goes on sharing ---------------------------------------------------------------------------------------


def test_weights_stay_tied_and_optimizers_train_their_modules(installed):
    assert sharing.is_tied(run(sharing.same, sharing.tied()))
    assert sharing.steps(run(sharing.same, sharing.trained()))
    assert run(sharing.steps, ray.put(sharing.trained()))


# -- what Ray does goes on ---------------------------------------------------------------------------------------------


def where(array):
    return array.__array_interface__["data"][0]


def look_at(array):
    return array.flags.writeable, array.flags.owndata, float(array.sum())


def test_arrays_are_still_read_without_a_copy(installed):
    reference = ray.put(numpy.ones(500_000))
    one, two = ray.get(reference), ray.get(reference)
    assert where(one) == where(two)
    assert not one.flags.writeable
    assert run(look_at, reference) == (False, False, 500_000)


def test_arrays_beside_kernels_are_read_without_a_copy(installed):
    reference = ray.put({"module": payloads.Kernel(), "array": numpy.ones(500_000)})
    one, two = ray.get(reference), ray.get(reference)
    assert where(one["array"]) == where(two["array"])
    assert one["module"].check() == "kernel"


def add_one(tensor):
    tensor += 1
    return tensor.sum()


def test_tensors_that_come_from_the_store_can_be_written_to(installed):
    reference = ray.put(torch.zeros(500_000))
    tensor = ray.get(reference)
    assert add_one(tensor) == 500_000
    assert ray.get(reference).sum() == 0
    assert run(add_one, reference) == 500_000


def test_references_in_what_is_sent_stay_references(installed):
    reference = ray.put(payloads.Kernel())

    def follow(box):
        assert isinstance(box["inner"], ray.ObjectRef)
        return payloads.check(ray.get(box["inner"], timeout=LIMIT)), box

    said, box = run(follow, {"inner": reference, "lock": threading.Lock()})
    assert said == "kernel"
    assert box["inner"] == reference and payloads.check(ray.get(box["inner"])) == "kernel"
    assert box["lock"].acquire(timeout=1)


def test_a_serializer_that_is_registered_with_ray_wins(installed):
    ray.util.register_serializer(torch.nn.Linear, serializer=type, deserializer=say)
    try:
        sent = ray.get(ray.put([torch.nn.Linear(1, 1), payloads.Lambda().scale]))
        assert sent[0] == "deserialized Linear" and sent[1](2) == 6
    finally:
        ray.util.deregister_serializer(torch.nn.Linear)
    assert isinstance(ray.get(ray.put(torch.nn.Linear(1, 1))), torch.nn.Linear)


def say(what):
    return f"deserialized {what.__name__}"


@pytest.mark.filterwarnings("ignore:Zero-copy tensor", "ignore:The given NumPy array is not writable")
def test_tensors_go_as_ray_sends_them_where_that_is_asked_for(monkeypatch):
    """As with RAY_ENABLE_ZERO_COPY_TORCH_TENSORS=1; parameters hand over theirs."""
    reducer = ray._private.tensor_serialization_utils.zero_copy_tensors_reducer
    monkeypatch.setitem(ray.cloudpickle.CloudPickler.dispatch.maps[0], torch.Tensor, reducer)
    linear, buffers = torch.nn.Linear(200, 200), []
    with safepickle.installed("ray"):
        data = ray.cloudpickle.dumps([linear, lambda: 1], protocol=5, buffer_callback=buffers.append)
    stored = [bytes(buffer) for buffer in buffers]
    back, one = safepickle.loads(data, buffers=stored)
    assert torch.equal(back.weight, linear.weight) and type(back.weight) is torch.nn.Parameter and one() == 1
    assert back.weight.data_ptr() == where(numpy.frombuffer(stored[0], dtype=numpy.uint8))


def test_the_users_rules_apply(installed):
    class Handle:
        def __init__(self, path):
            self.path = path
            self.connection = sharing.make_socket()

    safepickle.register(Handle, lambda handle: (Handle, (handle.path,)))
    try:
        assert ray.get(ray.put(Handle("a.bin"))).path == "a.bin"
    finally:
        safepickle.unregister(Handle)


def test_picklers_that_are_derived_from_rays_ask_the_rules(installed):
    from ray.dag import InputNode
    from ray.dag.py_obj_scanner import _PyObjScanner  # Serve and graphs of actors look for nodes in arguments with it
    from ray.util.client.client_pickler import dumps_from_client

    node = InputNode()
    scanner = _PyObjScanner()
    assert scanner.find_nodes([sharing.Everything(), node]) == [node]
    module, found = scanner.replace_nodes({node: "found"})
    assert (module.check(), found) == ("everything", "found")
    assert safepickle.loads(dumps_from_client([sharing.Everything()], "client"))[0].check() == "everything"


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_error_of_a_task_comes_back_with_its_fields(installed):
    with pytest.raises(sharing.Failure, match="failed with 7") as caught:
        run(sharing.fail, 7)
    assert caught.value.code == 7
    assert caught.value.lock.acquire(timeout=1)
    assert "in fail" in str(caught.value)


def test_an_argument_that_cannot_be_sent_is_an_error_that_says_where(installed):
    module = payloads.Lambda()
    module.inner = torch.nn.Module()
    module.inner.connection = sharing.make_socket()
    with pytest.raises(TypeError, match="Could not serialize the argument") as caught:
        run(payloads.check, module)
    assert "inner.connection" in "".join(traceback.format_exception(caught.value))


def test_a_result_that_cannot_be_sent_is_an_error(installed):
    with pytest.raises(ray.exceptions.RayTaskError, match="a socket is a connection of this process"):
        run(sharing.make_socket)


# -- the workers' environment ------------------------------------------------------------------------------------------


def test_the_users_hook_and_variables_reach_workers(installed):
    assert run(lambda: (os.environ["OTHER_HOOK"], os.environ["MINE"])) == ("called", "kept")


@pytest.fixture
def clean():
    yield
    safepickle.uninstall()
    os.environ.pop("OTHER_HOOK", None)


def test_an_environment_without_another_hook_names_ours(clean):
    made = adapter.runtime_env(pip=["einops"])
    assert made == {"pip": ["einops"], "worker_process_setup_hook": "safepickle.engines.ray.set_up_worker"}
    assert adapter.importable(made["worker_process_setup_hook"]) is adapter.set_up_worker


HOOKS = [note_that_it_was_called, f"{__name__}.note_that_it_was_called"]


@pytest.mark.parametrize("other", HOOKS, ids=["call", "name"])
def test_a_hook_by_value_calls_ours_and_the_other(clean, other):
    hook = adapter.runtime_env(worker_process_setup_hook=other)["worker_process_setup_hook"]
    safepickle.uninstall()
    hook()
    assert os.environ["OTHER_HOOK"] == "called"
    assert ray.cloudpickle.dumps is adapter.dumps


def test_two_other_hooks_are_an_error(clean):
    with pytest.raises(TypeError, match="give one of them"):
        adapter.runtime_env(print, worker_process_setup_hook=repr)


# -- undoing -----------------------------------------------------------------------------------------------------------


def test_the_changes_are_listed_and_undone():
    def state():
        functions = (ray.cloudpickle.dumps, ray.cloudpickle.dump, ray.cloudpickle.cloudpickle.dumps)
        return *functions, ray.cloudpickle.CloudPickler.reducer_override, ray.cloudpickle.CloudPickler.dump

    before = state()
    changes = Changes()
    adapter.install(changes)
    assert ray.cloudpickle.dumps is ray.cloudpickle.cloudpickle.dumps is adapter.dumps
    assert {"ray.cloudpickle.dumps", "ray.cloudpickle.dump"} <= {change.where for change in changes}
    assert changes.undo() == []
    assert state() == before
