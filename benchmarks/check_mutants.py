"""What `shardwright check` says of programs with a collective left out or doubled.

    python benchmarks/check_mutants.py

The right programs of the tests are changed at one place: a call of a collective is left out or
made twice, or the use of a function that sums or gathers is left out. Each mutant is checked, and
is run on processes over gloo by code of this script alone, which compares loss and gradients with
one device. Needs `torch`.
"""

import io
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import start_processes

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from shardwright.ir.errors import ModelError
from shardwright.tools.check.judge import check
from shardwright.user_files import imported
from tests.tools.check.programs import RIGHT

_CALL = re.compile(r"^(\s*)(dist\.\w+\(.*\))")
_TOLERANCE, _SECONDS = 1e-9, 20


def mutants(text: str) -> Iterator[tuple[str, str]]:
    """Yield programs with one place changed, and what was changed."""
    lines, within = text.split("\n"), ""
    for number, line in enumerate(lines):
        changes = []
        if found := re.match(r"class (\w+)\(torch.autograd", line):
            within = found[1]
        elif line and not line[0].isspace():
            within = ""
        if within and f"{within}.apply(" not in text:
            continue  # a function that the program does not use
        if found := _CALL.match(line):
            space, call = found.groups()
            changes += [("left out", f"{space}pass"), ("twice", f"{line}\n{space}{call}")]
        if ".apply(" in line and " if " in line:
            name = line.partition("=")[0].strip()
            changes += [("left out", re.sub(r"=.*", f"= {name}", line, count=1))]
            changes += [("twice", f"{line}\n{line}")]
        for what, changed in changes:
            yield (
                f"line {number} {what}: {line.strip()}",
                "\n".join([*lines[:number], changed, *lines[number + 1 :]]),
            )


def said(path: Path) -> str:
    """Return what the check says of a program; what would mend it is not asked."""
    try:
        return "a fault" if check(path, search_seconds=0.0).faults else "agrees"
    except ModelError:
        return "refused"


def ran(path: Path) -> str:
    """Return whether processes compute what one device computes."""
    with imported(path) as module:
        size = prod(module.MESH.values())
    with tempfile.TemporaryDirectory() as folder:
        context = start_processes(
            _process, (path, folder, size), nprocs=size, join=False, start_method="fork"
        )
        end = time.monotonic() + _SECONDS
        try:
            while not context.join(timeout=1.0):
                if time.monotonic() > end:
                    return _killed(context.processes)
        except Exception:
            return "fails"
        answers = [bool(torch.load(Path(folder) / f"{rank}.pt")) for rank in range(size)]
    return "equal" if all(answers) else "differs"


def _killed(processes: Sequence[Any]) -> str:
    for process in processes:
        process.kill()
    return "hangs"


def _process(rank: int, path: Path, folder: str, size: int) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    sys.stderr = io.StringIO()
    where = {"init_method": f"file://{folder}/meeting", "rank": rank, "world_size": size}
    dist.init_process_group("gloo", **where)
    with imported(path) as module:
        same = all(_same(module, rank, seed) for seed in range(3))
    torch.save(same, Path(folder) / f"{rank}.pt")
    dist.barrier()


def _cut(whole: Any, layout: Any, place: dict[str, int], mesh: dict[str, int]) -> Any:
    if callable(layout):
        return layout(whole, place)
    for axis, dimension in layout.items():
        size = whole.shape[dimension] // mesh[axis]
        whole = whole.narrow(dimension, place[axis] * size, size)
    return whole


def _same(module: Any, rank: int, seed: int) -> bool:
    torch.manual_seed(10 + seed)
    alone, inputs = module.reference(), module.inputs()
    with torch.no_grad():
        for parameter in alone.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    wanted = alone(*inputs)
    wanted.backward()
    mesh = init_device_mesh("cpu", tuple(module.MESH.values()), mesh_dim_names=tuple(module.MESH))
    place = dict(zip(module.MESH, mesh.get_coordinate(), strict=True))
    layouts, names = getattr(module, "LAYOUTS", {}), getattr(module, "NAMES", {})
    found, whole = module.parallel(mesh), dict(alone.named_parameters())
    for name, parameter in found.named_parameters():
        known = names.get(name, name)
        part = _cut(whole[known].data, layouts.get(known, {}), place, module.MESH)
        parameter.data.copy_(part)
    cuts = (*getattr(module, "INPUTS", ()), *[{}] * len(inputs))
    own = [_cut(x, cut, place, module.MESH).clone() for x, cut in zip(inputs, cuts, strict=False)]
    if hasattr(module, "step"):
        loss = module.step(found, mesh, *own)
    else:
        loss = found(*own)
        loss.backward()
    total = loss.detach().clone().reshape(())
    for axis, how in getattr(module, "LOSS", {}).items():
        dist.all_reduce(total, group=mesh.get_group(axis))
        total /= module.MESH[axis] if how == "mean" else 1
    pairs = [(total, wanted.detach().reshape(()))]
    for name, parameter in found.named_parameters():
        known = names.get(name, name)
        part = _cut(whole[known].grad, layouts.get(known, {}), place, module.MESH)
        own_gradient = torch.zeros_like(part) if parameter.grad is None else parameter.grad
        pairs.append((own_gradient, part))
    return all(
        float((a - b).abs().max()) <= _TOLERANCE * max(float(b.abs().max()), 1e-6) for a, b in pairs
    )


def main() -> None:
    """Print what is said of every mutant that is not as its processes are, and the counts."""
    counts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in RIGHT.items():
            for number, (what, mutant) in enumerate(mutants(text)):
                path = Path(folder) / f"{name}_{number}.py"
                path.write_text(mutant)
                truth, answer = ran(path), said(path)
                counts[truth, answer] += 1
                if (truth, answer) not in {("equal", "agrees"), ("differs", "a fault")}:
                    print(f"{name}: {what}: processes {truth}, said {answer}", flush=True)
    print("| processes | said | mutants |\n|---|---|---|")
    for (truth, answer), count in sorted(counts.items()):
        print(f"| {truth} | {answer} | {count} |")


if __name__ == "__main__":
    main()
