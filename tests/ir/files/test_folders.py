"""At every moment a folder has the old files or the new ones, for whoever comes next."""

import errno
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shardwright.ir.errors import OutputError
from shardwright.ir.files import folders
from shardwright.ir.files.folders import locked, settle
from shardwright.ir.files.reading import read_member
from shardwright.ir.files.writing import check_folder, replacing, write_files
from tests.stopping import in_child, killed, stopping

OLD = {"a": b"old a", "b": b"old b", "gone": b"old"}
NEW = {"a": b"new a", "b": b"new b", "c": b"new c"}


def failing() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def found(folder: Path) -> dict[str, bytes]:
    """Return what a reader finds under the names of both."""
    files = {}
    for name in (*OLD, "c"):
        try:
            files[name] = read_member(folder, name)
        except FileNotFoundError:
            continue
    return files


def replace(folder: Path) -> None:
    write_files(folder, NEW, "it", obsolete=["gone"])


def stopped_at(folder: Path, place: int, stop: Callable[[], None]) -> int:
    """Replace the old files by the new ones, stop at a change, and return how the process ends."""
    write_files(folder, OLD, "it")
    (folder / "mine").write_bytes(b"mine")

    def work() -> None:
        stopping(folder, place, stop)
        replace(folder)

    return in_child(work)


@pytest.mark.long
@pytest.mark.parametrize("stop", [killed, failing])
def test_whoever_comes_next_finds_the_old_or_the_new_files(
    tmp_path: Path, stop: Callable[[], None]
) -> None:
    ends, states = [], []
    for place in range(1, 40):
        folder = tmp_path / f"{place}"
        ends.append(stopped_at(folder, place, stop))
        files = found(folder)
        is_new = all(files.get(name) == content for name, content in NEW.items())
        states.append(is_new)
        assert is_new or files == OLD, place
        check_folder(folder, "it")
        expected = {"mine": b"mine", **(NEW if is_new else OLD)}
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == expected
        replace(folder)
        assert {path.name for path in folder.iterdir()} == {"mine", *NEW}
        if place > 1 and not ends[-1]:  # no folder is made at place 1: it is there
            break
    assert ends[-1] == 0  # it was stopped at every change
    assert states.count(False) > 5
    assert sum(is_new and end != 0 for is_new, end in zip(states, ends, strict=True)) > 5
    if stop is killed:
        assert states == sorted(states)  # one moment, from which the new files count


def test_a_new_folder_of_a_writer_that_was_killed(tmp_path: Path) -> None:
    for place in range(1, 30):
        folder = tmp_path / f"{place}"

        def work(folder: Path = folder, place: int = place) -> None:
            stopping(folder, place, killed)
            write_files(folder, NEW, "it")

        end = in_child(work)
        check_folder(folder, "it")
        left = {path.name for path in folder.iterdir()} if folder.exists() else set()
        assert left in (set(), set(NEW))
        if not end:
            break
    assert place > 5
    assert end == 0  # it was stopped at every change


def test_one_file_of_a_writer_that_was_killed_is_swept(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def write(content: bytes) -> None:
        with replacing(path, "it") as file:
            file.write(content)

    write(b"old")
    (tmp_path / ".file.mine").write_bytes(b"mine")
    for place in range(1, 20):

        def work(place: int = place) -> None:
            stopping(tmp_path, place, killed)
            write(b"new")

        end = in_child(work)
        assert path.read_bytes() in (b"old", b"new")
        write(b"old")
        assert sorted(p.name for p in tmp_path.iterdir()) == [".file.mine", "file"]
        if not end:
            break
    assert place > 3
    assert end == 0  # it was stopped at every change


def test_writers_wait_for_each_other_and_readers_see_one_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write_files(folder, OLD, "it")
    others = {name: b"other" for name in NEW}

    def write() -> None:
        for number in range(20):
            write_files(folder, NEW if number % 2 else others, "it")

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=write) for _ in range(3)]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        with locked(folder, alone=False):
            files = {name: read_member(folder, name) for name in ("a", "b")}
        assert files in (
            {n: NEW[n] for n in files},
            {n: others[n] for n in files},
            {n: OLD[n] for n in files},
        )
    assert [process.exitcode for process in processes] == [0, 0, 0]


def test_a_folder_that_another_does_not_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "ANSWER", 0.0)
    with locked(tmp_path, alone=False), pytest.raises(OutputError) as caught:
        write_files(tmp_path, NEW, "it")
    assert str(caught.value) == (
        f"it cannot be written: another process writes or reads there (in {tmp_path})"
    )
    assert not any(tmp_path.iterdir())


def test_what_another_has_put_there_leads_nowhere(tmp_path: Path) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    (folder / ".shardwright-written").mkdir(parents=True)
    other.write_bytes(b"mine")
    (folder / ".shardwright-written" / ".obsolete").write_text(f"../other\n{other}\n..\n")
    settle(folder)
    assert other.read_bytes() == b"mine"
    (folder / ".shardwright-written").symlink_to(tmp_path)
    with pytest.raises(OutputError, match="-written` is a link"):
        check_folder(folder, "it")
    assert other.read_bytes() == b"mine"
