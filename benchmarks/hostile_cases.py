"""Files made to do harm, and the commands of people who were given them."""

import gzip
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from shardwright.compiler.plans.files import document_digest

Content = dict[str, Any]
Make = Callable[[Path], None]
_BIG = 10**5  # nested brackets, terms of a sum
_PLAN = ("run", "plan", "--steps", "1")
_RESUME = (*_PLAN, "--resume", "saved/step-1")
_ONNX = ("compile", "given/model.onnx", "--devices", "2", "--cluster", "cpu", "--out", "new")
_FIT = ("fit", "--devices", "2")


@dataclass(frozen=True)
class Case:
    """Something hostile, made in a copy of a folder with a plan and a checkpoint of it.

    Parameters
    ----------
    group : str
        What is hostile.
    name : str
        What is done.
    command : tuple of str
        What a user runs on it.
    make : callable
        Makes it in the folder.
    """

    group: str
    name: str
    command: tuple[str, ...]
    make: Make


# Plans


def seal(folder: Path) -> None:
    """Write the digests of a plan anew: they are no signature."""
    path = folder / "plan.json"
    content = json.loads(path.read_text())
    for name in content["files"].keys() - {path.name}:
        content["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    content["files"][path.name] = document_digest(content)
    path.write_text(json.dumps(content))


def _document(change: Callable[[Content], object]) -> Make:
    def make(folder: Path) -> None:
        path = folder / "plan/plan.json"
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))
        seal(folder / "plan")

    return make


def _texts(before: str, after: str, *names: str) -> Make:
    """Replace a text everywhere in files of the plan, and seal it."""

    def make(folder: Path) -> None:
        found = False
        for name in names or ("model.ir", "program.ir", "plan.json"):
            path = folder / "plan" / name
            text = path.read_text()
            found |= before in text
            path.write_text(text.replace(before, after))
        assert found, f"`{before}` is nowhere"
        seal(folder / "plan")

    return make


def _attribute(value: str) -> Make:
    return _texts("transpose_b=True", f"transpose_b={value}", "program.ir")


def _instead(name: str, put: Callable[[Path], object]) -> Make:
    """Put something else in the place of a file."""

    def make(folder: Path) -> None:
        path = folder / name
        path.unlink(missing_ok=True)
        put(path)

    return make


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def _to(target: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(target)


def _elsewhere(name: str) -> Make:
    """Move a file out of its folder, and leave a link."""

    def make(folder: Path) -> None:
        path = folder / name
        path.rename(folder / "moved")
        path.symlink_to(os.path.relpath(folder / "moved", path.parent))

    return make


def _listed(name: str) -> Make:
    def make(folder: Path) -> None:
        path = folder / "plan/plan.json"
        content = json.loads(path.read_text())
        content["files"][name] = hashlib.sha256((folder / "secret").read_bytes()).hexdigest()
        content["files"][path.name] = document_digest(content)
        path.write_text(json.dumps(content))

    return make


def _initial(content: bytes) -> Make:
    def make(folder: Path) -> None:
        path = folder / "plan/plan.json"
        (folder / "plan/initial.npz").write_bytes(content)
        document = json.loads(path.read_text())
        document["files"]["initial.npz"] = ""
        path.write_text(json.dumps(document))
        seal(folder / "plan")

    return make


def _saved(save: Callable[..., None], **arrays: Any) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **arrays)
    return buffer.getvalue()


def bomb(prefix: str = "") -> bytes:
    """Return an archive of arrays that is a thousand times longer when it is read."""
    zeros = np.zeros(2**28, np.uint8)
    return _saved(np.savez_compressed, **{f"{prefix}{name}": zeros for name in "ab"})


def _header(shape: str, prefix: str = "") -> bytes:
    """Return an archive with an array whose header says any shape."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        member = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
        archive.writestr(f"{prefix}a.npy", member)
    return buffer.getvalue()


class _Runs:
    """What would make a folder where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


def _twice(folder: Path) -> None:
    path = folder / "plan/plan.json"
    path.write_text(path.read_text().replace('"devices"', '"devices": 4, "devices"', 1))


def _wrong_sum(folder: Path) -> None:
    path = folder / "plan/program.ir"
    path.write_text(path.read_text().replace("relu", "tanh"))


def _cut(name: str) -> Make:
    def make(folder: Path) -> None:
        path = folder / name
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])

    return make


def _of_cluster(key: str, value: Any) -> Make:
    return _document(lambda content: content["cluster"]["device"].update({key: value}))


