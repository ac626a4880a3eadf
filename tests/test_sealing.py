"""Does a sealed object get through every pickler, with nothing installed, and stay bytes where that is asked for?"""

from __future__ import annotations

import base64
import copy
import io
import json
import multiprocessing
import pickle
import sys
import threading

import pytest

import safepickle
from safepickle import sealing
from safepickle.__main__ import main
from safepickle.anatomy import read_pickle

from .helpers import call_with_timeout, fresh_load, run_python

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def make():
    """What plain pickle refuses twice over."""
    lock = threading.Lock()
    rows = [1, 2]
    return {"lock": lock, "again": lock, "add": lambda x: x + rows[0], "rows": rows, "text": "ä\udcff" * 3}


def check(made):
    assert made["lock"] is made["again"]
    assert call_with_timeout(lambda: made["lock"].acquire(timeout=5))
    assert made["add"](1) == 2 and made["rows"] == [1, 2] and made["text"] == "ä\udcff" * 3


# -- picklers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_sealed_object_arrives_as_itself(protocol):
    check(pickle.loads(pickle.dumps(safepickle.seal(make()), protocol)))
    nested = pickle.loads(pickle.dumps([safepickle.seal(make()), 1], protocol))
    assert nested[1] == 1
    check(nested[0])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_lazy_seal_arrives_as_a_seal_however_often_it_is_sent(protocol):
    parcel = safepickle.seal(make(), lazy=True)
    for _ in range(3):
        parcel = pickle.loads(pickle.dumps(parcel, protocol))
        assert type(parcel) is sealing.LazySeal
    check(parcel.get())
    assert parcel.get() is not parcel.get()


def test_the_standard_librarys_python_pickler_carries_seals():
    check(pickle._loads(pickle._dumps(safepickle.seal(make()))))
    check(pickle._loads(pickle._dumps(safepickle.seal(make(), lazy=True))).get())


@pytest.mark.parametrize("name", ["cloudpickle", "dill", "safepickle"])
@pytest.mark.parametrize("lazy", [False, True])
def test_other_picklers_carry_seals(name, lazy):
    module = pytest.importorskip(name)
    arrived = module.loads(module.dumps(safepickle.seal(make(), lazy=lazy)))
    check(arrived.get() if lazy else arrived)


def test_a_process_in_the_middle_does_not_need_what_a_lazy_seal_holds(tmp_path):
    folder = tmp_path / "ours"
    folder.mkdir()
    (folder / "ours_alone.py").write_text("class Secret:\n    value = 7\n")
    write = """
        import pickle, sys, safepickle, ours_alone
        data = pickle.dumps({"job": safepickle.seal(ours_alone.Secret(), lazy=True)})
        open(sys.argv[1], "wb").write(data)
    """
    run_python(write, pythonpath=[folder], args=[tmp_path / "first"])
    broker = """
        import pickle, sys
        job = pickle.load(open(sys.argv[1], "rb"))
        assert repr(job["job"]).startswith("<sealed ours_alone.Secret, ")
        try:
            job["job"].get()
        except Exception as error:
            assert "ours_alone" in str(error)
        else:
            raise AssertionError
        pickle.dump(job, open(sys.argv[2], "wb"))
    """
    run_python(broker, args=[tmp_path / "first", tmp_path / "second"])
    worker = """
        import pickle, sys
        assert pickle.load(open(sys.argv[1], "rb"))["job"].get().value == 7
    """
    run_python(worker, pythonpath=[folder], args=[tmp_path / "second"])


def echo(connection):
    while True:
        item = connection.recv()
        if item is None:
            break
        connection.send(safepickle.seal(item) if isinstance(item, dict) else item)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_seals_go_through_multiprocessing_with_nothing_installed(method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=echo, args=(there,), daemon=True)
    process.start()
    try:
        for lazy in (False, True):
            here.send(safepickle.seal(make(), lazy=lazy))
            assert here.poll(60)
            arrived = here.recv()
            check(arrived.get() if lazy else arrived)
        here.send(None)
        process.join(30)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()


def test_the_bytes_of_a_seal_go_where_only_text_can(tmp_path):
    for lazy in (False, True):
        message = json.dumps({"job": base64.b64encode(bytes(safepickle.seal([make], lazy=lazy))).decode()})
        [made] = pickle.loads(base64.b64decode(json.loads(message)["job"]))
        check(made())


def test_a_seal_loads_in_a_fresh_process(tmp_path):
    for lazy in (False, True):
        data = pickle.dumps(safepickle.seal({"add": lambda x: x + 1, "lock": threading.RLock()}, lazy=lazy))
        get = "obj = obj.get()\n" if lazy else ""
        code = get + "assert obj['add'](1) == 2 and obj['lock'].acquire(blocking=False)"
        fresh_load(data, code, tmp_path, loader="pickle")


# -- large buffers -----------------------------------------------------------------------------------------------------


