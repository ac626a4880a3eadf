"""torch.multiprocessing and the workers of a DataLoader: weights stay in shared memory, and failures are errors."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.helpers import run_python

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform == "win32", reason="the scripts use file descriptors"),
]

HEAD = """
import pickle, sys, threading
import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset, IterableDataset
import safepickle
from tests.engines.payloads import check, check_and_return, make
METHOD = sys.argv[1]
"""
INSTALL = """
    safepickle.install("multiprocessing")
    context = torch.multiprocessing.get_context(METHOD)
    context.set_forkserver_preload(["tests.engines.payloads"])  # which saves each worker the import of torch
"""
started_anew = pytest.mark.parametrize("method", ["spawn", "forkserver"])


def script(body, method, *, define="", install=INSTALL):
    code = f"{HEAD}\n{define}\nif __name__ == '__main__':\n{install}\n{body}"
    return run_python(code, args=[method], env={"OMP_NUM_THREADS": "1"}, timeout=120)


@started_anew
def test_modules_travel_with_their_weights_in_shared_memory(method):
    define = """
def work(arriving, leaving, scale):
    for _ in range(4):
        payload = arriving.get(timeout=60)
        check(payload)
        weights = payload["base"] if isinstance(payload, dict) else payload.linear.weight.data
        assert weights.is_shared()
        weights[0] = scale(weights[0])
        leaving.put(payload)
    assert arriving.get(timeout=60) is None  # whoever sends tensors lives until they have arrived

NAMES = ["kernel", "lambda", "lock", "small"]
"""
    assert script("""
    arriving, leaving = context.Queue(), context.Queue()
    process = context.Process(target=work, args=(arriving, leaving, lambda x: 0 * x + 7.0))
    process.start()
    for name in NAMES:
        payload = make(name)
        weights = payload["base"] if isinstance(payload, dict) else payload.linear.weight.data
        arriving.put(payload)
        back = leaving.get(timeout=60)
        assert weights.is_shared()  # moved there when they were sent
        assert weights[0].max() == 7.0 == weights[0].min()  # what the worker wrote is here
        if not isinstance(back, dict):
            assert back.linear.weight.is_shared()
            check(back)
    arriving.put(None)
    process.join(60)
    print(process.exitcode)
    """, method, define=define) == "0\n"  # fmt: skip


def test_spawn_takes_a_local_function_and_a_module():
    define = """
def target(index, work, payload, results):
    check(payload)
    results.put((index, work(index)))
"""
    assert script("""
    results = context.SimpleQueue()
    torch.multiprocessing.spawn(target, (lambda i: 10 * (i + 1), make("kernel"), results), nprocs=1, join=True)
    print(results.get())
    """, "spawn", define=define) == "(0, 10)\n"  # fmt: skip


DATA = """
class Data(Dataset):
    def __init__(self, kind="tensors"):
        self.kind, self.lock, self.scale = kind, threading.Lock(), lambda x: 2.0 * x

    def __len__(self):
        return 6

    def __getitem__(self, i):
        with self.lock:
            value = self.scale(torch.full((2,), float(i)))
        if self.kind == "bad" and i == 3:
            return {"x": value, "who": [threading.current_thread()]}
        return make("kernel") if self.kind == "kernels" else value

def sums(loader):
    return [batch.sum().item() for batch in loader]
"""


@started_anew
def test_a_loader_takes_lambdas_and_its_items_hold_kernels(method):
    assert script("""
    loader = DataLoader(Data(), batch_size=2, num_workers=1, multiprocessing_context=METHOD, persistent_workers=True,
                        collate_fn=lambda batch: torch.stack(batch) + 1, worker_init_fn=safepickle.install_worker)
    print(sums(loader), sums(loader))
    batch = next(iter(loader))
    print(batch.is_shared())
    del loader
    loader = DataLoader(Data("kernels"), batch_size=None, num_workers=1, multiprocessing_context=METHOD)
    print([check(item) for item in loader])
    """, method, define=DATA) == (
        "[8.0, 24.0, 40.0] [8.0, 24.0, 40.0]\nTrue\n" + str(["kernel"] * 6) + "\n"
    )  # fmt: skip


def test_an_item_that_cannot_be_sent_raises_in_the_loop_which_can_go_on():
    """Today the loop waits for ever, unless the loader has a timeout."""
    assert script("""
    loader = DataLoader(Data("bad"), batch_size=None, num_workers=1, multiprocessing_context=METHOD,
                        collate_fn=lambda item: item)
    items, arrived = iter(loader), []
    while True:
        try:
            arrived.append(next(items)[0].item())
        except StopIteration:
            break
        except pickle.PicklingError as error:
            arrived.append("obj[1]['who'][0]" in str(error) and "worker process 0" in str(error))
    print(arrived)
    """, "forkserver", define=DATA) == "[0.0, 2.0, 4.0, True, 8.0, 10.0]\n"  # fmt: skip


def test_an_error_in_the_forked_workers_of_an_iterable_dataset():
    define = """
class Stream(IterableDataset):
    def __iter__(self):
        yield torch.ones(1)
        yield threading.current_thread()
"""
    assert script("""
    loader = DataLoader(Stream(), batch_size=None, num_workers=1, multiprocessing_context=METHOD)
    items = iter(loader)
    print(next(items).item())
    try:
        next(items)
    except pickle.PicklingError as error:
        print("obj[1]" in str(error))
    """, "fork", define=define) == "1.0\nTrue\n"  # fmt: skip


def test_a_script_gives_its_kernels_to_workers_by_name():
    """So that a worker compiles its own kernel once, and not one for each task."""
    define = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import triton, triton.language as tl

@triton.jit
def fill_kernel(x_ptr, value, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, value, mask=offsets < n)

def run(kernel):
    assert kernel is fill_kernel
    x = torch.zeros(4)
    kernel[(1,)](x, 3.0, 4, BLOCK=4)
    return x.tolist(), kernel
"""
    assert script("""
    with context.Pool(1) as pool:
        values, kernel = pool.apply(run, (fill_kernel,))
        print(values, kernel is fill_kernel)
    """, "spawn", define=define) == "[3.0, 3.0, 3.0, 3.0] True\n"  # fmt: skip
