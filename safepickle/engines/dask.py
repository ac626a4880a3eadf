"""How do objects travel between the client, the scheduler and the workers of Dask?

Tasks are pickled by ``distributed.protocol.pickle.dumps``, by the client and then once more by the scheduler. Results,
and what is scattered, go through ``distributed.protocol.serialize.serialize``, which sends torch modules attribute by
attribute and the elements of a list one by one: weights that two layers share, and a model that its optimizer shares,
arrive as two. Both are replaced here, in every process that has :func:`install`; what they write is what Dask reads
anyway, so a process that only reads needs nothing but the package.

:func:`install_on` brings it to the scheduler and the workers of a client's cluster. ``--preload
safepickle.engines.dask`` does so where the cluster is started.
"""

from __future__ import annotations

import logging
import pickle
import sys
import traceback
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final

from dask._task_spec import GraphNode, Task
from distributed.client import Client
from distributed.diagnostics.plugin import SchedulerPlugin, WorkerPlugin
from distributed.protocol import pickle as dask_pickle
from distributed.protocol import register_serialization_family
from distributed.protocol.serialize import (
    ObjectDictSerializer,
    Serialize,
    dask_deserialize,
    dask_serialize,
    families,
    pickle_loads,
)
from distributed.worker_state_machine import TaskErredMsg

import safepickle

from ..changes import Changes
from ..pickler import Pickler

__all__ = [
    "FAMILY", "OnScheduler", "OnWorker", "TaskError", "dask_setup", "dumps", "install", "install_on", "register_family",
    "serialize", "serializers", "uninstall_from",
]  # fmt: skip

#: The name of the serialization family.
FAMILY: Final = "safepickle"

logger = logging.getLogger(__name__)

# The package has a function of this name, too, which hides the module.
_serialization: Final = sys.modules["distributed.protocol.serialize"]
_serialize_as_dask: Final[Callable[..., Any]] = _serialization.serialize
_dumps_as_dask: Final[Callable[..., Any]] = dask_pickle.dumps


def install(changes: Changes) -> None:
    """Have this process pickle tasks by the rules, and carry torch modules, tensors and collections whole."""
    for name, module in sorted(sys.modules.copy().items()):
        if name.partition(".")[0] == "distributed":  # most of its modules have imported the functions by name
            for theirs, ours in ((_dumps_as_dask, dumps), (_serialize_as_dask, serialize)):
                if vars(module).get(ours.__name__) is theirs:
                    where = f"{name}.{ours.__name__}"
                    changes.set_attribute("dask", module, ours.__name__, ours, where=where)
    changes.set_item(
        "dask", families, FAMILY, _family(), where=f"distributed.protocol.serialize.families[{FAMILY!r}]"
    )


# -- the cluster -------------------------------------------------------------------------------------------------------


class OnScheduler(SchedulerPlugin):  # type: ignore[misc]
    """Installs safepickle in the scheduler, which pickles every task again."""

    name = "safepickle-scheduler"
    idempotent = True

    def __init__(self) -> None:
        self._installation: Any = None

    async def start(self, scheduler: Any) -> None:
        self._installation = safepickle.install("dask")

    def take_back(self) -> None:
        """Dask has no hook for a plugin that is unregistered."""
        if self._installation is not None:
            self._installation.uninstall()


class OnWorker(WorkerPlugin):  # type: ignore[misc]
    """Installs safepickle in each worker, and reports tasks whose input could not be sent from another worker.

    Dask leaves such a task waiting for ever (https://github.com/dask/distributed/issues/6705).
    """

    name = "safepickle-worker"
    idempotent = True

    def __init__(self) -> None:
        self._worker: Any = None
        self._installation: Any = None

    def setup(self, worker: Any) -> None:
        self._worker, self._installation = worker, safepickle.install("dask")

    def teardown(self, worker: Any) -> None:
        self._installation.uninstall()

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        if start != "flight" or finish != "error":
            return
        failed = self._worker.state.tasks[key]
        for task in list(failed.dependents):
            if task.state == "waiting":
                self._worker.batched_send(_erred(task, failed).to_dict())


def _erred(task: Any, failed: Any) -> TaskErredMsg:
    """What tells the scheduler that a task fails because one of its inputs cannot be had."""
    return TaskErredMsg(
        key=task.key, run_id=task.run_id, exception=failed.exception, traceback=failed.traceback,
        exception_text=failed.exception_text, traceback_text=failed.traceback_text, thread=None, startstops=[],
        stimulus_id="safepickle-input-failed",
    )  # fmt: skip


def install_on(client: Client) -> Any:
    """Install safepickle in this process, on the scheduler, and on all workers: those there are and those to come.

    Call it before tasks are submitted. Calling it again does nothing.

    Args:
        client: connected to the cluster.

    Returns:
        ``None``; an awaitable where the client is asynchronous.

    Raises:
        ModuleNotFoundError: safepickle is not installed where the scheduler or a worker runs.
        Exception: whatever else kept a plugin from starting there.
    """
    safepickle.install("dask")
    return client.sync(_register_plugins, client)


