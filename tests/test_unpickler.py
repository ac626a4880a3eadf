"""Does the unpickler read what the standard library reads, with the same hooks, and fail without doing harm?"""

from __future__ import annotations

import gc
import io
import pickle
import socket
import threading
import weakref
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import safepickle
from safepickle import Unpickler
from tests import graphs
from tests.helpers import call_with_timeout

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


class Thing:
    def __init__(self, value):
        self.value = value


class Persistent(safepickle.Pickler):
    def persistent_id(self, obj):
        return ("thing", obj.value) if type(obj) is Thing else None


def persistent(obj, protocol=None):
    file = io.BytesIO()
    Persistent(file, protocol).dump(obj)
    return file.getvalue()


# -- reading ---------------------------------------------------------------------------------------------------------


@given(graph=graphs.graphs(graphs.kinds_at(2)), protocol=st.sampled_from([2, 3, 4, 5]))
@settings(max_examples=100, deadline=None)
def test_whatever_one_of_the_two_wrote_the_other_reads(graph, protocol):
    expected = graphs.shape(graph)
    assert graphs.shape(safepickle.loads(pickle.dumps(graph, protocol))) == expected
    assert graphs.shape(pickle.loads(safepickle.dumps(graph, protocol))) == expected
    assert graphs.shape(safepickle.loads(safepickle.dumps(graph, protocol))) == expected


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(b"x" + data))[1:]])
def test_loads_takes_any_bytes(kind):
    assert safepickle.loads(kind(pickle.dumps([1, "a"]))) == [1, "a"]


@pytest.mark.parametrize("data", ["text", None, 5, [1]])
def test_loads_refuses_what_is_no_bytes(data):
    with pytest.raises(TypeError):
        safepickle.loads(data)


class Reader:
    """The least that a file must have."""

    def __init__(self, data):
        self._file = io.BytesIO(data)

    def read(self, size):
        return self._file.read(size)

    def readline(self):
        return self._file.readline()


class ReaderInto(Reader):
    def readinto(self, buffer):
        return self._file.readinto(buffer)


@pytest.mark.parametrize("kind", [io.BytesIO, Reader, ReaderInto, lambda data: io.BufferedReader(io.BytesIO(data))])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_load_takes_any_file(kind, protocol):
    obj = [1, "a", b"b" * 100_000, {"c": Thing(2)}]
    for restored in (
        safepickle.load(kind(pickle.dumps(obj, protocol))),
        Unpickler(kind(pickle.dumps(obj, protocol))).load(),
    ):
        assert restored[:3] == obj[:3]
        assert restored[3]["c"].value == 2


@pytest.mark.parametrize("file", [None, 5, "name", object()])
def test_what_cannot_be_read_from_is_a_type_error(file):
    with pytest.raises(TypeError):
        safepickle.load(file)
    with pytest.raises(TypeError):
        Unpickler(file)


def test_loads_reads_the_first_pickle_and_leaves_the_rest():
    assert safepickle.loads(pickle.dumps(1) + b"rest") == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_load_leaves_a_file_behind_the_pickle(protocol):
    file = io.BytesIO(pickle.dumps([1], protocol) + pickle.dumps("second", protocol) + b"rest")
    assert safepickle.load(file) == [1]
    assert safepickle.load(file) == "second"
    assert file.read() == b"rest"


def test_a_pickle_is_read_from_a_pipe():
    reader, writer = socket.socketpair()
    with reader, writer, reader.makefile("rb") as file:
        writer.sendall(safepickle.dumps([1, lambda: 2]) + safepickle.dumps("second"))
        assert call_with_timeout(lambda: safepickle.load(file))[1]() == 2
        assert call_with_timeout(lambda: safepickle.load(file)) == "second"


def test_several_loads_of_one_unpickler_share_its_memo():
    file = io.BytesIO()
    pickler = safepickle.Pickler(file)
    part = ["part"]
    pickler.dump([part])
    pickler.dump({"again": part})
    file.seek(0)
    unpickler = Unpickler(file)
    assert unpickler.load()[0] is unpickler.load()["again"]


def test_python_2_pickles_are_read_as_the_arguments_say():
    data = b"(lp0\nS'caf\\xe9'\np1\nac__builtin__\nxrange\np2\n(I3\ntp3\nRp4\na."
    assert safepickle.loads(data, encoding="latin-1") == ["café", range(3)]
    assert safepickle.loads(data, encoding="bytes") == [b"caf\xe9", range(3)]
    assert safepickle.load(io.BytesIO(data), encoding="latin-1") == ["café", range(3)]
    assert Unpickler(io.BytesIO(data), encoding="latin-1").load() == ["café", range(3)]
    assert safepickle.loads(data, errors="replace") == ["caf�", range(3)]
    with pytest.raises(UnicodeDecodeError):
        safepickle.loads(data)
    with pytest.raises(ImportError):
        safepickle.loads(data, fix_imports=False, encoding="latin-1")


