"""What `shardwright check` says of right programs, of seeded faults, and of mutants.

    python benchmarks/check_mutants.py [PROGRAM ...]

The right programs of the tests are changed at one place: a call of a collective is left out or
made twice, the use of a function that sums or gathers is left out, or a word of DTensor is replaced
by another: `Partial()` by `Replicate()` or the reverse, `full_tensor` by `to_local`, the placements
of gradients left out, a style by the other one, `fully_shard` left out or over the other axis. Each
mutant is checked, and is run on processes over gloo by code of this script alone, which compares
loss, gradients and updates with one device. Needs `torch`.
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
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.multiprocessing.spawn import start_processes

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from shardwright.ir.errors import ModelError
from shardwright.tools.check.judge import check
from shardwright.user_files import imported
from tests.tools.check import programs, published, tensors

RIGHT = programs.RIGHT | tensors.RIGHT | published.RIGHT
WRONG = programs.WRONG | tensors.WRONG | published.WRONG
# Whole words of DTensor, and what takes their place.
_WORDS = (
    (r"Partial\(\)", "Replicate()"),
    (r"Replicate\(\)", "Partial()"),
    (r"Shard\(\d\)", "Replicate()"),
    (r"full_tensor\((?:grad_placements=\[[^]]*\])?\)", "to_local()"),
    (r"(?:in_)?grad_placements=\[[^]]*\]", ""),
    (r"in_grad_placements=\(.*\),$", ""),
    (r"\.redistribute\([^()]*(?:\(\))?[^()]*\)", ""),
    (r"ColwiseParallel\(", "RowwiseParallel("),
    (r"RowwiseParallel\(", "ColwiseParallel("),
    (r"fully_shard\(.*\)$", "pass"),
    (r'(fully_shard\(\w+, mesh=mesh)\["dp"\]', r'\1["tp"]'),
)
_CALL = re.compile(r"^(\s*)(dist\.\w+\(.*\))")
_TOLERANCE, _SECONDS = 1e-9, 60


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
        if "import" not in line:
            for pattern, other in _WORDS:
                for place in re.finditer(pattern, line):
                    changed = line[: place.start()] + place.expand(other) + line[place.end() :]
                    changes.append((f"`{place[0]}` is `{other}`", changed))
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


def seeded(folder: Path) -> None:
    """Print how many right programs are accepted, and how many seeded faults are found."""
    texts = {name: (text, "agrees") for name, text in RIGHT.items()}
    for name, (text, old, new, *_) in WRONG.items():
        texts[name] = (text.replace(old, new), "a fault")
    counts: Counter[tuple[str, bool]] = Counter()
    for number, (name, (text, expected)) in enumerate(texts.items()):
        path = folder / f"seeded_{number}.py"
        path.write_text(text)
        answer = said(path)
        counts[expected, answer == expected] += 1
        if answer != expected:
            print(f"{name}: expected {expected}, said {answer}", flush=True)
    for expected in ("agrees", "a fault"):
        right = counts[expected, True]
        print(f"expected {expected}: {right} of {right + counts[expected, False]}", flush=True)


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


def _alone(module: Any, alone: Any, inputs: Sequence[Any]) -> Any:
    if hasattr(module, "reference_step"):
        return module.reference_step(alone, *inputs)
    loss = alone(*inputs)
    loss.backward()
    return loss


def _local(tensor: Any, like: Any) -> Any:
    """What a rank holds of a tensor, with the placements of another."""
    if isinstance(tensor, DTensor):
        return tensor.redistribute(like.device_mesh, like.placements).to_local()
    return tensor


def _expected(whole: Any, like: Any, layout: Any, place: Any, mesh: Any) -> Any:
    part = _cut(whole, layout, place, mesh)
    if isinstance(like, DTensor):
        return distribute_tensor(part, like.device_mesh, like.placements).to_local()
    return part


def _same(module: Any, rank: int, seed: int) -> bool:
    torch.manual_seed(10 + seed)
    alone, inputs = module.reference(), module.inputs()
    with torch.no_grad():
        for parameter in alone.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    start = {name: p.detach().clone() for name, p in alone.named_parameters()}
    wanted = _alone(module, alone, inputs)
    mesh = init_device_mesh("cpu", tuple(module.MESH.values()), mesh_dim_names=tuple(module.MESH))
    place = dict(zip(module.MESH, mesh.get_coordinate(), strict=True))
    layouts, names = getattr(module, "LAYOUTS", {}), getattr(module, "NAMES", {})
    found, whole = module.parallel(mesh), dict(alone.named_parameters())
    cut = {
        name: (names.get(name, name), parameter, layouts.get(names.get(name, name), {}))
        for name, parameter in found.named_parameters()
    }
    for known, parameter, layout in cut.values():
        part = _expected(start[known], parameter, layout, place, module.MESH)
        _local(parameter.data, parameter).copy_(part)
    cuts = (*getattr(module, "INPUTS", ()), *[{}] * len(inputs))
    own = [_cut(x, cut, place, module.MESH).clone() for x, cut in zip(inputs, cuts, strict=False)]
    if hasattr(module, "step"):
        loss = module.step(found, mesh, *own)
    else:
        loss = found(*own)
        loss.backward()
    total = loss.detach()
    total = (total.full_tensor() if isinstance(total, DTensor) else total).clone().reshape(())
    for axis, how in getattr(module, "LOSS", {}).items():
        dist.all_reduce(total, group=mesh.get_group(axis))
        total /= module.MESH[axis] if how == "mean" else 1
    pairs = [(total, wanted.detach().reshape(()))]
    for known, parameter, layout in cut.values():
        gradient = parameter.grad
        gradient = torch.zeros_like(parameter) if gradient is None else gradient
        values = [(gradient, whole[known].grad)]
        if hasattr(module, "reference_step"):
            values.append((parameter.data, whole[known].data))
        pairs += [
            (_local(ours, parameter), _expected(theirs, parameter, layout, place, module.MESH))
            for ours, theirs in values
        ]
    return all(_close(ours, theirs) for ours, theirs in pairs)


def _close(ours: Any, theirs: Any) -> bool:
    if ours.shape != theirs.shape:
        return False
    if not theirs.numel():
        return True
    scale = max(float(theirs.abs().max()), 1e-6)
    return float((ours - theirs).abs().max()) <= _TOLERANCE * scale


def main() -> None:
    """Print what is said of every mutant that is not as its processes are, and the counts."""
    counts: Counter[tuple[str, str]] = Counter()
    chosen = sys.argv[1:] or list(RIGHT)
    with tempfile.TemporaryDirectory() as folder:
        if len(chosen) == len(RIGHT):
            seeded(Path(folder))
        for name in chosen:
            text = RIGHT[name]
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
