"""Checkpoints: what each library saves with us is used in a process that has not seen it; plain files stay plain."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import torch.distributed.checkpoint as dcp

import safepickle
from safepickle.engines.torch_checkpoint import LoadPlanner, SavePlanner
from tests.engines import payloads
from tests.helpers import run_python

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:Attribute 'module' is an instance"),
]

KINDS = ("kernel", "lambda", "lock")

each_kind = pytest.mark.parametrize("kind", KINDS)


def plain_state():
    """What most checkpoints hold: weights, an optimizer's state after a step, numbers and names."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "names": ["a", ("b", 2.5)]}


def written(path: Path):
    return path.read_bytes()


# -- torch.save and torch.load with pickle_module ---------------------------------------------------------------------


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_modules_saved_with_pickle_module_are_used_in_a_fresh_process(zipped, tmp_path):
    modules = {kind: payloads.make(kind) for kind in KINDS}
    file = tmp_path / "modules.pt"
    torch.save(modules, file, pickle_module=safepickle, _use_new_zipfile_serialization=zipped)
    code = f"""
        import safepickle, torch
        from tests.engines import payloads
        options = [dict(pickle_module=safepickle), dict()] + [dict(mmap=True)] * {zipped}
        for more in options:
            modules = torch.load({str(file)!r}, weights_only=False, **more)
            print(*map(payloads.check, modules.values()))
    """
    assert run_python(code) == "kernel lambda lock\n" * (3 if zipped else 2)


def test_a_kernel_in_a_file_loads_as_weights_only_once_it_is_called_safe(tmp_path):
    torch.save({"kernel": payloads.compiled_kernel, "w": torch.ones(2)}, tmp_path / "a.pt", pickle_module=safepickle)
    with torch.serialization.safe_globals([payloads.compiled_kernel]):
        loaded = torch.load(tmp_path / "a.pt", weights_only=True)
    assert loaded["kernel"] is payloads.compiled_kernel
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "a.pt", weights_only=True)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_plain_state_is_written_as_without(zipped, tmp_path):
    state, files = plain_state(), [tmp_path / "a" / "state.pt", tmp_path / "b" / "state.pt"]
    for file, options in zip(files, [{}, {"pickle_module": safepickle}], strict=True):
        file.parent.mkdir()
        torch.save(state, file, _use_new_zipfile_serialization=zipped, **options)
    if zipped:
        assert written(files[0]) == written(files[1])
    loaded = torch.load(files[1], weights_only=True)
    assert loaded["names"] == state["names"]
    assert torch.equal(loaded["optimizer"]["state"][0]["exp_avg"], state["optimizer"]["state"][0]["exp_avg"])


# -- every torch.save of a program -------------------------------------------------------------------------------------


@each_kind
def test_once_installed_every_torch_save_takes_modules(kind, tmp_path):
    module = payloads.make(kind)
    with safepickle.installed("torch.save"):
        torch.save(module, tmp_path / "a.pt")
    assert payloads.check(torch.load(tmp_path / "a.pt", weights_only=False)) == kind


def test_a_pickle_module_that_is_passed_is_used_in_spite_of_ours():
    with safepickle.installed("torch.save"), pytest.raises(Exception, match="lambda"):
        torch.save(payloads.make("lambda"), io.BytesIO(), pickle_module=pickle)


def test_uninstalling_gives_torch_save_its_pickler_back():
    before = torch.save.__defaults__
    with safepickle.installed("torch.save"):
        assert safepickle in torch.save.__defaults__
    assert torch.save.__defaults__ == before
    assert pickle in before


def test_once_installed_a_plain_state_is_written_as_without():
    state, streams = plain_state(), [io.BytesIO(), io.BytesIO()]
    torch.save(state, streams[0])
    with safepickle.installed("torch.save"):
        torch.save(state, streams[1])
    assert streams[0].getvalue() == streams[1].getvalue()


# -- torch.distributed.checkpoint --------------------------------------------------------------------------------------


def holder(kind):
    """Modules at the top of a state are saved as their state_dict; what is deeper is saved whole."""
    module = payloads.make(kind)
    return {"weights": torch.arange(4.0), "parts": {"module": module, "list": [module, 1]}, "step": 7}


EMPTY = """{"weights": torch.zeros(4), "parts": {"module": None, "list": [None, None]}, "step": 0}"""


def test_dcp_carries_modules_to_a_fresh_process(tmp_path):
    for kind in KINDS:
        dcp.save(holder(kind), checkpoint_id=tmp_path / kind, planner=SavePlanner())
    code = f"""
        import torch, torch.distributed.checkpoint as dcp
        from safepickle.engines.torch_checkpoint import LoadPlanner
        from tests.engines import payloads
        for kind in {KINDS}:
            for planner in (LoadPlanner(), None):
                state = {EMPTY}
                dcp.load(state, checkpoint_id="{tmp_path}/" + kind, planner=planner)
                assert state["weights"].tolist() == [0, 1, 2, 3] and state["step"] == 7
                print(payloads.check(state["parts"]["module"]), payloads.check(state["parts"]["list"][0]))
    """
    assert run_python(code) == "".join(f"{kind} {kind}\n" * 2 for kind in KINDS)


