"""Damage plans, strategies, clusters and ONNX files at random, and see how the commands end.

``python benchmarks/mutations.py --count 1000`` writes `mutations.md`. A command must end within the
time with one of its exit codes, and tell an error in one line: no traceback, no hang. Every case is
a process of its own, and is made again from its number.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported: cases are forked

import argparse
import hashlib
import json
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from machine import machine

import shardwright as sw
from shardwright.compiler.plans.files import document_digest
from shardwright.cost_model.cluster import cluster
from shardwright.tools.main import main as command_line

SECONDS = 60  # of the processor that a case may take
_WAITING = 20  # how many times as long it may wait for a busy machine
_BYTES = 6 * 2**30  # of address space that a case may take, beside what this process has
_CODES = (0, 1, 2, 3, 4)
_PLANS = {
    "mlp": ("mlp:batch=4,inputs=8,hidden=4,classes=4", 4, "tensor_parallel", "adam"),
    "gpt": (
        "gpt:layers=1,hidden=8,heads=2,batch=4,sequence=4,vocabulary=16,dropout=0.1,dtype=float32",
        4,
        "fully_sharded",
        "sgd",
    ),
    "lenet5": ("lenet5:batch=4", 2, "data_parallel", "momentum"),
}
_STRANGE = (None, True, -1, 0, 1e400, -1e400, 2**70, 0.5, "x", "", [], {}, [[]], "../x", "1e400")
_WORDS = (
    "0",
    "-1",
    "7",
    "1e400",
    "-1e400",
    "2",
    str(2**63),
    str(2**70),
    "9" * 5000,
    "nan",
    "None",
    "True",
    "'x'",
    "()",
    "(1,)",
    "(1e400, 1)",
    "('x', 128)",
    "((1,),)",
    "x",
    "",
    "f32[2]",
    "f32[]",
    "@x",
    "{",
    "}",
    "[",
    "(((((((",
    "#",
)
_WORD = r"[\w.]+|'[^']*'|\([^()]*\)"  # in the other cases, the value of an attribute


@dataclass(frozen=True)
class Case:
    """One damaged file, and the command that reads it.

    Parameters
    ----------
    number : int
        Makes the same case again.
    file : str
        What was damaged.
    arguments : tuple of str
        The command.
    """

    number: int
    file: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Ending:
    """How a case ended: its exit code, and what was wrong about it, if anything was."""

    case: Case
    code: int
    problem: str


# What is damaged


def make_originals(folder: Path) -> None:
    """Write a plan each of some models, strategies, clusters and, where onnx is, a model."""
    for name, (model, devices, search, optimizer) in _PLANS.items():
        compiled = sw.compile(
            model, devices, search=search, optimizer=optimizer, cluster="cpu", mesh=None
        )
        compiled.write(folder / name, [0])
    described = cluster("h100-pod:figures=datasheet").model_dump(mode="json", exclude={"software"})
    (folder / "cluster.json").write_text(json.dumps(described))
    (folder / "cluster.yaml").write_text(yaml.safe_dump(described))
    shutil.copy(folder / "mlp" / "strategies.json", folder / "pins.json")
    if find_spec("onnx") is not None:
        (folder / "model.onnx").write_bytes(_onnx_model())


def _onnx_model() -> bytes:
    from onnx import TensorProto, helper, numpy_helper  # noqa: PLC0415 - an extra

    node, drawn = helper.make_node, np.random.default_rng(0)
    weights = {"w": (2, 1, 3, 3), "v": (32, 6), "b": (6,)}
    graph = helper.make_graph(
        [
            node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            node("Relu", ["c"], ["r"]),
            node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
            node("Shape", ["p"], ["s"]),
            node("Gather", ["s", "first"], ["n"], axis=0),
            node("Unsqueeze", ["n", "axes"], ["n1"]),
            node("Concat", ["n1", "rest"], ["shape"], axis=0),
            node("Reshape", ["p", "shape"], ["flat"]),
            node("Gemm", ["flat", "v", "b"], ["scores"], alpha=0.5),
            node("Softmax", ["scores"], ["y"], axis=1),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", 1, 8, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            *(
                numpy_helper.from_array(drawn.normal(size=s).astype("f"), k)
                for k, s in weights.items()
            ),
            numpy_helper.from_array(np.array(0), "first"),
            numpy_helper.from_array(np.array([0]), "axes"),
            numpy_helper.from_array(np.array([-1]), "rest"),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return bytes(made.SerializeToString())


# Damages


def damage_bytes(content: bytes, draw: random.Random) -> bytes:
    """Return bytes with some changed, left out, doubled or cut off."""
    found = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(found) + 1)
        length = draw.choice((1, 1, 2, 8, 50))
        kind = draw.randrange(5)
        if kind == 0 and place < len(found):
            found[place] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del found[place : place + length]
        elif kind == 2:
            found[place:place] = found[place : place + length]
        elif kind == 3:
            found[place:place] = bytes(draw.randrange(256) for _ in range(length))
        elif draw.random() < 0.3:
            del found[place:]
    return bytes(found)


def damage_text(content: bytes, draw: random.Random) -> bytes:
    """Return text with words or lines exchanged, left out, doubled, or replaced by strange ones."""
    lines = content.decode().splitlines()
    for _ in range(draw.randint(1, 3)):
        at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
        kind = draw.randrange(8)
        if kind == 0:
            del lines[at]
            lines = lines or [""]
        elif kind == 1:
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == 2:
            lines.insert(at, lines[other])
        else:
            lines[at] = _with_other_word(lines[at], lines[other], draw)
    return ("\n".join(lines) + "\n").encode()


def _with_other_word(line: str, other: str, draw: random.Random) -> str:
    words = list(re.finditer(r"(?<==)[^,{}]+(?=[,}])" if draw.random() < 0.4 else _WORD, line))
    if not words:
        return line
    word = draw.choice(words)
    spare = re.findall(r"[\w.]+|\([^()]*\)", other) or ["x"]
    new = draw.choice(spare) if draw.random() < 0.3 else draw.choice(_WORDS)
    return line[: word.start()] + new + line[word.end() :]


def damage_json(content: bytes, draw: random.Random) -> bytes:
    """Return JSON with entries exchanged, left out, doubled, or replaced by strange ones."""
    document = json.loads(content)
    for _ in range(draw.randint(1, 3)):
        places = list(_places(document))
        if not places:
            break
        holder, key = draw.choice(places)
        kind = draw.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1:
            spare, place = draw.choice(places)
            found = spare[place] if place in _keys(spare) else None
            holder[key] = json.loads(json.dumps(found))  # a copy: no cycles
        elif kind == 2 and isinstance(holder, list):
            holder.insert(key, holder[key])
        elif kind == 2:
            holder[draw.choice(("x", "", "name", "9" * 30))] = holder[key]
        else:
            holder[key] = draw.choice(_STRANGE)
    return json.dumps(document).encode()


def _keys(holder: Any) -> list[Any]:
    return list(holder) if isinstance(holder, dict) else list(range(len(holder)))


def _places(item: Any) -> list[tuple[Any, Any]]:
    """Return every entry below, as what holds it and its key."""
    if not isinstance(item, dict | list):
        return []
    own = [(item, key) for key in _keys(item)]
    return own + [place for holder, key in own for place in _places(holder[key])]


def damage_yaml(content: bytes, draw: random.Random) -> bytes:
    """Return YAML with entries damaged as in JSON, or with other words."""
    if draw.random() < 0.5:
        return damage_text(content, draw)
    document = json.loads(damage_json(json.dumps(yaml.safe_load(content)).encode(), draw))
    return yaml.safe_dump(document).encode()


def damage_onnx(content: bytes, draw: random.Random) -> bytes:
    """Return a model with fields of its nodes and tensors changed, or with other bytes."""
    if draw.random() < 0.4:
        return damage_bytes(content, draw)
    from onnx import AttributeProto, ModelProto  # noqa: PLC0415 - an extra

    model = ModelProto()
    model.ParseFromString(content)
    for _ in range(draw.randint(1, 3)):
        node = draw.choice(list(model.graph.node))
        kind = draw.randrange(8)
        if kind == 0 and node.input:
            node.input[draw.randrange(len(node.input))] = draw.choice(("x", "", "w", "s", "none"))
        elif kind == 1:
            node.op_type = draw.choice(("Reshape", "Gemm", "Conv", "Loop", "Cast", "Gather", "No"))
        elif kind == 2:
            tensor = draw.choice(list(model.graph.initializer))
            tensor.dims[:] = draw.choice(([], [0], [-1], [2**40, 2**40], [3, 3], [1] * 70))
        elif kind == 3:
            draw.choice(list(model.graph.initializer)).data_type = draw.randrange(30)
        elif kind == 4 and node.attribute:
            attribute = draw.choice(list(node.attribute))
            attribute.ints[:] = draw.choice(([], [-1], [0, 0], [2**62] * 4))
            attribute.type = draw.choice((AttributeProto.INTS, AttributeProto.FLOAT))
        elif kind == 5:
            del node.input[:]
        elif kind == 6:
            shape = model.graph.input[0].type.tensor_type.shape
            shape.dim[draw.randrange(4)].dim_value = draw.choice((0, -1, 2**40, 3))
        else:
            model.opset_import[0].version = draw.choice((0, 1, 5, 7, 12, 99, -1))
    return bytes(model.SerializeToString())


_PLAN_COMMANDS = (
    ("verify",),
    ("prove",),
    ("run", "--steps", "1"),
    ("dump",),
    ("dump", "--rank", "1"),
)
_COMPILE_MLP = ("compile", _PLANS["mlp"][0], "--devices", "4", "--gap", "0.5")
_COMMANDS = {
    "pins.json": (*_COMPILE_MLP, "--cluster", "cpu", "--strategies", "pins.json"),
    "cluster.json": (*_COMPILE_MLP, "--cluster", "cluster.json"),
    "cluster.yaml": (*_COMPILE_MLP, "--cluster", "cluster.yaml"),
    "model.onnx": ("compile", "model.onnx:batch=4", "--devices", "2", "--effort", "0.1"),
}
_BY_ENDING: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".ir": damage_text,
    ".json": damage_json,
    ".yaml": damage_yaml,
    ".onnx": damage_onnx,
}


def make_case(number: int, originals: Path, folder: Path) -> Case:
    """Copy the originals that a case needs into a folder, damage one, and return the case."""
    draw = random.Random(number)
    names = ["plan"] * 5 + ["pins.json", "cluster.json", "cluster.yaml"]
    names += ["model.onnx"] * 2 if (originals / "model.onnx").exists() else []
    chosen = draw.choice(names)
    if chosen == "plan":
        return _plan_case(number, draw, originals, folder)
    content = (originals / chosen).read_bytes()
    (folder / chosen).write_bytes(_damaged(chosen, content, draw))
    return Case(number, chosen, _COMMANDS[chosen])


def _damaged(name: str, content: bytes, draw: random.Random) -> bytes:
    general = draw.random() < 0.2
    return damage_bytes(content, draw) if general else _BY_ENDING[Path(name).suffix](content, draw)


def _plan_case(number: int, draw: random.Random, originals: Path, folder: Path) -> Case:
    """Damage one file of a plan; mostly let the plan's document agree with what it is now."""
    shutil.copytree(originals / draw.choice(tuple(_PLANS)), folder / "plan")
    name = draw.choice(("program.ir", "program.ir", "model.ir", "plan.json"))
    path = folder / "plan" / name
    path.write_bytes(_damaged(name, path.read_bytes(), draw))
    if draw.random() < 0.9:
        _agree(folder / "plan")
    command, *options = draw.choice(_PLAN_COMMANDS)
    return Case(number, name, (command, "plan", *options))


