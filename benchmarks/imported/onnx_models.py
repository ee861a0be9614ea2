"""Imports the models that `onnx_models_export.py` exported, and compares them with PyTorch.

    python benchmarks/imported/onnx_models.py FOLDER [MODEL ...]

For every file: results and gradients against PyTorch's, what is trained against the module's own
parameters, and which compositions were recognised. Writes `onnx_models.md` next to it where all
models were asked for. Needs no PyTorch.
"""

import json
import re
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.dataflow.cotangents import gradient_name
from shardwright.frontends.onnx import Imported, import_model, read_model
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.mesh import Mesh
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.differentiate import Differentiate
from shardwright.runtime import Executor, LocalCommunicator, assemble, initialize

Array = np.ndarray[Any, Any]
WAYS = ("dynamo", "dynamo-plain", "script", "script-plain")
RESULTS = Path(__file__).with_suffix(".md")
LIMIT_SECONDS = 120
ONE = Mesh(())
_UNFUSED = {"attention": "softmax", "rms_norm": "sqrt"}


@dataclass
class Outcome:
    """What became of one file.

    Parameters
    ----------
    name, way : str
        The model, and how it was exported.
    parameters : int
        How many parameters the module has.
    trained, own : int
        How many are trained, and how many of those are parameters of the module, by name, shape
        and value.
    result, gradient : float
        Largest difference from PyTorch, relative to the largest number there.
    gradients : int
        Of how many parameters the gradients were compared.
    attention, softmax, rms_norm, roots : int
        Compositions that were recognised, and what is left of others.
    warned : list of str
        What the import warns of.
    unnamed : int
        How many parameters are neither trained nor named by a warning.
    seconds : float
        How long importing took.
    reason : str
        Why it failed.
    """

    name: str
    way: str
    parameters: int = 0
    trained: int = 0
    own: int = 0
    result: float = float("nan")
    gradient: float = float("nan")
    gradients: int = 0
    attention: int = 0
    softmax: int = 0
    rms_norm: int = 0
    roots: int = 0
    warned: list[str] = field(default_factory=list)
    unnamed: int = 0
    seconds: float = 0.0
    reason: str = ""


def check(folder: Path, name: str, way: str) -> Outcome:
    """Import one file and compare it with PyTorch."""
    found = Outcome(name, way)
    with np.load(folder / f"{name}.npz") as archive:
        expected = dict(archive)
    own = {k.partition("/")[2]: a for k, a in expected.items() if k.startswith("parameter/")}
    found.parameters, once = len(own), set(own)
    aliased = {str(array) for key, array in expected.items() if key.startswith("alias/")}
    for key, array in [(k, a) for k, a in expected.items() if k.startswith("alias/")]:
        alias, shared = key.partition("/")[2], str(array)
        own[alias] = own[shared]
        expected[f"gradient/{alias}"] = expected[f"gradient/{shared}"]
    start = time.perf_counter()
    model = read_model(folder / f"{name}.{way}.onnx")
    imported = import_model(model, loss="mse")
    found.seconds = time.perf_counter() - start
    found.warned = list(imported.warnings)
    trained = [p for p in imported.graph.parameters if p.trainable]
    found.trained = len(trained)
    found.own = sum(_is_own(own, p.name, imported.initial.get(p.name)) for p in trained)
    missing = once - {p.name for p in trained} - aliased
    found.unnamed = sum(not _is_named(name, " ".join(found.warned)) for name in missing)
    counts = Counter(node.operator for node in imported.graph.nodes)
    found.attention = counts["scaled_dot_product_attention"]
    found.softmax, found.rms_norm = counts["softmax"], counts["rms_norm"]
    found.roots = counts["sqrt"] + counts["rsqrt"]
    _compare(found, imported, import_model(model), expected)
    return found


def _is_own(own: Mapping[str, Array], name: str, data: Array | None) -> bool:
    return data is not None and name in own and np.array_equal(own[name], data)


def _is_named(name: str, said: str) -> bool:
    """Whether a warning names a parameter, by itself or with stars for its numbers."""
    pattern = re.sub(r"\d+", "*", name)
    return f"`{name}`" in said or f"`{pattern}`" in said


def _compare(
    found: Outcome, imported: Imported, forward: Imported, expected: Mapping[str, Array]
) -> None:
    inputs = _inputs(forward, expected)
    results = _run(forward, inputs, [forward.graph.outputs[0]])
    found.result = _difference(results[forward.graph.outputs[0]], expected["output"])
    graph = Differentiate().run(Canonicalize().run(imported.graph))
    label = next(v for v in imported.graph.inputs if v.name not in inputs)
    names = [p.name for p in imported.graph.parameters if p.trainable]
    names = [n for n in names if f"gradient/{n}" in expected and gradient_name(n) in graph.values]
    step = Imported(graph, imported.initial)
    inputs[label.name] = np.zeros(label.type.shape, np.float32)
    gradients = _run(step, inputs, [gradient_name(n) for n in names])
    found.gradients = len(names)
    scale = max(float(np.abs(expected[f"gradient/{n}"]).max()) for n in names) if names else 1.0
    differences = [
        float(np.abs(gradients[gradient_name(n)] - expected[f"gradient/{n}"]).max()) / scale
        for n in names
    ]
    found.gradient = max(differences, default=float("nan"))