def test_buffers_are_handed_in():
    data = pickle.dumps(pickle.PickleBuffer(b"abc"), 5, buffer_callback=lambda buffer: None)
    for buffers in ([b"xyz"], iter([b"xyz"]), (bytearray(b"xyz"),)):
        assert bytes(safepickle.loads(data, buffers=buffers)) == b"xyz"
    assert bytes(safepickle.load(io.BytesIO(data), buffers=[b"xyz"])) == b"xyz"
    assert bytes(Unpickler(io.BytesIO(data), buffers=[b"xyz"]).load()) == b"xyz"
    for buffers in ((), None, []):
        with pytest.raises(safepickle.UnpicklingError):
            safepickle.loads(data, buffers=buffers)


# -- hooks -----------------------------------------------------------------------------------------------------------


class OwnClasses(Unpickler):
    def find_class(self, module, name):
        return list if name == "Thing" else super().find_class(module, name)


def test_find_class_is_asked_for_every_name():
    asked = []

    class Asks(Unpickler):
        def find_class(self, module, name):
            asked.append((module, name))
            return super().find_class(module, name)

    assert Asks(io.BytesIO(safepickle.dumps([Thing, len, Thing(1)]))).load()[0] is Thing
    assert ("tests.test_unpickler", "Thing") in asked and ("builtins", "len") in asked


def test_find_class_may_give_something_else():
    assert OwnClasses(io.BytesIO(safepickle.dumps([Thing, dict]))).load() == [list, dict]


def test_find_class_may_refuse():
    class Refuses(Unpickler):
        def find_class(self, module, name):
            raise safepickle.UnpicklingError(f"{module}.{name} is forbidden")

    with pytest.raises(safepickle.UnpicklingError, match="forbidden"):
        Refuses(io.BytesIO(safepickle.dumps(Thing(1)))).load()


def test_find_class_of_the_unpickler_itself_can_be_called():
    assert Unpickler(io.BytesIO()).find_class("collections", "OrderedDict").__name__ == "OrderedDict"


@pytest.mark.parametrize("protocol", PROTOCOLS[1:])
def test_persistent_load_gives_what_persistent_id_named(protocol):
    class Loads(Unpickler):
        def persistent_load(self, pid):
            return ("loaded", pid)

    data = persistent([Thing(1), {"a": Thing("b")}], protocol)
    assert Loads(io.BytesIO(data)).load() == [("loaded", ("thing", 1)), {"a": ("loaded", ("thing", "b"))}]


def test_persistent_load_can_be_assigned_to_the_unpickler():
    """As `torch.load` does it."""

    class Wrapper(Unpickler):
        def find_class(self, module, name):
            return super().find_class(module, name)

    for cls in (Wrapper, Unpickler):
        unpickler = cls(io.BytesIO(persistent([Thing(1)])))
        unpickler.persistent_load = lambda pid: ("loaded", pid)
        assert unpickler.load() == [("loaded", ("thing", 1))]


def test_a_persistent_id_without_a_hook_is_an_error():
    with pytest.raises(safepickle.UnpicklingError):
        safepickle.loads(persistent([Thing(1)]))


def test_an_error_of_a_hook_keeps_its_type():
    class Custom(Exception):
        pass

    class Raises(Unpickler):
        def persistent_load(self, pid):
            raise Custom("from the hook")

    with pytest.raises(Custom, match="from the hook"):
        Raises(io.BytesIO(persistent([Thing(1)]))).load()


def test_a_subclass_may_have_its_own_init():
    class Own(Unpickler):
        def __init__(self, data):
            self.names = []
            super().__init__(io.BytesIO(data))

        def find_class(self, module, name):
            self.names.append(name)
            return super().find_class(module, name)

    unpickler = Own(safepickle.dumps(Thing(1)))
    assert unpickler.load().value == 1
    assert "Thing" in unpickler.names


def test_a_subclass_that_forgets_to_call_init_gets_the_standard_librarys_error():
    class Forgets(Unpickler):
        def __init__(self):
            pass

    with pytest.raises(pickle.UnpicklingError, match=r"__init__\(\) was not called"):
        Forgets().load()


def test_a_subclass_may_call_init_of_the_standard_librarys_unpickler():
    class Bypasses(Unpickler):
        def __init__(self, file):
            pickle.Unpickler.__init__(self, file)

    assert Bypasses(io.BytesIO(pickle.dumps([1]))).load() == [1]
    with pytest.raises(pickle.UnpicklingError):
        Bypasses(io.BytesIO(b"\x80\x04]\xff")).load()


def test_the_memo_of_an_unpickler_can_be_seen_and_handed_on():
    unpickler = Unpickler(io.BytesIO(pickle.dumps(["text", [1]])))
    unpickler.load()
    assert "text" in unpickler.memo.copy().values()
    other = Unpickler(io.BytesIO(b""))
    other.memo = unpickler.memo
    assert "text" in other.memo.copy().values()