def _agree(plan: Path) -> None:
    """Write the digests of the files as they are into the document, where it can be read."""
    try:
        document = json.loads((plan / "plan.json").read_bytes())
        for name in set(document["files"]) - {"plan.json"}:
            content = (plan / name).read_bytes()
            document["files"][name] = hashlib.sha256(content).hexdigest()
        document["files"]["plan.json"] = document_digest(document)
        (plan / "plan.json").write_text(json.dumps(document))
    except (ValueError, TypeError, KeyError, OSError, AttributeError):
        pass  # then it is refused for its digests, or before


# Running


def check_originals(originals: Path, seconds: float = SECONDS) -> None:
    """Check that every file is accepted as it is, or damage would show nothing."""
    for name, arguments in _COMMANDS.items():
        if not (originals / name).exists():
            continue
        ending = run_case(Case(-1, name, arguments), originals, seconds)
        if ending.code:
            raise SystemExit(f"`{name}` is refused undamaged: {(originals / 'stderr').read_text()}")


def run_case(case: Case, folder: Path, seconds: float = SECONDS) -> Ending:
    """Run the command of a case in a process of its own."""
    out, err = folder / "stdout", folder / "stderr"
    child = os.fork()
    if not child:
        _be_the_case(case, folder, out, err, seconds)
    deadline = time.monotonic() + _WAITING * seconds
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return Ending(case, -1, f"not over after {seconds:g} s")
        time.sleep(0.005)
    code = os.waitstatus_to_exitcode(status)
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return Ending(case, code, f"not over after {seconds:g} s")
    return Ending(case, code, _problem(code, err.read_text(errors="replace")))


