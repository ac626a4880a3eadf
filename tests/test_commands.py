"""The command line, run as a user runs it."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import safepickle

ROOT = Path(__file__).resolve().parents[1]

MODULE = """
class Old:
    def __init__(self):
        self.rows = [1, 2, 3]

    class Inner:
        pass

def helper(x):
    return x + 1
"""


def command(*arguments, cwd, status=0):
    """Run ``python -m safepickle`` in a folder whose modules it can import."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(cwd)])}
    done = subprocess.run(
        [sys.executable, "-m", "safepickle", *map(str, arguments)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a module, and pickles of its objects."""
    (tmp_path / "moving.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "moving", raising=False)
    import moving

    (tmp_path / "a.pkl").write_bytes(
        safepickle.dumps(
            {"o": moving.Old(), "i": moving.Old.Inner(), "f": lambda x: moving.helper(x) + 1, "l": threading.Lock()}
        )
    )
    monkeypatch.delitem(sys.modules, "moving")
    return tmp_path


def test_inspect_tells_what_is_in_a_pickle_as_text(folder):
    text = command("inspect", "a.pkl", cwd=folder)
    assert "1 pickle" in text and "moving.Old" in text and "moving.helper(x) + 1" in text
    assert sys.implementation.cache_tag in text


def test_inspect_as_json_with_names_resolved(folder):
    (found,) = json.loads(command("inspect", "a.pkl", "--json", "--resolve", cwd=folder))
    (pickled,) = found["pickles"]
    names = {entry["name"]: entry["here"] for entry in pickled["globals"]}
    assert names["moving.Old"] and names["_thread.allocate_lock"]
    assert pickled["problem"] is None and pickled["object"] == "dict"


def test_inspect_imports_nothing_unless_asked(folder):
    (folder / "moving.py").write_text("raise SystemExit('imported')")
    assert "moving.Old" in command("inspect", "a.pkl", cwd=folder)


def test_inspect_has_a_column_about_what_is_here_only_where_it_has_looked(folder):
    assert " here" not in command("inspect", "a.pkl", "--no-source", cwd=folder).replace("moving", "")
    assert " here" in command("inspect", "a.pkl", "--no-source", "--resolve", cwd=folder)


def test_no_command_is_answered_with_the_help(folder):
    text = command(cwd=folder, status=2)
    assert "inspect" in text and "doctor" in text and "imports the modules" in text


def test_a_reader_that_has_enough_ends_the_command_without_complaint(folder):
    done = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m safepickle inspect a.pkl | true; echo ${{PIPESTATUS[0]}}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_a_name_that_is_not_here_is_a_finding(folder):
    (folder / "moving.py").unlink()
    command("inspect", "a.pkl", "--resolve", cwd=folder, status=1)


def test_a_damaged_file_is_a_finding_and_a_missing_one_an_error(folder):
    (folder / "bad.pkl").write_bytes((folder / "a.pkl").read_bytes()[:-40])
    assert "malformed" in command("inspect", "bad.pkl", cwd=folder, status=1)
    command("inspect", "nowhere.pkl", cwd=folder, status=2)


def test_verify_says_that_all_is_here(folder):
    assert "every name is here" in command("verify", "a.pkl", cwd=folder)


def test_verify_names_what_is_missing_and_what_is_near(folder):
    (folder / "moving.py").write_text(MODULE.replace("class Old", "class Olds"))
    text = command("verify", "a.pkl", "--json", cwd=folder, status=1)
    (old,) = [entry for entry in json.loads(text) if entry["what"] == "moving.Old"]
    assert "did you mean moving.Olds?" in old["problem"]


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_migrate_rewrites_names_and_the_result_loads(folder, protocol, monkeypatch):
    import moving

    old = {"o": moving.Old(), "twice": [moving.Old(), moving.Old], "f": moving.helper}
    (folder / "p.pkl").write_bytes(safepickle.dumps(old, protocol))
    monkeypatch.delitem(sys.modules, "moving")
    (folder / "moving.py").unlink()
    (folder / "moved_here.py").write_text(MODULE.replace("class Old", "class New"))
    command(
        "migrate",
        "p.pkl",
        "--map",
        "moving:Old=moved_here:New",
        "--map",
        "moving=moved_here",
        "-o",
        "q.pkl",
        cwd=folder,
    )
    got = safepickle.loads((folder / "q.pkl").read_bytes())
    assert type(got["o"]).__name__ == "New" and got["o"].rows == [1, 2, 3]
    assert got["twice"][1] is type(got["o"]) and got["f"](1) == 2
    sys.modules.pop("moved_here")


def test_migrate_moves_what_is_in_a_class_with_the_class(folder):
    (folder / "moving.py").rename(folder / "other.py")
    command("migrate", "a.pkl", "--map", "moving:Old=other:Old", "-o", "b.pkl", cwd=folder)
    names = {
        e["name"] for e in json.loads(command("inspect", "b.pkl", "--json", cwd=folder))[0]["pickles"][0]["globals"]
    }
    assert "other.Old.Inner" in names and not any(name.startswith("moving.Old") for name in names)


def test_migrate_without_a_match_is_a_finding_and_a_wrong_map_an_error(folder):
    command("migrate", "a.pkl", "--map", "nothing:X=nothing:Y", "-o", "b.pkl", cwd=folder, status=1)
    command("migrate", "a.pkl", "--map", "nonsense", "-o", "b.pkl", cwd=folder, status=2)
    command("migrate", "a.pkl", "--map", "moving=other", "-o", "a.pkl", cwd=folder, status=2)


def test_migrate_of_torch_files_keeps_them_torch_files(folder, monkeypatch):
    torch = pytest.importorskip("torch")
    import moving

    obj = {"w": torch.arange(6.0).view(2, 3), "o": moving.Old()}
    torch.save(obj, folder / "zip.pt", pickle_module=safepickle)
    torch.save(obj, folder / "legacy.pt", pickle_module=safepickle, _use_new_zipfile_serialization=False)
    monkeypatch.delitem(sys.modules, "moving")
    (folder / "moving.py").rename(folder / "moved_torch.py")
    for name in ("zip", "legacy"):
        command("migrate", f"{name}.pt", "--map", "moving=moved_torch", "-o", f"{name}2.pt", cwd=folder)
        got = torch.load(folder / f"{name}2.pt", weights_only=False)
        assert torch.equal(got["w"], obj["w"]) and got["o"].rows == [1, 2, 3]
    mapped = torch.load(folder / "zip2.pt", weights_only=False, mmap=True)
    assert torch.equal(mapped["w"], obj["w"]) and mapped["w"].data_ptr() % 64 == 0
    sys.modules.pop("moved_torch")


def test_inspect_of_torch_files_shows_the_tensors(folder):
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.zeros(2, 3, dtype=torch.bfloat16), "n": torch.nn.Linear(2, 2)}, folder / "m.pt")
    (folder / "t.pkl").write_bytes(safepickle.dumps(torch.zeros(4, dtype=torch.int16)))
    zipped, plain = json.loads(command("inspect", "m.pt", "t.pkl", "--json", cwd=folder))
    shapes = [(t["dtype"], t["shape"], t["bytes"]) for t in zipped["pickles"][0]["tensors"]]
    assert shapes == [("bfloat16", [2, 3], 12), ("float32", [2, 2], 16), ("float32", [2], 8)]
    (tensor,) = plain["pickles"][0]["tensors"]
    assert (tensor["dtype"], tensor["shape"]) == ("int16", [4])


def test_explain_reports_on_an_object_of_a_script(folder):
    (folder / "job.py").write_text(
        "import threading\nfine = {'lock': threading.Lock()}\nbad = {'gen': (i for i in [1])}\n"
    )
    assert "can be pickled" in command("explain", "job.py:fine", cwd=folder)
    assert "obj['gen']" in command("explain", "job.py:bad", cwd=folder, status=1)
    command("explain", "job.py:nothing", cwd=folder, status=2)


def test_rules_prints_the_policy_of_the_standard_library_kinds(folder):
    rows = json.loads(command("rules", "--json", cwd=folder))
    lock = next(row for row in rows if "thread.lock" in row["kind"])
    assert "not held" in lock["pickle"]
    assert command("rules", "--markdown", cwd=folder).startswith("| kind | pickle | deepcopy |")


def test_doctor_says_what_is_here(folder):
    rows = {row["what"]: row for row in json.loads(command("doctor", "--json", cwd=folder))}
    assert rows["safepickle"]["version"] == safepickle.__version__
    assert sys.implementation.cache_tag in rows["python"]["rules"]


def test_an_unknown_command_is_refused(folder):
    command("frobnicate", cwd=folder, status=2)