def test_a_large_array_is_not_copied_before_it_is_sent_out_of_band():
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(100_000)
    address = array.__array_interface__["data"][0]
    for lazy in (False, True):
        buffers = []
        data = pickle.dumps(safepickle.seal({"array": array}, lazy=lazy), 5, buffer_callback=buffers.append)
        assert len(data) < 1000
        [buffer] = [buffer for buffer in buffers if buffer.raw().nbytes == array.nbytes]
        assert numpy.frombuffer(buffer, "u1").__array_interface__["data"][0] == address
        arrived = pickle.loads(data, buffers=[bytearray(buffer) for buffer in buffers])
        made = arrived.get() if lazy else arrived
        made["array"][0] = 7
        assert made["array"].sum() == array.sum() + 7 and array[0] == 0


def test_a_large_array_is_once_in_a_pickle_of_its_seal():
    numpy = pytest.importorskip("numpy")
    array = numpy.zeros(100_000)
    for lazy in (False, True):
        data = pickle.dumps(safepickle.seal([array, array[1:]], lazy=lazy), 5)
        assert array.nbytes < len(data) < 2.1 * array.nbytes
        made = pickle.loads(data)
        made = made.get() if lazy else made
        made[0][0] = 1
        assert made[0][0] == 1


def test_tensors_of_a_seal_share_their_storage_and_are_their_own():
    torch = pytest.importorskip("torch")
    rows = torch.zeros(400_000)
    parcel = pickle.loads(pickle.dumps(safepickle.seal({"rows": rows, "view": rows[10:]}, lazy=True), 5))
    assert rows.nbytes < parcel.nbytes < rows.nbytes + 2000
    first, second = parcel.get(), parcel.get()
    first["rows"][10] = 5
    assert first["view"][0] == 5 and second["view"][0] == 0
    assert parcel.get()["view"][0] == 0
    shared = [parcel.get(copy=False) for _ in range(2)]
    shared[0]["rows"][10] = 6
    assert shared[1]["view"][0] == 6


def test_arrays_that_cannot_be_written_to_stay_so():
    numpy = pytest.importorskip("numpy")
    array = numpy.zeros(100_000)
    array.flags.writeable = False
    parcel = pickle.loads(pickle.dumps(safepickle.seal([array, numpy.ones(100_000)], lazy=True), 5))
    assert [part.flags.writeable for part in parcel.get()] == [False, True]


# -- as an object ------------------------------------------------------------------------------------------------------


def test_what_cannot_be_pickled_is_said_with_its_path():
    bad = {"rows": [1, iter([]), (x for x in [])]}
    with pytest.raises(safepickle.PicklingError, match=r"rows.*\[2\]"):
        safepickle.seal(bad, lazy=True)
    with pytest.raises(safepickle.PicklingError, match=r"rows.*\[2\]"):
        pickle.dumps(safepickle.seal(bad))


def test_a_lazy_seal_is_of_the_moment_it_was_made():
    rows = [1]
    now, later = safepickle.seal(rows, lazy=True), safepickle.seal(rows)
    rows.append(2)
    assert now.get() == [1] and later.get() is rows
    assert pickle.loads(pickle.dumps(later)) == [1, 2]


def test_seals_are_copied_as_what_they_hold():
    rows = [1]
    for copier in (copy, safepickle):
        eager = safepickle.seal(rows)
        assert copier.copy(eager).get() is rows
        twin = copier.deepcopy([eager, rows])
        assert twin[0].get() is twin[1] is not rows
        lazy = safepickle.seal(rows, lazy=True)
        assert copier.copy(lazy).get() == copier.deepcopy(lazy).get() == [1]


def test_a_deep_copy_of_a_lazy_seal_has_memory_of_its_own():
    numpy = pytest.importorskip("numpy")
    array = numpy.zeros(100_000)
    parcel = safepickle.seal(array, lazy=True)
    twin = copy.deepcopy(parcel)
    array[0] = 1
    assert parcel.get()[0] == 1 and twin.get()[0] == 0


def test_a_seal_says_what_it_is_and_how_large():
    assert repr(safepickle.seal(threading.Lock())) == "<sealed _thread.lock>"
    lazy = safepickle.seal(b"x" * 5000, lazy=True)
    assert repr(lazy) == f"<sealed builtins.bytes, {lazy.nbytes:,} bytes>"
    assert 5000 < lazy.nbytes < sys.getsizeof(lazy) < 5300
    assert repr(pickle.loads(pickle.dumps(lazy))) == repr(lazy)


def test_what_pickles_call_takes_bytes_only():
    for function, arguments in [
        (sealing.unseal, ("text",)), (sealing.unseal, (b"", [b""])), (sealing.unseal, (b"", (1,))),
        (sealing.sealed, (b"", b"")), (sealing.sealed, ("", None)), (sealing.sealed, ("", b"", "")),
    ]:  # fmt: skip
        with pytest.raises(TypeError, match="seal"):
            function(*arguments)


