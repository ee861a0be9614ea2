"""Files appear complete or not at all, and replace only what the program wrote."""

import os
from pathlib import Path

import pytest

from shardwright.ir.errors import OutputError
from shardwright.ir.files.writing import (
    begins,
    check_file,
    check_folder,
    check_names,
    replacing,
    write_file,
    write_files,
)

OURS = begins(b"ours")


def complaint(function, *arguments):
    with pytest.raises(OutputError) as caught:
        function(*arguments)
    return str(caught.value)


def test_a_new_file_and_one_of_ours(tmp_path):
    path = tmp_path / "file"
    for content in (b"ours 1", b"ours 2"):
        write_file(path, content, "it", OURS)
        assert path.read_bytes() == content
    path.write_bytes(b"")
    write_file(path, b"ours 3", "it", OURS)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_file_of_the_user_stays(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"mine")
    assert complaint(write_file, path, b"ours", "it", OURS) == (
        f"it cannot be written: a file that is something else is there (in {path}); name another "
        f"file"
    )
    assert path.read_bytes() == b"mine"


def test_where_no_file_can_be(tmp_path):
    path = tmp_path / "none" / "file"
    expected = f"it cannot be written: there is no folder `{path.parent}`"
    assert complaint(check_file, path, "it", OURS) == expected
    expected = f"it cannot be written: a folder is there (in {tmp_path})"
    assert complaint(check_file, tmp_path, "it", OURS) == expected


@pytest.mark.parametrize("forbidden", ["", "file"])
def test_what_may_not_be_written_to(forbidden, tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"ours")
    place = tmp_path / forbidden
    monkeypatch.setattr(os, "access", lambda found, mode: not place.samefile(found))
    expected = f"it cannot be written: permission denied (in {path})"
    assert complaint(write_file, path, b"ours 2", "it", OURS) == expected
    assert path.read_bytes() == b"ours"


def test_a_link_is_followed_and_permissions_are_kept(tmp_path):
    (tmp_path / "real").write_bytes(b"ours")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    write_file(tmp_path / "link", b"ours 2", "it", OURS)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"ours 2"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640


def test_a_link_to_itself(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    expected = f"it cannot be written: a file is there (in {tmp_path / 'loop'})"
    assert complaint(check_folder, tmp_path / "loop", "it") == expected


def test_a_device_stays_a_device():
    device = Path(os.devnull)
    write_file(device, b"gone", "it", OURS)
    assert device.exists()
    assert not device.is_file()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_fails_on_the_way_leaves_the_old_file(error, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"ours")

    def half():
        with replacing(path, "it") as file:
            file.write(b"half")
            raise error

    with pytest.raises((OutputError, KeyboardInterrupt)):
        half()
    assert path.read_bytes() == b"ours"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_files_of_a_folder(tmp_path):
    folder = tmp_path / "deep" / "folder"
    write_files(folder, {"a": b"1", "b": b"2"}, "it")
    (folder / "mine").write_bytes(b"mine")
    write_files(folder, {"a": b"3"}, "it", obsolete=["b"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "a": b"3",
        "mine": b"mine",
    }


def test_names_that_something_else_has(tmp_path):
    for name, content in (("a", b"ours"), ("b", b"mine")):
        (tmp_path / name).write_bytes(content)
    check_names(tmp_path, ["a", "c"], "it", OURS)
    expected = (
        f"it cannot be written: `b` is something else, it is not overwritten (in {tmp_path}); name "
        f"another folder"
    )
    assert complaint(check_names, tmp_path, ["a", "b"], "it", OURS) == expected


def test_a_folder_below_a_file(tmp_path):
    (tmp_path / "file").write_bytes(b"mine")
    place = tmp_path / "file" / "folder"
    expected = (
        f"it cannot be written: a file is there in the place of the folder `file` (in {place})"
    )
    assert complaint(check_folder, place, "it") == expected
    assert complaint(write_files, place, {"a": b""}, "it").startswith("it cannot be written: not a")


def test_new_folders_go_with_what_could_not_be_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shardwright.ir.files.writing.exchange", full)
    said = complaint(write_files, tmp_path / "a" / "b", {"x": b"1"}, "the plan")
    assert said.startswith("the plan cannot be written: no space left on device")
    assert not list(tmp_path.iterdir())