async def _register_plugins(client: Client) -> None:
    await client.register_plugin(OnScheduler())
    await client.register_plugin(OnWorker())


def uninstall_from(client: Client) -> Any:
    """Take back what :func:`install_on` did to the scheduler and the workers; this process keeps its installation."""
    return client.sync(_unregister_plugins, client)


async def _unregister_plugins(client: Client) -> None:
    await client.unregister_worker_plugin(OnWorker.name)
    await client.run_on_scheduler(_leave_scheduler)


def _leave_scheduler(dask_scheduler: Any) -> None:
    plugin = dask_scheduler.plugins.get(OnScheduler.name)
    if plugin is not None:
        dask_scheduler.remove_plugin(OnScheduler.name)
        plugin.take_back()


async def dask_setup(service: Any) -> None:
    """Called by Dask in a scheduler, worker or client that preloads this module.

    ``dask scheduler --preload safepickle.engines.dask``, the same with ``dask worker``, or in the configuration
    ``distributed.scheduler.preload``, ``distributed.worker.preload``; in ``distributed.client.preload`` it stands for
    :func:`install_on`.
    """
    if isinstance(service, Client):
        safepickle.install("dask")
        await _register_plugins(service)
    elif hasattr(service, "plugin_add"):  # a worker
        await service.plugin_add(OnWorker(), catch_errors=False)
    elif hasattr(service, "add_plugin"):  # a scheduler
        await service.register_scheduler_plugin(OnScheduler(), idempotent=True)
    else:
        safepickle.install("dask")


# -- tasks -------------------------------------------------------------------------------------------------------------


def dumps(
    x: Any,
    *,
    buffer_callback: Callable[[Any], Any] | None = None,
    protocol: int | None = pickle.HIGHEST_PROTOCOL,
) -> bytes:
    """In place of ``distributed.protocol.pickle.dumps``, with its arguments.

    A task, which only a scheduler pickles alone, becomes one that raises the reason where it cannot be pickled, or
    where it arrives and cannot be loaded: Dask would drop the connection to the worker, and the task would never end.

    Raises:
        PicklingError: some part of the object cannot be pickled; the message says which and where.
    """
    protocol = protocol or pickle.HIGHEST_PROTOCOL
    outside = buffer_callback is not None and protocol >= 5
    try:
        data, buffers = _dump(x, protocol, outside)
        if isinstance(x, GraphNode):
            data, buffers = _pack(x.key, data, buffers, protocol, outside)
    except Exception as error:
        if not isinstance(x, GraphNode):
            logger.error("Cannot pickle: %s", error)
            raise
        logger.exception("Cannot pickle task %r", x.key)
        data, buffers = _dump(_failing(x.key, f"the scheduler could not pickle this task: {error}"), protocol, False)
    if buffer_callback is not None:
        for buffer in buffers:
            buffer_callback(buffer)
    return data


def _dump(x: Any, protocol: int, outside: bool) -> tuple[bytes, list[Any]]:
    """The pickle by the rules, and its buffers; where they fail, once more with what was registered with Dask."""
    try:
        return _dump_with(Pickler, x, protocol, outside)
    except Exception:
        try:
            return _dump_with(_WithDasks, x, protocol, outside)
        except Exception:
            pass  # the first attempt says better what is wrong
        raise


def _dump_with(pickler: type[Pickler], x: Any, protocol: int, outside: bool) -> tuple[bytes, list[Any]]:
    file, buffers = BytesIO(), list[Any]()
    pickler(file, protocol, buffer_callback=buffers.append if outside else None).dump(x)
    return file.getvalue(), buffers


class _WithDasks(Pickler):
    """Asks Dask's table of serializers, too, as Dask does for what plain pickle cannot do."""

    def reducer_override(self, obj: Any, /) -> Any:
        cls = type(obj)
        if _kind(cls) is not _BY_DASK or cls.__module__ in ("builtins", "array", "numpy"):
            return NotImplemented
        return dask_deserialize.dispatch(cls), dask_serialize.dispatch(cls)(obj)


class _Parcel:
    """A task as its own pickle, so that a worker that cannot load it has a name for what has failed."""

    def __init__(self, key: Any, data: bytes | pickle.PickleBuffer, buffers: list[Any]) -> None:
        self._arguments = (key, data, buffers)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, self._arguments


#: From this size on a copy costs more than a frame.
_LARGE: Final = 1 << 16


def _pack(key: Any, data: bytes, buffers: list[Any], protocol: int, outside: bool) -> tuple[bytes, list[Any]]:
    """The pickle of a parcel, in which nothing needs a rule, and its buffers."""
    parcel = _Parcel(key, pickle.PickleBuffer(data) if outside and len(data) >= _LARGE else data, buffers)
    frames: list[Any] = []
    return pickle.dumps(parcel, protocol, buffer_callback=frames.append if outside else None), frames


def _unpack(key: Any, data: Any, buffers: list[Any]) -> Any:
    """The task, or one that raises the reason why there is none."""
    try:
        return pickle.loads(data, buffers=buffers)
    except Exception as error:
        logger.exception("Cannot load task %r", key)
        reason = "".join(traceback.format_exception_only(type(error), error)).strip()
        return _failing(key, f"the worker could not load this task: {reason}")


