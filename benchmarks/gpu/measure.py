"""Measure packages on a GPU: ``python measure.py FOLDER RESULTS MODEL ...``, beside `models.py`.

The folder has a package for each model. Needs PyTorch and transformers alone. Writes to the folder
of the results the times of each model's operators, and ``measured.json``: the step of the package,
and that of the same module with PyTorch's own automatic mixed precision and fused Adam.
"""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import torch
import torch.distributed as dist

STEPS = 15


def main() -> None:
    """Measure, and write the files into the folder of the results."""
    folder, results, *names = map(str, sys.argv[1:])
    sys.path.insert(0, folder)
    rendezvous = Path(results).resolve() / "rendezvous"
    dist.init_process_group("nccl", init_method=f"file://{rendezvous}", rank=0, world_size=1)
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__}
    for name in names:
        found[name] = measured(name, Path(results))
        print(name, json.dumps(found[name]), flush=True)
        Path(results, "measured.json").write_text(json.dumps(found, indent=1))
    dist.destroy_process_group()
    rendezvous.unlink(missing_ok=True)


def measured(name: str, results: Path) -> dict[str, Any]:
    """Return the step and the memory of a model, by its plan and by PyTorch."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        module, inputs = getattr(models, name)()
    module.cpu()
    ours = of_the_plan(name, module, inputs, results)
    torch.cuda.empty_cache()
    module.cuda()
    optimizer = torch.optim.Adam(module.parameters(), fused=True)

    def plain() -> Any:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = module(**inputs).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    return {"plan": ours, "pytorch": timed(plain)}


def of_the_plan(name: str, module: Any, inputs: dict[str, Any], results: Path) -> dict[str, float]:
    """Return the step of the package, and write the times of its operators."""
    trainer = importlib.import_module(name).Trainer(module, device="cuda")
    found = timed(lambda: trainer.step(**inputs))
    (results / f"{name}.csv").write_text(trainer.operator_times(**inputs))
    return found


def timed(step: Callable[[], Any]) -> dict[str, float]:
    """Return median and least milliseconds of a step, its peak memory, and its last loss."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    found = []
    for _ in range(STEPS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        loss = step()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return {
        "ms": sorted(found)[STEPS // 2],
        "least_ms": min(found),
        "gib": torch.cuda.max_memory_allocated() / 2**30,
        "loss": float(loss),
    }


if __name__ == "__main__":
    main()