def _digits(folder: Path) -> None:
    path = folder / "plan/plan.json"
    path.write_text(path.read_text().replace('"devices": 2', '"devices": ' + "9" * 10_000))


def _plans() -> Iterator[tuple[str, Make]]:
    yield "program.ir is a pipe", _instead("plan/program.ir", os.mkfifo)
    yield "plan.json is a pipe", _instead("plan/plan.json", os.mkfifo)
    yield "plan.json is a link to /dev/zero", _instead("plan/plan.json", _to("/dev/zero"))
    yield "program.ir is a link to itself", _instead("plan/program.ir", _to("program.ir"))
    yield "program.ir is a link out of the folder", _elsewhere("plan/program.ir")
    yield "model.ir of 2^40 bytes, none written", _instead("plan/model.ir", _sparse)
    yield "lists the file `../secret`", _listed("../secret")
    yield "lists the file `/etc/passwd`", _listed("/etc/passwd")
    yield "lists a file with a zero character", _listed("a\0b")
    yield "10^30 devices", _document(lambda content: content.update(devices=10**30))
    yield "devices of 10,000 digits", _digits
    yield "a batch of 10^20", _texts("[4, ", f"[{10**20}, ")
    yield "a batch of 4 * 10^9", _texts("[4, ", f"[{4 * 10**9}, ")
    yield "a mesh of 2 * 10^9 ranks", _texts("x=2", f"x={2 * 10**9}", "program.ir")
    yield "a negative size", _texts("[4, ", "[-4, ")
    yield "plan.json nested 10^5 deep", _instead("plan/plan.json", _deep_json)
    yield "an attribute that sums 10^5 terms", _attribute("+".join(["1"] * _BIG))
    yield "an attribute nested 10^5 deep", _attribute("[" * _BIG + "]" * _BIG)
    yield "an attribute with 10^5 signs", _attribute("-" * _BIG + "1")
    yield "an attribute 9**9**9", _attribute("9**9**9")
    yield "an attribute that calls", _attribute("__import__('os').mkdir('ran')")
    yield "a size of 10,000 digits", _texts("[4, ", f"[{'9' * 10_000}, ")
    yield "a value that is read before it is made", _texts("relu(add_0)", "relu(relu_0)")
    yield "initial.npz that is 2^29 bytes long when read", _initial(bomb("parameter:"))
    yield "initial.npz with an object that runs", _initial(_saved(np.savez, a=np.array(_Runs())))
    yield "initial.npz with a header of 2^60 elements", _initial(_header(f"({2**60},)"))
    yield "initial.npz with a header nested 200 deep", _initial(_header("(" * 200 + ")" * 200))
    yield "program.ir cut in its middle", _cut("plan/program.ir")
    yield "plan.json cut in its middle", _cut("plan/plan.json")
    yield "program.ir with another sum", _wrong_sum
    yield "a key that is given twice", _twice
    yield "memory of NaN bytes", _of_cluster("memory_bytes", float("nan"))
    yield "bandwidth of infinite bytes/s", _of_cluster("memory_bandwidth", float("inf"))
    yield "a name of half a character", _document(lambda content: content.update(model="\ud800"))
    yield "plan.json that is a list", _instead("plan/plan.json", lambda p: p.write_text("[]"))
    yield "plan.json that is no text", _instead("plan/plan.json", lambda p: p.write_bytes(b"\xff"))


def _deep_json(path: Path) -> None:
    path.write_text("[" * _BIG + "]" * _BIG)


# Checkpoints


