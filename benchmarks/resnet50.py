"""ResNet-50 forward and backward on numpy, and on PyTorch: ``python benchmarks/resnet50.py``.

Both run in processes of their own, with the same weights and images; the losses are compared.
PyTorch may live in another interpreter: ``--torch path/to/python``. Beside the seconds of the clock
stand those of the processor, which other programs on the machine lengthen less.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine

from shardwright.api import compile
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import operator_class
from shardwright.runtime import Executor, LocalCommunicator, initialize

HERE = Path(__file__).parent
STEPS = 3
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def main() -> None:
    """Measure both, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--threads", type=int, default=1, help="of both")
    parser.add_argument("--torch", default=sys.executable, help="an interpreter that has PyTorch")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measured(arguments.batch, arguments.side, arguments.measure)))
        return
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        sizes = ["--batch", str(arguments.batch), "--side", str(arguments.side)]
        environment = {**os.environ, **dict.fromkeys(THREADS, str(arguments.threads))}
        own = child([sys.executable, __file__, *sizes, "--measure", str(data)], environment)
        other = None
        if has_torch(arguments.torch):
            script = str(HERE / "resnet50_torch.py")
            other = child([arguments.torch, script, str(data), str(STEPS)], environment)
    if own is None:
        raise SystemExit("the measurement failed")
    setting = f"batch {arguments.batch} at {arguments.side} x {arguments.side}, float32"
    arguments.out.write_text(document(f"{setting}, threads: {arguments.threads}", own, other))


def has_torch(python: str) -> bool:
    """Return whether an interpreter is there and has PyTorch."""
    try:
        return not subprocess.run([python, "-c", "import torch"], capture_output=True).returncode
    except OSError:
        return False


def child(command: list[str], environment: dict[str, str]) -> dict[str, Any] | None:
    """Return what a process prints; None where it fails."""
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def measured(batch: int, side: int, data: Path) -> dict[str, Any]:
    """Train some steps; leave weights and images for the other, and return what it took."""
    plan = compile(f"resnet50:side={side}", 1, mode="stand_alone", batch=batch, cluster="cpu").plan
    communicator = LocalCommunicator(Mesh(()))
    executor = Executor(plan.program, communicator)
    state = initialize(plan.program, 0, communicator)
    random = np.random.default_rng(0)
    image = random.standard_normal((batch, 3, side, side), "float32")
    label = random.integers(0, 1000, batch).astype("int32")
    weights = {p.name: state[p.name][0] for p in plan.program.parameters if p.trainable}
    np.savez(data, image=image, label=label, **{f"{i}": w for i, w in enumerate(weights.values())})
    spent = watch_kernels()
    seconds, clock, loss = [], [], 0.0
    for step in range(STEPS):
        spent.clear()
        begin, began = time.process_time(), time.perf_counter()
        result = executor.step({"image": image, "label": label}, state)
        seconds.append(time.process_time() - begin)
        clock.append(time.perf_counter() - began)
        if step == 0:
            loss = float(next(iter(result.outputs.values()))[0])
    found = {"loss": loss, "seconds": min(seconds), "clock": min(clock), "memory": peak()}
    return {**found, "operators": dict(spent)}


def watch_kernels() -> Counter[str]:
    """Let every kernel add its seconds to what is returned."""
    spent: Counter[str] = Counter()

    def watched(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            begin = time.process_time()
            result = kernel(*arguments)
            spent[name] += time.process_time() - begin
            return result

        return run

    for name in NAMES:
        kind = operator_class(name)
        kind.kernel = watched(name, kind.kernel)  # type: ignore[method-assign]
    return spent


NAMES = (
    *("convolution", "transposed_convolution", "convolution_weight_gradient", "channel_mean"),
    *("channel_variance", "channel_variance_gradient", "batch_normalize"),
    *("batch_normalize_gradient", "relu", "relu_gradient", "add", "max_pool", "max_pool_gradient"),
    *("sgd_update", "matmul", "spread", "scale"),
)


def peak() -> int:
    """Return the most memory this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def document(setting: str, own: dict[str, Any], other: dict[str, Any] | None) -> str:
    """Return the page."""
    rows = [("shardwright on numpy", own)] + ([("PyTorch", other)] if other else [])
    lines = [
        f"| {name} | {found['seconds']:.2f} | {found['clock']:.2f} "
        f"| {found['memory'] / 2**20:.0f} | {found['loss']:.5f} |"
        for name, found in rows
    ]
    if other is None:
        verdict = "PyTorch is not installed here, so that there is nothing to compare with."
    else:
        verdict = (
            f"numpy takes {own['seconds'] / other['seconds']:.2f} times the seconds of PyTorch "
            f"{other['version']} and {own['memory'] / other['memory']:.2f} times its memory."
        )
    parts = sorted(own["operators"].items(), key=lambda item: -item[1])
    shares = [f"| {name} | {seconds:.3f} |" for name, seconds in parts if seconds >= 0.001]
    rest = own["seconds"] - sum(own["operators"].values())
    return "\n".join(
        (
            "# ResNet-50, forward and backward",
            "",
            f"Written by `benchmarks/resnet50.py`: {setting},",
            f"the best of {STEPS} steps; both with the same weights and images.",
            f"Measured on {machine()}.",
            "",
            "| | seconds of the processor | of the clock | peak MiB | loss of the first step |",
            "| --- | --- | --- | --- | --- |",
            *lines,
            "",
            verdict,
            "",
            "Where the seconds go on numpy (of the last step):",
            "",
            "| operator | seconds |",
            "| --- | --- |",
            *shares,
            f"| everything else | {max(rest, 0.0):.3f} |",
            "",
        )
    )


if __name__ == "__main__":
    main()
