"""Inputs made after public reports of people who bring models: right, refused, or wrong.

    python benchmarks/imported/public_reports.py

Writes `public_reports.md`. Modules are compared with PyTorch's autograd and functions with JAX,
loss and all gradients in float64; ONNX nodes with onnxruntime. The inputs are our own, a source is
where the kind was reported: repository and number of the issue. Needs torch, jax, onnx and
onnxruntime.
"""

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import jax_compare
import numpy as np
import onnx_runtime
import torch_compare
from onnx_cases import Case
from public_reports_files import FILES
from public_reports_modules import FUNCTIONS, MODULES

from shardwright.ir.errors import ShardwrightError
from shardwright.tools.main import main as command

PAGE = Path(__file__).with_name("public_reports.md")
TOLERANCE = 1e-9
NEAR = 0.05  # of a measured memory
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "max_position_embeddings": 1048576,
    "attention_bias": False,
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True)
class Row:
    """What became of one input.

    Parameters
    ----------
    source, what : str
        Where its kind was reported, and what it is.
    outcome : str
        ``right``, ``refused`` or ``WRONG``.
    why : str
        The message of a refusal; the difference of what is wrong.
    """

    source: str
    what: str
    outcome: str
    why: str = ""


def judged(source: str, what: str, compare: Callable[[], float]) -> Row:
    """Return the row of a comparison, which returns the largest relative difference."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = compare()
    except ShardwrightError as error:
        return Row(source, what, "refused", " ".join(str(error).split()))
    return (
        Row(source, what, "right")
        if found < TOLERANCE
        else Row(source, what, "WRONG", f"{found:.2g}")
    )


def of_module(made: Callable[[], Any]) -> float:
    """Return how loss and gradients of a module differ from autograd's."""
    module, inputs = made()
    found = torch_compare.gradients_differ(module, inputs)
    if found.missing or found.extra:
        return float("inf")
    return max(found.loss, found.gradient)


def of_function(made: Callable[[], Any]) -> float:
    """Return how loss and gradients of a function differ from those of JAX; NaN equals NaN."""
    function, arguments = made()
    loss, right = jax_compare.of_jax(function, arguments)
    found = jax_compare.gradients_differ(function, arguments)
    bad = any(np.isnan(g).any() for g in (loss, *right.values()))
    worst = max(found.loss, found.gradient)
    return 0.0 if bad and np.isnan(worst) else worst


def of_file(case: Case) -> float:
    """Return zero where a node computes what onnxruntime does."""
    right, ours = onnx_runtime.of_runtime(case), onnx_runtime.of_import(case)
    assert not isinstance(right, str), right
    if isinstance(ours, str):
        raise ShardwrightError(ours.removeprefix("refused: "))
    return 0.0 if onnx_runtime.equal(ours, right) else float("inf")


def estimate(*arguments: str) -> dict[str, Any]:
    """Return what `shardwright estimate --json` prints, whether it fits or not."""
    out = StringIO()
    with redirect_stdout(out), redirect_stderr(StringIO()):
        command(["estimate", *arguments, "--json"])
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def of_million_tokens() -> Row:
    """Return the row of a model of 8B with a million tokens on 8 H100."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(QWEN3))
        plan = "context=8,ring,micro_batch=1,recompute=full,zero=3"
        how = ["--devices", "8", "--cluster", "h100-3200g", "--plan", plan]
        found = estimate(f"{path}:sequence=1048576", "--batch", "1", *how)
    told = "; ".join(found["doubts"])
    step = f"{found['overlapped_step_seconds']:.0f} s a step; " if told else "no doubt is told"
    return Row(
        "trl 6846",
        "estimate: Qwen3-8B, 1,048,576 tokens on 8 H100 (measured 380 s with checkpoints in host "
        "memory; out of memory without)",
        "refused" if told and not found["fits"] else "WRONG",
        f"does not fit; {step}{told}",
    )


def of_zero2() -> Row:
    """Return the row of a model of 13B with DeepSpeed's ZeRO-2 on 4 devices of 80 GB."""
    sizes = "layers=40,hidden=5120,heads=40,kv_heads=40,inner=13696,vocabulary=125696,sequence=1536"
    how = ["--precision", "bfloat16", "--optimizer", "adam", "--devices", "4"]
    plan = "data=4,micro_batch=1,zero=2,recompute=full"
    how += ["--cluster", "a100-1600g", "--software", "deepspeed", "--plan", plan]
    memory = estimate(f"llama:{sizes}", "--batch", "4", *how)["software_memory"]
    kept = memory["peak_bytes_per_device"] / 2**30
    return Row(
        "LLaMA-Factory 1158",
        "estimate: 13B with DeepSpeed's ZeRO-2 on 4 devices of 80 GB (the run held 77.65 GiB and "
        "wanted 12.94 more)",
        "right" if abs(kept / (77.65 + 12.94) - 1) < NEAR else "WRONG",
        f"{kept:.2f} GiB of 80, does not fit",
    )


def rows() -> Iterator[Row]:
    """Yield the rows of all inputs."""
    for source, what, made in MODULES:
        yield judged(source, f"module: {what}", lambda made=made: of_module(made))
    for source, what, made in FUNCTIONS:
        yield judged(source, f"function: {what}", lambda made=made: of_function(made))
    for source, what, case in FILES:
        yield judged(source, f"file: {what}", lambda case=case: of_file(case))
    yield of_million_tokens()
    yield of_zero2()


def main() -> None:
    """Run all inputs, print them and write the page."""
    found = []
    for row in rows():
        found.append(row)
        print(row.outcome, row.source, row.what, row.why[:250], flush=True)
    PAGE.write_text(page(found))
    sys.exit(any(row.outcome == "WRONG" for row in found))


def page(found: list[Row]) -> str:
    """Return the page."""
    counts = {kind: sum(r.outcome == kind for r in found) for kind in ("right", "refused", "WRONG")}
    lines = "\n".join(
        f"| {r.what} | {r.source} | {r.outcome}{': ' + r.why.replace('|', ' ') if r.why else ''} |"
        for r in found
    )
    return f"""# Public reports

`python benchmarks/imported/public_reports.py`: small inputs made after reports of people who bring
models; the inputs are our own, the source is the repository and number of an issue. Modules are
compared with PyTorch and functions with JAX (loss and all gradients in float64, to {TOLERANCE:g}),
nodes of files with onnxruntime. {len(found)} inputs: {counts["right"]} right,
{counts["refused"]} refused, {counts["WRONG"]} wrong.

| input | source | here |
|---|---|---|
{lines}
"""


if __name__ == "__main__":
    main()
