"""Published bf16 steps of mixtures on H100 beside `estimate`: ``python -m benchmarks.mixtures``.

Every row is one command: the model, the degrees, the batch and the software that were published.
No figure of the product is fitted to these rows. Takes twenty minutes of a core; writes the page.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_PAGE = Path(__file__).with_suffix(".md")
_BFLOAT16 = ("--precision", "float32")  # of a model whose parameters and states are bfloat16
_AUTOMODEL = (
    "NeMo AutoModel, docs/performance-summary.mdx of 2026-08-22, with the configurations in its "
    "repository when each row was first published (2025-10-06; Nano 2026-02, Super 2026-03, Ultra "
    "2026-06)"
)
_BRIDGE = "Megatron-Bridge, docs/performance-summary-archive.md: 26.02 to 26.04.01 in the mean"


@dataclass(frozen=True)
class Row:
    """A published run.

    Parameters
    ----------
    model, plan, software : str
        As `estimate` takes them.
    devices, batch : int
        Devices, and samples of a step.
    seconds : float
        The published step.
    source : str
        Where it was published, with its degrees.
    drains : int
        How often the pipeline is filled and drained in a step: once for each local batch.
    options : tuple of str
        Further options.
    cluster : str
        As `estimate` takes it.
    """

    model: str
    plan: str
    software: str
    devices: int
    batch: int
    seconds: float
    source: str
    drains: int = 1
    options: tuple[str, ...] = _BFLOAT16
    cluster: str = "h100-3200g"

    @property
    def saving(self) -> "Row":
        """The row with nothing recomputed."""
        words = [word for word in self.plan.split(",") if not word.startswith("recompute=")]
        return replace(self, plan=",".join(words))

    @property
    def command(self) -> list[str]:
        """The words of the command."""
        return [
            *("estimate", self.model, "--devices", str(self.devices), "--sequence", "4096"),
            *("--batch", str(self.batch // self.drains), "--plan", self.plan),
            *("--cluster", self.cluster, "--software", self.software),
            *("--optimizer", "adam", "--imbalance", "1", *self.options),
        ]


ROWS = (
    Row(
        "qwen3-30b-a3b:dtype=bfloat16",
        "data=8,expert=8,zero=1,micro_batch=4,recompute=full",
        "automodel+balanced_gate",
        8,
        512,
        21.773,
        _AUTOMODEL,
    ),
    Row(
        "nemotron-3-nano:dtype=bfloat16",
        "data=8,expert=8,zero=1,micro_batch=4,recompute=full",
        "automodel+balanced_gate+sdpa",
        8,
        512,
        15.614,
        _AUTOMODEL,
    ),
    Row(
        "gpt-oss-20b:dtype=bfloat16",
        "data=8,expert=8,zero=1,micro_batch=2,recompute=full",
        "automodel+balanced_gate+flex",
        8,
        256,
        10.04,
        _AUTOMODEL,
    ),
    Row(
        "kimi-k2:dtype=bfloat16",
        "pipeline=8,chunks=4,data=32,expert=32,zero=1,micro_batch=1,recompute=full",
        "automodel+balanced_gate",
        256,
        512,
        8.86,
        _AUTOMODEL,
        drains=2,
    ),
    Row(
        "nemotron-3-ultra:dtype=bfloat16,mtp=2,mtp_repeated=true",
        "data=128,expert=64,zero=3,micro_batch=2,recompute=full",
        "automodel+balanced_gate",
        128,
        256,
        10.05,
        _AUTOMODEL,
        options=(*_BFLOAT16, "--loss-chunks", "8"),
    ),
    Row(
        "deepseek-v3:dtype=bfloat16",
        "pipeline=4,chunks=8,data=256,expert=64,zero=1,micro_batch=1,recompute=full",
        "automodel+balanced_gate",
        1024,
        8192,
        37.87,
        _AUTOMODEL,
        drains=4,
    ),
    Row(
        "gpt-oss-120b",
        "pipeline=4,data=16,expert=8,zero=1,micro_batch=1,recompute=layernorm+moe_act",
        "megatron-core",
        64,
        1280,
        13.881,
        _BRIDGE,
        options=(),
    ),
)
CHECKS = (  # run once, when all that is priced had been decided
    Row(
        "deepseek-v3:dtype=bfloat16",
        "pipeline=4,chunks=8,data=64,expert=64,zero=1,micro_batch=1,recompute=full",
        "automodel+balanced_gate",
        256,
        512,
        8.18,
        _AUTOMODEL,
    ),
    Row(
        "nemotron-3-super:dtype=bfloat16",
        "data=64,expert=64,zero=3,micro_batch=2,recompute=full",
        "automodel+balanced_gate+sdpa",
        64,
        512,
        7.286,
        _AUTOMODEL,
    ),
)
_RECIPES = (
    "Megatron-Bridge, docs/performance-summary.md and its archive, with `recompute_modules` and "
    "degrees of its recipes in scripts/performance/configs at v0.3.0 (26.02) and v0.4.0 (26.04)"
)


def _blackwell(model: str, plan: str, software: str, where: str, tokens: float) -> Row:
    """Return a row on Blackwell, of tokens a second on each device."""
    devices, batch, options = (64, 1280, ()) if "gpt" in model else (256, 4096, _MXFP8)
    seconds = batch * 4096 / devices / tokens
    return Row(model, plan, software, devices, batch, seconds, _RECIPES, 1, options, where)


_MXFP8 = ("--precision", "mxfp8")
_DEEP = "deepseek-v3:mtp=1"
_FLEX = "megatron-core+deepep"  # the dispatcher of the recipes is HybridEP
_RACKS = "pipeline=4,chunks=4,data=64,expert=64,zero=1"
_NODES = "pipeline=16,data=16,expert=8,zero=1,micro_batch=1,recompute=mla_up_proj"
RECIPES = (  # tokens a second of releases whose recipe is the same
    _blackwell(
        "gpt-oss-120b",
        "data=64,expert=64,zero=1,micro_batch=4,recompute=layernorm+moe_act",
        "megatron-core",
        "gb200-nvl72",
        (15784 + 15754) / 2,  # 26.02, 26.02.01
    ),
    _blackwell(
        _DEEP,
        f"{_RACKS},micro_batch=1,recompute=mla_up_proj",
        _FLEX,
        "gb200-nvl72:racks=4",
        (3955 + 4021) / 2,  # 26.02, 26.02.01
    ),
    _blackwell(
        _DEEP,
        f"{_RACKS},micro_batch=1,recompute=mlp",
        _FLEX,
        "gb200-nvl72:racks=4",
        (4193 + 4256) / 2,  # 26.04, 26.04.01
    ),
    _blackwell(_DEEP, _NODES, _FLEX, "b300", (2983 + 3099 + 3131) / 3),  # 26.02 to 26.04
    _blackwell(_DEEP, _NODES, _FLEX, "b200", (2689 + 2790 + 2815) / 3),  # 26.02 to 26.04
    _blackwell(
        _DEEP,
        "pipeline=2,chunks=8,data=128,expert=32,zero=1,micro_batch=2,recompute=mla_up_proj",
        _FLEX,
        "gb300-nvl72:racks=4",
        65536 * 2 / (13.9706 + 14.2099),  # of steps: 26.02, 26.02.01
    ),
    _blackwell(
        "kimi-k2",
        f"{_RACKS},micro_batch=2,recompute=mla_up_proj",
        _FLEX,
        "gb300-nvl72:racks=4",
        (5332 + 5328) / 2,  # 26.04, 26.04.01
    ),
)
_RECIPES_HEAD = (
    "| model | devices | batch | plan | software | published | saving all | error | as the recipe "
    "| error | as kept, saving all | as the recipe |"
)
_HEAD = (
    "| model | H100 | batch | plan | software | published | predicted | error "
    "| tokens/s a device | predicted | as kept | program |"
)


@dataclass(frozen=True)
class Found:
    """A row, and what `estimate` says of it."""

    row: Row
    document: dict[str, Any]

    @property
    def seconds(self) -> float:
        """The predicted step."""
        return float(self.document["overlapped_step_seconds"]) * self.row.drains

    @property
    def error(self) -> float:
        """The relative error of the predicted step."""
        return self.seconds / self.row.seconds - 1

    @property
    def kept(self) -> float:
        """GiB of a device as the software keeps tensors."""
        return float(self.document["software_memory"]["peak_bytes_per_device"]) / 2**30

    @property
    def line(self) -> str:
        """The line of the table."""
        row = self.row
        tokens = row.batch * 4096 / row.devices
        program = float(self.document["memory_bytes_per_device"]) / 2**30
        times = f", {row.drains} times" if row.drains > 1 else ""
        name = row.model.partition(":")[0]
        return (
            f"| `{name}` | {row.devices} | {row.batch} | `{row.plan}`{times} "
            f"| `{row.software}` | {row.seconds:.4g} s | {self.seconds:.4g} s "
            f"| {self.error:+.1%} | {tokens / row.seconds:,.0f} | {tokens / self.seconds:,.0f} "
            f"| {self.kept:.1f} GiB | {program:.1f} GiB |"
        )


def found(row: Row) -> Found:
    """Run the command of a row."""
    command = [sys.executable, "-m", "shardwright", *row.command, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout:
        raise SystemExit(done.stderr)
    return Found(row, json.loads(done.stdout))


def _table(rows: Sequence[Found]) -> list[str]:
    return [_HEAD, "|---" * 12 + "|", *(one.line for one in rows)]


def _recipes_table() -> list[str]:
    """Return the table of runs whose recipes recompute parts, with and without these."""
    lines, errors = [_RECIPES_HEAD, "|---" * 12 + "|"], []
    for row in RECIPES:
        saving, own = found(row.saving), found(row)
        errors.append((abs(saving.error), abs(own.error)))
        lines.append(
            f"| `{row.model}` | {row.devices} x `{row.cluster}` | {row.batch} | `{row.plan}` "
            f"| `{row.software}` | {row.seconds:.4g} s | {saving.seconds:.4g} s "
            f"| {saving.error:+.1%} | {own.seconds:.4g} s | {own.error:+.1%} "
            f"| {saving.kept:.1f} GiB | {own.kept:.1f} GiB |"
        )
    means = [sum(column) / len(RECIPES) for column in zip(*errors, strict=True)]
    both = f"**{means[0]:.1%}** with all saved, **{means[1]:.1%}** as the recipes recompute"
    return [*lines, "", f"Mean absolute error of the step: {both}."]


def main() -> int:
    """Write the page."""
    rows, checks = ([found(row) for row in table] for table in (ROWS, CHECKS))
    mean = sum(abs(one.error) for one in rows) / len(rows)
    begin, _, rest = _PAGE.read_text(encoding="utf-8").partition("<!-- table -->\n")
    _, _, end = rest.partition("<!-- end -->")
    lines = [*_table(rows), "", f"Mean absolute error of the step: **{mean:.1%}**.", ""]
    lines += ["Further rows, run once when all of it had been decided:", "", *_table(checks)]
    lines += ["", "Runs on Blackwell whose recipes recompute parts of blocks:", ""]
    lines += _recipes_table()
    sources = dict.fromkeys(row.source for row in (*ROWS, *RECIPES))
    lines += ["", "Sources: " + "; ".join(sources) + "."]
    text = "\n".join(lines)
    print(text)
    _PAGE.write_text(f"{begin}<!-- table -->\n{text}\n<!-- end -->{end}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