def _failing(key: Any, reason: str) -> Task:
    """A task that raises."""
    return Task(key, _raise_reason, reason)


def _raise_reason(reason: str) -> None:
    raise TaskError(reason)


class TaskError(pickle.PickleError):
    """A task has not reached a worker: the scheduler could not pickle it, or the worker could not load it."""


# -- results and what is scattered -------------------------------------------------------------------------------------


def serialize(
    x: Any,
    serializers: Any = None,
    on_error: str = "message",
    context: Any = None,
    iterate_collection: bool | None = None,
) -> Any:
    """In place of ``distributed.protocol.serialize.serialize``, with its arguments.

    Torch modules and tensors, and collections that hold anything but arrays, go whole, by pickle; what is of Dask's own
    making goes as before, and so does everything where the caller has excluded pickle. Where the caller prefers a
    family of somebody else's, such as ``"cuda"``, collections with a single array in them go as before, too.
    """
    value = x.data if type(x) is Serialize else x
    names = ("dask", "pickle") if serializers is None else tuple(serializers)
    by = next((name for name in names if name in (FAMILY, "pickle")), None)
    if by is None or not _goes_whole(value, {*names[: names.index(by)]} <= {"dask"}):
        return _serialize_as_dask(x, serializers, on_error, context, iterate_collection)
    return _serialize_as_dask(value, (by,), on_error, context, False)


_CONTAINERS: Final = frozenset({list, tuple, set, dict})
_ATOMS: Final = frozenset({type(None), bool, int, float, complex, str})

_ATOM: Final = "what nothing can be lost of"
_WHOLE: Final = "what the rest may refer to: pickled with it"
_BY_DASK: Final = "what has a serializer of its own in Dask"


def _goes_whole(value: Any, mixed: bool) -> bool:
    """Whether pickle keeps what the others lose. ``mixed``: also for what of it the others can do."""
    cls = type(value)
    if cls not in _CONTAINERS:
        return _kind(cls) is _WHOLE and not _is_small_view(value)
    kinds: dict[type, str] = {}
    waiting, seen = [value], {id(value)}
    while waiting:
        container = waiting.pop()
        parts = list(container.values()) if type(container) is dict else container
        for cls in set(map(type, parts)).difference(kinds):
            kinds[cls] = _ATOM if cls in _CONTAINERS else _kind(cls)
            if kinds[cls] is _WHOLE and mixed:
                return True
        for part in parts:
            if type(part) in _CONTAINERS and id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)
    return _BY_DASK not in kinds.values()


def _kind(cls: type) -> str:
    if cls in _ATOMS:
        return _ATOM
    try:
        serializer = dask_serialize.dispatch(cls)
    except TypeError:
        return _WHOLE
    except Exception:  # what the library's serializers need cannot be imported
        return _BY_DASK
    return _WHOLE if _loses_something(serializer) else _BY_DASK


def _loses_something(serializer: Any) -> bool:
    """Whether it is one of those that Dask brings for torch and Keras: shared weights, attributes, gradients go."""
    if getattr(serializer, "__module__", None) in ("distributed.protocol.torch", "distributed.protocol.keras"):
        return True
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and isinstance(getattr(serializer, "__self__", None), ObjectDictSerializer)
        and serializer == dask_serialize.dispatch(torch.nn.Module)
    )


def _is_small_view(value: Any) -> bool:
    """Whether a tensor that comes alone shows a small part of its memory: Dask sends that part only, pickle all."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and type(value) is torch.Tensor
        and not value.__dict__
        and value.grad_fn is None
        and not value.requires_grad
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and not (value.is_quantized or value.is_conj() or value.is_neg())
        and value.dtype not in (torch.bfloat16, torch.complex32)
        and 2 * value.nbytes < value.untyped_storage().nbytes()
    )


# -- the family --------------------------------------------------------------------------------------------------------


def register_family() -> None:
    """Register the serialization family :data:`FAMILY` in this process, as :func:`install` does.

    It carries what has no serializer of its own in Dask, and torch modules and tensors, whole.
    """
    register_serialization_family(FAMILY, *_family()[:2])


def serializers() -> list[str]:
    """For ``Client(serializers=...)``: ours first, then Dask's. Every process needs the family (:func:`install_on`)."""
    return [FAMILY, "dask", "pickle", "msgpack", "error"]


def _family() -> tuple[Callable[..., Any], Callable[..., Any], bool]:
    return _family_dumps, pickle_loads, True


def _family_dumps(x: Any, context: Any = None) -> Any:
    cls = type(x)
    if cls not in _CONTAINERS and (_kind(cls) is _BY_DASK or _is_small_view(x)):
        raise NotImplementedError(cls.__qualname__)  # Dask then asks the next family
    frames: list[Any] = []
    protocol = (context or {}).get("pickle-protocol")
    data = dumps(x, buffer_callback=lambda buffer: frames.append(memoryview(buffer)), protocol=protocol)
    return {"writeable": tuple(not frame.readonly for frame in frames)}, [data, *frames]
