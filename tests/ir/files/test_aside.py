"""What is made beside its place takes it by one change, and nothing is left of who was killed."""

import fcntl
import os
from pathlib import Path

import pytest

from shardwright.ir.errors import OutputError
from shardwright.ir.files import aside as module
from shardwright.ir.files.aside import aside, commit, new_file
from shardwright.ir.files.writing import check_new_folder, replacing, write_folder
from tests.stopping import in_child, killed, stopping

FILES = {"__init__.py": b"from .step import run\n", "step.py": b"def run(): ...\n", "x.bin": b"1"}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.long
@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_is_there_whole_or_not_at_all(tmp_path: Path, exists: bool) -> None:
    states = []
    for place in range(1, 30):
        parent = tmp_path / f"{place}"
        folder = parent / "package"
        (folder if exists else parent).mkdir(parents=True)

        def work(folder: Path = folder, place: int = place) -> None:
            stopping(folder.parent, place, killed)
            write_folder(folder, FILES, "the export")

        end = in_child(work)
        found = contents(folder) if folder.exists() else {}
        assert found in ({}, FILES), place
        states.append(bool(found))
        if not found:
            write_folder(folder, FILES, "the export")
        assert contents(folder) == FILES
        assert list(parent.iterdir()) == [folder]
        if not end:
            break
    assert end == 0  # it was stopped at every change
    assert states.count(False) > len(FILES)
    assert states == sorted(states)  # one moment, from which it is there


def test_where_no_folder_can_appear_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def complaint(folder: Path) -> str:
        with pytest.raises(OutputError) as caught:
            check_new_folder(folder, "the export")
        return str(caught.value)

    monkeypatch.chdir(tmp_path)
    said = "the export cannot be written: it comes as a new folder, and "
    assert complaint(Path()) == f"{said}the command runs in this one (in .); name a new folder"
    (tmp_path / "mine").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path / "mine")
    said += "something is mounted there"
    assert complaint(Path("mine")) == f"{said} (in mine); name a new folder"
    (tmp_path / "mine" / "file").write_bytes(b"")
    said = "the folder has files, they are not overwritten"
    assert complaint(Path("mine")) == f"{said} (in mine); name a new folder"


def test_the_permissions_of_an_empty_folder_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    folder.mkdir(mode=0o700)
    write_folder(folder, FILES, "the export")
    assert folder.stat().st_mode & 0o777 == 0o700


def test_nobody_sweeps_what_another_holds(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for name in (".file.writing-0a", ".file.writing-0b", ".file.mine"):
        (tmp_path / name).write_bytes(b"half")
    with (tmp_path / ".file.writing-0a").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with replacing(path, "it") as file, replacing(path, "it") as other:
            file.write(b"1")
            other.write(b"2")
    assert path.read_bytes() == b"1"  # the last one that was complete
    assert sorted(p.name for p in tmp_path.iterdir()) == [".file.mine", ".file.writing-0a", "file"]


def test_a_place_without_locks_is_written_and_not_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(descriptor: int, how: int) -> None:
        raise OSError(module.errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(module.fcntl, "flock", no_locks)
    (tmp_path / ".file.writing-0a").write_bytes(b"half")
    with replacing(tmp_path / "file", "it") as file:
        file.write(b"1")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".file.writing-0a", "file"]


@pytest.mark.parametrize("exchanges", [True, False])
def test_folders_with_files_are_exchanged(
    tmp_path: Path, exchanges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchanges:
        monkeypatch.setattr(module, "_exchanged", lambda first, second: False)
    target = tmp_path / "step-1"
    target.mkdir()
    (target / "old").write_bytes(b"old")
    with aside(target, Path.mkdir) as stage:
        (stage / "new").write_bytes(b"new")
        commit(stage, target)
        assert contents(stage) == {"old": b"old"}
    assert contents(target) == {"new": b"new"}
    assert list(tmp_path.iterdir()) == [target]


def test_what_is_not_committed_goes(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), aside(tmp_path / "file", new_file):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
