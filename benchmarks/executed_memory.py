"""Compare predicted and allocated memory: ``python benchmarks/executed_memory.py``.

Each plan runs one step on numpy, all ranks in this process; the executor counts the buffers of a
rank. The table shows that count and the peak memory that the compiler predicted for the plan.
"""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from machine import machine

import shardwright
from shardwright.cost_model.cluster import Host, cluster
from shardwright.cost_model.memory import peak_memory
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.units import bytes_text
from shardwright.zoo.loading import load

MODELS = {
    "mlp": "mlp:batch=32,inputs=64,hidden=128,classes=8,layers=4",
    "gpt": (
        "gpt:layers=2,hidden=64,heads=4,batch=8,sequence=32,vocabulary=96,dropout=0.1,dtype=float32"
    ),
    "llama": (
        "llama:layers=2,hidden=64,heads=4,kv_heads=2,inner=96,batch=8,sequence=32,vocabulary=96,"
        "dtype=float32"
    ),
    "mixtral": (
        "mixtral:layers=2,hidden=32,heads=4,kv_heads=2,inner=48,experts=4,batch=8,sequence=16,"
        "vocabulary=64,dtype=float32"
    ),
    "resnet": "resnet:layers=18,batch=8,small=true,side=16,width=8,classes=4",
}
FEATURES: tuple[Mapping[str, object], ...] = (
    {"search": "data_parallel"},
    {"optimizer": "adam"},
    {"optimizer": "adam", "optimizer_parallel": True},
    {"optimizer": "adam", "precision": "bfloat16"},
    {"optimizer": "adam", "recompute": "full"},
    {"optimizer": "adam", "precision": "bfloat16", "recompute": "selective"},
    {"optimizer": "adam", "micro_batches": 2},
    {"optimizer": "adam", "precision": "bfloat16", "reduce_type": "float32"},
    {
        "optimizer": "adam",
        "precision": "bfloat16",
        "accumulate_type": "float32",
        "micro_batches": 4,
    },
    {"optimizer": "adam", "precision": "bfloat16", "recompute": "full", "micro_batches": 4},
    {"optimizer": "adam", "stages": 2, "micro_batches": 1, "recompute": "full"},
    {"optimizer": "adam", "stages": 2, "micro_batches": 4},
    {"optimizer": "adam", "stages": 4, "micro_batches": 4, "recompute": "full"},
    {"optimizer": "adam", "offload": "all"},
    {"optimizer": "adam", "offload": "all", "precision": "bfloat16", "micro_batches": 2},
)
HOST = Host(memory_bytes=2**34, to_host=64e9, from_host=64e9)
HEAD = ("model", "options", "predicted", "allocated", "predicted / allocated", "host: both")


def main() -> None:
    """Measure, and write the table anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=4, help="devices of each plan (4)")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    arguments = parser.parse_args()
    rows, refused = [], []
    for name, model in MODELS.items():
        for options in FEATURES:
            words = ", ".join(f"{key}={value}" for key, value in options.items())
            try:
                predicted, allocated, hosted = measured(model, arguments.devices, options)
            except ShardwrightError as error:
                refused.append(f"- {name}, {words}: {error}")
                continue
            ratio = f"{predicted / allocated:.4f}"
            texts = map(bytes_text, (predicted, allocated))
            both = " and ".join(map(bytes_text, hosted)) if any(hosted) else ""
            rows.append((name, words, *texts, ratio, both))
            print(*rows[-1], sep=" | ", flush=True)
    arguments.out.write_text(document(rows, refused))


def measured(
    model: str, devices: int, options: Mapping[str, object]
) -> tuple[float, float, tuple[float, float]]:
    """Return the predicted peak bytes of a rank, those of a step, and both in host memory.

    The executor runs the program in its order, so the prediction is that of the serial step.
    """
    definition = load(model)
    if "offload" in options:  # every operator is marked
        options = {name: value for name, value in options.items() if name != "offload"}
        marks = tuple(node.name for node in definition.graph.nodes if node.operands)
        definition = replace(definition, graph=replace(definition.graph, offloaded=marks))
    where = cluster("cpu").model_copy(update={"host": HOST})
    plan = shardwright.compile(definition, devices, cluster=where, **options)
    (record,) = shardwright.run(plan, steps=1)
    report = peak_memory(plan.plan.program)
    return report.peak_bytes, record.peak_bytes, (report.host_bytes, record.host_peak_bytes)


def document(rows: list[tuple[str, ...]], refused: list[str]) -> str:
    """Return the page."""
    ratios = [float(row[4]) for row in rows]
    table = [HEAD, tuple("---" for _ in HEAD), *rows]
    lines = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    said = "\n\nRefused:\n\n" + "\n".join(refused) if refused else ""
    return (
        "# Predicted and allocated memory\n\n"
        f"`python benchmarks/executed_memory.py` on {machine()}.\n\n"
        f"{len(rows)} plans; the ratio is between {min(ratios):.4f} and "
        f"{max(ratios):.4f}.\n\n{lines}{said}\n"
    )


if __name__ == "__main__":
    main()
