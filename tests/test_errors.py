"""Is an error the right one to catch, does it say what to do, and does that work?"""

from __future__ import annotations

import copy
import io
import pickle
import re
import sys
import types

import pytest

import safepickle
from safepickle import paths, restore
from safepickle.errors import combined
from tests.helpers import fresh_load, run_python


class Box:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Bad:
    """Cannot go: its method raises what it was made with."""

    def __init__(self, error):
        self.error = error

    def __reduce_ex__(self, protocol):
        raise self.error


class WithCode(Exception):
    """An error that somebody wrote: it wants two arguments, and has an attribute and a slot."""

    __slots__ = ("code",)

    def __init__(self, text, code):
        super().__init__(text)
        self.code = code
        self.extra = [code]


class Final(Exception):
    """May not be derived from."""

    def __init_subclass__(cls, **options):
        raise RuntimeError("no subclasses")


class Handle:
    def __init__(self, number=0):
        self.number = number


def with_method(cls, line):
    """A subclass with the method that a hint proposes."""
    namespace = {"Base": cls, "__name__": __name__}
    exec(f"class Patched(Base):\n    {line}", namespace)
    return namespace["Patched"]


def failure(obj, *arguments, call=safepickle.dumps, **options):
    """The error that a call raises."""
    with pytest.raises(Exception) as caught:
        call(obj, *arguments, **options)
    return caught.value


# -- what it is --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [safepickle.dumps, safepickle.deepcopy, safepickle.copy])
@pytest.mark.parametrize(
    "kind", [TypeError, AttributeError, ValueError, KeyError, RuntimeError, OSError, ZeroDivisionError]
)
def test_an_error_is_of_our_type_and_of_the_originals(kind, call):
    original = kind("as it was")
    error = failure([Bad(original)] if call is not safepickle.copy else Bad(original), call=call)
    assert isinstance(error, safepickle.PicklingError)
    assert isinstance(error, pickle.PicklingError)
    assert isinstance(error, kind)
    assert error.__cause__ is original
    assert f"reason: {kind.__name__}: " in str(error)
    assert "as it was" in str(error)


@pytest.mark.parametrize("call", [safepickle.deepcopy, safepickle.copy])
def test_an_error_of_a_copy_is_a_copy_error(call):
    error = failure(Bad(TypeError("stays")), call=call)
    assert isinstance(error, copy.Error)
    assert isinstance(error, safepickle.CopyError)
    assert str(error).startswith(f"cannot copy '{__name__}.Bad' at obj\n")


@pytest.mark.parametrize("call", [safepickle.dumps, safepickle.deepcopy])
def test_somebodys_own_error_is_caught_as_such_and_keeps_its_attributes(call):
    with pytest.raises(WithCode) as caught:
        call({"part": Bad(WithCode("broken", 7))})
    assert caught.value.code == 7
    assert caught.value.extra == [7]
    assert caught.value.path == "obj['part']"
    assert "WithCode: broken" in str(caught.value)


def test_an_error_of_the_system_keeps_its_number_and_file():
    error = failure([Bad(FileNotFoundError(2, "No such file", "a.bin"))])
    assert isinstance(error, FileNotFoundError)
    assert (error.errno, error.strerror, error.filename) == (2, "No such file", "a.bin")
    assert str(error).startswith(f"cannot pickle '{__name__}.Bad' at obj[0]\n  reason: FileNotFoundError: [Errno 2]")


def test_an_error_of_decoding_keeps_its_position():
    error = failure([Bad(UnicodeDecodeError("ascii", b"caf\xe9", 3, 4, "not in range"))])
    assert (error.encoding, error.start, error.reason) == ("ascii", 3, error.reason)
    assert isinstance(error, UnicodeDecodeError)
    assert str(error).startswith("cannot pickle ")


def test_an_error_of_a_class_that_cannot_be_derived_from_stays_and_gets_a_note():
    original = Final("alone")
    error = failure([Bad(original)])
    assert error is original
    assert error.__notes__[0].startswith(f"cannot pickle '{__name__}.Bad' at obj[0]\n")


@pytest.mark.parametrize("call", [safepickle.dumps, safepickle.deepcopy])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_is_not_about_the_object_passes_through(kind, call):
    original = kind()
    with pytest.raises(kind) as caught:
        call([Bad(original)])
    assert caught.value is original
    assert not isinstance(caught.value, safepickle.PicklingError)