def _inputs(imported: Imported, expected: Mapping[str, Array]) -> dict[str, Array]:
    return {
        value.name: expected.get(f"input/{value.name}", np.ones(value.type.shape, np.int64))
        for value in imported.graph.inputs
    }


def _run(imported: Imported, inputs: Mapping[str, Array], names: list[str]) -> dict[str, Array]:
    communicator = LocalCommunicator(ONE)
    executor = Executor(imported.graph, communicator)
    state = initialize(imported.graph, 0, communicator, imported.initial)
    with np.errstate(all="ignore"):
        fetched = executor.step(inputs, state, names).fetched
    return {n: assemble(imported.graph, n, communicator.collect(fetched[n]), ONE) for n in names}


def _difference(found: Array, right: Array) -> float:
    return float(np.abs(found - right).max() / max(float(np.abs(right).max()), 1e-30))


class _TimeoutError(Exception):
    """A file took longer than the limit."""


def _stop(*_: object) -> None:
    raise _TimeoutError(f"took longer than {LIMIT_SECONDS} s")


def outcome(folder: Path, name: str, way: str) -> Outcome | None:
    """Return what becomes of one file; None if it was not exported."""
    if not (folder / f"{name}.{way}.onnx").is_file():
        return None
    signal.alarm(LIMIT_SECONDS)
    try:
        return check(folder, name, way)
    except (ShardwrightError, _TimeoutError) as error:
        return Outcome(name, way, reason=str(error))
    except Exception as error:
        traceback.print_exc()
        return Outcome(name, way, reason=f"{type(error).__name__}: {error}")
    finally:
        signal.alarm(0)


def row(found: Outcome) -> str:
    """Return an outcome as a row of the table."""
    if found.reason:
        return f"| {found.name} | {found.way} | {found.reason} {'|' * 9}"
    cells = (
        found.name,
        found.way,
        f"{found.trained} of {found.parameters}",
        str(found.trained - found.own),
        f"{found.result:.0e}",
        f"{found.gradient:.0e} ({found.gradients})",
        f"{found.attention} / {found.softmax}",
        f"{found.rms_norm} / {found.roots}",
        str(len(found.warned)),
        str(found.unnamed),
        f"{found.seconds:.1f}",
    )
    return f"| {' | '.join(cells)} |"


_HEAD = """| model | exported by | trained | of them no parameter | results | gradients | \
attention / softmax | rms_norm / roots | warnings | unnamed | seconds |
|---|---|---|---|---|---|---|---|---|---|---|"""


_TEXT = """# ONNX models

Small models of transformers and torchvision with random weights, exported by
`onnx_models_export.py` ({versions}) and imported by `onnx_models.py`. `dynamo` is
`torch.onnx.export(...)` as it is by default, `dynamo-plain` the same with `optimize=False`;
`script` is the older exporter (`dynamo=False`), `script-plain` the same with
`do_constant_folding=False`. What PyTorch cannot export is left out.

- *trained*: how many parameters are trained, of how many that the module has; *no parameter*:
  of those trained, how many are none of the module's, by name, shape and value.
- *results* and *gradients* (of how many parameters): the largest difference from PyTorch,
  relative to the largest number. The loss is the mean square of the results. Where the exporter
  has merged or folded parameters, a gradient is that of all that were merged, or lacks a part,
  and differs.
- *attention / softmax*, *rms_norm / roots*: compositions that were recognised, and what is left
  of others. In swin, windows are masked in another shape than the scores have.
- *unnamed*: parameters that are neither trained nor named by a warning. Of two equal operators on
  equal parameters, the exporter keeps one, and of the other no name: in gpt_neox and gemma. The
  older exporter leaves no name of a weight that it has transposed, concatenated or folded into
  another; the warning names the node that reads it, such as `/layers.0/self_attn/q_proj/MatMul`.

"""


def main(folder: str, *models: str) -> None:
    """Check all files, or those of some models."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _stop)
    place = Path(folder)
    names = models or sorted(path.stem for path in place.glob("*.npz"))
    print(_HEAD)
    rows = []
    for name in names:
        for way in WAYS:
            found = outcome(place, name, way)
            if found is not None:
                rows.append(row(found))
                print(rows[-1], flush=True)
    if not models:
        versions = json.loads((place / "versions.json").read_text())
        said = ", ".join(f"{key} {value}" for key, value in versions.items())
        RESULTS.write_text(_TEXT.format(versions=said) + _HEAD + "\n" + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
