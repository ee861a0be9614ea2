"""MindSpore's checkpoint files: against protobuf itself, in slices, damaged, from models."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright.mindspore as ms
from shardwright import train
from shardwright.ir.errors import OptionError, OutputError, PlanError
from shardwright.ir.types import numpy_dtype
from shardwright.mindspore import dataset as ds
from shardwright.mindspore import nn
from shardwright.train import ckpt_files
from shardwright.train.ckpt_files import is_ckpt, read_ckpt, write_ckpt

RANDOM = np.random.default_rng(0)
ARRAYS = {
    "first.weight": RANDOM.standard_normal((3, 200)).astype(np.float32),
    "scalar": np.array(2.5, np.float64),
    "one": np.array([7], np.int32),
    "empty": np.zeros((0, 4), np.float32),
    "none": np.zeros(0, np.float32),
    "name with ä": np.array([[True], [False]]),
    "half": np.array([1.5, -2.0], np.float16),
    "brain": np.array([1.5, -2.0]).astype(numpy_dtype("bfloat16")),
    "long": np.array([2**62, -1]),
    "bytes": np.arange(300).astype(np.uint8),
}


def same(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        np.testing.assert_array_equal(found[name], array)


def messages():
    """Return the class of MindSpore's message, made by protobuf."""
    descriptors = pytest.importorskip("google.protobuf.descriptor_pb2", reason="needs protobuf")
    pools = pytest.importorskip("google.protobuf.descriptor_pool")
    factory = pytest.importorskip("google.protobuf.message_factory")
    kind = descriptors.FieldDescriptorProto
    file = descriptors.FileDescriptorProto(name="checkpoint.proto", syntax="proto2")

    def field(message, name, number, dtype, label, of=None):
        made = message.field.add(name=name, number=number, type=dtype, label=label)
        if of:
            made.type_name = of

    outer = file.message_type.add(name="Checkpoint")
    value = outer.nested_type.add(name="Value")
    field(value, "tag", 1, kind.TYPE_STRING, kind.LABEL_REQUIRED)
    field(value, "tensor", 2, kind.TYPE_MESSAGE, kind.LABEL_REQUIRED, ".TensorProto")
    field(outer, "value", 1, kind.TYPE_MESSAGE, kind.LABEL_REPEATED, ".Checkpoint.Value")
    tensor = file.message_type.add(name="TensorProto")
    field(tensor, "dims", 1, kind.TYPE_INT64, kind.LABEL_REPEATED)
    field(tensor, "tensor_type", 2, kind.TYPE_STRING, kind.LABEL_REQUIRED)
    field(tensor, "tensor_content", 3, kind.TYPE_BYTES, kind.LABEL_REQUIRED)
    pool = pools.DescriptorPool()
    pool.Add(file)
    return factory.GetMessageClass(pool.FindMessageTypeByName("Checkpoint"))


def test_protobuf_reads_what_is_written(tmp_path):
    write_ckpt(tmp_path / "a.ckpt", ARRAYS)
    message = messages()()
    message.ParseFromString((tmp_path / "a.ckpt").read_bytes())
    assert [value.tag for value in message.value] == list(ARRAYS)
    for value, array in zip(message.value, ARRAYS.values(), strict=True):
        assert list(value.tensor.dims) == (list(array.shape) or [0])
        assert value.tensor.tensor_content == array.tobytes()
    kinds = [value.tensor.tensor_type for value in message.value]
    assert kinds[:3] + kinds[-5:] == [
        *("Float32", "Float64", "Int32"),
        *("Bool", "Float16", "BFloat16", "Int64", "UInt8"),
    ]


@pytest.mark.parametrize("size", [2**29, 1000, 7])
def test_what_protobuf_writes_is_read(size, tmp_path):
    """A tensor may be several values, each in a message of its own."""
    kind, content = messages(), b""
    for name, array in ARRAYS.items():
        whole = array.tobytes()
        for begin in range(0, max(len(whole), 1), size):
            message = kind()
            value = message.value.add()
            value.tag = name
            value.tensor.dims.extend(array.shape or (0,))
            value.tensor.tensor_type = ckpt_files._NAMES[array.dtype.name]
            value.tensor.tensor_content = whole[begin : begin + size]
            content += message.SerializeToString()
    (tmp_path / "a.ckpt").write_bytes(content)
    assert is_ckpt(tmp_path / "a.ckpt")
    same(read_ckpt(tmp_path / "a.ckpt"), ARRAYS)


