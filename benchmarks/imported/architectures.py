"""Imports every architecture of transformers, of a small size, and compares it with PyTorch.

    python benchmarks/imported/architectures.py [ARCHITECTURE ...] [--status new refused ...]
                                                [--before DAY] [--ranks]
    python benchmarks/imported/architectures.py --page

Each in a process of its own, with limits of time and memory: loss and every gradient in float64
against autograd, of one device and of a plan for four ranks. Writes `architectures.jsonl` and the
page `architectures.md`. Needs `torch` and `transformers`.
"""

import argparse
import faulthandler
import gc
import importlib
import json
import logging
import os
import re
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import architectures_page
import torch
import transformers
from small_configs import small_config
from small_exceptions import CLASSES, INPUTS
from small_inputs import Inputs, found_inputs
from small_sizes import CHANGES
from torch import nn
from torch.utils import _pytree as pytree
from torch_compare import Gradients, Wide, gradients_differ, on_ranks
from transformers.models.auto import modeling_auto

import shardwright
from shardwright.frontends.torch import Imported, import_module
from shardwright.ir.errors import ShardwrightError

HERE = Path(__file__).parent
ROWS = HERE / "architectures.jsonl"
SECONDS, GIGABYTES, RANKS = 60, 6, 4
STATUSES = ("new", "right", "refused", "wrong", "not tried", "not finished")
# A result counts as right up to these differences in float64.
MOST_LOSS, MOST_GRADIENT = 1e-9, 1e-7
# Heads of auto classes, in the order in which one is chosen.
_HEADS = (
    "CAUSAL_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "CTC",
    "MASKED_LM",
    "SEQUENCE_CLASSIFICATION",
    "IMAGE_CLASSIFICATION",
    "AUDIO_CLASSIFICATION",
    "",
)


@dataclass
class Row:
    """What became of an architecture: right, refused, wrong, or not tried, and why."""

    kind: str
    name: str = ""
    head: str = ""
    status: str = "not tried"
    said: str = ""
    loss: float = 0.0
    gradient: float = 0.0
    ranks: list[float] = field(default_factory=list)
    trained: int = 0
    nodes: int = 0
    seconds: float = 0.0
    assumed: list[str] = field(default_factory=list)
    day: str = ""  # when it was run; empty before days were noted
    ranks_day: str = ""  # when its plan for four ranks was run, likewise


def heads() -> dict[str, tuple[str, str]]:
    """Return the head and the class of every architecture that an auto class has."""
    found: dict[str, dict[str, str]] = {}
    for mapping in dir(modeling_auto):
        if not mapping.startswith("MODEL_") or not mapping.endswith("MAPPING_NAMES"):
            continue
        head = mapping.removeprefix("MODEL_").removesuffix("MAPPING_NAMES").strip("_")
        for kind, name in getattr(modeling_auto, mapping).items():
            chosen = name if isinstance(name, str) else name[0]
            found.setdefault(kind, {})[head.removeprefix("FOR_")] = chosen
    chosen_heads = {}
    for kind, names in sorted(found.items()):
        head = next((h for h in _HEADS if h in names), next(iter(names)))
        chosen_heads[kind] = CLASSES.get(kind, (head, names[head]))
    return chosen_heads