def test_dcp_writes_a_plain_state_as_without(tmp_path):
    state = plain_state()
    dcp.save(state, checkpoint_id=tmp_path / "a")
    dcp.save(state, checkpoint_id=tmp_path / "b", planner=SavePlanner())
    files = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in "ab"]
    assert files[0] == files[1]
    for name in files[0]:
        if name != ".metadata":  # which holds a random id
            assert written(tmp_path / "a" / name) == written(tmp_path / "b" / name)


def test_dcp_loads_without_flattening(tmp_path):
    options = {"flatten_state_dict": False, "flatten_sharded_tensors": False}
    state = {"module": {"it": payloads.make("lock")}, "weights": torch.ones(2)}
    dcp.save(state, checkpoint_id=tmp_path, planner=SavePlanner(**options))
    loaded = {"module": None, "weights": torch.zeros(2)}
    dcp.load(loaded, checkpoint_id=tmp_path, planner=LoadPlanner(**options))
    assert payloads.check(loaded["module"]["it"]) == "lock"


def test_dcp_says_which_part_it_cannot_save(tmp_path):
    state = {"parts": {"a": {"stream": (number for number in ())}}, "weights": torch.ones(2)}
    with pytest.raises(dcp.CheckpointException, match="cannot pickle 'generator'"):
        dcp.save({"parts": [[state]]}, checkpoint_id=tmp_path, planner=SavePlanner())


def test_dcp_saves_in_the_background_once_installed(tmp_path):
    state = holder("kernel")
    with safepickle.installed():
        dcp.async_save(state, checkpoint_id=tmp_path, planner=SavePlanner()).result(timeout=60)
    loaded = {"weights": torch.zeros(4), "parts": {"module": None, "list": [None, None]}, "step": 0}
    dcp.load(loaded, checkpoint_id=tmp_path, planner=LoadPlanner())
    assert payloads.check(loaded["parts"]["module"]) == "kernel"


def test_dcp_becomes_one_file_of_torch_save_once_that_is_installed(tmp_path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    with safepickle.installed("torch.save"):
        dcp.save(holder("lambda"), checkpoint_id=tmp_path / "dcp")
        dcp_to_torch_save(tmp_path / "dcp", tmp_path / "a.pt")
    loaded = torch.load(tmp_path / "a.pt", weights_only=False)
    assert payloads.check(loaded["parts"]["module"]) == "lambda"


# -- copies made by torch ---------------------------------------------------------------------------------------------


@each_kind
def test_an_averaged_model_has_a_copy_that_works(kind):
    with safepickle.installed():
        average = torch.optim.swa_utils.AveragedModel(payloads.make(kind))
    assert payloads.check(average.module) == kind


@each_kind
def test_the_layers_that_a_transformer_clones_work(kind):
    from torch.nn.modules.transformer import _get_clones

    original = payloads.make(kind)
    with safepickle.installed():
        clones = _get_clones(original, 2)
    assert [payloads.check(clone) for clone in clones] == [kind, kind]
    assert len({id(layer) for layer in [original, *clones]}) == 3


def test_without_installation_the_copies_are_refused():
    with pytest.raises(TypeError, match="cannot pickle"):
        copy.deepcopy(payloads.make("lock"))


# -- Lightning --------------------------------------------------------------------------------------------------------


@pytest.fixture
def model_of_lightning():
    pytest.importorskip("lightning")
    from tests.engines import lightning_model

    return lightning_model


def test_lightning_saves_modules_and_resumes_in_a_fresh_process(model_of_lightning, tmp_path):
    from safepickle.engines.lightning import CheckpointIO

    model, run = model_of_lightning.Model(), model_of_lightning.trainer(1, CheckpointIO())
    run.fit(model, model_of_lightning.batches())
    model.parts = {kind: payloads.make(kind) for kind in KINDS}
    run.save_checkpoint(tmp_path / "a.ckpt")
    code = f"""
        from safepickle.engines.lightning import CheckpointIO
        from tests.engines import payloads
        from tests.engines.lightning_model import *
        model, run = Model(), trainer(2, CheckpointIO())
        run.fit(model, batches(), ckpt_path="{tmp_path}/a.ckpt", weights_only=False)
        again = Model.load_from_checkpoint("{tmp_path}/a.ckpt", weights_only=False)
        print(run.current_epoch, *map(payloads.check, [*model.parts.values(), *again.parts.values()]))
    """
    assert run_python(code) == "2 kernel lambda lock kernel lambda lock\n"


def test_hyperparameters_with_a_kernel_are_kept_once_installed(model_of_lightning, tmp_path):
    model_class = model_of_lightning.WithParts
    with safepickle.installed("torch.save"):
        model, run = model_class(payloads.make("kernel")), model_of_lightning.trainer(1)
        run.fit(model, model_of_lightning.batches())
        run.save_checkpoint(tmp_path / "a.ckpt")
        again = model_class.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=False)
    assert payloads.check(again.hparams.module) == "kernel"
    assert again.hparams.width == 3


