"""What comes from another process is read, never run, and costs no more memory than it is long."""

import ast
import dataclasses
import pickle
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.ir.errors import ExecutionError, InfeasibleError, ModelError, ShardwrightError
from shardwright.runtime import messages
from shardwright.runtime.messages import (
    checked_size,
    decoded,
    encoded,
    gathered_from_all,
)
from tests.extent import first

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Told:
    number: int
    errors: Mapping[str, float]


def same_items(left: object, right: object) -> bool:
    if type(left) is not type(right) or len(left) != len(right):  # type: ignore[arg-type]
        return False
    return all(map(same, left, right))  # type: ignore[call-overload]


def same(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray | np.generic):
        return (
            type(left) is type(right)
            and left.dtype == right.dtype  # type: ignore[attr-defined]
            and left.shape == right.shape  # type: ignore[attr-defined]
            and left.tobytes() == right.tobytes()  # type: ignore[attr-defined]
        )
    if isinstance(left, list | tuple):
        return same_items(left, right)
    if isinstance(left, dict):
        return isinstance(right, dict) and same([*left.items()], [*right.items()])
    return type(left) is type(right) and (left == right or left != left)


ARRAYS = st.builds(
    lambda kind, shape: np.arange(int(np.prod(shape))).reshape(shape).astype(kind),
    st.sampled_from(["bool", "int8", "uint16", "int64", "float16", "float64", "complex64"]),
    st.lists(st.integers(0, 3), max_size=3),
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | ARRAYS
PLAIN |= st.text(st.characters(exclude_categories=["Cs"])) | st.builds(Path, st.just("a/b"))
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.integers() | st.text(max_size=3, alphabet="ab"), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=len(first(40, range(400))), deadline=None)
@given(VALUES)
def test_values_come_as_they_were_sent(value: object) -> None:
    assert same(decoded(encoded(value)), value)


def test_arrays_lie_as_numpy_lays_them() -> None:
    parts = [np.arange(3, dtype=np.int8), np.ones(5), np.zeros((), ml_dtypes.bfloat16)]
    swapped = np.arange(4, dtype=">i4")[::2]
    found = decoded(bytearray(encoded([*parts, swapped])))
    for array, part in zip(found, [*parts, swapped.astype("i4")], strict=True):
        assert same(array, part)
        assert array.flags.aligned
        assert array.flags.writeable
    assert type(decoded(encoded(np.float32(2)))) is np.float32


def test_errors_keep_their_class_and_their_parts() -> None:
    found = decoded(encoded(ModelError("a", "b", "c")))
    assert (type(found), str(found)) == (ModelError, "a (in b); c")
    found = decoded(encoded(InfeasibleError("a", least_memory_bytes=1.0)))
    assert (type(found), str(found)) == (ShardwrightError, "a")


def test_an_error_is_never_of_another_class() -> None:
    found = decoded(with_head('["error","SystemExit",["a",null,null,""]]'))
    assert (type(found), str(found)) == (ShardwrightError, "a")
    error = ModelError("a")
    error.as_python = TypeError
    assert decoded(encoded(error)).as_python is TypeError
    with pytest.raises(ExecutionError, match="what is no message"):
        decoded(with_head('["error","ModelError",["a",null,null,"SystemExit"]]'))


def test_classes_are_those_that_the_reader_names() -> None:
    told = Told(1, {"a": float("inf")})
    assert decoded(encoded(told), [Told]) == told
    for kinds in ([], [ModelError]):
        with pytest.raises(ExecutionError, match="what is no message: 'Told'"):
            decoded(encoded(told), kinds)
    data = encoded(told).replace(b'["int","0x1"]', b'"' + b"x" * 11 + b'"')
    with pytest.raises(ExecutionError, match="a Told has a wrong field"):
        decoded(data, [Told])
    data = encoded(told).replace(b'"number"', b'"numbeR"')
    with pytest.raises(ExecutionError, match="a Told has other fields"):
        decoded(data, [Told])


@pytest.mark.parametrize("value", [object(), {1, 2}, print, np.array([None]), Told])
def test_nothing_else_is_sent(value: object) -> None:
    with pytest.raises(TypeError, match="is sent to no other process"):
        encoded([value])