def _manifest(change: Callable[[Content, Path], object], at: str = "saved/step-1") -> Make:
    """Change the manifest of a checkpoint, and write its sums anew."""

    def make(folder: Path) -> None:
        path = folder / at / "manifest.json"
        content = json.loads(path.read_text())
        del content["sha256"]
        change(content, path.parent)
        text = json.dumps(content, sort_keys=True)
        content["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        path.write_text(json.dumps(content))

    return make


def _summed(content: Content, path: Path) -> None:
    data = path.read_bytes()
    sums = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    content["files"][path.name] = sums


def _slices(content: Content) -> list[Content]:
    return [part for tensor in content["tensors"].values() for part in tensor["slices"]]


def _outside(content: Content, folder: Path) -> None:
    content["files"]["../../secret"] = content["files"].pop("rank.0.safetensors")
    for part in _slices(content):
        part["file"] = "../../secret"


def _huge(content: Content, folder: Path) -> None:
    for tensor in content["tensors"].values():
        tensor["shape"] = [10**9] * len(tensor["shape"])
        for part in tensor["slices"]:
            part["shape"] = tensor["shape"]


def _no_slices(content: Content, folder: Path) -> None:
    for tensor in content["tensors"].values():
        tensor["slices"] = []


def _header_of(length: int) -> Callable[[Content, Path], object]:
    def change(content: Content, folder: Path) -> None:
        path = folder / "rank.0.safetensors"
        path.write_bytes(length.to_bytes(8, "little") + path.read_bytes()[8:])
        _summed(content, path)

    return change


def _linked(content: Content, folder: Path) -> None:
    path = folder / "rank.0.safetensors"
    path.rename(folder.parent.parent / "moved")
    path.symlink_to("../../moved")


def _piped(content: Content, folder: Path) -> None:
    path = folder / "rank.0.safetensors"
    path.unlink()
    os.mkfifo(path)


def _gone(content: Content, folder: Path) -> None:
    (folder / "rank.1.safetensors").unlink()


def _shortened(content: Content, folder: Path) -> None:
    path = folder / "rank.0.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    _summed(content, path)


def _step(step: int) -> Make:
    return _manifest(lambda content, _: content["progress"].update(step=step))


def _first(key: str, value: Any) -> Make:
    def change(content: Content, folder: Path) -> None:
        next(iter(content["tensors"].values()))[key] = value

    return _manifest(change)


_RUN = "../../../x"


def _checkpoints() -> Iterator[tuple[str, Make]]:
    yield "step 2^70", _step(2**70)
    yield "step 10^300", _step(10**300)
    yield "step -5", _step(-5)
    yield f"`run` is `{_RUN}`", _manifest(lambda content, _: content.update(run=_RUN))
    yield "slices in `../../secret`", _manifest(_outside)
    yield "shapes of 10^9 x 10^9", _manifest(_huge)
    yield "no slices", _manifest(_no_slices)
    yield "another shape than the program's", _first("shape", [4, 4])
    yield "an element type `object`", _first("dtype", "object")
    yield "safetensors with a header of 2^40 bytes", _manifest(_header_of(2**40))
    yield "safetensors with a header of 2^63 bytes", _manifest(_header_of(2**63))
    yield "safetensors 8 bytes too short, with its sum", _manifest(_shortened)
    yield "a file is a link out of the folder", _manifest(_linked)
    yield "a file is a pipe", _manifest(_piped)
    yield "a file is missing", _manifest(_gone)
    manifest = "saved/step-1/manifest.json"
    yield "the manifest is nested 10^5 deep", _instead(manifest, _deep_json)
    yield "the manifest is a link to /dev/zero", _instead(manifest, _to("/dev/zero"))
    yield "the manifest is cut in its middle", _cut(manifest)


def _arrays() -> Iterator[tuple[str, Make]]:
    parts = {
        "an npz that is 2^29 bytes long when read": bomb("parameter:"),
        "an npz with an object that runs": _saved(np.savez, a=np.array(_Runs())),
        "an npz with a header of 2^60 elements": _header(f"({2**60},)"),
        "an npz of other arrays": _saved(np.savez, a=np.zeros(3)),
    }
    for name, content in parts.items():
        yield name, _instead("state.npz", lambda path, c=content: path.write_bytes(c))
    yield "an npz that is a pipe", _instead("state.npz", os.mkfifo)
    yield "an npz that is a link to /dev/zero", _instead("state.npz", _to("/dev/zero"))


# ONNX


def _external(put: Callable[[Path], object] | None = None, size: int = 4, **entries: str) -> Make:
    """Make a model whose matrix is in an external file."""

    def make(folder: Path) -> None:
        (folder / "given").mkdir()
        _instead("given/weights", put or (lambda path: path.write_bytes(bytes(64))))(folder)
        matrix = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[size, size])
        matrix.data_location = TensorProto.EXTERNAL
        for key, value in {"location": "weights", **entries}.items():
            matrix.external_data.add(key=key, value=value)
        x, y = (
            helper.make_tensor_value_info(n, TensorProto.FLOAT, [size, size]) for n in ("x", "y")
        )
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        _save(folder, helper.make_graph([node], "g", [x], [y], [matrix]))

    return make


def _save(folder: Path, graph: Any, functions: Any = ()) -> None:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=list(functions))
    model.ir_version = 10
    (folder / "given").mkdir(exist_ok=True)
    (folder / "given/model.onnx").write_bytes(model.SerializeToString())


