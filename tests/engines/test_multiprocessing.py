"""Worker processes of the standard library: what is sent there works there, what comes back works here."""

from __future__ import annotations

import sys

import pytest

from tests.helpers import run_python

METHODS = ("spawn", "forkserver", "fork")
every_method = pytest.mark.parametrize("method", METHODS)

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the scripts fork"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

#: What every script begins with.
HEAD = """
import multiprocessing, pickle, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of fork in a process with threads
import safepickle
METHOD = sys.argv[1]

def make():
    class Local:
        def __init__(self, factor):
            self.scale = lambda x: factor * x
            self.lock = threading.Lock()

    return Local(3)

def use(obj):
    assert obj.scale(14) == 42
    assert obj.lock.acquire(timeout=1)
    assert not obj.lock.acquire(blocking=False)
    obj.lock.release()
    return obj

def bad():
    return {"model": [threading.current_thread()]}
"""
INSTALL = """
    safepickle.install("multiprocessing")
    context = multiprocessing.get_context(METHOD)
"""


def script(body, method, *, define="", install=INSTALL, **options):
    """Run a script that installs the adapter inside of its main guard."""
    options.setdefault("timeout", 60)
    return run_python(
        f"{HEAD}\n{define}\nif __name__ == '__main__':\n{install}\n{body}", args=[method], **options
    )


# -- there and back ----------------------------------------------------------------------------------------------------


@every_method
def test_pool(method):
    assert script("""
    with context.Pool(2) as pool:
        for obj in pool.map(use, [make(), make()]):
            use(obj)
        print(pool.apply(lambda x: x + 1, (41,)))
    """, method) == "42\n"  # fmt: skip


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_executor(method):
    assert script("""
    from concurrent.futures import ProcessPoolExecutor
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        for obj in executor.map(use, [make(), make()]):
            use(obj)
        print(executor.submit(lambda x: x + 1, 41).result(30))
    """, method) == "42\n"  # fmt: skip


@every_method
def test_process_queue_and_pipe(method):
    define = """
def target(obj, tasks, results, connection, work):
    results.put(use(obj))
    results.put(work(use(tasks.get(timeout=30))))
    connection.send(use(connection.recv()))
"""
    assert script("""
    tasks, results = context.Queue(), context.Queue()
    ours, theirs = context.Pipe()
    outer = make()
    process = context.Process(target=target, args=(make(), tasks, results, theirs, lambda obj: [obj, outer]))
    process.start()
    tasks.put(make())
    use(results.get(timeout=30))
    for obj in results.get(timeout=30):
        use(obj)
    ours.send(make())
    use(ours.recv())
    process.join(30)
    print(process.exitcode)
    """, method, define=define) == "0\n"  # fmt: skip


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_manager(method):
    """Its process loads what it is sent and pickles it again."""
    define = """
def append(things):
    use(things[0])
    things.append(make())
"""
    assert script("""
    from multiprocessing.managers import SyncManager
    manager = SyncManager(ctx=context)
    manager.start()
    things = manager.list([make()])
    use(things[0])
    process = context.Process(target=append, args=(things,))
    process.start()
    process.join(30)
    use(things[1])
    print(process.exitcode, manager.dict(a=make())["a"].scale(1))
    manager.shutdown()
    """, method, define=define) == "0 3\n"  # fmt: skip


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_shared_memory_locks_and_values_stay_what_they_are(method):
    define = """
def target(work, block, lock, value, event, simple):
    with lock:
        value.value = work(block.buf[0])
        block.buf[1] = 9
    simple.put(make())
    event.set()
"""
    assert script("""
    from multiprocessing.shared_memory import SharedMemory
    block = SharedMemory(create=True, size=16)
    try:
        block.buf[0] = 41
        lock, value, event, simple = context.Lock(), context.Value("i", 0), context.Event(), context.SimpleQueue()
        process = context.Process(target=target, args=(lambda x: x + 1, block, lock, value, event, simple))
        process.start()
        use(simple.get())
        print(event.wait(30), value.value, block.buf[1])
        process.join(30)
    finally:
        block.close()
        block.unlink()
    """, method, define=define) == "True 42 9\n"  # fmt: skip


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_what_is_nested_too_deep_for_the_standard_library_goes_too(method):
    define = """
def depth(obj):
    levels = 0
    while obj:
        assert obj[1](1) == 2
        obj, levels = obj[0], levels + 1
    return levels

def deep(levels):
    obj, follow = [], lambda x: x + 1
    for _ in range(levels):
        obj = [obj, follow]
    return obj

def target(queue):
    queue.put(deep(20_000))
"""
    assert script("""
    with context.Pool(1) as pool:
        print(pool.apply(depth, (deep(20_000),)), depth(pool.apply(deep, (20_000,))))
    queue = context.Queue()
    process = context.Process(target=target, args=(queue,))
    process.start()
    print(depth(queue.get(timeout=30)))
    process.join(30)
    """, method, define=define) == "20000 20000\n20000\n"  # fmt: skip