class Step(nn.Module):
    """A module with its loss, or the mean squares of its results around fixed numbers."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: object, **kwargs: object) -> torch.Tensor:
        """Return the loss."""
        results = [
            t for t in pytree.tree_leaves(self.module(*args, **kwargs)) if torch.is_tensor(t)
        ]
        floats = [t for t in results if t.is_floating_point()]
        if not floats[0].shape:
            return floats[0]
        floats = [t for t in floats if t.requires_grad] or floats[:1]
        return torch.stack([_squares(t) for t in floats]).sum()


def _squares(result: torch.Tensor) -> torch.Tensor:
    size = result.shape[-1] if result.shape else 1
    return (result - torch.arange(size, dtype=result.dtype).cos()).square().mean()


def made(kind: str, name: str, head: str) -> tuple[nn.Module, Inputs]:
    """Return a small module with random weights, and inputs that it runs on."""
    config = small_config(kind, CHANGES.get(kind, {}))
    chosen = getattr(transformers, name, None)
    if chosen is None:
        raise LookupError(f"{name} cannot be imported")
    torch.manual_seed(0)
    own = getattr(chosen, "config_class", None) or type(config)
    inner = [one for one in vars(config).values() if isinstance(one, own)]
    config = inner[0] if inner and not isinstance(config, own) else config
    config._experts_implementation = "eager"  # PyTorch's grouped products have no float64
    module: nn.Module = chosen(config)
    module.eval()
    count = sum(p.numel() for p in module.parameters())
    if count > 5e7:
        raise ValueError(f"{count:.1e} parameters")
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point():
                parameter.add_(0.05 * torch.randn_like(parameter))
    return module, found_inputs(module, head, INPUTS.get(kind, {}))


def compared(row: Row, ranks: int) -> None:
    """Compare an architecture with PyTorch, and note the result in its row."""
    try:
        module, inputs = made(row.kind, row.name, row.head)
        torch.set_default_dtype(torch.float64)  # of what a module makes without a type
        wide = Step(Wide(module.double()))
        doubled = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
        loss = wide(**doubled)
        if not loss.requires_grad or not loss.isfinite():
            raise ValueError(f"the loss is {loss.item():.1e}, with gradients: {loss.requires_grad}")
        if not torch.equal(loss, wide(**doubled)):
            raise ValueError("the module draws random numbers: two losses differ")
    except MemoryError:
        raise
    except Exception as error:
        if os.environ.get("SWEEP_TRACE"):
            traceback.print_exc()
        row.said = _sentence(error)
        return
    try:
        start = time.process_time()
        imported, is_assumed = imported_as_example(wide, doubled)
        step = gradients_differ(wide, doubled, imported)
        row.seconds = time.process_time() - start
        note(row, step, sum(p.grad is not None for p in wide.parameters()))
        if row.loss >= MOST_LOSS and _export_differs(wide, doubled):
            row.said = "PyTorch's own export of the module has another loss than the module, too"
        if row.status == "right" and is_assumed:
            row.assumed = assumed_lines(module, inputs)
        elif row.status == "right" and ranks > 1:
            options = {"dataset_strategy": "data_parallel", "effort": 1 / 6}
            row.ranks = list(on_ranks(wide, doubled, ranks, **options))
            if not (row.ranks[0] < MOST_LOSS and row.ranks[1] < MOST_GRADIENT):
                row.status, row.said = "wrong", f"on {ranks} ranks"
    except ShardwrightError as error:
        row.status, row.said = "refused", _refusal(module, inputs, error)
        if os.environ.get("SWEEP_TRACE"):
            traceback.print_exc()
    except MemoryError:
        raise
    except Exception as error:
        if os.environ.get("SWEEP_TRACE"):
            traceback.print_exc()
        row.status, row.said = "wrong", f"error: {_sentence(error)}"


def imported_as_example(module: nn.Module, inputs: Inputs) -> tuple[Imported, bool]:
    """Import a module; where it is refused, as the example, and say so."""
    try:
        return import_module(module, inputs), False
    except ShardwrightError as error:
        try:
            return import_module(module, inputs, as_example=True), True
        except ShardwrightError:
            raise error from None


def assumed_lines(module: nn.Module, inputs: Inputs) -> list[str]:
    """Return the lines that an import as the example assumes, of the module as it is."""
    torch.set_default_dtype(torch.float32)
    imported = import_module(module.float(), inputs, loss="none", outputs=True, as_example=True)
    lines = (re.search(r"as in the example \((.*)\): the loss", w) for w in imported.warnings)
    return [line[1] for line in lines if line]


def _export_differs(module: nn.Module, inputs: Inputs) -> bool:
    """Return whether a module that PyTorch exports has another loss than the module."""
    try:
        exported = torch.export.export(module, (), dict(inputs), strict=False).module()
    except Exception:  # PyTorch raises errors of many types
        return False
    with torch.no_grad():
        difference = exported(**inputs) - module(**inputs)
    return bool(difference.abs() > MOST_LOSS)


def _refusal(module: nn.Module, inputs: Inputs, error: ShardwrightError) -> str:
    """Return why a module is refused: as it is, in float32, so that the line is its own."""
    torch.set_default_dtype(torch.float32)
    try:
        import_module(module.float(), inputs, loss="none", outputs=True)
    except ShardwrightError as plain:
        error = plain
    except Exception as other:
        return _sentence(other)
    return " ".join(str(error).split())


def note(row: Row, step: Gradients, count: int) -> None:
    """Note the result of one device."""
    row.loss, row.gradient = step.loss, step.gradient
    row.trained, row.nodes = count - len(step.missing), len(step.imported.graph)
    row.status = "right" if step.loss < MOST_LOSS and step.gradient < MOST_GRADIENT else "wrong"
    if step.missing or step.extra:
        row.status = "wrong"
        row.said = f"not trained: {step.missing[:3]}; trained besides: {step.extra[:3]}"


def _sentence(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:4])[:300]}"


def alone(row: Row, ranks: int) -> Row:
    """Compare an architecture in a process of its own, with limits of time and memory."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as errors:
        process = os.fork()
        if not process:
            os.close(reading)
            if not os.environ.get("SWEEP_TRACE"):
                os.dup2(errors.fileno(), 2)
            os.write(writing, json.dumps(asdict(limited(row, ranks))).encode()[:60000])
            os._exit(0)
        os.close(writing)
        text = b"".join(iter(lambda: os.read(reading, 65536), b""))
        _, status = os.waitpid(process, 0)
        os.close(reading)
        if text:
            return Row(**json.loads(text))
        errors.seek(0)
        row.status, row.said = "not finished", _end(status, errors.read().decode(errors="replace"))
    return row


