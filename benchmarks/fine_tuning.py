"""Published steps of fine-tuning beside `estimate`: ``python -m benchmarks.fine_tuning``.

Every row is one command: model, what is trained, degrees, batch and software as published. No
figure of the product is fitted to these rows but the share of fp8 on GB200, by ratios to other
recipes. Takes five minutes of one core; writes the page.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PAGE = Path(__file__).with_suffix(".md")
_BFLOAT16 = ("--precision", "float32")  # of a model whose parameters and states are bfloat16
_AUTOMODEL = "NeMo AutoModel, docs/performance-summary.mdx of 2026-08-22"
_BRIDGE = "Megatron-Bridge, docs/performance-summary-archive.md, container 26.06"
_TORCHTUNE = "torchtune, README.md"
_OUTPUTS = "q_proj+v_proj+o_proj+feed_forward"  # of torchtune's recipes


@dataclass(frozen=True)
class Row:
    """A published run.

    Parameters
    ----------
    kind, model, plan : str
        What is trained, and the model and the degrees as `estimate` takes them.
    cluster, devices, batch, row : str, int, int, int
        The devices, samples of a step, and tokens of a sample.
    source : str
        Where it was published, with its degrees.
    tokens, gibibytes : float, optional
        Published tokens each second on a device, and memory of a device.
    options : tuple of str
        Further options.
    """

    kind: str
    model: str
    plan: str
    cluster: str
    devices: int
    batch: int
    row: int
    source: str
    tokens: float | None = None
    gibibytes: float | None = None
    options: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """The words of the command."""
        return [
            *("estimate", self.model, "--devices", str(self.devices)),
            *("--sequence", str(self.row), "--batch", str(self.batch), "--plan", self.plan),
            *("--cluster", self.cluster, "--optimizer", "adam", *self.options),
        ]


def _software(name: str, *more: str) -> tuple[str, ...]:
    return ("--software", name, *more)


ROWS = (
    Row(
        "LoRA, bfloat16",
        "llama3-8b:lora=16,lora_alpha=32,dtype=bfloat16",
        "data=1,micro_batch=2",
        "h100-3200g",
        *(1, 32, 4096, _AUTOMODEL),
        tokens=12472.87,
        options=_software("automodel+sdpa", *_BFLOAT16),
    ),
    Row(
        "LoRA, bfloat16",
        "llama3-70b:lora=16,lora_alpha=32,dtype=bfloat16",
        "tensor=2,data=8,zero=3,micro_batch=2,recompute=full",
        "h100-3200g",
        *(16, 32, 4096, _AUTOMODEL),
        tokens=984.85,
        options=_software("automodel+sdpa", *_BFLOAT16),
    ),
    Row(
        "all, fp8",
        "llama3-70b",
        "tensor=4,pipeline=4,chunks=5,data=2,zero=1,micro_batch=1,sequence_parallel",
        "h100-3200g",
        *(32, 32, 4096, _BRIDGE),
        tokens=1638,
        options=_software("megatron-core", "--precision", "fp8-current"),
    ),
    Row(
        "all, fp8",
        "llama3-70b",
        "pipeline=8,chunks=10,data=4,zero=1,micro_batch=1",
        "gb200-nvl72",
        *(32, 32, 4096, _BRIDGE),
        tokens=3864,
        options=_software("megatron-core", "--precision", "fp8-current"),
    ),
    Row(
        "LoRA, fp8",
        "llama3-70b:lora=16,lora_alpha=32",
        "pipeline=2,chunks=20,data=4,zero=1,micro_batch=1",
        "gb200-nvl72",
        *(8, 32, 4096, _BRIDGE),
        tokens=6206,
        options=_software("megatron-core", "--precision", "fp8-current"),
    ),
    Row(
        "LoRA, bfloat16",
        f"llama3-8b:lora=8,lora_alpha=16,lora_targets={_OUTPUTS},dtype=bfloat16",
        "data=1,recompute=full",
        "rtx4090-box:figures=datasheet",
        *(1, 2, 2048, _TORCHTUNE),
        tokens=3083,
        gibibytes=16.2,
        options=("--loss-chunks", "8", *_BFLOAT16),
    ),
    Row(
        "QLoRA, bfloat16",
        f"llama3-8b:lora=8,lora_alpha=16,lora_targets={_OUTPUTS},lora_bits=4,dtype=bfloat16",
        "data=1,recompute=full",
        "rtx4090-box:figures=datasheet",
        *(1, 2, 2048, _TORCHTUNE),
        tokens=2413,
        gibibytes=7.4,
        options=("--loss-chunks", "8", *_BFLOAT16),
    ),
    Row(
        "LoRA, bfloat16",
        f"llama3-70b:lora=16,lora_alpha=32,lora_targets={_OUTPUTS},dtype=bfloat16",
        "data=8,zero=3,recompute=full",
        "a100-1600g",
        *(8, 16, 2048, _TORCHTUNE),
        gibibytes=27.6,
        options=("--loss-chunks", "8", *_BFLOAT16),
    ),
)


def found(row: Row) -> dict[str, Any]:
    """Run the command of a row."""
    command = [sys.executable, "-m", "shardwright", *row.command, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout:
        raise SystemExit(done.stderr)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def line(row: Row, document: dict[str, Any]) -> str:
    """Return the line of the table."""
    seconds = float(document["overlapped_step_seconds"])
    tokens = row.batch * row.row / row.devices / seconds
    kept = document.get("software_memory") or {}
    nbytes = float(kept.get("peak_bytes_per_device") or document["memory_bytes_per_device"])
    gibibytes, name = nbytes / 2**30, row.model.partition(":")[0]
    speed, memory = _against(tokens, row.tokens, ",.0f"), _against(gibibytes, row.gibibytes, ".1f")
    return (
        f"| `{name}` | {row.kind} | {row.devices} x {row.cluster} | {row.batch} of {row.row:,} "
        f"| `{row.plan}` | {speed} | {memory} |"
    )


def _against(predicted: float, published: float | None, form: str) -> str:
    """Return what was published, what is predicted, and the error."""
    if published is None:
        return f"- | {predicted:{form}} | -"
    return f"{published:{form}} | {predicted:{form}} | {predicted / published - 1:+.1%}"


def main() -> int:
    """Write the page."""
    lines = [line(row, found(row)) for row in ROWS]
    begin, _, rest = _PAGE.read_text(encoding="utf-8").partition("<!-- table -->\n")
    _, _, end = rest.partition("<!-- end -->")
    head = (
        "| model | trained | devices | batch | plan | tokens/s a device | predicted | error "
        "| GiB a device | predicted | error |"
    )
    lines = [head, "|---" * 11 + "|", *lines]
    lines += ["", "Sources: " + "; ".join(dict.fromkeys(row.source for row in ROWS)) + "."]
    text = "\n".join(lines)
    print(text)
    _PAGE.write_text(f"{begin}<!-- table -->\n{text}\n<!-- end -->{end}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