# -- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"\x80\x04", b"\x80\x04]\x94(K\x01", pickle.dumps([1])[:-1]])
def test_the_end_of_a_file_is_an_eof_error(data):
    """Loops read until then."""
    for load in (
        safepickle.loads,
        lambda data: safepickle.load(io.BytesIO(data)),
        lambda data: Unpickler(io.BytesIO(data)).load(),
    ):
        try:
            pickle.loads(data)
        except Exception as error:
            expected = type(error)
        with pytest.raises(expected):
            load(data)


def test_a_loop_over_the_pickles_of_a_file_ends_at_its_end(tmp_path):
    path = tmp_path / "pickles"
    with open(path, "wb") as file:
        for number in range(5):
            safepickle.dump([number], file)
    found = []
    with open(path, "rb") as file:
        while True:
            try:
                found.append(safepickle.load(file)[0])
            except EOFError:
                break
    assert found == [0, 1, 2, 3, 4]


GARBAGE = [
    b"garbage",
    b"\x80\x04\xff.",
    b"\x80\x63.",
    b"]a.",
    b"(.",
    b"0.",
    b"R.",
    b"h\x05.",
    b"cno_such_module\nname\n.",
    b".",
]


@pytest.mark.parametrize("data", GARBAGE, ids=repr)
def test_a_malformed_pickle_is_an_error_of_the_standard_librarys_type(data):
    with pytest.raises(Exception) as theirs:
        pickle.loads(data)
    for load in (
        safepickle.loads,
        lambda data: safepickle.load(io.BytesIO(data)),
        lambda data: Unpickler(io.BytesIO(data)).load(),
    ):
        with pytest.raises(type(theirs.value)) as ours:
            load(data)
        assert isinstance(ours.value, (pickle.UnpicklingError, EOFError, type(theirs.value)))


@given(data=st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused_as_by_the_standard_library(data):
    if b"c" in data or b"i" in data or b"\x93" in data:
        return  # names: what they lead to might be called
    try:
        expected = pickle.loads(data)
    except Exception as error:
        with pytest.raises(type(error)):
            safepickle.loads(data)
    else:
        assert repr(safepickle.loads(data)) == repr(expected)


@pytest.mark.parametrize("position", [0, 7])
def test_a_failed_load_leaves_the_file_where_the_standard_library_leaves_it(position):
    data = b"x" * position + pickle.dumps([1, 2])[:-3] + b"\xff" + b"rest" * 10
    ours, theirs = io.BytesIO(data), io.BytesIO(data)
    for file, load in ((ours, safepickle.load), (theirs, pickle.load)):
        file.seek(position)
        with pytest.raises(Exception):  # noqa: B017
            load(file)
    assert ours.tell() == theirs.tell()


def test_a_failed_load_runs_nothing_a_second_time(tmp_path):
    """The error says where it happened; to find that out, the pickle is read, not run."""
    runs = tmp_path / "runs"
    runs.write_text("")
    data = safepickle.dumps([Runs(runs), Fails()])
    for load in (
        safepickle.loads,
        lambda data: safepickle.load(io.BytesIO(data)),
        lambda data: Unpickler(io.BytesIO(data)).load(),
    ):
        runs.write_text("")
        with pytest.raises(ZeroDivisionError):
            load(data)
        assert runs.read_text() == "run "


class Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return write_run, (str(self.path),)


def write_run(path):
    with Path(path).open("a") as file:
        file.write("run ")


class Fails:
    def __reduce__(self):
        return fail, ()


def fail():
    return 1 / 0


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_is_not_about_the_pickle_passes_through(kind):
    data = pickle.dumps(Raises(kind))
    with pytest.raises(kind) as caught:
        safepickle.loads(data)
    assert type(caught.value) is kind


class Raises:
    def __init__(self, kind):
        self.kind = kind

    def __reduce__(self):
        return raise_, (self.kind,)


def raise_(kind):
    raise kind


# -- memory and threads ----------------------------------------------------------------------------------------------


def test_no_cycle_keeps_an_unpickler_alive():
    gc.collect()
    gc.disable()
    try:
        for cls in (OwnClasses, type("Plain", (Unpickler,), {})):
            unpickler = cls(io.BytesIO(safepickle.dumps([1, {"a": [2]}])))
            unpickler.load()
            reference = weakref.ref(unpickler)
            del unpickler
            assert reference() is None
    finally:
        gc.enable()


def test_threads_may_load_at_once():
    data = safepickle.dumps([Thing([1]), lambda: 2, threading.Lock()])
    failures = []

    def work():
        try:
            for _ in range(200):
                thing, function, lock = safepickle.loads(data)
                assert thing.value == [1] and function() == 2 and lock.acquire(blocking=False)
        except BaseException as error:
            failures.append(error)

    def run():
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    call_with_timeout(run, 60)
    assert failures == []