# -- the main script ---------------------------------------------------------------------------------------------------

MAIN = """
SEEN = []

def remember(x):
    SEEN.append(x)
    return len(SEEN)

class Thing:
    made = 0
    def __init__(self):
        self.me = type(self)

def is_ours(thing):
    return type(thing) is Thing and thing.me is Thing and Thing.is_mine is remember

Thing.is_mine = remember
"""


@every_method
def test_functions_and_classes_of_the_script_go_by_name(method):
    """So that they see the worker's own globals, and a class is one class."""
    assert script("""
    with context.Pool(1) as pool:
        print([pool.apply(remember, (i,)) for i in range(3)], pool.apply(is_ours, (Thing(),)))
        print(type(pool.apply(Thing)) is Thing, pool.apply(same, (remember,)) is remember)
    """, method, define=MAIN + "def same(x):\n    assert x is remember\n    return x\n") == (
        "[1, 2, 3] True\nTrue True\n"
    )  # fmt: skip


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_without_a_script_that_runs_again_they_go_by_value(method):
    assert run_python(f"""
{HEAD}
safepickle.install("multiprocessing")
context = multiprocessing.get_context(METHOD)
FACTOR = 14
def work(x):
    return helper(x)
def helper(x):
    return FACTOR * x
class Thing:
    def __init__(self):
        self.x = work(3)
with context.Pool(1) as pool:
    print(pool.apply(work, (3,)), type(pool.apply(Thing)) is Thing)
    for obj in pool.map(use, [make(), make()]):
        use(obj)
from concurrent.futures import ProcessPoolExecutor
with ProcessPoolExecutor(1, mp_context=context) as executor:
    print(executor.submit(work, 3).result(30), executor.submit(Thing).result(30).x)
    """, args=[method], inline=True, timeout=60) == "42 True\n42 42\n"  # fmt: skip


def test_without_a_script_a_fork_has_what_is_in_main():
    """So nothing is sent again, and a function sees what an initializer has put there."""
    assert run_python(f"""
{HEAD}
safepickle.install("multiprocessing")
context = multiprocessing.get_context(METHOD)
class Unsendable:
    def __reduce__(self):
        raise TypeError("too large")
DATA = Unsendable()
def initialize(value):
    global STATE
    STATE = value
def work(x):
    assert type(DATA) is Unsendable
    return STATE + x
with context.Pool(1, initialize, (40,)) as pool:
    print(pool.apply(work, (2,)))
from concurrent.futures import ProcessPoolExecutor
with ProcessPoolExecutor(1, mp_context=context, initializer=initialize, initargs=(40,)) as executor:
    print(executor.submit(work, 2).result(30))
    """, args=["fork"], inline=True, timeout=60) == "42\n42\n"  # fmt: skip


def test_a_package_run_with_m_is_not_run_again(tmp_path):
    """``multiprocessing`` leaves a package's ``__main__`` alone: a name in it would lead nowhere."""
    package = tmp_path / "safepickle_test_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        HEAD + f"def work(x):\n    return x + 1\nif __name__ == '__main__':\n{INSTALL}\n"
        "    with context.Pool(1) as pool:\n        print(pool.apply(work, (41,)))\n"
    )
    assert run_python(
        "import runpy, sys\nsys.argv[1:] = ['spawn']\nrunpy._run_module_as_main('safepickle_test_package')",
        pythonpath=[tmp_path],
        timeout=60,
    ) == "42\n"


def test_a_module_run_with_m_is_run_again(tmp_path):
    (tmp_path / "safepickle_test_main.py").write_text(
        HEAD + MAIN + f"if __name__ == '__main__':\n{INSTALL}\n"
        "    with context.Pool(1) as pool:\n        print([pool.apply(remember, (1,)) for _ in range(2)])\n"
    )
    assert run_python(
        "import runpy, sys\nsys.argv[1:] = ['spawn']\nrunpy._run_module_as_main('safepickle_test_main')",
        pythonpath=[tmp_path],
        timeout=60,
    ) == "[1, 2]\n"


# -- failures are errors where somebody waits --------------------------------------------------------------------------

QUEUE = """
def target(queue):
    queue.put(1)
    queue.put(bad())
    queue.put(3)
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_what_a_worker_cannot_put_on_a_queue_raises_at_get(method):
    printed = script("""
    queue = context.Queue()
    process = context.Process(target=target, args=(queue,), name="the sender")
    process.start()
    print(queue.get(timeout=30))
    try:
        queue.get(timeout=30)
    except pickle.PicklingError as error:
        print(error.path, "threading" in error.type_name, "'the sender'" in str(error))
        print("Traceback" in error.__notes__[0])
    print(queue.get(timeout=30))
    process.join(30)
    """, method, define=QUEUE)  # fmt: skip
    assert printed == "1\nobj['model'][0] True True\nTrue\n3\n"


def test_what_the_parent_cannot_put_on_a_queue_raises_in_the_worker():
    define = """
