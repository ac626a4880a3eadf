"""Are modules copied as by their state methods, whether those are called or known?"""

from __future__ import annotations

import collections
import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import safepickle
from safepickle.state_methods import Drops, Searches, Updates, meaning_of

from ..native_graphs import pure

__all__: list[str] = []

COPIERS = pytest.mark.parametrize("deepcopy", [safepickle.deepcopy, pure], ids=["native", "python"])

KINDS: dict[str, Any] = {
    "linear": lambda: nn.Linear(2, 3),
    "batch norm": lambda: nn.BatchNorm2d(3),
    "convolution": lambda: nn.Conv2d(2, 3, 1),
    "recurrent": lambda: nn.LSTM(3, 4),
    "attention": lambda: nn.MultiheadAttention(4, 2),
    "encoder": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    "softmax": nn.Softmax,
    "containers": lambda: nn.ModuleDict(
        {"a": nn.ModuleList([nn.Linear(1, 1)]), "p": nn.ParameterList([torch.ones(2)])}
    ),
}


@COPIERS
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_copied_module_has_the_attributes_that_copy_gives_it(deepcopy: Any, kind: str) -> None:
    module = KINDS[kind]()
    expected, copied = copy.deepcopy(module), deepcopy(module)
    for old, one, other in zip(module.modules(), expected.modules(), copied.modules(), strict=True):
        assert type(one) is type(other) and other is not old
        assert [(name, type(value)) for name, value in vars(one).items()] == [
            (name, type(value)) for name, value in vars(other).items()
        ]
        for name, value in vars(old).items():
            if isinstance(value, (dict, set)):
                assert vars(other)[name] is not value
    for name, value in expected.state_dict().items():
        assert torch.equal(value, copied.state_dict()[name])


@COPIERS
@pytest.mark.parametrize("kind", ["linear", "encoder", "recurrent"])
def test_a_copied_module_computes_and_learns_by_itself(deepcopy: Any, kind: str) -> None:
    module = KINDS[kind]().eval()
    copied = deepcopy(module)
    size = {"linear": 2, "encoder": 4, "recurrent": 3}[kind]
    before = {name: value.clone() for name, value in module.state_dict().items()}
    out = copied(torch.ones(1, 2, size))
    (out[0] if kind == "recurrent" else out).sum().backward()
    torch.optim.SGD(copied.parameters(), lr=0.1).step()
    assert any(not torch.equal(value, before[name]) for name, value in copied.state_dict().items())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


@COPIERS
def test_a_submodule_and_a_parameter_in_two_places_are_one_in_the_copy(deepcopy: Any) -> None:
    inner = nn.Linear(2, 2)
    module = nn.Sequential(inner, nn.ReLU(), inner, nn.Linear(2, 2))
    module[3].weight = inner.weight
    module.register_buffer("again", inner.weight.data)
    copied = deepcopy(module)
    assert copied[0] is copied[2] is not inner
    assert copied[3].weight is copied[0].weight
    assert copied.again.data_ptr() == copied[0].weight.data_ptr()


@COPIERS
def test_what_an_old_file_lacks_is_added(deepcopy: Any) -> None:
    module = nn.Linear(2, 2)
    del module.__dict__["_forward_hooks_with_kwargs"], module.__dict__["_non_persistent_buffers_set"]
    copied = deepcopy(module)
    assert type(copied._forward_hooks_with_kwargs) is collections.OrderedDict
    assert copied._non_persistent_buffers_set == set()
    assert copied(torch.ones(1, 2)).shape == (1, 2)


@COPIERS
def test_the_state_method_of_a_subclass_is_called_with_its_copied_state(deepcopy: Any) -> None:
    attention = nn.MultiheadAttention(4, 2)
    del attention.__dict__["_qkv_same_embed_dim"]
    assert deepcopy(attention)._qkv_same_embed_dim is True

    class Counts(nn.Linear):
        def __setstate__(self, state: dict[str, Any]) -> None:
            super().__setstate__(state)
            self.restored = list(state["_parameters"])

    copied = deepcopy(nn.Sequential(Counts(2, 2)))[0]
    assert copied.restored == ["weight", "bias"] and copied.weight.requires_grad


@COPIERS
def test_a_subclass_says_what_its_state_is(deepcopy: Any) -> None:
    class Drops(nn.Linear):
        def __getstate__(self) -> dict[str, Any]:
            state = super().__getstate__()
            state.pop("cache")
            return {**state, "times": state["times"] + 1}

    module = Drops(2, 2)
    module.cache, module.times = object(), 1
    copied = deepcopy(nn.ModuleList([module]))[0]
    assert "cache" not in vars(copied) and copied.times == 2