def test_a_disk_that_is_full_is_no_fault_of_the_object():
    class Full(io.RawIOBase):
        def write(self, data):
            raise original

    original = OSError(28, "No space left on device")
    error = failure([1, 2, 3], Full(), call=safepickle.dump)
    assert error is original


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes came with Python 3.11")
@pytest.mark.parametrize("call", [safepickle.dumps, safepickle.deepcopy])
def test_notes_of_the_original_are_kept(call):
    original = TypeError("stays")
    original.add_note("when it rains")
    assert failure([Bad(original)], call=call).__notes__ == ["when it rains"]


def test_the_original_has_the_traceback_into_the_method_that_raised():
    error = failure([Bad(TypeError("stays"))])
    names = []
    traceback = error.__cause__.__traceback__
    while traceback is not None:
        names.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert names[-1] == "__reduce_ex__"


# -- it goes through process pools -------------------------------------------------------------------------------------


def test_an_error_can_be_pickled_by_plain_pickle_with_all_that_it_says():
    error = failure(Box(part=Bad(ValueError("stays"))))
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert (back.path, back.reason, back.hint) == (error.path, error.reason, error.hint)


def test_an_error_does_not_drag_the_object_along(tmp_path):
    error = failure(Box(part=Bad(TypeError("stays"))))
    printed = fresh_load(
        pickle.dumps(error),
        """
        print(isinstance(obj, TypeError), isinstance(obj, safepickle.PicklingError), obj.path)
        """,
        tmp_path,
    )
    assert printed == "True True obj.part\n"


def test_an_error_with_attributes_that_cannot_be_pickled_can_be_pickled():
    original = AttributeError("missing")
    original.stream = (x for x in ())
    back = pickle.loads(pickle.dumps(failure([Bad(original)])))
    assert isinstance(back, AttributeError)
    assert not hasattr(back, "stream")


@pytest.mark.parametrize("kind", ["PicklingError", "CopyError", "UnpicklingError"])
def test_a_forged_error_is_refused(kind):
    make_error = restore.make_error
    assert isinstance(make_error(kind, ValueError, "text", {}), ValueError)
    with pytest.raises(pickle.UnpicklingError):
        make_error(kind, print, "text", {})
    with pytest.raises(pickle.UnpicklingError):
        make_error("exec", ValueError, "text", {})


def test_a_class_that_is_combined_twice_is_one_class():
    first, second = (combined(safepickle.PicklingError, ValueError(i), "text") for i in range(2))
    assert type(first) is type(second)


# -- what it says ------------------------------------------------------------------------------------------------------


def test_a_closure_variable_is_named_with_its_function():
    def train():
        log = Box(file=Bad(TypeError("stays")))

        def hook():
            return log

        return hook

    lines = str(failure({"hook": train()})).splitlines()
    assert lines[:3] == [
        f"cannot pickle '{__name__}.Bad' at obj['hook'].__closure__[0].cell_contents.file",
        "  in closure variable 'log' of function "
        "'test_a_closure_variable_is_named_with_its_function.<locals>.train.<locals>.hook'",
        "  reason: TypeError: stays",
    ]


UNPICKLABLE_GLOBAL = Bad(TypeError("stays"))


def test_a_global_is_named_with_its_function():
    error = failure(Box(callback=lambda: UNPICKLABLE_GLOBAL))
    assert error.path == "obj.callback.__globals__['UNPICKLABLE_GLOBAL']"
    assert (
        "\n  in global variable 'UNPICKLABLE_GLOBAL' of function "
        "'test_a_global_is_named_with_its_function.<locals>.<lambda>'\n" in str(error)
    )


def test_a_default_is_named_with_its_parameter():
    def local(a, b=Bad(TypeError("stays"))):  # noqa: B008
        return a, b

    assert "\n  in the default of 'b' of function 'test_a_default_is" in str(failure(local))


def test_a_class_that_goes_by_value_is_named():
    class Local:
        setting = Bad(TypeError("stays"))

    name = f"{test_a_class_that_goes_by_value_is_named.__name__}.<locals>.Local"
    assert f"\n  in class '{name}', which goes by value because no name leads to it\n" in str(failure(Local()))


def test_an_error_inside_a_nested_dump_is_told_whole():
    class Nested:
        def __reduce__(self):
            return bytes, (safepickle.dumps(Box(inner=Bad(TypeError("stays")))),)

    error = failure([Nested()])
    assert str(error).startswith(
        "cannot pickle 'tests.test_errors.test_an_error_inside_a_nested_dump_is_told_whole.<locals>.Nested' at obj[0]\n"
    )
    assert f"cannot pickle '{__name__}.Bad' at obj.inner" in str(error)
    assert isinstance(error, TypeError)