def _data() -> Iterator[tuple[str, Make]]:
    yield "in `../secret`", _external(location="../secret")
    yield "in `/etc/passwd`", _external(location="/etc/passwd")
    yield "in `sub/../../secret`", _external(location="sub/../../secret")
    yield "in a link out of the folder", _external(_to("/etc/passwd"))
    yield "in a link to /dev/zero", _external(_to("/dev/zero"))
    yield "in a pipe", _external(os.mkfifo)
    yield "in a folder", _external(os.mkdir)
    yield "from -16 on", _external(offset="-16")
    yield "from 2^62 on", _external(offset=str(2**62))
    yield "of 2^62 bytes", _external(length=str(2**62))
    yield "from `x` on", _external(offset="x")
    yield "a file of 2^40 bytes, none written", _external(_sparse)
    yield "fewer bytes than the shape has", _external(lambda path: path.write_bytes(b"1234"))


def _functions(names: list[str], calls: Callable[[int], list[str]]) -> Make:
    """Make a model of functions, each of which calls some, one after the other."""

    def make(folder: Path) -> None:
        opset = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
        functions = []
        for number, name in enumerate(names):
            called = calls(number)
            values = ["x", *(f"v{i}" for i in range(len(called) - 1)), "y"]
            nodes = [
                helper.make_node(
                    call, [values[i]], [values[i + 1]], domain="" if call == "Relu" else "mine"
                )
                for i, call in enumerate(called)
            ]
            functions.append(helper.make_function("mine", name, ["x"], ["y"], nodes, opset))
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in ("x", "y"))
        node = helper.make_node(names[-1], ["x"], ["y"], domain="mine")
        _save(folder, helper.make_graph([node], "g", [x], [y]), functions)

    return make


def _cut_onnx(folder: Path) -> None:
    _external()(folder)
    _cut("given/model.onnx")(folder)


# Texts that stand for much


def _file(name: str, text: str) -> Make:
    return lambda folder: (folder / name).write_text(text) and None


def _aliases() -> str:
    lines = ["a0: &a0 ['lol','lol','lol','lol','lol','lol','lol','lol','lol','lol']"]
    lines += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    return "\n".join(lines)


_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 128,
    "max_position_embeddings": 64,
}
_FLAGS = (
    "--num-layers {layers} --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
    "--max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 2 --vocab-size 128"
)


def _bombs() -> Iterator[tuple[str, tuple[str, ...], Make]]:
    estimate = ("estimate", "mlp", "--devices", "2", "--plan")
    on = (*estimate, "data=2", "--cluster")
    deep = "[" * _BIG + "]" * _BIG
    yield "YAML with ten lines of aliases", (*on, "a.yaml"), _file("a.yaml", _aliases())
    yield "YAML that holds itself", (*on, "a.yaml"), _file("a.yaml", "a: &a [1, *a]")
    yield "YAML nested 10^5 deep", (*on, "a.yaml"), _file("a.yaml", deep)
    yield (
        "YAML with a number of 10^6 digits",
        (*on, "a.yaml"),
        _file("a.yaml", f"a: 0x{'f' * 10**6}"),
    )
    sixty = ":".join(["59"] * 200_000)
    yield "YAML with a time of 200,000 parts", (*on, "a.yaml"), _file("a.yaml", f"a: {sixty}")
    names = [f"f{i}" for i in range(32)]
    doubling = _functions(names, lambda i: [f"f{i - 1}"] * 2 if i else ["Relu"])
    yield "ONNX functions that double 31 times", _ONNX, doubling
    yield "an ONNX function that calls itself", _ONNX, _functions(["f"], lambda _: ["f"])
    chain = _functions([f"f{i}" for i in range(5000)], lambda i: [f"f{i - 1}"] if i else ["Relu"])
    yield "5,000 ONNX functions within each other", _ONNX, chain
    yield "an ONNX file cut in its middle", _ONNX, _cut_onnx
    yield "JSON nested 10^5 deep", (*on, "a.json"), _file("a.json", deep)
    text = "graph g {\n  input x: f32[4]\n  y: f32[4] = relu(x) {a=%s}\n  return y\n}\n"
    opt = ("opt", "--passes", "canonicalize", "a.ir")
    yield "a graph's text nested 10^5 deep", opt, _file("a.ir", text % deep)
    yield "a graph's text with a mapping", opt, _file("a.ir", text % "{1: {2: {}}}")
    yield "a graph's text with a sum of 10^5", opt, _file("a.ir", text % "+".join(["1"] * _BIG))
    config = (*_FIT, "config.json")
    yield "config.json nested 10^5 deep", config, _file("config.json", '{"a": ' + deep + "}")
    for value in (10**12, 10**40):
        config_text = json.dumps({**_CONFIG, "num_hidden_layers": value})
        what = f"config.json of 10^{len(str(value)) - 1} layers"
        yield what, config, _file("config.json", config_text)
    lists = json.dumps({**_CONFIG, "layer_types": ["full_attention"] * _BIG})
    yield "config.json with a list of 10^5 layers", config, _file("config.json", lists)
    yield "TOML nested 10^5 deep", (*_FIT, "job.toml"), _file("job.toml", f"a = {deep}")
    dotted = ".".join("a" * _BIG) + " = 1"
    yield "TOML with a key of 10^5 parts", (*_FIT, "job.toml"), _file("job.toml", dotted)
    many = "".join(f"{'.'.join('a' * 900)}.b{i} = 1\n" for i in range(3000))
    yield "TOML with 3,000 keys of 900 parts", (*_FIT, "job.toml"), _file("job.toml", many)
    tables = _file("job.toml", f"[[{'.'.join('a' * 900)}]]\n")
    yield "TOML with 900 tables within each other", (*_FIT, "job.toml"), tables
    flags = (*_FIT, "run.sh")
    slashes = "\\" * 10**6 + f"\ntorchrun pretrain_gpt.py {_FLAGS.format(layers=2)}\n"
    yield "a Megatron script with 10^6 backslashes", flags, _file("run.sh", slashes)
    doubled = "A0=x\n" + "".join(f"A{i}=$A{i - 1}$A{i - 1}\n" for i in range(1, 40))
    script = f"{doubled}torchrun pretrain_gpt.py {_FLAGS.format(layers=2)} --tag $A39\n"
    yield "a Megatron script that doubles 39 times", flags, _file("run.sh", script)
    script = f"A=$B\nB=$A\ntorchrun pretrain_gpt.py {_FLAGS.format(layers='$A')}\n"
    yield "a Megatron script of a circle", flags, _file("run.sh", script)
    script = f"torchrun pretrain_gpt.py {_FLAGS.format(layers=10**12)}\n"
    yield "a Megatron script of 10^12 layers", flags, _file("run.sh", script)
    script = f"torchrun pretrain_gpt.py {_FLAGS.format(layers='$((9**9**9))')}\n"
    yield "a Megatron script with 9**9**9", flags, _file("run.sh", script)


