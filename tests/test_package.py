"""Is the package what its front page says: light to import, harmless to import, and a stand-in for pickle and copy?"""

from __future__ import annotations

import ast
import copy
import importlib.resources
import inspect
import pickle
from pathlib import Path

import pytest

import safepickle
from tests.helpers import REPOSITORY, run_python

PACKAGE = REPOSITORY / "safepickle"
MODULES = sorted(path.relative_to(REPOSITORY).as_posix() for path in PACKAGE.rglob("*.py"))
HEAVY = ("torch", "triton", "tensorflow", "keras", "jax", "numpy", "cloudpickle", "dill", "rich")


# -- importing it ------------------------------------------------------------------------------------------------------


def test_importing_safepickle_imports_no_framework_nor_numpy_nor_cloudpickle():
    printed = run_python(f"""
        import sys
        import safepickle
        print(sorted(sys.modules.keys() & {set(HEAVY)!r}))
    """)
    assert printed == "[]\n"


def test_pickling_and_copying_plain_data_imports_no_cloudpickle():
    printed = run_python(f"""
        import sys
        import safepickle
        data = {{"numbers": [1, 2.5], "text": ("a", b"b")}}
        assert safepickle.loads(safepickle.dumps(data)) == data
        assert safepickle.deepcopy(data) == data
        print(sorted(sys.modules.keys() & {set(HEAVY)!r}))
    """)
    assert printed == "[]\n"


def test_importing_safepickle_changes_nothing_global():
    printed = run_python("""
        import _pickle, builtins, copy, copyreg, functools, io, pickle, sys, threading, types, warnings, weakref
        import re, typing  # these register reducers of their own with copyreg

        watched = (_pickle, builtins, copy, copyreg, functools, io, pickle, threading, types, weakref)

        def state():
            return {
                **{(module.__name__, name): value for module in watched for name, value in vars(module).items()},
                **{("dispatch_table", cls): rule for cls, rule in copyreg.dispatch_table.items()},
                **{("extension", key): code for key, code in copyreg._extension_registry.items()},
                **{("_deepcopy_dispatch", cls): rule for cls, rule in copy._deepcopy_dispatch.items()},
                **{("_copy_dispatch", cls): rule for cls, rule in getattr(copy, "_copy_dispatch", {}).items()},
                **{("pickle._Pickler.dispatch", cls): rule for cls, rule in pickle._Pickler.dispatch.items()},
                **{("meta_path", place): finder for place, finder in enumerate(sys.meta_path)},
                **{("path_hooks", place): hook for place, hook in enumerate(sys.path_hooks)},
                **{("path", place): folder for place, folder in enumerate(sys.path)},
                **{("sys", name): getattr(sys, name) for name in ("excepthook", "displayhook", "stdout", "stderr")},
                **{("filters", place): entry for place, entry in enumerate(warnings.filters)},
            }

        before = state()
        limit = sys.getrecursionlimit()
        import safepickle
        after = state()
        missing = object()
        for key in {**before, **after}:
            if before.get(key, missing) is not after.get(key, missing):
                print(key, before.get(key), "->", after.get(key))
        print(sys.getrecursionlimit() - limit)
    """)
    assert printed == "0\n"


# -- standing in for pickle and copy -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", pickle.__all__)
def test_every_public_name_of_pickle_is_here(name):
    assert name in safepickle.__all__
    ours, theirs = getattr(safepickle, name), getattr(pickle, name)
    if inspect.isclass(theirs) and issubclass(theirs, BaseException):
        assert issubclass(ours, theirs)
    elif not callable(theirs):
        assert ours == theirs


@pytest.mark.parametrize("name", [*copy.__all__, "error"])
def test_every_public_name_of_copy_is_here(name):
    assert name in safepickle.__all__
    ours, theirs = getattr(safepickle, name), getattr(copy, name)
    assert callable(ours)
    if inspect.isclass(theirs):
        assert issubclass(ours, theirs)


def signature(function):
    """The parameters a caller can rely on: name, kind and default, without annotations and private ones."""
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in parameters if not p.name.startswith("_")]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        *((pickle, name) for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler")),
        *((copy, name) for name in ("copy", "deepcopy", "replace") if hasattr(copy, name)),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_the_signature_is_the_stdlibs_but_for_added_keywords(module, name):
    theirs = signature(getattr(module, name))
    ours = signature(getattr(safepickle, name))
    added = [p for p in ours if p not in theirs]
    assert [p for p in ours if p in theirs] == theirs
    assert all(kind is inspect.Parameter.KEYWORD_ONLY for _, kind, _ in added)
    assert all(default is not inspect.Parameter.empty for _, _, default in added)


def test_the_unpickler_offers_what_pickles_does():
    public = {name for name in dir(pickle.Unpickler) if not name.startswith("_")}
    assert public <= set(dir(safepickle.Unpickler))


def test_the_pickler_offers_what_pickles_does():
    public = {name for name in dir(pickle.Pickler) if not name.startswith("_")}
    assert public <= set(dir(safepickle.Pickler))


# -- the files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_is_public_and_which_question_it_answers(module):
    tree = ast.parse(Path(REPOSITORY, module).read_text(encoding="utf-8"))
    assigned = {
        target.id
        for node in tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    assert "__all__" in assigned
    assert ast.get_docstring(tree)


def test_every_public_name_of_the_package_exists():
    assert [name for name in safepickle.__all__ if not hasattr(safepickle, name)] == []
    assert len(set(safepickle.__all__)) == len(safepickle.__all__)


def test_the_package_is_marked_as_typed():
    assert importlib.resources.files("safepickle").joinpath("py.typed").is_file()