# -- rules -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def rules():
    return safepickle.Registry()


@pytest.mark.parametrize("call", [safepickle.dumps, safepickle.deepcopy])
@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        (None, "a NoneType"),
        ((int,), "a tuple of 1"),
        ((1, ()), "a tuple whose first item, a int, cannot be called"),
        ((int, [1]), "a tuple whose second item is a list, not a tuple of arguments"),
    ],
)
def test_a_reducer_that_returns_the_wrong_shape_is_named_with_the_path(rules, returned, problem, call):
    rules.register(Handle, lambda handle: returned)
    error = failure(Box(handles=[Handle()]), call=call, registry=rules)
    assert str(error).splitlines()[0].endswith(f"'{__name__}.Handle' at obj.handles[0]")
    assert f"reason: the rule for {__name__}:Handle (from user) returned {problem}; expected" in str(error)


@pytest.mark.parametrize("call", [safepickle.dumps, safepickle.deepcopy])
def test_a_reducer_that_raises_is_named_with_the_path_and_the_original_is_chained(rules, call):
    original = KeyError("number")

    def reduce_handle(handle):
        raise original

    rules.register(Handle, reduce_handle)
    error = failure(Box(handles=[Handle()]), call=call, registry=rules)
    assert error.path == "obj.handles[0]"
    assert isinstance(error, KeyError)
    assert isinstance(error, safepickle.PicklingError)
    assert error.__cause__ is original


def test_a_reducer_that_raises_is_named(rules):
    rules.register(Handle, lambda handle: 1 / 0)
    error = failure([Handle()], registry=rules)
    assert f"the rule for {__name__}:Handle (from user) raised ZeroDivisionError: division by zero" in str(error)


def test_what_a_rule_says_about_what_to_do_stands_instead_of_a_hint(rules):
    def reduce_handle(handle):
        raise safepickle.PicklingError("a handle is open: close it first")

    rules.register(Handle, reduce_handle)
    error = failure(Box(handle=Handle()), registry=rules)
    assert str(error) == f"cannot pickle '{__name__}.Handle' at obj.handle\n  reason: a handle is open: close it first"
    assert error.hint is None


def test_a_generator_is_refused_with_what_to_do_and_not_consumed():
    numbers = iter_of = (number for number in [1, 2])
    for call in (safepickle.dumps, safepickle.deepcopy):
        error = failure({"numbers": [numbers]}, call=call)
        assert error.path == "obj['numbers'][0]"
        assert isinstance(error, TypeError)
    assert list(iter_of) == [1, 2]


# -- hints work --------------------------------------------------------------------------------------------------------


def hinted(error, pattern):
    found = re.search(pattern, error.hint)
    assert found is not None, error.hint
    return found[1]


@pytest.mark.parametrize("make", [lambda: [Bad(TypeError("stays"))], lambda: {"a": (Bad(TypeError("stays")),)}])
def test_the_reducer_in_a_hint_works(make):
    obj = make()
    line = hinted(failure(obj), r"(safepickle\.register\(.*\))$")
    try:
        eval(line, {"safepickle": safepickle, "types": types, "obj": obj})
        back = safepickle.loads(safepickle.dumps(obj))
    finally:
        safepickle.unregister(Bad)
    assert back in ([None], {"a": (None,)})


def test_the_getstate_in_a_hint_works():
    class Local:
        def __init__(self):
            self.name, self.part = "kept", Bad(TypeError("stays"))

    obj = Box(inner=Local())
    line = hinted(failure(obj), r"drop it in __getstate__ of \S+Local: (def __getstate__.*)$")
    obj.inner = with_method(Local, line)()
    back = safepickle.loads(safepickle.dumps(obj))
    assert (back.inner.name, back.inner.part) == ("kept", None)


def test_the_getstate_in_a_hint_goes_on_with_that_of_the_base():
    class Base:
        def __getstate__(self):
            return {**self.__dict__, "base": "was here"}

    class Local(Base):
        def __init__(self):
            self.part = Bad(TypeError("stays"))

    line = hinted(failure(Local()), r"drop it in __getstate__ of \S+Local: (def __getstate__.*)$")
    assert "super().__getstate__()" in line
    back = safepickle.loads(safepickle.dumps(with_method(Local, line)()))
    assert (back.base, back.part) == ("was here", None)


