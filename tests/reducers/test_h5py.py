"""h5py files, groups and datasets are opened again by path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import safepickle
from tests.helpers import fresh_load

from .ways import Way, every_way

__all__: list[str] = []

h5py = pytest.importorskip("h5py")


class Rows:
    """A dataset that keeps its file open, as in many training scripts."""

    def __init__(self, path: Path) -> None:
        self.file = h5py.File(path, "r")
        self.rows = self.file["data/rows"]

    def __getitem__(self, index: int) -> float:
        return float(self.rows[index])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "rows.h5"
    with h5py.File(found, "w") as file:
        rows = file.create_dataset("data/rows", data=list(range(1000)))
        rows.attrs["unit"] = "m"
        file["types/real"] = rows.dtype
    return found


@pytest.fixture
def file(path: Path) -> Iterator[Any]:
    with h5py.File(path, "r") as found:
        yield found


@every_way
def test_a_file_is_opened_again_for_reading(way: Way, file: Any) -> None:
    twin = way({"file": file})["file"]
    assert type(twin) is h5py.File
    assert twin.mode == "r"
    assert twin.id.id != file.id.id
    assert twin["data/rows"][3] == 3
    twin.close()
    assert file["data/rows"][4] == 4


@every_way
@pytest.mark.parametrize("name", ["/", "data", "data/rows", "types/real"])
def test_what_is_in_a_file(way: Way, file: Any, name: str) -> None:
    obj = file[name]
    twin = way(obj)
    assert type(twin) is type(obj)
    assert twin.name == obj.name
    assert twin == obj
    if name == "data/rows":
        assert twin[5] == 5
        assert twin.attrs["unit"] == "m"


@every_way
def test_a_dataset_with_its_file(way: Way, path: Path) -> None:
    rows = Rows(path)
    twin = way(rows)
    assert [twin[1], twin[999]] == [1.0, 999.0]
    twin.file.close()
    assert not twin.rows, "it is in the file that was opened with it"
    assert rows[7] == 7.0
    rows.file.close()


@every_way
def test_two_objects_of_one_file_share_the_one_that_is_opened(way: Way, path: Path) -> None:
    group = h5py.File(path, "r")["data"]
    dataset = group["rows"]
    twin_group, twin_dataset = way([group, dataset])
    twin_group.file.close()
    assert not twin_dataset
    assert dataset[2] == 2


def test_the_payload_is_small_and_loads_elsewhere(path: Path, tmp_path: Path) -> None:
    rows = Rows(path)
    data = safepickle.dumps([rows.file, rows.rows], 2)
    rows.file.close()
    assert len(data) < 600
    assert fresh_load(data, "print(obj[1][10], obj[0].mode)", tmp_path).split() == ["10", "r"]


def test_a_missing_file_is_an_error_that_names_it(file: Any, path: Path) -> None:
    data = safepickle.dumps(file)
    path.unlink()
    with pytest.raises(safepickle.UnpicklingError, match=r"rows\.h5"):
        safepickle.loads(data)


def test_a_missing_dataset_is_an_error_that_names_it(path: Path) -> None:
    with h5py.File(path, "r") as file:
        data = safepickle.dumps(file["data/rows"])
    with h5py.File(path, "r+") as file:
        del file["data/rows"]
    with pytest.raises(safepickle.UnpicklingError, match="/data/rows"):
        safepickle.loads(data)


@pytest.mark.parametrize("verb", [safepickle.dumps, safepickle.deepcopy, safepickle.copy])
def test_files_that_cannot_be_opened_again_are_refused(verb: Any, path: Path) -> None:
    with h5py.File(path, "a") as file, pytest.raises(safepickle.PicklingError, match="open for writing"):
        verb(file["data"])
    with pytest.raises(safepickle.PicklingError, match="closed"):
        verb(file)
    with (
        h5py.File("memory", "w", driver="core", backing_store=False) as core,
        pytest.raises(safepickle.PicklingError, match="driver"),
    ):
        verb(core)


def test_copy_is_another_handle(file: Any) -> None:
    twin = safepickle.copy(file)
    twin.close()
    assert file["data/rows"][0] == 0