def target(tasks, results):
    try:
        tasks.get(timeout=30)
    except pickle.PicklingError as error:
        results.put(error)
"""
    assert script("""
    tasks, results = context.Queue(), context.Queue()
    process = context.Process(target=target, args=(tasks, results))
    process.start()
    tasks.put(bad())
    print(results.get(timeout=30).path)
    process.join(30)
    """, "spawn", define=define) == "obj['model'][0]\n"  # fmt: skip


def test_errors_on_a_queue_of_limited_size_take_the_place_of_their_items():
    define = """
def target(queue):
    for i in range(6):
        queue.put(bad() if i % 2 else i)
"""
    assert script("""
    queue = context.JoinableQueue(1)
    process = context.Process(target=target, args=(queue,))
    process.start()
    for i in range(6):
        try:
            print(queue.get(timeout=30), end=" ")
        except pickle.PicklingError:
            print("error", end=" ")
        queue.task_done()
    queue.join()
    process.join(30)
    print(process.exitcode, queue._sem.get_value() if sys.platform != "darwin" else 1)
    """, "spawn", define=define) == "0 error 2 error 4 error 0 1\n"  # fmt: skip


def test_errors_that_are_no_pickling_errors_arrive_too():
    define = """
class Endless:
    def __reduce__(self):
        return Endless, ([Endless()],)

class Refuses:
    def __getstate__(self):
        raise ZeroDivisionError("no state")

def target(queue):
    queue.put(Refuses())
    queue.put(Endless())
"""
    assert script("""
    queue = context.Queue()
    process = context.Process(target=target, args=(queue,))
    process.start()
    for word in ("no state", "RecursionError"):
        try:
            queue.get(timeout=30)
        except pickle.PicklingError as error:
            print(word in str(error))
    process.join(30)
    """, "spawn", define=define) == "True\nTrue\n"  # fmt: skip


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_the_error_of_an_executor_names_the_path(method):
    printed = script("""
    from concurrent.futures import ProcessPoolExecutor
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        for future in (executor.submit(use, bad()), executor.submit(bad)):
            try:
                future.result(30)
            except pickle.PicklingError as error:
                print("['model'][0]" in str(error))
        print(executor.submit(len, "abc").result(30))
    """, method)  # fmt: skip
    assert printed == "True\nTrue\n3\n"


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_the_error_of_a_pool_names_the_path(method):
    printed = script("""
    with context.Pool(1) as pool:
        for result in (pool.apply_async(use, (bad(),)), pool.apply_async(bad)):
            try:
                result.get(30)
            except Exception as error:
                print(type(error).__name__, "['model'][0]" in str(error))
        print(pool.apply(len, ("abc",)))
    """, method)  # fmt: skip
    assert printed == "PicklingError True\nMaybeEncodingError True\n3\n"


@pytest.mark.parametrize("method", ["spawn"])
def test_a_task_that_the_worker_of_a_pool_cannot_load_is_an_error(method):
    """In the standard library the worker dies of it, and ``map`` waits for ever."""
    printed = script("""
    def only_here(x):
        return x
    with context.Pool(1) as pool:
        for result in (pool.apply_async(only_here, (1,)), pool.map_async(only_here, [1, 2])):
            try:
                result.get(30)
            except AttributeError as error:
                print("only_here" in str(error))
        print(pool.map(len, ["abc"]))
    """, method)  # fmt: skip
    assert printed == "True\nTrue\n[3]\n"


def test_a_result_of_a_pool_that_the_parent_cannot_load_is_an_error():
    define = """
class Refuses:
    def __reduce__(self):
        return refuse, ("here",)

def refuse(where):
    raise ValueError(f"not {where}")
"""
    printed = script("""
    with context.Pool(1) as pool:
        for result in (pool.apply_async(Refuses), pool.map_async(len, ["a"])):
            try:
                print(result.get(30))
            except ValueError as error:
                print(error)
    """, "spawn", define=define)  # fmt: skip
    assert printed == "not here\n[1]\n"


def test_pools_of_threads_are_as_before():
    assert script("""
    from multiprocessing.pool import ThreadPool
    with ThreadPool(2) as pool:
        lock = threading.Lock()
        print(pool.map(abs, [-1, 2]), pool.apply(lambda: lock) is lock)
    """, "spawn") == "[1, 2] True\n"  # fmt: skip


def test_a_process_that_cannot_be_started_names_the_path():
    assert script("""
    try:
        context.Process(target=use, args=(bad(),)).start()
    except pickle.PicklingError as error:
        print(error.path)
    process = context.Process(target=use, args=(make(),))
    process.start()
    process.join(30)
    print(process.exitcode)
    """, "spawn") == "obj._args[0]['model'][0]\n0\n"  # fmt: skip


def test_an_exception_with_arguments_of_its_own_comes_back():
    """Loading it as the standard library does raises in the thread that waits for results, and nobody gets any."""
    define = """