def test_the_share_in_a_hint_works():
    obj = {"part": Bad(TypeError("stays"))}
    line = hinted(failure(obj, call=safepickle.deepcopy), r"(safepickle\.register\(.*\))$")
    try:
        eval(line, {"safepickle": safepickle, "types": types, "obj": obj})
        assert safepickle.deepcopy(obj)["part"] is obj["part"]
    finally:
        safepickle.unregister(Bad)


def test_a_hint_for_a_type_without_a_name_uses_the_path():
    class Local:
        def __reduce_ex__(self, protocol):
            raise TypeError("stays")

    obj = [0, Local()]
    line = hinted(failure(obj), r"(safepickle\.register\(.*\))$")
    assert line.startswith("safepickle.register(type(obj[1]), ")
    try:
        eval(line, {"safepickle": safepickle, "obj": obj})
        assert safepickle.loads(safepickle.dumps(obj)) == [0, None]
    finally:
        safepickle.unregister(Local)


@pytest.mark.skipif(not hasattr(pickle, "PickleBuffer"), reason="no buffers")
def test_a_buffer_at_an_old_protocol_gets_a_hint_that_helps():
    error = failure([pickle.PickleBuffer(b"abc")], 4)
    assert error.path == "obj[0]"
    assert "use protocol 5" in error.hint
    assert safepickle.loads(safepickle.dumps([pickle.PickleBuffer(b"abc")], 5)) == [b"abc"]


# -- the second look ---------------------------------------------------------------------------------------------------


class Counted:
    """Remembers how often it was asked."""

    def __init__(self, log, part=None):
        self.log, self.part = log, part

    def __reduce_ex__(self, protocol):
        self.log.append(self)
        if isinstance(self.part, Exception):
            raise self.part
        return Counted, ([], self.part)


def test_the_second_look_asks_only_whom_the_first_had_asked():
    log = []
    before = [Counted(log, 1), Counted(log, [Counted(log, 2)])]
    culprit, after = Counted(log, TypeError("stays")), Counted(log, 3)
    failure([*before, culprit, after])
    assert after not in log
    half = len(log) // 2
    assert [id(one) for one in log[:half]] == [id(one) for one in log[half:]]


def test_the_second_look_does_not_run_where_nothing_fails():
    printed = run_python("""
        import sys
        import safepickle
        class Local: pass
        safepickle.loads(safepickle.dumps([Local(), lambda: 1]))
        safepickle.deepcopy([Local()])
        print(sorted(name for name in sys.modules if name in (
            "safepickle.paths", "safepickle.path_syntax", "safepickle.diagnosis", "safepickle.loading",
            "safepickle.streams", "safepickle.reports", "safepickle.checks", "pickletools", "difflib")))
    """)
    assert printed == "[]\n"


def test_a_second_look_that_fails_does_not_hide_the_first_error(monkeypatch):
    monkeypatch.setattr(paths.Walk, "__iter__", lambda self: 1 / 0)
    original = TypeError("stays")
    assert failure([Bad(original)]) is original


def test_a_second_look_that_finds_nothing_leaves_the_first_error_its_word():
    class Once:
        failed = False

        def __reduce_ex__(self, protocol):
            if not Once.failed:
                Once.failed = True
                raise ValueError("only now")
            return object, ()

    error = failure([Once()])
    assert str(error) == "cannot pickle 'list': ValueError: only now"
    assert error.path is None
    assert isinstance(error, ValueError)


def test_a_second_look_that_sees_another_error_tells_both():
    class Changing:
        answers = [ValueError("first"), TypeError("second")]

        def __reduce_ex__(self, protocol):
            raise self.answers.pop(0)

    error = failure([Changing()])
    assert isinstance(error, ValueError)
    assert "\n  reason: ValueError: first\n  a second look said: TypeError: second\n" in str(error)


def test_the_second_look_is_bounded_and_says_so(monkeypatch):
    monkeypatch.setattr(paths.Walk.__init__, "__kwdefaults__", {"objects": 100, "seconds": 5.0})
    error = failure([[[]] * 1 for _ in range(1000)] + [Bad(TypeError("stays"))])
    assert str(error) == (
        "cannot pickle 'list': TypeError: stays\n  a second look for the part that failed gave up after 100 objects"
    )


def test_the_second_look_ends_in_time(monkeypatch):
    monkeypatch.setattr(paths.Walk.__init__, "__kwdefaults__", {"objects": 10**9, "seconds": 0.0})
    error = failure([[] for _ in range(1000)] + [Bad(TypeError("stays"))])
    assert re.search(r"gave up after [\d,]+ objects$", str(error))


