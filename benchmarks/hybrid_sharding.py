"""Price hybrid sharding beside full sharding for published runs of fms-fsdp.

The runs are Llama 2 of 7B and 13B parameters on 128 A100 in servers of eight with 400 Gb/s each,
hybrid sharding, no activation checkpointing, 4,096 tokens, 2 samples and 1 sample on each device
(README of foundation-model-stack/fms-fsdp; the network: "Maximizing training throughput using
PyTorch FSDP", PyTorch blog, March 2024). The cluster is `a100-800g` with half its network.

    python benchmarks/hybrid_sharding.py --out benchmarks/hybrid_sharding.md
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

import shardwright.cost_model

CLUSTERS = Path(shardwright.cost_model.__file__).parent / "clusters"
DEVICES = 128
# Published tokens of a device in a second, and the sizes.
RUNS = {
    "Llama 2 7B": (
        3760,
        "llama:layers=32,hidden=4096,heads=32,kv_heads=32,inner=11008,vocabulary=32000,"
        "sequence=4096,batch=256",
    ),
    "Llama 2 13B": (
        1700,
        "llama:layers=40,hidden=5120,heads=40,kv_heads=40,inner=13824,vocabulary=32000,"
        "sequence=4096,batch=128",
    ),
}
PLANS = ("shard=8", "zero=3")
HEAD = """# Hybrid sharding beside full sharding

Two published runs with PyTorch's hybrid sharding, 128 A100 in servers of eight with 400 Gb/s
each, and what `shardwright estimate` says of `shard=8` and `zero=3` there: tokens of a device in
a second with all overlap that the program allows, and as torchtitan's FSDP runs it (`--software
torchtitan`; fms-fsdp is another trainer on the same FSDP), and the memory of a device. The
published rate is that of hybrid sharding. `benchmarks/hybrid_sharding.py` has the sources and
makes the table.

| run | published | plan | overlapped | as torchtitan runs it | memory |
|---|---|---|---|---|---|
"""


def estimate(model, cluster, plan, *more):
    """Return the document of an estimate."""
    command = [sys.executable, "-m", "shardwright", "estimate", model, "--devices", str(DEVICES)]
    command += ["--cluster", str(cluster), "--plan", plan, "--precision", "bfloat16"]
    command += ["--optimizer", "adamw", "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main():
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        described = yaml.safe_load((CLUSTERS / "a100-800g.yaml").read_text())
        described["name"] = "a100-400g"
        described["levels"][-1]["bandwidth"] /= 2
        cluster = Path(folder) / "a100-400g.yaml"
        cluster.write_text(yaml.safe_dump(described))
        for name, (published, model) in RUNS.items():
            for plan in PLANS:
                ideal = estimate(model, cluster, plan)
                run = estimate(model, cluster, plan, "--software", "torchtitan")
                rates = [round(d["tokens_per_second_per_device"]) for d in (ideal, run)]
                memory = ideal["memory_bytes_per_device"] / 2**30
                shown = f"{published:,}" if plan == PLANS[0] else ""
                lines.append(
                    f"| {name} | {shown} | `{plan}` | {rates[0]:,} | {rates[1]:,} | "
                    f"{memory:.1f} GiB |"
                )
    text = HEAD + "\n".join(lines) + "\n"
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