@COPIERS
def test_a_hook_that_is_found_among_the_submodules_is_called(deepcopy: Any) -> None:
    class Hook(nn.Module):
        def __call__(self, memo: Any) -> Any:
            return "by the hook"

    module = nn.Module()
    module.add_module("__deepcopy__", Hook())
    assert deepcopy([module]) == copy.deepcopy([module]) == ["by the hook"]


@COPIERS
def test_a_compiled_call_and_hooks_are_seen_whatever_the_rest_is(deepcopy: Any) -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    seen: list[Any] = []
    handle = module[1].register_forward_hook(lambda module, args, out: seen.append(module))
    copied, handle_of_copy = deepcopy([module, handle])
    copied(torch.ones(1, 2))
    assert seen == [copied[1]]
    handle_of_copy.remove()
    copied(torch.ones(1, 2))
    assert len(seen) == 1
    copied[0].register_forward_hook(lambda module, args, out: seen.append("other"))
    module(torch.ones(1, 2))
    assert seen == [copied[1], module[1]]


def test_the_methods_of_this_torch_are_known() -> None:
    safepickle.deepcopy(nn.Linear(1, 1))
    methods = vars(nn.Module)
    assert meaning_of(methods["__getstate__"]) == Drops(("_compiled_call_impl",))
    assert meaning_of(methods["__getattr__"]) == Searches(("_parameters", "_buffers", "_modules"))
    if methods["__setstate__"].__module__ != nn.Module.__module__:  # torch.compile, once used, puts its own there
        assert meaning_of(methods["__setstate__"]) is None
        return
    known = meaning_of(methods["__setstate__"])
    assert isinstance(known, Updates) and "_forward_pre_hooks" in known.names
    for cls, more in ((nn.Conv2d, "padding_mode"), (nn.Softmax, "dim"), (nn.TransformerEncoderLayer, "activation")):
        known = meaning_of(cls.__setstate__)
        assert isinstance(known, Updates) and {more, "_forward_pre_hooks"} <= {*known.names}
    assert meaning_of(nn.RNNBase.__setstate__) is None


@pytest.mark.parametrize(
    ("make", "name"),
    [(lambda: nn.Conv1d(1, 1, 1), "padding_mode"), (lambda: nn.Softmax(dim=0), "dim"),
     (lambda: nn.TransformerEncoderLayer(4, 2, 4), "activation")],
    ids=["convolution", "softmax", "encoder layer"],
)  # fmt: skip
def test_what_a_layer_of_an_older_version_lacks_is_added(make: Any, name: str) -> None:
    layer = make()
    del layer.__dict__[name]
    twin, known = safepickle.deepcopy(layer), copy.deepcopy(layer)
    assert getattr(twin, name) == getattr(known, name) and name not in vars(layer)


def test_an_attention_of_an_older_version_is_as_the_standard_library_makes_it() -> None:
    attention = nn.MultiheadAttention(4, 2)
    del attention.__dict__["_qkv_same_embed_dim"]
    assert safepickle.deepcopy(attention)._qkv_same_embed_dim is copy.deepcopy(attention)._qkv_same_embed_dim is True


def test_a_layer_whose_method_does_more_is_not_known() -> None:
    from safepickle.reducers import torch_modules

    class Counts(nn.Module):
        def __setstate__(self, state: Any) -> None:
            super().__setstate__(state)
            self.times = 1

    class Renames(nn.Module):
        def __setstate__(self, state: Any) -> None:
            super().__setstate__(state)
            if hasattr(self, "old"):
                self.__dict__["new"] = self.__dict__.pop("old")

    for cls in (Counts, Renames):
        known = torch_modules.find_more(cls, vars(cls)["__setstate__"])
        assert known is None or "times" in known.names


def test_a_method_that_does_something_else_is_not_known() -> None:
    from safepickle.reducers import torch_modules

    def getstate(self: Any) -> Any:
        return {**self.__dict__, "more": 1}

    def setstate(self: Any, state: Any) -> None:
        self.__dict__.update(state)
        self.times = 1

    def getattr_(self: Any, name: str) -> Any:
        return self.__dict__["elsewhere"][name]

    for name, method in (("__getstate__", getstate), ("__setstate__", setstate), ("__getattr__", getattr_)):
        known = torch_modules.find_meaning(name, method)  # type: ignore[arg-type]
        assert known is None or (isinstance(known, Updates) and "times" in known.names)