def test_the_second_look_goes_round_a_cycle():
    box = Box()
    box.itself, box.items = box, [box]
    box.part = Bad(TypeError("stays"))
    assert failure(box).path == "obj.part"


def test_a_part_that_a_persistent_id_claims_is_not_looked_into():
    class Mine(safepickle.Pickler):
        def persistent_id(self, obj):
            return "claimed" if isinstance(obj, Box) else None

    claimed = Box(part=Bad(TypeError("stays")))
    sink = io.BytesIO()
    Mine(sink).dump([claimed])
    error = failure([claimed, {"x": Bad(TypeError("stays"))}], call=Mine(io.BytesIO()).dump)
    assert error.path == "obj[1]['x']"


def test_a_persistent_id_that_raises_names_the_object():
    class Mine(safepickle.Pickler):
        def persistent_id(self, obj):
            if isinstance(obj, Box):
                raise LookupError("no such store")

    error = failure([1, Box()], call=Mine(io.BytesIO()).dump)
    assert error.path == "obj[1]"
    assert isinstance(error, LookupError)


def test_somebodys_override_and_dispatch_table_are_asked_as_before():
    class Mine(safepickle.Pickler):
        def reducer_override(self, obj):
            if isinstance(obj, Handle):
                return Handle, (obj.number,)
            return NotImplemented

    pickler = Mine(io.BytesIO())
    pickler.dispatch_table = {Box: lambda box: (Box, (), {"part": box.part})}
    error = failure([Handle(Bad(TypeError("stays"))), 1], call=pickler.dump)
    assert error.path == "obj[0].number"
    pickler = Mine(io.BytesIO())
    pickler.dispatch_table = {Box: lambda box: (Box, (), {"part": box.part})}
    error = failure([Box(part=Bad(TypeError("stays")), other=Bad(ValueError("never asked")))], call=pickler.dump)
    assert error.path == "obj[0].part"


# -- copies ------------------------------------------------------------------------------------------------------------


class WithOwnCopy:
    """Copies its parts itself, through the standard library or through us."""

    def __init__(self, deepcopy, part, *, pass_memo=True):
        self.deepcopy, self.parts, self.pass_memo = deepcopy, {"kept": part}, pass_memo

    def __deepcopy__(self, memo):
        part = self.parts["kept"]
        return self.deepcopy(part, memo) if self.pass_memo else self.deepcopy(part)


@pytest.mark.parametrize("deepcopy", [copy.deepcopy, safepickle.deepcopy])
@pytest.mark.parametrize("pass_memo", [True, False])
def test_the_path_of_a_copy_goes_through_a_deepcopy_method(deepcopy, pass_memo):
    inner = [0, Box(part=Bad(TypeError("stays")))]
    error = failure({"x": WithOwnCopy(deepcopy, inner, pass_memo=pass_memo)}, call=safepickle.deepcopy)
    assert error.path == "obj['x'].parts['kept'][1].part"
    assert str(error).count("cannot copy") == 1
    assert isinstance(error, TypeError)


def test_the_path_of_a_copy_by_reduction_goes_through_the_arguments():
    class Made:
        def __init__(self, *parts):
            self.hidden = [types.MappingProxyType(dict(enumerate(parts)))]

        def __reduce__(self):
            return Made, tuple(self.hidden[0].values())

    error = failure(Made(1, [Bad(TypeError("stays"))]), call=safepickle.deepcopy)
    assert error.path == "obj.__reduce__()[1][1][0]"


def test_a_constructor_that_fails_in_a_copy_is_the_culprit():
    class Picky:
        def __init__(self, value):
            self.value = value

        def __reduce__(self):
            return Picky, ()

    error = failure(Box(part=Picky(1)), call=safepickle.deepcopy)
    assert error.path == "obj.part"
    assert "missing 1 required positional argument" in error.reason


def test_a_copy_below_the_recursion_limit_of_nesting_has_its_path_counted():
    chain = Bad(TypeError("stays"))
    for _ in range(3000):
        chain = Box(next=chain)
    error = failure(chain, call=safepickle.deepcopy)
    assert error.path == "obj(.next × 3000)"
    error = failure(chain)
    assert error.path == "obj(.next × 3000)"


# -- nested too deep ---------------------------------------------------------------------------------------------------


class Endless:
    """Reduces to another one, without an end."""

    def __init__(self, *parts):
        self.parts = parts

    def __reduce__(self):
        return Endless, (Endless(),)


class Link:
    """Reduces with a call of its own method: as deep as the chain is long."""

    def __init__(self, after=None):
        self.after = after

    def __reduce__(self):
        return Link, (None if self.after is None else self.after.__reduce__()[1],)


