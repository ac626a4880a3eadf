"""How do objects get to worker processes of ``multiprocessing`` and ``concurrent.futures``, and what if they cannot?

:func:`install` changes, in this process and in those that it starts from then on:

- ``ForkingPickler``: our rules apply, but not to what multiprocessing, torch and others have registered there (pipes,
  semaphores, tensors in shared memory). Functions and classes of a script's ``__main__`` go by name, as always, because
  workers run the script again; where they do not (a notebook, ``python -c``) by value.
- ``Queue``: what cannot be pickled raises where somebody waits for it, in ``get()``; a ``DataLoader`` raises it in the
  loop. The standard library prints a traceback in the sender and drops the item, so that the receiver waits for ever.
- ``Pool``: a task that a worker cannot load, and a result that the parent cannot load, are errors of that task. In the
  standard library either makes ``map`` wait for ever.
"""

from __future__ import annotations

import functools
import io
import multiprocessing
import multiprocessing.context
import multiprocessing.pool
import multiprocessing.process
import multiprocessing.queues
import os
import pickle
import sys
import threading
import traceback
import types
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

from .. import restore
from ..changes import Changes
from ..errors import PicklingError, with_note
from ..installation import asked_for
from . import foreign_picklers

__all__ = ["install", "main_is_there"]

ENGINE: Final = "multiprocessing"


def install(changes: Changes) -> None:
    """Change multiprocessing in this process."""
    foreign_picklers.adopt(
        changes,
        ENGINE,
        ForkingPickler,
        where="multiprocessing.reduction.ForkingPickler",
        # What is registered for methods there is for everybody's, and takes no lambda.
        ours_first=frozenset({types.MethodType}),
        main=main_is_there,
    )
    queue, pool, process = multiprocessing.queues.Queue, multiprocessing.pool, multiprocessing.process.BaseProcess
    for owner, name, wrap in (
        (queue, "_feed", _feed),
        (ForkingPickler, "dumps", _dumps),
        (pool, "worker", _pool_worker),
        (pool.Pool, "_setup_queues", _set_up_pool),
        (process, "__reduce_ex__", _reduce_process),
    ):
        if not hasattr(vars(owner).get(name), "_safepickle_wraps"):
            where = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
            changes.set_attribute(ENGINE, owner, name, _wrapped(owner, name, wrap), where=f"{where}.{name}")


def _wrapped(owner: Any, name: str, wrap: Callable[..., Any]) -> Any:
    """A function in the place of another one, which it gets as its first argument."""
    theirs = getattr(owner, name)
    kind = type(vars(owner).get(name))

    @functools.wraps(theirs)
    def function(*args: Any, **kwargs: Any) -> Any:
        return wrap(theirs, *args, **kwargs)

    made: Any = kind(function) if kind in (staticmethod, classmethod) else function
    made._safepickle_wraps = theirs
    return made


# -- whose __main__ ----------------------------------------------------------------------------------------------------


def main_is_there() -> bool:
    """Whether the processes that are written for have this ``__main__``: they run it again, or are forks."""
    if _main_is_run_again():
        return True
    if multiprocessing.context.get_spawning_popen() is not None:
        return False  # a process is being started by other means than a fork
    methods = {_start_method(child) for child in list(multiprocessing.process._children)}  # type: ignore[attr-defined]
    if methods:
        return methods == {"fork"}
    if multiprocessing.process.parent_process() is not None:
        return True  # what is found in __main__ has come from the parent with it
    return multiprocessing.get_start_method(allow_none=True) in ("fork", None) and _FORK_IS_DEFAULT


def _main_is_run_again() -> bool:
    """Whether spawned processes run the main script again, as ``multiprocessing.spawn`` decides it."""
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        return name != "__main__" and not name.endswith(".__main__")
    file = getattr(main, "__file__", None)
    return isinstance(file, str) and os.path.splitext(os.path.basename(file))[0] != "ipython"


_FORK_IS_DEFAULT: Final = multiprocessing.get_all_start_methods()[0] == "fork"


def _start_method(child: Any) -> str | None:
    return getattr(child._popen, "method", None)


# -- processes that are started ----------------------------------------------------------------------------------------