def limited(row: Row, ranks: int) -> Row:
    """Compare an architecture within the limits of this process; what it raises is noted."""
    most = GIGABYTES * 2**30
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    faulthandler.enable()
    # PyTorch makes its pool of threads anew after a fork. Where autograd's thread and this one are
    # the first to ask for it, at once, one of them finds none, and the process is aborted.
    torch.set_num_threads(1)
    try:
        compared(row, ranks)
    except MemoryError:
        row.status, row.said = "not finished", f"more than {GIGABYTES} GiB"
    except BaseException as error:
        row.status, row.said = "wrong", f"error: {_sentence(error)}"
    return row


def _end(status: int, errors: str) -> str:
    """Return how a process ended that left no result: by which signal, and where it was."""
    if not os.WIFSIGNALED(status):
        return f"the process ended with code {os.WEXITSTATUS(status)}"
    name = signal.Signals(os.WTERMSIG(status)).name
    if name in ("SIGXCPU", "SIGKILL"):
        return f"more than {SECONDS} s of processor time"
    if "bad_alloc" in errors or "memory" in errors.lower():
        return f"more than {GIGABYTES} GiB ({name})"
    said = [line.strip() for line in errors.splitlines() if line.strip()]
    return f"the process ended by {name}: {' '.join(said[:6])[:500]}"


def warm() -> None:
    """Import what all processes need, before there are any; autograd may not run before a fork."""
    importlib.import_module("transformers.models.llava.modeling_llava")
    inputs = {"input": torch.ones(RANKS, 4, dtype=torch.float64)}
    shardwright.compile(nn.Linear(4, 4).double(), RANKS, example_inputs=inputs, loss="mean")
    gc.freeze()  # so that no process copies what all share


def rows() -> dict[str, Row]:
    """Return the rows that are known, by architecture."""
    lines = ROWS.read_text().splitlines() if ROWS.exists() else []
    return {one["kind"]: Row(**one) for one in map(json.loads, lines)}


def put(row: Row) -> None:
    """Add a row; of those of one architecture the last one counts."""
    with ROWS.open("a") as file:
        file.write(f"{json.dumps(asdict(row))}\n")


def settle() -> None:
    """Write the file of rows anew, one for each architecture, and the page of them."""
    known = rows()
    lines = [json.dumps(asdict(known[kind])) for kind in sorted(known)]
    ROWS.write_text("".join(f"{line}\n" for line in lines))
    settings = {
        "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
        "loss": MOST_LOSS,
        "gradient": MOST_GRADIENT,
        "seconds": SECONDS,
        "gigabytes": GIGABYTES,
    }
    architectures_page.write(rows().values(), heads(), settings)


def asked(table: Mapping[str, object]) -> tuple[list[str], argparse.Namespace]:
    """Return the architectures that the command line asks for, quick first, and options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="ARCHITECTURE", choices=[*table, []])
    parser.add_argument("--status", nargs="+", choices=STATUSES, help="those of such rows alone")
    parser.add_argument("--before", metavar="DAY", help="those that were run before a day alone")
    parser.add_argument("--ranks", action="store_true", help="a plan for four ranks, too")
    parser.add_argument("--page", action="store_true", help="write the page of the known rows")
    options = parser.parse_args()
    known = {kind: Row(kind, status="new") for kind in table} | rows()
    kinds = [
        kind
        for kind in options.kinds or table
        if known[kind].status in (options.status or STATUSES)
        and (options.before is None or known[kind].day < options.before)
    ]
    return sorted(kinds, key=lambda kind: known[kind].seconds), options


def main() -> None:
    """Compare the architectures that are asked for, and write the page when all are."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    table = heads()
    kinds, options = asked(table)
    if options.page:
        settle()
        return
    warm()
    for kind in kinds:
        head, name = table[kind]
        row = alone(Row(kind, name, head), RANKS if options.ranks else 1)
        row.day = datetime.now(tz=UTC).date().isoformat()
        row.ranks_day = row.day if row.ranks else ""
        put(row)
        print(
            f"{row.kind:28} {row.head:12} {row.status:9} {row.loss:.0e} {row.gradient:.0e} "
            f"{row.ranks} {row.seconds:.1f} {row.said[:300]}",
            flush=True,
        )
    settle()


if __name__ == "__main__":
    main()
