"""Does the code of torch, Triton and TensorFlow that pickles and copies use the rules once safepickle is installed?

Each test is a process of its own, in which safepickle is installed before the library is imported: its types follow.
"""

from __future__ import annotations

import importlib.util
import shutil
import textwrap

import pytest

from .helpers import run_python

pytestmark = pytest.mark.timeout(300)


def needs(*names):
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


BEGIN = """
import copy, io, pickle, sys, threading
import safepickle
made = safepickle.install()
assert not {"torch", "triton", "tensorflow"} & sys.modules.keys()
"""


def run(code, *, timeout=240, **options):
    return run_python(BEGIN + textwrap.dedent(code), timeout=timeout, **options)


@needs("torch", "triton")
def test_modules_with_kernels_and_locks_go_through_torchs_own_ways():
    run("""
        from tests.engines import payloads
        import torch
        for make in (payloads.Kernel, payloads.Lock):
            module = make()
            payloads.check(copy.deepcopy(module))
            payloads.check(torch.optim.swa_utils.AveragedModel(module).module)
            for clone in torch.nn.modules.transformer._get_clones(module, 2):
                payloads.check(clone)
            for protocol in (2, 4, 5):
                payloads.check(pickle.loads(pickle.dumps(module, protocol)))
            for new_format in (True, False):
                file = io.BytesIO()
                torch.save(module, file, _use_new_zipfile_serialization=new_format)
                file.seek(0)
                payloads.check(torch.load(file, weights_only=False))
    """)


@needs("triton")
def test_a_kernel_of_an_imported_module_is_a_bare_name_and_one_of_a_script_as_well():
    run("""
        import pickletools
        import triton, triton.language as tl
        from tests.engines.payloads import compiled_kernel
        @triton.jit
        def own_kernel(x_ptr, n, BLOCK: tl.constexpr):
            tl.store(x_ptr, n)
        @triton.autotune([triton.Config({"BLOCK": 32})], key=["n"])
        @triton.jit
        def tuned(x_ptr, n, BLOCK: tl.constexpr):
            tl.store(x_ptr, n)
        for kernel, module in ((compiled_kernel, "tests.engines.payloads"), (own_kernel, "__main__")):
            data = pickle.dumps(kernel)
            assert pickle.loads(data) is kernel
            strings = [argument for _, argument, _ in pickletools.genops(data) if isinstance(argument, str)]
            assert strings == [module, kernel.__name__], strings
            assert copy.deepcopy(kernel) is copy.copy(kernel) is kernel
        assert pickle.loads(pickle.dumps([tuned, tuned.fn])) == [tuned, tuned.fn]
        assert copy.deepcopy(tuned) is tuned
    """)


@needs("torch", "triton")
def test_kernels_that_inductor_has_emptied_are_pickled_and_copied_by_value_as_before():
    run("""
        import torch
        from tests.fixtures.kernels import factories
        kernel = factories.make_generated()
        for name in ("fn", "__globals__", "used_global_vals", "repr", "_hash_lock"):
            setattr(kernel, name, None)  # as CachingAutotuner.prepare_for_pickle does
        emptied = [pickle.loads(pickle.dumps(kernel)), copy.deepcopy(kernel), copy.copy(kernel)]
        safepickle.uninstall()
        as_before = [pickle.loads(pickle.dumps(kernel)), copy.deepcopy(kernel), copy.copy(kernel)]
        for ours, theirs in zip(emptied, as_before):
            assert type(ours) is type(theirs) and ours is not kernel and ours.fn is None
            assert vars(ours).keys() == vars(theirs).keys() and ours.src == theirs.src
    """)


@needs("torch")
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler")
def test_compiled_modules_are_compiled_cached_and_exported(tmp_path):
    code = """
        import torch
        from torch._dynamo.utils import counters
        class Net(torch.nn.Module):
            def forward(self, x):
                return torch.relu(x) + 1
        x = torch.ones(3)
        assert torch.compile(Net())(x).tolist() == [2, 2, 2]
        print(counters["inductor"]["fxgraph_cache_hit"])
        file = io.BytesIO()
        torch.export.save(torch.export.export(Net(), (x,)), file)
        file.seek(0)
        assert torch.export.load(file).module()(x).tolist() == [2, 2, 2]
    """
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path)}
    assert run(code, env=env) == "0\n"
    assert run(code, env=env) == "1\n", "what was compiled in one process is not found in the next"


@needs("torch")
def test_tensors_go_as_they_did():
    run("""
        import torch
        from multiprocessing.reduction import ForkingPickler
        import torch.multiprocessing
        weight = torch.nn.Parameter(torch.ones(1000))
        tensor = torch.ones(1000)
        for part in (tensor, weight, tensor.untyped_storage()):
            assert type(part) not in __import__("copyreg").dispatch_table
            back = pickle.loads(bytes(ForkingPickler.dumps(part)))
            assert part.is_shared() and back.is_shared()
        file = io.BytesIO()
        torch.save({"rows": tensor, "view": tensor[5:]}, file)
        file.seek(0)
        back = torch.load(file, weights_only=True)
        assert back["rows"].untyped_storage().data_ptr() == back["view"].untyped_storage().data_ptr()
        assert torch.load(io.BytesIO(file.getvalue()), weights_only=True)["rows"].sum() == 1000
    """)