class Fault(Exception):
    def __init__(self, code, *, reason):
        super().__init__(f"{code}: {reason}")
        self.code = code

def fail():
    raise Fault(7, reason="broken")
"""
    printed = script("""
    with context.Pool(1) as pool:
        try:
            pool.apply_async(fail).get(30)
        except Fault as error:
            print(error, error.code)
    """, "spawn", define=define)  # fmt: skip
    assert printed == "7: broken 7\n"


def test_a_worker_that_dies_breaks_an_executor():
    define = "import os\ndef die():\n    os._exit(3)\n"
    assert script("""
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        try:
            executor.submit(die).result(30)
        except BrokenProcessPool:
            print("broken")
    """, "spawn", define=define) == "broken\n"  # fmt: skip


# -- in the workers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["forkserver"])
def test_workers_have_what_their_parent_has_until_it_is_taken_back(method):
    assert script("""
    for name in ("joblib", "torch.distributed"):  # these wait for their import
        safepickle.install(name)
    with context.Pool(1) as pool:
        print(pool.apply(asked_for), pool.apply(is_adopted))
    safepickle.uninstall()
    with context.Pool(1) as pool:
        print(pool.apply(asked_for), pool.apply(is_adopted))
    """, method, define="""
from safepickle.installation import asked_for
def is_adopted():
    from multiprocessing.reduction import ForkingPickler
    return hasattr(ForkingPickler, "reducer_override")
""") == "('joblib', 'multiprocessing', 'torch.distributed') True\n() False\n"  # fmt: skip


def test_an_initializer_installs_in_workers_of_a_parent_that_has_not():
    assert script("""
    from concurrent.futures import ProcessPoolExecutor
    with ProcessPoolExecutor(1, mp_context=context, initializer=safepickle.install_worker) as executor:
        print(executor.submit(make).result(30).scale(14))
    from multiprocessing.managers import SyncManager
    manager = SyncManager(ctx=context)
    manager.start(initializer=safepickle.install_worker)
    print(manager.Queue().qsize())
    manager.shutdown()
    """, "spawn", install="    context = multiprocessing.get_context(METHOD)") == "42\n0\n"  # fmt: skip


def test_a_process_class_with_a_way_of_its_own_to_be_pickled_is_left_alone():
    define = """
class Own(multiprocessing.context.SpawnProcess):
    def __setstate__(self, state):
        assert not any("safepickle" in key for key in state)
        self.__dict__.update(state)

    def run(self):
        safepickle.install_worker()
        use(self.obj)
"""
    assert script("""
    process = Own()
    process.obj = make()
    process.start()
    process.join(30)
    print(process.exitcode)
    """, "spawn", define=define) == "0\n"  # fmt: skip


# -- taken back --------------------------------------------------------------------------------------------------------


def test_installing_before_multiprocessing_is_imported():
    assert run_python("""
        import sys
        import safepickle
        installation = safepickle.install("multiprocessing")
        print("multiprocessing" in sys.modules, installation.waiting)
        import concurrent.futures.process
        from multiprocessing.reduction import ForkingPickler
        import pickle
        print(installation.waiting, pickle.loads(ForkingPickler.dumps(lambda: 42))())
    """) == "False ('multiprocessing',)\n() 42\n"  # fmt: skip


def test_uninstalling_puts_everything_back():
    assert script("""
    import multiprocessing.queues, multiprocessing.pool, multiprocessing.process
    from safepickle.changes import Changes
    from safepickle.engines import multiprocessing as engine
    from multiprocessing.reduction import ForkingPickler
    places = [ForkingPickler, multiprocessing.queues.Queue, multiprocessing.pool.Pool, multiprocessing.pool,
              multiprocessing.process.BaseProcess]
    before = [dict(vars(place)) for place in places]
    changes = Changes()
    engine.install(changes)
    engine.install(changes)
    print(len(changes), [dict(vars(place)) == names for place, names in zip(places, before)])
    print(changes.undo(), [dict(vars(place)) == names for place, names in zip(places, before)])
    try:
        ForkingPickler.dumps(make())
    except Exception:
        print("as before")
    """, "spawn", install="") == (
        "7 [False, False, False, False, False]\n[] [True, True, True, True, True]\nas before\n"
    )  # fmt: skip