def _be_the_case(case: Case, folder: Path, out: Path, err: Path, seconds: float) -> None:
    """Run the command, and end this process."""
    code = 99
    try:
        os.chdir(folder)
        for path, number in ((out, 1), (err, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + _BYTES, taken + _BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 1))
        warnings.resetwarnings()
        code = command_line(case.arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _problem(code: int, said: str) -> str:
    lines = [line for line in said.splitlines() if not _is_remark(line)]
    if code not in _CODES:
        return "\n".join(["no exit code of its own:", *lines[-12:]])
    if any(not line.startswith("shardwright: ") for line in lines) or len(lines) > 1:
        return "\n".join(["more than a sentence:", *lines[-12:]])
    if code in (2, 3, 4) and not lines and code != 4:
        return "an error without a sentence"
    return ""


def _is_remark(line: str) -> bool:
    return line.startswith("shardwright: warning: ") or line.endswith("after the plan was written")


def run_cases(numbers: Sequence[int], seconds: float = SECONDS) -> list[Ending]:
    """Make and run cases, one at a time."""
    endings = []
    with tempfile.TemporaryDirectory() as place:
        originals = Path(place) / "originals"
        originals.mkdir()
        make_originals(originals)
        check_originals(originals, seconds)
        for number in numbers:
            folder = Path(place) / str(number)
            folder.mkdir()
            case = make_case(number, originals, folder)
            endings.append(run_case(case, folder, seconds))
            if endings[-1].problem:
                print(f"{case}: {endings[-1].code}\n{endings[-1].problem}\n", flush=True)
            shutil.rmtree(folder)
    return endings


# The page


def page(endings: Sequence[Ending]) -> str:
    """Return what was found, as a table."""
    counts = Counter((ending.case.file, ending.code) for ending in endings)
    files = sorted({ending.case.file for ending in endings})
    names = {0: "accepted", 1: "wrong plan", 2: "refused", 3: "nothing fits", 4: "undecided"}
    lines = [
        "# Damaged files",
        "",
        "Plans, strategies, clusters and ONNX files, damaged at random: bits and pieces of the "
        "bytes, words of the text, entries of the JSON, fields of the nodes; digests are made to "
        "agree in 9 of 10 plans, so that the damage is reached. Each case is a process; it fails "
        "with a traceback, with more than a sentence, and after a minute of the processor. Written "
        f"by `python benchmarks/mutations.py --count {len(endings)}` on {machine()}.",
        "",
        f"| file | cases | {' | '.join(names.values())} | fails |",
        "|---|" + "---:|" * (len(names) + 2),
    ]
    for file in files:
        of_file = [ending for ending in endings if ending.case.file == file]
        cells = [counts[file, code] for code in names]
        wrong = sum(bool(ending.problem) for ending in of_file)
        lines.append(f"| `{file}` | {len(of_file)} | {' | '.join(map(str, cells))} | {wrong} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the cases and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="cases (1000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (0)")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that a case may take (60)")
    arguments = parser.parse_args()
    numbers = range(arguments.first, arguments.first + arguments.count)
    endings = run_cases(numbers, arguments.seconds)
    arguments.out.write_text(page(endings))


if __name__ == "__main__":
    main()