@needs("torch", "triton")
def test_what_plain_pickle_can_write_of_torch_and_triton_is_written_as_before():
    run("""
        import torch, triton
        module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        graph = torch.fx.symbolic_trace(module)
        module(torch.ones(1, 2)).sum().backward()
        optimizer = torch.optim.Adam(module.parameters())
        optimizer.step()
        samples = [
            module, graph, graph.graph, optimizer, torch.channels_last, torch.float32, torch.Size([1]),
            torch.distributions.Normal(0.0, 1.0), torch.distributions.transforms.ExpTransform(),
            triton.Config({"BLOCK": 32}), triton.language.constexpr(3), torch.nn.functional.relu, torch.device("cpu"),
        ]
        during = [pickle.dumps(sample) for sample in samples]
        made.uninstall()
        for sample, data in zip(samples, during):
            assert b"safepickle" not in data, sample
            assert pickle.dumps(sample) == data, sample
    """)


@needs("tensorflow")
def test_what_plain_pickle_can_write_of_tensorflow_is_written_as_before():
    run("""
        import tensorflow as tf
        module = tf.Module()
        module.table, module.rows = {"a": 1}, [1, 2]
        samples = [
            tf.Variable([1.0]), tf.constant(1.0), module, tf.TensorSpec([1]), tf.float32, tf.ragged.constant([[1]]),
        ]
        during = [pickle.dumps(sample) for sample in samples]
        for sample, data in zip(samples, during):
            assert b"safepickle" not in data, sample
            pickle.loads(data)
    """, env={"TF_CPP_MIN_LOG_LEVEL": "3"})


@needs("torch")
def test_the_table_that_torch_rpc_has_copied_follows_and_its_own_entries_stay():
    run("""
        import torch.distributed.rpc.internal as internal
        import torch
        table = internal._internal_rpc_pickler._dispatch_table
        class Point:
            pass
        safepickle.register(Point, lambda point: (dict, ()))
        payload, tensors = internal.serialize({"lock": threading.Lock(), "tensor": torch.ones(2), "point": Point()})
        assert len(tensors) == 1
        back = internal.deserialize(payload, tensors)
        assert back["lock"].acquire(blocking=False) and back["point"] == {} and back["tensor"].sum() == 2
        own = table[torch.Tensor]
        safepickle.uninstall()
        assert type(threading.Lock()) not in table and Point not in table and table[torch.Tensor] is own
    """)


@needs("torch", "cloudpickle", "dill", "triton")
def test_other_picklers_that_ask_copyreg_have_the_rules_too():
    run("""
        import torch, cloudpickle
        from tests.engines import payloads
        for make in (payloads.Kernel, payloads.Lock, payloads.Lambda):
            payloads.check(pickle.loads(cloudpickle.dumps(make())))
        import dill  # which has its own way with locks
        assert dill.loads(dill.dumps(payloads.compiled_kernel)) is payloads.compiled_kernel
    """)


@needs("tensorflow")
def test_functions_variables_and_datasets_of_tensorflow_are_pickled_and_copied():
    run("""
        import tensorflow as tf
        class Model(tf.Module):
            def __init__(self):
                self.v = tf.Variable(2.0)
                self.tied = self.v
                self.lock = threading.Lock()
                self.rows = tf.data.Dataset.range(3)
            @tf.function
            def __call__(self, x):
                return self.v * x
        @tf.function
        def increment(x):
            return x + 1
        model = Model()
        one = tf.constant(1.0)
        assert float(model(one)) == 2
        twin = copy.deepcopy(model)
        twin.v.assign(5.0)
        assert float(twin(one)) == 5 and float(model(one)) == 2 and twin.tied is twin.v
        assert twin.lock.acquire(blocking=False) and [int(row) for row in twin.rows] == [0, 1, 2]
        back = pickle.loads(pickle.dumps(model))
        assert float(back(one)) == 2 and back.tied is back.v and back.lock.acquire(blocking=False)
        assert pickle.loads(pickle.dumps(increment)) is increment
        assert float(copy.deepcopy(increment)(one)) == 2
    """, env={"TF_CPP_MIN_LOG_LEVEL": "3"})


@needs("tensorflow", "keras")
def test_keras_models_go_as_keras_says():
    run("""
        import keras, numpy
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)])
        model.compile("sgd", "mse")
        x, y = numpy.ones((4, 3)), numpy.ones((4, 2))
        model.fit(x, y, verbose=0)
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert numpy.allclose(twin.predict(x, verbose=0), model.predict(x, verbose=0))
            twin.fit(x, y, verbose=0)
            assert not numpy.allclose(twin.predict(x, verbose=0), model.predict(x, verbose=0))
    """, env={"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"})