class _Installed:
    """Stands, in what a process is started with, for the same changes there: a fork would have them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return restore.install_in_worker, tuple(sorted({ENGINE, *asked_for()}))


def _reduce_process(theirs: Callable[..., Any], process: Any, protocol: Any) -> Any:
    """A process that is being started brings these changes along; first of all, they are needed to load the rest."""
    reduced = theirs(process, protocol)
    if multiprocessing.context.get_spawning_popen() is None or not isinstance(reduced, tuple) or len(reduced) < 3:
        return reduced
    state = reduced[2]
    if type(state) is not dict or hasattr(type(process), "__setstate__"):  # which may expect its own keys
        return reduced
    return (*reduced[:2], {"_safepickle": _Installed(), **state}, *reduced[3:])


# -- queues ------------------------------------------------------------------------------------------------------------


class _Unsent:
    """Goes in the place of what could not be pickled; loading it raises the error."""

    def __init__(self, error: PicklingError) -> None:
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return restore.raise_error, (self.error,)


class _State(threading.local):
    """What this thread is at.

    Attributes:
        feeds: it feeds a queue, and nobody but the receiver can be told of an error.
        deep: it pickles something that is nested too deep for the C pickler.
    """

    feeds = False
    deep = False


_state: Final = _State()


def _feed(theirs: Callable[..., Any], *arguments: Any) -> Any:
    """The thread that feeds a queue."""
    on_error = arguments[-2]  # that of an executor fails the future
    _state.feeds = on_error is multiprocessing.queues.Queue._on_queue_feeder_error  # type: ignore[attr-defined]
    return theirs(*arguments)


def _dumps(theirs: Any, cls: type, obj: Any, protocol: int | None = None) -> Any:
    """The pickle of an object; in the thread of a queue, of the error if there is one.

    The thread itself would drop the item, and all that follow if its process is about to end.
    """
    if not _state.feeds:
        return _at_any_depth(theirs, cls, obj, protocol)
    _state.feeds = False
    try:
        return _at_any_depth(theirs, cls, obj, protocol)
    except Exception as error:
        return _instead_of(obj, error)
    finally:
        _state.feeds = True


def _at_any_depth(theirs: Any, cls: Any, obj: Any, protocol: int | None) -> Any:
    """The pickle of an object; of one that is nested too deep for the C pickler by a slower one."""
    try:
        return theirs.__func__(cls, obj, protocol)
    except RecursionError:
        if _state.deep:  # a reducer that calls this for its parts: one attempt is enough
            raise
    file = io.BytesIO()
    _state.deep = True
    try:
        foreign_picklers.dump_deeply(
            cls(file, protocol), obj, file, pickle.DEFAULT_PROTOCOL if protocol is None else protocol
        )
    finally:
        _state.deep = False
    return file.getbuffer()


def _instead_of(item: Any, error: BaseException) -> Any:
    """The pickle of what the receiver gets instead of an item."""
    unsent = _error_of_sender(error)
    loader = sys.modules.get("torch.utils.data._utils.worker")
    info = None if loader is None else loader.get_worker_info()
    if info is not None and isinstance(item, tuple) and len(item) == 2 and type(item[0]) is int:
        # As the worker of a DataLoader says it, whose loop can then go on with the next one.
        wrapper = sys.modules["torch._utils"].ExceptionWrapper(
            (type(unsent), unsent, None), where=f"in DataLoader worker process {info.id}"
        )
        return ForkingPickler.dumps((item[0], wrapper))
    return ForkingPickler.dumps(_Unsent(unsent))


def _error_of_sender(error: BaseException) -> PicklingError:
    """An error that can be sent, with what is known of the first one."""
    said = str(error) if isinstance(error, pickle.PickleError) else f"{type(error).__name__}: {error}"
    process = multiprocessing.current_process()
    made = PicklingError(f"{said}\n(an item that process {process.name!r}, pid {os.getpid()}, has put on a queue)")
    for name in ("path", "type_name", "reason", "hint"):
        setattr(made, name, getattr(error, name, None))
    cause = error.__cause__ or error
    text = "".join(traceback.format_exception(type(cause), cause, cause.__traceback__))
    with_note(made, f"In the process that sent it:\n{text}")
    return made


# -- pools -------------------------------------------------------------------------------------------------------------


def _pool_worker(theirs: Callable[..., Any], tasks: Any, *arguments: Any, **options: Any) -> Any:
    in_process = hasattr(tasks, "_reader")  # the threads of a ThreadPool have a queue without a pipe
    return theirs(_Tasks(tasks) if in_process else tasks, *arguments, **options)


class _Tasks:
    """The queue of a pool's tasks, whose ``get`` returns one that fails in the place of one that does not load."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def get(self) -> Any:
        """The next task, or ``None``."""
        with self._queue._rlock:
            data = self._queue._reader.recv_bytes()
        return _loaded(data, lambda error: (_fail, (error,), {}))


def _fail(error: Exception) -> Any:
    raise error


def _set_up_pool(theirs: Callable[..., Any], pool: Any) -> Any:
    """Also make results that do not load into failures of their tasks."""
    theirs(pool)
    receive = pool._outqueue._reader.recv_bytes

    pool._quick_get = lambda: _loaded(receive(), lambda error: ((False, error),))


def _loaded(data: bytes, failed: Callable[[Exception], tuple[Any, ...]]) -> Any:
    """A message of a pool; for one that does not load, its numbers and what says so to whoever waits for it."""
    try:
        return ForkingPickler.loads(data)
    except Exception as error:
        number = _number_of(data)
        if number is None:
            raise
        return (*number, *failed(error))


def _number_of(data: bytes) -> tuple[int, int | None] | None:
    """The numbers of job and task in a pickle that does not load, read without loading anything else of it."""
    try:
        found = _Numbers(io.BytesIO(data)).load()
    except Exception:
        return None
    if not isinstance(found, tuple) or len(found) < 3 or type(found[0]) is not int:
        return None
    return found[0], found[1] if type(found[1]) is int else None


class _Nothing:
    """Whatever is asked of it."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        pass

    def __setstate__(self, _state: Any) -> None:
        pass

    def __setitem__(self, _key: Any, _value: Any) -> None:
        pass

    def __call__(self, *_arguments: Any, **_options: Any) -> _Nothing:
        return self

    def append(self, _value: Any) -> None:
        """As a list would."""

    def extend(self, _values: Any) -> None:
        """As a list would."""

    def add(self, _value: Any) -> None:
        """As a set would."""


class _Numbers(pickle.Unpickler):
    """Reads numbers and builtin containers, and nothing else."""

    def find_class(self, _module: str, _name: str) -> Any:
        return _Nothing
