"""Measure packages on a GPU: ``python measure.py FOLDER RESULTS MODEL ...``, beside `models.py`.

The folder has a package for each model. Needs PyTorch and transformers alone. Writes to the folder
of the results ``measured.json``, of each model the step, the peak of memory and the loss of the
package as it is and compiled, of the same module compiled by PyTorch with its automatic mixed
precision and fused Adam, and for models with experts of that module all in bfloat16; and the times
of the package's operators as ``NAME.csv``. Models compile together, and are timed one by one.
"""

import fcntl
import gc
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import models
import torch
import torch.distributed as dist

STEPS = 15
Step = Callable[[], Any]


def main() -> None:
    """Measure every model in a process of its own, and write what they found."""
    folder, results, *names = sys.argv[1:]
    command = [sys.executable, __file__, folder, results]
    running = {name: subprocess.Popen([*command, "--", name]) for name in names}
    for process in running.values():
        process.wait()
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__}
    for name in names:
        file = Path(results, f"{name}.json")
        found[name] = json.loads(file.read_text()) if file.exists() else {}
        file.unlink(missing_ok=True)
    Path(results, "measured.json").write_text(json.dumps(found, indent=1))


def measure(folder: str, results: str, name: str) -> None:
    """Measure a model in each way, and write down what was found so far."""
    sys.path.insert(0, folder)
    meeting = Path(results).resolve() / f"{name}.meeting"
    dist.init_process_group("nccl", init_method=f"file://{meeting}", rank=0, world_size=1)
    torch.manual_seed(0)
    with torch.device("cuda"):
        module, inputs = getattr(models, name)()
    module.cpu()
    ways = {"plan": of_the_plan, "plan compiled": of_the_compiled_plan, "pytorch": of_pytorch}
    if hasattr(module.config, "num_experts_per_tok"):
        ways["pytorch bf16"] = of_pytorch_in_bf16
    found: dict[str, Any] = {}
    for way, make in ways.items():
        try:
            found[way] = measured(lambda make=make: make(name, module, inputs), Path(results))
        except Exception as error:  # the others are measured all the same
            found[way] = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(name, way, json.dumps(found[way]), flush=True)
        Path(results, f"{name}.json").write_text(json.dumps(found))
        gc.collect()
        torch.cuda.empty_cache()
    with locked(Path(results), alone=True):
        trainer = importlib.import_module(name).Trainer(module.float().cpu(), device="cuda")
        Path(results, f"{name}.csv").write_text(trainer.operator_times(**inputs))
    dist.destroy_process_group()
    meeting.unlink(missing_ok=True)


def measured(make: Callable[[], tuple[Step, Step]], results: Path) -> dict[str, float]:
    """Return the times of a step and of its update, made while others compile, too."""
    begin = time.perf_counter()
    with locked(results, alone=False):
        step, update = make()
        for _ in range(3):
            loss = step()
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    with locked(results, alone=True):
        found = timed(step)
        found |= {"update_ms": timed(update)["ms"], "ready_s": seconds, "loss_3": float(loss)}
        return found


@contextmanager
def locked(results: Path, alone: bool) -> Iterator[None]:
    """Hold the GPU, alone or with others that are not timed."""
    with (results / "gpu.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def of_the_plan(name: str, module: Any, inputs: dict[str, Any]) -> tuple[Step, Step]:
    """Return the step of the package, and its update."""
    return _of_package(name, module, inputs, compile=False)


def of_the_compiled_plan(name: str, module: Any, inputs: dict[str, Any]) -> tuple[Step, Step]:
    """Return the step of the package, compiled, and its update."""
    return _of_package(name, module, inputs, compile=True)


def _of_package(name: str, module: Any, inputs: dict[str, Any], compile: bool) -> tuple[Step, Step]:
    trainer = importlib.import_module(name).Trainer(module, device="cuda", compile=compile)

    @cache
    def gradients() -> dict[str, Any]:
        weights = (name for name, row in trainer.program.PARAMETERS.items() if row[3] == "weight")
        return {n: torch.zeros_like(trainer.state[n], dtype=torch.bfloat16) for n in weights}

    return (lambda: trainer.step(**inputs)), (lambda: trainer.update(gradients(), {}))


def of_pytorch(name: str, module: Any, inputs: dict[str, Any]) -> tuple[Step, Step]:
    """Return the step of the module, compiled under automatic mixed precision, and its update."""
    return _of_module(module.cuda(), inputs, mixed=True)


def of_pytorch_in_bf16(name: str, module: Any, inputs: dict[str, Any]) -> tuple[Step, Step]:
    """Return the step of the module in bfloat16, its optimizer as well, and its update."""
    return _of_module(module.cuda().bfloat16(), inputs, mixed=False)


def _of_module(module: Any, inputs: dict[str, Any], mixed: bool) -> tuple[Step, Step]:
    torch.compiler.reset()
    optimizer = torch.optim.Adam(module.parameters(), fused=True)
    compiled = torch.compile(module)

    def step() -> Any:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=mixed):
            loss = compiled(**inputs).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, optimizer.step


def timed(step: Step) -> dict[str, float]:
    """Return median and least milliseconds of a step, and its peak memory."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    found = []
    for _ in range(STEPS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return {
        "ms": sorted(found)[STEPS // 2],
        "least_ms": min(found),
        "gib": torch.cuda.max_memory_allocated() / 2**30,
    }


if __name__ == "__main__":
    if "--" in sys.argv:
        measure(*(argument for argument in sys.argv[1:] if argument != "--"))
    else:
        main()