def with_head(text: str) -> bytes:
    return b"SWM1" + len(text).to_bytes(8, "little") + text.encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SWM1",
        pickle.dumps(print),
        b"SWM1" + (2**63 - 1).to_bytes(8, "little"),
        with_head('["array","float64",[1099511627776]]'),
        with_head('["array","float64",[-1]]'),
        with_head('["array","float64",[1e3]]'),
        with_head('["array","object",[1]]'),
        with_head('["array","O",[0]]'),
        with_head(f'["array","int8",{[0] * 65}]'),
        with_head(f'["array","int8",{[2**62] * 8}]'),
        with_head('["bytes",9]'),
        with_head('["bytes",-1]'),
        with_head('["bytes",true]'),
        with_head('["taken",0]'),
        with_head('["_taken",0]'),
        with_head('["item",0]'),
        with_head("[[],0]"),
        with_head('{"a":1}'),
        with_head("[]"),
        with_head('["int","1_000"]')[:-1],
        with_head('["int",{}]'),
        with_head('["mapping",[[["list",[]],1]]]'),
        with_head('["error","ModelError",["a",null]]'),
        with_head('["error","ModelError",[["list",[]],null,null,""]]'),
        with_head('["class","Told",[]]'),
        with_head('["path",1]'),
        with_head("[" * 100_000),
        with_head('["list",' * 5_000 + "[]" + "]" * 5_000),
        with_head("null") + bytes(16),
        encoded(1) + b"x",
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ExecutionError, match="another process sent what is no message: "):
        decoded(data, [Told])


@settings(max_examples=len(first(60, range(2_000))), deadline=None)
@given(VALUES, st.integers(0, 2**16), st.integers(0, 255))
def test_a_changed_byte_is_read_or_refused(value: object, place: int, byte: int) -> None:
    data = bytearray(encoded(value))
    data[place % len(data)] = byte
    with suppress(ExecutionError):  # and nothing else
        decoded(data)


def test_a_size_is_refused_before_memory_is_taken() -> None:
    for size in (-1, messages.MOST_BYTES + 1, 2**62):
        with pytest.raises(ExecutionError, match=f"process 3 announces a message of {size} bytes"):
            checked_size(size, 3)


class Together:
    """A group of threads, with the collective that messages use."""

    def __init__(self, size: int) -> None:
        self.size, self.parts = size, {}
        self.barrier = threading.Barrier(size)

    def member(self, rank: int) -> SimpleNamespace:
        return SimpleNamespace(size=self.size, rank=rank, Allgather=self._of(rank))

    def _of(self, rank: int) -> object:
        def allgather(part: np.ndarray, parts: np.ndarray) -> None:
            self.parts[rank] = part.copy()
            self.barrier.wait(20)
            parts[...] = np.concatenate([self.parts[i] for i in range(self.size)])
            self.barrier.wait(20)

        return allgather


@pytest.mark.parametrize("chunk", [2**30, 64])
def test_all_have_the_messages_of_all(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_CHUNK", chunk)
    together, found = Together(3), {}
    texts = [b"", b"x" * 7, b"y" * 1_000]

    def run(rank: int) -> None:
        found[rank] = [bytes(m) for m in gathered_from_all(together.member(rank), texts[rank])]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(3), texts)


# What pickles: workers that the user starts or this process forks, see docs/security.md.
PICKLING = {
    "planner/executors/elsewhere.py",
    "shardwright/dataset/workers.py",
    "tools/check/ranks.py",
}
# Methods of mpi4py that pickle what they send.
LOWER = frozenset(
    [
        *("send", "isend", "ssend", "issend", "bsend", "ibsend", "recv", "irecv", "sendrecv"),
        *("bcast", "gather", "scatter", "allgather", "alltoall", "reduce", "allreduce"),
        *("scan", "exscan", "mprobe"),
    ]
)
GROUPS = ("world", "group", "messages", "COMM_WORLD", "comm", "communicator", "_world", "own")


def pickling(text: str) -> set[str]:
    """Return what in a module pickles, or reads pickles."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = {one.name.split(".")[0] for one in node.names}
            found |= names & {"pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pickle":
            found.add("pickle")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value).removesuffix("()").split(".")[-1]
            if node.func.attr in LOWER and owner.lower() in map(str.lower, GROUPS):
                found.add(f"{owner}.{node.func.attr}")
    return found


@pytest.mark.long
def test_no_other_module_pickles() -> None:
    folders = [p for p in ROOT.iterdir() if (p / "__init__.py").exists() and p.name != "tests"]
    paths = [p for folder in folders for p in folder.rglob("*.py") if "support" not in p.parts]
    found = {
        str(path.relative_to(ROOT)): what
        for path in paths
        if not any(parent.is_symlink() for parent in path.parents)
        and (what := pickling(path.read_text()))
    }
    assert found.pop("runtime/pipeline.py") == {"communicator.send"}  # our own: a buffer
    assert found.pop("tools/check/watch.py") == {"group.allreduce"}  # of PyTorch: tensors
    assert found == {path: {"pickle"} for path in PICKLING}


@pytest.mark.parametrize(
    "planted",
    [
        "import pickle",
        "from pickle import loads",
        "import cloudpickle as p",
        "world.allgather(item)",
        "self._world.bcast(x)",
        "_world().gather(x)",
        "mpi.COMM_WORLD.allreduce(1)",
        "group.isend(m, dest=1)",
    ],
)
def test_planted_pickling_is_found(planted: str) -> None:
    assert pickling(planted)