def test_recursion_in_a_method_of_an_object_is_a_recursion_error_at_that_object():
    chain = None
    for _ in range(20_000):
        chain = Link(chain)
    with pytest.raises(RecursionError) as caught:
        safepickle.dumps({"chain": chain})
    assert isinstance(caught.value, safepickle.PicklingError)
    assert caught.value.path == "obj['chain']"


def test_nesting_beyond_all_bounds_says_how_deep_and_what_repeats(monkeypatch):
    from safepickle import deep

    monkeypatch.setattr(deep, "_MOST_LEVELS", 5000)
    monkeypatch.setattr(paths.Walk.__init__, "__kwdefaults__", {"objects": 3000, "seconds": 5.0})
    with pytest.raises(RecursionError) as caught:
        safepickle.dumps(Endless())
    lines = str(caught.value).splitlines()
    assert re.fullmatch(rf"cannot pickle '{__name__}.Endless' at obj\(\.__reduce__\(\)\[1\]\[0\] × \d{{4}}\)", lines[0])
    assert re.fullmatch(
        r"  objects are nested \d,\d{3} deep here or deeper; the repeating part of the path is "
        r"\.__reduce__\(\)\[1\]\[0\] \(\d,\d{3} times\)",
        lines[2],
    )
    assert lines[3].startswith("  hint: keep the links in a list")


# -- torch -------------------------------------------------------------------------------------------------------------


def torch_model():
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Sequential(torch.nn.Linear(1, 1))])
            self.named = torch.nn.ModuleDict({"head": torch.nn.Linear(1, 1)})

    return torch, Net()


@pytest.mark.parametrize("verb", ["dumps", "deepcopy", "save", "save legacy"])
@pytest.mark.parametrize(
    ("place", "path"),
    [
        (lambda net: net.layers[1][0].__dict__, "obj.layers[1][0].part"),
        (lambda net: net.named["head"].__dict__, "obj.named['head'].part"),
        (lambda net: net.layers[0].weight.__dict__, "obj.layers[0].weight.part"),
        (lambda net: net.__dict__.setdefault("cache", {}), "obj.cache['part']"),
    ],
)
def test_a_path_through_torch_modules_is_as_one_types_it(verb, place, path):
    torch, net = torch_model()
    place(net)["part"] = culprit = Bad(TypeError("stays"))
    calls = {
        "dumps": safepickle.dumps,
        "deepcopy": safepickle.deepcopy,
        "save": lambda obj: torch.save(obj, io.BytesIO(), pickle_module=safepickle),
        "save legacy": lambda obj: torch.save(
            obj, io.BytesIO(), pickle_module=safepickle, _use_new_zipfile_serialization=False
        ),
    }
    error = failure(net, call=calls[verb])
    assert error.path == path
    assert eval(path, {"obj": net}) is culprit


def test_a_path_goes_through_the_layers_of_a_kernel():
    triton = pytest.importorskip("triton")
    stuck = Bad(TypeError("stays"))

    def prune(configs, *arguments, **options):
        return stuck

    def body(x, n):
        pass

    kernel = triton.autotune(configs=[triton.Config({})], key=["n"], prune_configs_by={"early_config_prune": prune})(
        triton.jit(body)
    )
    error = failure({"kernel": kernel})
    assert error.path == "obj['kernel'].early_config_prune.__closure__[0].cell_contents"
    assert "in closure variable 'stuck' of function 'test_a_path_goes" in str(error)
    report = safepickle.explain({"kernel": kernel})
    assert [problem.path for problem in report.problems] == [error.path]
    assert report.size is not None


# -- loading -----------------------------------------------------------------------------------------------------------


class Filled:
    def __setstate__(self, state):
        raise LookupError("no such state")

    def __init__(self, value=None):
        self.value = value


def build(*parts):
    raise ValueError("not like this")


class Built:
    def __reduce__(self):
        return build, (1,)


def load(data, **options):
    return failure(data, call=safepickle.loads, **options)


