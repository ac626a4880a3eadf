"""What pickles call for the standard library takes what it was written for, and nothing else."""

from __future__ import annotations

import collections
import io
import re
import threading
import weakref
from typing import Any

import pytest

from safepickle import UnpicklingError, restore

__all__: list[str] = []


class Plain:
    """Nothing special."""


MALFORMED: list[tuple[str, tuple[Any, ...]]] = [
    ("initialize", (Plain(), ("threading:Condition", (), {}, {}))),
    ("initialize", (Plain(), ("subprocess:Popen", (["ls"],), {}, {}))),
    ("initialize", (threading.Event(), ("queue:Queue", (), {}, {}))),
    ("make_local", (Plain, (), {})),
    ("make_local", (print, (), {})),
    ("make_simple_queue", (list,)),
    ("fill_simple_queue", ([], ([1], {}, {}))),
    ("make_weak_reference", (Plain, ())),
    ("make_weak_method", (Plain, ())),
    ("make_weak_method", (weakref.WeakMethod, (print,))),
    ("make_finalizer", (Plain, (), ())),
    ("fill_weak_mapping", ({}, ("weakref:WeakValueDictionary", [], {}, {}))),
    ("fill_weak_set", (set(), ([], {}, {}))),
    ("context_variable", ("os", "system", ())),
    ("make_context_variable", (1, "x", ())),
    ("fill_context", ({}, [])),
    ("make_view", ("pop", False, {})),
    ("make_view", ("keys", True, {})),
    ("make_view", ("keys", False, collections.UserDict())),
    ("class_namespace", (Plain(),)),
    ("builtin_descriptor", (Plain, "method")),
    ("builtin_descriptor", (Plain(), "__dict__")),
    ("make_property", (Plain, None, None, None, None)),
    ("make_static_or_class_method", (Plain, print)),
    ("function_cache", ("os", "system", ())),
    ("make_function_cache", ("print", None, False)),
    ("make_dispatcher", ("print",)),
    ("fill_dispatcher", (Plain(), {})),
    ("make_match", (re, "match", "x", 0, 1)),
    ("make_match", (re.compile("x"), "sub", "x", 0, 1)),
    ("standard_stream", ("modules", ())),
    ("standard_stream", ("stdout", ("write",))),
    ("open_raw_file", (open, "x", "r", None)),
    ("open_raw_file", (io.FileIO, 3, "r", None)),
    ("make_buffered_file", (list, None, None)),
    ("make_text_file", (list, None, "utf-8", "strict", None, False, False, None)),
    ("open_compressed_file", ("zip", "x", 0)),
    ("fill_codecs_stream", (Plain(), {})),
    ("make_exception", (Plain, ())),
    ("fill_exception", (Plain(), {})),
    ("fill_exception_origin", (Plain(), (None, {}))),
    ("fill_exception_origin", (ValueError(), (None, {"cause": Plain()}))),
]


@pytest.mark.parametrize(("name", "arguments"), MALFORMED, ids=[f"{name}-{n}" for n, (name, _) in enumerate(MALFORMED)])
def test_malformed_arguments_are_refused(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(UnpicklingError):
        getattr(restore, name)(*arguments)