def test_large_tensors_are_several_values(tmp_path, monkeypatch):
    monkeypatch.setattr(ckpt_files, "_SLICE_BYTES", 64)
    write_ckpt(tmp_path / "a.ckpt", ARRAYS)
    same(read_ckpt(tmp_path / "a.ckpt"), ARRAYS)
    assert (tmp_path / "a.ckpt").read_bytes().count(b"first.weight") == 38


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "a.ckpt"
    write_ckpt(path, ARRAYS)
    return path


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 3500), st.binary(max_size=3), st.booleans())
def test_damaged_files_are_read_as_tensors_or_refused(written, place, change, cut):
    content = written.read_bytes()
    damaged = written.with_name("damaged.ckpt")
    place %= len(content)
    end = b"" if cut else content[place + len(change) :]
    damaged.write_bytes(content[:place] + change + end)
    is_ckpt(damaged)
    try:
        found = read_ckpt(damaged)
    except PlanError as error:
        assert str(damaged) in str(error)  # noqa: PT017 (some damage is in the numbers alone)
    else:
        assert all(isinstance(array, np.ndarray) for array in found.values())


def entry(tag=b"\n\x01w", tensor=b"\x08\x01\x12\x07Float32\x1a\x04abcd"):
    value = tag + (b"\x12" + bytes([len(tensor)]) + tensor if tensor is not None else b"")
    return b"\n" + bytes([len(value)]) + value


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (entry(tensor=None), "the value `w` is no tensor"),
        (entry() + b"crc_num1234567890", "files that are encrypted or end in a checksum are not"),
        (
            entry(tensor=b"\x08\x01\x12\x03str\x1a\x04abcd"),
            "`w` has the element type `str`",
        ),
        (entry(tensor=b"\x08\x02\x12\x07Float32\x1a\x04abcd"), "has 4 bytes, expected 8"),
        (entry() + entry(tensor=b"\x08\x01\x12\x05Int32\x1a\x00"), "parts of `w` have two types"),
        (b"\x08\x01", "the checkpoint is corrupt"),
        (b"garbage", "the checkpoint is corrupt"),
        (b"", "the checkpoint is corrupt"),
    ],
)
def test_other_content_is_refused(content, expected, tmp_path):
    (tmp_path / "a.ckpt").write_bytes(content)
    with pytest.raises(PlanError) as caught:
        read_ckpt(tmp_path / "a.ckpt")
    assert expected in str(caught.value)
    assert str(tmp_path / "a.ckpt") in str(caught.value)


def test_wrong_arguments_are_refused(tmp_path):
    net = nn.Dense(2, 2)
    (tmp_path / "mine.ckpt").write_text("my notes")
    with pytest.raises(OutputError, match=r"mine\.ckpt"):
        ms.save_checkpoint(net, tmp_path / "mine.ckpt")
    with pytest.raises(OptionError, match="`enc_key` is the text `k`, expected none"):
        ms.save_checkpoint(net, tmp_path / "a", enc_key="k")
    with pytest.raises(OptionError, match="`crc_check` is True, expected False"):
        ms.save_checkpoint(net, tmp_path / "a", crc_check=True)
    with pytest.raises(OptionError, match="`format` is `onnx`, expected npz or ckpt"):
        ms.save_checkpoint(net, tmp_path / "a", format="onnx")
    with pytest.raises(OptionError, match="`w` has the element type complex128, expected one of"):
        write_ckpt(tmp_path / "a", {"w": np.ones(1, complex)})
    with pytest.raises(PlanError, match="there is no such checkpoint"):
        ms.load_checkpoint(tmp_path / "absent.ckpt")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.ckpt"]


@pytest.mark.parametrize("format_", ["ckpt", "npz"])
def test_networks_are_written_and_read(format_, tmp_path):
    net = nn.SequentialCell(nn.Dense(3, 2), nn.BatchNorm2d(2))
    ms.save_checkpoint(net, tmp_path / "a", append_dict={"epoch": 3}, format=format_)
    assert is_ckpt(tmp_path / "a.ckpt") == (format_ == "ckpt")
    found = ms.load_checkpoint(tmp_path / "a.ckpt")
    assert found.pop("epoch").asnumpy() == 3
    assert list(found) == [name for name, _ in net.parameters_and_names()]
    other = nn.SequentialCell(nn.Dense(3, 2), nn.BatchNorm2d(2))
    assert ms.load_param_into_net(other, found) == ([], [])
    for name, parameter in other.parameters_and_names():
        np.testing.assert_array_equal(parameter.asnumpy(), found[name].asnumpy())
    ms.save_checkpoint(other, tmp_path / "a")  # replaces one of either form


def test_a_model_writes_files_of_mindspore(tmp_path):
    net = nn.Dense(3, 2)
    optimizer = nn.Adam(net.trainable_params(), nn.WarmUpLR(0.1, 2))
    model = ms.Model(net, nn.CrossEntropyLoss(), optimizer)
    data = ds.NumpySlicesDataset({"x": np.ones((4, 3), np.float32), "y": np.zeros(4, np.int32)})
    saver = ms.train.ModelCheckpoint("net", tmp_path)
    model.train(1, data.batch(2), saver)
    found = read_ckpt(tmp_path / "net-1_2.ckpt")
    assert found["optimizer.step"] == 2
    np.testing.assert_array_equal(found["weight"], net.weight.asnumpy())
    assert train.ModelCheckpoint().format == "npz"