def test_nothing_runs_until_a_lazy_seal_is_opened(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (tmp_path / "exploded").write_text, ("x",)

    parcel = pickle.loads(pickle.dumps(sealing.LazySeal(pickle.dumps(Bomb()), (), "bomb")))
    assert not (tmp_path / "exploded").exists()
    parcel.get()
    assert (tmp_path / "exploded").exists()


# -- those who look into files -----------------------------------------------------------------------------------------


class Inside:
    pass


def sealed_file(tmp_path, lazy, protocol, obj=None):
    file = tmp_path / "sealed.pkl"
    file.write_bytes(pickle.dumps({"x": safepickle.seal(Inside() if obj is None else obj, lazy=lazy)}, protocol))
    return file


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("lazy", [False, True])
def test_names_in_a_seal_are_seen_by_who_looks_into_the_pickle(tmp_path, lazy, protocol):
    data = sealed_file(tmp_path, lazy, protocol).read_bytes()
    found = read_pickle(io.BytesIO(data), len(data))
    assert found.problem is None and found.end == len(data)
    assert found.globals[f"{__name__}.Inside"] == 1
    assert found.globals[f"safepickle.sealing.{'sealed' if lazy else 'unseal'}"] == 1


def test_a_seal_in_a_seal_is_looked_into_and_a_damaged_one_is_told():
    data = pickle.dumps(safepickle.seal([safepickle.seal(Inside(), lazy=True)]))
    found = read_pickle(io.BytesIO(data), len(data))
    assert found.globals[f"{__name__}.Inside"] == 1
    data = pickle.dumps(sealing.LazySeal(b"\x80\x04junk", (), "damaged"))
    found = read_pickle(io.BytesIO(data), len(data))
    assert "in the sealed object at byte" in found.problem
    seal = Inside()
    for _ in range(25):
        seal = safepickle.seal(seal, lazy=True)
    data = pickle.dumps(seal)
    assert "too many sealed objects in one another" in read_pickle(io.BytesIO(data), len(data)).problem


def test_the_sizes_of_tensors_in_a_seal_are_those_of_their_buffers(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    for lazy in (False, True):
        file = sealed_file(tmp_path, lazy, 5, {"weight": torch.zeros(10_000)})
        assert main(["inspect", "--json", str(file)]) == 0
        [tensor] = json.loads(capsys.readouterr().out)[0]["pickles"][0]["tensors"]
        assert tensor["shape"] == [10_000] and 40_000 <= tensor["bytes"] < 40_100


def test_a_seal_that_leads_to_itself_says_so():
    rows = [1]
    rows.append(safepickle.seal(rows))
    for write in (pickle.dumps, safepickle.dumps, lambda it: safepickle.seal(it, lazy=True)):
        with pytest.raises(pickle.PicklingError, match="a seal that leads to itself"):
            write(rows)
    rows.pop()
    twice = safepickle.seal(rows)
    assert pickle.loads(pickle.dumps([twice, safepickle.seal(twice)])) == [[1], [1]]


def sealed_in(data: bytes, times: int) -> bytes:
    """A pickle that unseals the same bytes many times over."""
    first = b"\x80\x04csafepickle.sealing\nunseal\nq\x00B" + len(data).to_bytes(4, "little") + data + b"q\x01\x85R"
    return first + b"0h\x00h\x01\x85R" * (times - 1) + b"."


def test_the_same_sealed_bytes_are_looked_into_once_however_often_they_are_unsealed():
    data = b"\x80\x04cos\ngetpid\n)R."
    for _ in range(15):
        data = sealed_in(data, 10)
    found = call_with_timeout(lambda: read_pickle(io.BytesIO(data), len(data)), 60)
    assert found.problem is None and found.globals["os.getpid"] == 10**15
    assert len(found.nodes) < 1000


@pytest.mark.parametrize("lazy", [False, True])
def test_verify_finds_what_is_missing_in_a_seal_and_migrate_refuses(tmp_path, capsys, lazy):
    file = sealed_file(tmp_path, lazy, 4)
    assert main(["verify", str(file)]) == 0
    data = file.read_bytes().replace(b"Inside", b"Insane")
    file.write_bytes(data)
    assert main(["verify", str(file)]) == 1
    assert "Insane" in capsys.readouterr().out
    target = tmp_path / "new.pkl"
    assert main(["migrate", str(file), "-o", str(target), "--map", f"{__name__}:Insane={__name__}:Inside"]) == 2
    assert "sealed" in capsys.readouterr().err
    assert not target.exists()


def test_torch_refuses_a_seal_where_it_loads_weights_only():
    torch = pytest.importorskip("torch")
    for lazy in (False, True):
        file = io.BytesIO()
        torch.save({"x": safepickle.seal(Inside(), lazy=lazy)}, file)
        file.seek(0)
        with pytest.raises(pickle.UnpicklingError, match=r"safepickle\.sealing\.(un)?seal"):
            torch.load(file, weights_only=True)
        file.seek(0)
        arrived = torch.load(file, weights_only=False)["x"]
        assert type(arrived.get() if lazy else arrived) is Inside