def test_a_module_that_is_missing_is_named_with_offset_and_opcode():
    data = b"\x80\x04\x8c\x0bno_such_mod\x8c\x05Thing\x93."
    error = load(data)
    assert isinstance(error, ModuleNotFoundError)
    assert isinstance(error, safepickle.UnpicklingError)
    assert str(error).splitlines()[:2] == [
        "cannot load 'no_such_mod.Thing' at byte 22 (opcode STACK_GLOBAL)",
        "  reason: ModuleNotFoundError: No module named 'no_such_mod'",
    ]
    assert (error.offset, error.opcode) == (22, "STACK_GLOBAL")
    assert data[22:23] == pickle.STACK_GLOBAL


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("collections OrderdDict", "collections.OrderedDict"),
        ("collection OrderedDict", "collections.OrderedDict"),
        ("collections.abs Mapping", "collections.abc.Mapping"),
        (f"{__name__} Filed", f"{__name__}.Filled"),
        ("tests.errors Filled", f"{__name__}.Filled"),
        ("tests.old.test_errors Filled", f"{__name__}.Filled"),
    ],
)
def test_the_nearest_name_that_exists_is_proposed(name, nearest):
    error = load(b"c" + name.replace(" ", "\n").encode() + b"\n.")
    assert error.hint.startswith(f"did you mean '{nearest}'")


def test_looking_for_the_nearest_name_imports_nothing():
    before = set(sys.modules)
    load(b"cjson.tol\nmain\n.")
    load(b"cconcurrent.futurs.process\nProcessPoolExecutor\n.")
    # The attempts themselves imported the packages.
    assert not {name for name in set(sys.modules) - before if name.startswith(("json.", "concurrent."))}


def test_a_name_in_main_is_explained():
    error = load(b"c__main__\nNoSuchClassHere\n.")
    assert isinstance(error, AttributeError)
    assert "defined in the script that wrote the pickle" in error.hint


def test_a_name_of_python_2_is_looked_up_as_the_unpickler_does():
    assert load(b"c__builtin__\nxrangee\n.").hint.startswith("did you mean")
    assert safepickle.loads(b"c__builtin__\nxrange\n.") is range
    error = load(b"c__builtin__\nxrange\ncno_such_mod\nx\n.")
    assert error.offset == 20


def test_a_reference_of_ours_that_leads_nowhere_is_found():
    assert callable(restore.function)
    error = load(b"\x80\x04csafepickle.restore\nfunction\n\x8c\x0ano_such_mo\x8c\x04name\x8c\x02fn\x85\x87R.")
    assert str(error).startswith("cannot load 'no_such_mo.name.fn' at byte ")
    assert error.opcode == "REDUCE"


@pytest.mark.parametrize("count", range(1, 40, 3))
def test_a_pickle_that_is_cut_off_says_where(count):
    data = pickle.dumps({"numbers": [1, 2.5, "three"], "text": "x" * 20}, 4)
    error = load(data[:count])
    assert isinstance(error, (safepickle.UnpicklingError, EOFError))
    assert 0 <= error.offset <= count
    assert error.hint == f"the pickle is cut off: there are {count} bytes of it"


@pytest.mark.parametrize(
    ("data", "offset", "opcode", "reason"),
    [
        (b"K\x01\xff.", 2, None, "invalid load key"),
        (b"}u.", 1, "SETITEMS", "MARK"),
        (b"K\x01h\x05.", 2, "BINGET", "Memo value not found"),
        (b"K\x010R.", 3, "REDUCE", "stack underflow"),
        (b"Pabc\n.", 0, "PERSID", "persistent_load"),
    ],
)
def test_bytes_that_are_no_pickle_say_where_it_went_wrong(data, offset, opcode, reason):
    error = load(data)
    assert isinstance(error, safepickle.UnpicklingError)
    assert (error.offset, error.opcode) == (offset, opcode)
    assert f"at byte {offset}" in str(error).splitlines()[0]
    assert reason in str(error)


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"<html>", "HTML"),
        (b"\x93NUMPY\x01\x00", "NumPy"),
        (b"version https://git-lfs", "LFS"),
    ],
)
def test_files_of_another_kind_are_recognized(head, what):
    assert what in load(head).hint


def raised_by(call, data):
    try:
        call(data)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_whatever_is_wrong_with_the_bytes_the_error_is_of_the_type_of_pickles(protocol):
    whole = pickle.dumps({"a": [1, 2.5, "x" * 30, b"y" * 10], "t": (1, (2,)), "e": ValueError("x")}, protocol)
    cut = [whole[:count] for count in range(1, len(whole))]
    changed = [whole[:place] + b"\xff" + whole[place + 1 :] for place in range(len(whole))]
    located = 0
    for data in [*cut, *changed]:
        theirs = raised_by(pickle.loads, data)
        ours = raised_by(safepickle.loads, data)
        assert isinstance(ours, type(theirs))
        assert str(theirs) in str(ours)
        located += getattr(ours, "offset", None) is not None
    assert located > 0.8 * len(cut)


