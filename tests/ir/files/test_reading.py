"""Only regular files are read, up to a size and a depth, and within their folder."""

import io
import json
import os
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from shardwright.ir.files.reading import (
    DEEPEST,
    TooDeepError,
    from_json,
    open_file,
    read_arrays,
    read_bytes,
    read_member,
    read_text,
)


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("a µ")
    assert (read_bytes(path), read_text(path)) == ("a µ".encode(), "a µ")
    assert read_bytes(path, most=4) == "a µ".encode()
    link = tmp_path / "link"
    link.symlink_to(path)
    assert read_text(link) == "a µ"  # the user has named it


def test_what_never_ends_is_not_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    device = tmp_path / "zeros"
    device.symlink_to("/dev/zero")
    for path in (pipe, device, Path("/dev/null")):
        with pytest.raises(OSError, match="it is a pipe or a device, expected a file"):
            open_file(path)
    with pytest.raises(IsADirectoryError):
        open_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "none")


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(2**40)
    for most in (3, 2**28):
        with pytest.raises(OSError, match=f"it has more than {most:,} bytes"):
            read_bytes(sparse, most)


def test_a_member_is_in_its_folder(tmp_path: Path) -> None:
    folder, other = tmp_path / "plan", tmp_path / "other"
    folder.mkdir()
    other.write_bytes(b"other")
    (folder / "one").write_bytes(b"one")
    (folder / "alias").symlink_to("one")
    (folder / "out").symlink_to(other)
    assert read_member(folder, "one") == read_member(folder, "alias") == b"one"
    (tmp_path / "linked").symlink_to(folder)
    assert read_member(tmp_path / "linked", "one") == b"one"
    for name in ("../other", str(other), "", ".", "..", "a/../one", "one\0"):
        with pytest.raises(OSError, match="it is no name of a file"):
            read_member(folder, name)
    with pytest.raises(OSError, match="it is a link that leads out of its folder"):
        read_member(folder, "out")


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("depth", [DEEPEST + 1, 5_000, 1_000_000])
def test_json_is_nested_at_most_so_deep(depth: int) -> None:
    for text in (nested(depth), '{"a": ' * depth + "1" + "}" * depth):
        with pytest.raises(TooDeepError, match="it is nested too deeply"):
            from_json(text)
    assert from_json(nested(DEEPEST)) == json.loads(nested(DEEPEST))


def test_json_is_what_the_library_reads() -> None:
    content = {"a": [1, {"b": None}, []], "c": {}, "d": "[[[["}
    assert from_json(json.dumps(content)) == content
    assert from_json("3") == 3
    with pytest.raises(ValueError, match="Expecting value"):
        from_json("[1,")


def archive(**members: bytes) -> io.BytesIO:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, content in members.items():
            made.writestr(f"{name}.npy", content)
    return file


def saved(save: object, **arrays: object) -> io.BytesIO:
    file = io.BytesIO()
    save(file, **arrays)  # type: ignore[operator]
    return file


def test_arrays_are_those_that_were_saved() -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b/c": np.array(2), "d": np.zeros((0, 3))}
    found = read_arrays(saved(np.savez, **arrays))
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_arrays_take_no_more_memory_than_their_file_is_long() -> None:
    bomb = saved(np.savez_compressed, a=np.zeros(2**20))
    with pytest.raises(ValueError, match="its arrays are compressed, or share their bytes"):
        read_arrays(bomb)


def header(shape: str) -> bytes:
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    "content",
    [
        header("(3,)"),
        header(f"({2**40},)"),
        header(f"({2**70},)"),
        header("(-1,)"),
        header("(" * 1000),
        header("(1,").replace(b"<f8", b"|O "),
        b"",
        b"no array",
    ],
)
def test_a_header_that_lies_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_arrays(archive(a=content))


def test_an_object_is_not_unpickled() -> None:
    with pytest.raises(ValueError, match=r"."):
        read_arrays(saved(np.savez, a=np.array([threading.Lock], dtype=object)))


def test_a_file_that_is_no_archive() -> None:
    with pytest.raises(ValueError, match="it is no archive of arrays"):
        read_arrays(io.BytesIO(b"PK no archive"))


def test_half_a_character_is_no_text() -> None:
    for text in ('["\\ud800"]', '{"\\ud800": 1}', '{"a": [{"b": "x\\udfff"}]}', '"\\ud800"'):
        with pytest.raises(ValueError, match="it holds half a character"):
            from_json(text)
    assert from_json('["\\ud83d\\ude00", "é"]') == ["\U0001f600", "é"]