def _lease(put: Callable[[Path], object]) -> Make:
    """Put something in the place of the lease of a folder of checkpoints."""

    def make(folder: Path) -> None:
        (folder / "saved/.lease").unlink(missing_ok=True)
        put(folder / "saved/.lease")

    return make


def _leases() -> Iterator[tuple[str, Make]]:
    yield "the lease is a pipe", _lease(os.mkfifo)
    yield "the lease is a folder", _lease(os.mkdir)
    yield "the lease is a link out of the folder", _lease(_to("../secret"))
    yield "the lease is a link to /dev/zero", _lease(_to("/dev/zero"))


def _data_to_train_on() -> Iterator[tuple[str, Make]]:
    yield "a packed file that is 2^31 bytes long when read", _packed
    for name, put in (("a pipe", os.mkfifo), ("a folder", os.mkdir), ("2^40 bytes", _sparse)):
        yield f"images that are {name}", _images(put)


def _images(put: Callable[[Path], object]) -> Make:
    def make(folder: Path) -> None:
        (folder / "data").mkdir()
        put(folder / "data/train-images-idx3-ubyte")
        (folder / "data/train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\1\0\0\0\0")

    return make


def _packed(folder: Path) -> None:
    (folder / "data").mkdir()
    block = gzip.compress(bytes(2**24))
    (folder / "data/train-images-idx3-ubyte.gz").write_bytes(block * 128)


def cases() -> list[Case]:
    """Return all cases, a group after the other."""
    npz = (*_PLAN, "--resume", "state.npz")
    goes_on = (*_PLAN, "--resume", "saved", "--checkpoints", "saved")
    data = (*_PLAN, "--data", "data")
    return [
        *(Case("plans", name, _PLAN, make) for name, make in _plans()),
        *(Case("external data of ONNX", name, _ONNX, make) for name, make in _data()),
        *(Case("bombs", name, command, make) for name, command, make in _bombs()),
        *(Case("checkpoints", name, _RESUME, make) for name, make in _checkpoints()),
        *(Case("checkpoints", name, npz, make) for name, make in _arrays()),
        *(Case("checkpoints", name, goes_on, make) for name, make in _leases()),
        *(Case("data", name, data, make) for name, make in _data_to_train_on()),
    ]