def test_an_error_in_setstate_says_which_object_and_where():
    data = pickle.dumps([1, Filled(2)], 4)
    error = load(data)
    assert isinstance(error, LookupError)
    assert str(error).startswith(f"cannot load the pickle: filling '{__name__}.Filled' failed at byte ")
    assert data[error.offset : error.offset + 1] == pickle.BUILD


def test_an_error_in_a_function_that_is_called_says_which_and_where():
    data = pickle.dumps([Built()], 2)
    error = load(data)
    assert isinstance(error, ValueError)
    assert f"calling '{__name__}.build' failed" in str(error)
    assert data[error.offset : error.offset + 1] == pickle.REDUCE


def test_an_error_that_may_come_from_several_places_does_not_choose():
    error = load(pickle.dumps([Built(), Built(), Built()], 4))
    assert "or at one of the 2 like it that follow" in str(error)


def test_the_end_of_a_file_is_the_end_of_a_file():
    file = io.BytesIO(pickle.dumps(1) + pickle.dumps(2))
    unpickler = safepickle.Unpickler(file)
    assert [unpickler.load(), unpickler.load()] == [1, 2]
    with pytest.raises(EOFError) as caught:
        unpickler.load()
    assert type(caught.value) is EOFError
    assert str(caught.value) == "Ran out of input"


def test_the_offset_in_a_file_counts_from_the_start_of_the_pickle(tmp_path):
    path = tmp_path / "several.pkl"
    broken = b"c" + __name__.encode() + b"\nFiled\n."
    path.write_bytes(b"header" + pickle.dumps(1) + broken)
    with path.open("rb") as file:
        file.seek(6)
        assert safepickle.load(file) == 1
        error = failure(file, call=safepickle.load)
    assert error.offset == 0
    assert f"'{__name__}.Filled'" in error.hint


def test_a_file_stands_where_it_stood():
    file = io.BytesIO(b"K\x01\xff" + b"x" * 10)
    where = []
    try:
        pickle.load(file)
    except pickle.UnpicklingError:
        where.append(file.tell())
    file.seek(0)
    failure(file, call=safepickle.load)
    assert file.tell() == where[0]


def test_a_file_that_cannot_be_read_again_gets_what_the_error_itself_says():
    class Pipe:
        def __init__(self, data):
            self._file = io.BytesIO(data)
            self.read, self.readline = self._file.read, self._file.readline

    error = failure(Pipe(b"ccollections\nOrderdDict\n."), call=safepickle.load)
    assert isinstance(error, AttributeError)
    assert error.hint.startswith("did you mean 'collections.OrderedDict'")


def test_what_a_find_class_forbids_is_named():
    class Careful(safepickle.Unpickler):
        def find_class(self, module, name):
            raise safepickle.UnpicklingError(f"{module}.{name} is forbidden")

    error = failure(io.BytesIO(pickle.dumps([Built()], 4)), call=lambda file: Careful(file).load())
    assert str(error).startswith(f"cannot load '{__name__}.build' at byte ")
    assert error.hint is None


def test_text_of_python_2_gets_a_hint():
    error = load(b"\x80\x02U\x05caf\xc3\xa9q\x00.")
    assert isinstance(error, UnicodeDecodeError)
    assert "encoding='latin1'" in error.hint
    assert safepickle.loads(b"\x80\x02U\x05caf\xc3\xa9q\x00.", encoding="utf-8") == "café"


def test_an_error_of_loading_can_be_pickled():
    error = load(b"cno_such_mod\nThing\n.")
    back = pickle.loads(pickle.dumps(error))
    assert isinstance(back, ModuleNotFoundError)
    assert isinstance(back, pickle.UnpicklingError)
    assert (str(back), back.offset) == (str(error), error.offset)


def test_looking_for_the_place_of_an_error_runs_nothing_again():
    log = []
    module = types.ModuleType("tests_log_of_calls")
    module.note = lambda: log.append(1)
    sys.modules[module.__name__] = module
    try:
        load(b"ctests_log_of_calls\nnote\n)Rcno_such_mod\nx\n.")
    finally:
        del sys.modules[module.__name__]
    assert log == [1]


def test_a_broken_second_look_at_a_pickle_does_not_hide_the_first_error(monkeypatch):
    from safepickle import loading

    monkeypatch.setattr(loading, "operations", lambda file: 1 / 0)
    error = load(b"K\x01\xff.")
    assert type(error) is pickle.UnpicklingError
    assert str(error) == "invalid load key, '\\xff'."