def test_without_installation_such_hyperparameters_are_refused(model_of_lightning):
    with pytest.raises(TypeError, match="cannot pickle"):
        model_of_lightning.WithParts(payloads.make("lock"))


def lightning_plugins():
    pytest.importorskip("lightning")
    from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

    from safepickle.engines.lightning import CheckpointIO

    return TorchCheckpointIO(), CheckpointIO()


def test_lightning_writes_a_plain_checkpoint_as_without(tmp_path):
    files = []
    for number, plugin in enumerate(lightning_plugins()):
        files.append(tmp_path / str(number) / "state.ckpt")
        plugin.save_checkpoint(plain_state(), files[-1])
    assert written(files[0]) == written(files[1])
    loaded = plugin.load_checkpoint(files[1], weights_only=True)
    assert loaded["epoch"] == 3
    assert plugin.load_checkpoint(files[1])["epoch"] == 3
    plugin.remove_checkpoint(files[1])
    assert not files[1].exists()


def test_lightning_keeps_the_old_file_where_the_new_one_cannot_be_written(tmp_path):
    _, plugin = lightning_plugins()
    plugin.save_checkpoint({"epoch": 1}, tmp_path / "a.ckpt")
    with pytest.raises(safepickle.PicklingError, match=r"\['state'\]"):
        plugin.save_checkpoint({"state": (number for number in ())}, tmp_path / "a.ckpt")
    assert plugin.load_checkpoint(tmp_path / "a.ckpt", weights_only=False) == {"epoch": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.ckpt"]


def test_lightnings_other_package_is_served_too(tmp_path):
    pytest.importorskip("lightning_fabric")
    code = f"""
        import sys, lightning_fabric
        from lightning_fabric.plugins import CheckpointIO as Base
        from safepickle.engines.lightning import CheckpointIO
        assert issubclass(CheckpointIO, Base) and "lightning" not in sys.modules
        CheckpointIO().save_checkpoint({{"scale": lambda x: 2 * x}}, "{tmp_path}/a.ckpt")
        print(CheckpointIO().load_checkpoint("{tmp_path}/a.ckpt", weights_only=False)["scale"](4))
    """
    assert run_python(code) == "8\n"


def test_lightning_says_that_a_file_is_missing_and_takes_no_options(tmp_path):
    _, plugin = lightning_plugins()
    for weights_only in (True, False, None):
        with pytest.raises(FileNotFoundError):
            plugin.load_checkpoint(tmp_path / "none.ckpt", weights_only=weights_only)
    with pytest.raises(TypeError, match="storage_options"):
        plugin.save_checkpoint({}, tmp_path / "a.ckpt", {"some": "thing"})


# -- accelerate --------------------------------------------------------------------------------------------------------


class Holder:
    """What accelerate's ``register_for_checkpointing`` takes."""

    def __init__(self, **parts):
        self.parts = parts

    def state_dict(self):
        return self.parts

    def load_state_dict(self, state):
        self.parts = state


def test_accelerate_saves_modules_once_installed_and_loads_them_in_a_fresh_process(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    from accelerate.state import AcceleratorState, GradientState, PartialState

    holder = Holder(**{kind: payloads.make(kind) for kind in KINDS})
    try:
        accelerator = accelerate.Accelerator(cpu=True)
        accelerator.prepare(torch.nn.Linear(2, 1))
        accelerator.register_for_checkpointing(holder)
        with safepickle.installed("torch.save"):
            accelerator.save_state(tmp_path / "state")
            accelerator.save(holder.parts, tmp_path / "parts.pt")
    finally:
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
    code = f"""
        import accelerate, torch
        from accelerate.utils import load
        from tests.engines import payloads
        from tests.engines.test_checkpoints import Holder
        holder, accelerator = Holder(), accelerate.Accelerator(cpu=True)
        accelerator.prepare(torch.nn.Linear(2, 1))
        accelerator.register_for_checkpointing(holder)
        accelerator.load_state("{tmp_path}/state")
        parts = load("{tmp_path}/parts.pt", weights_only=False)
        print(*map(payloads.check, [*holder.parts.values(), *parts.values()]))
    """
    assert run_python(code) == "kernel lambda lock kernel lambda lock\n"
