"""Compiles large models of transformers at full size, and compares the plans with the zoo's.

    OMP_NUM_THREADS=1 python benchmarks/imported/full_size.py [MODEL ...]

Modules are made on the device `meta`, so that no weight has elements. Each model is compiled for 64
devices twice, in processes of their own: the imported module, and the model of the zoo. Writes the
rows of the models that were asked for, or all, into the table of `full_size.md`. Needs `torch` and
`transformers`.
"""

import json
import logging
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from documents import put_rows

import shardwright
from shardwright.ir.units import bytes_text, seconds_text
from shardwright.tools.reports.documents import compile_document, peak_memory_bytes
from shardwright.tracing import Definition
from shardwright.zoo import from_torch, load

HERE = Path(__file__)
DEVICES, MESH = 64, "8x8"
OPTIONS = {
    "cluster": "h100-pod:figures=datasheet",
    "mesh": MESH,
    "optimizer": "adam",
    "precision": "bfloat16",
}
_HEAD = """| model | import | compile | peak memory | overlapped step: imported, zoo | differ | \
serial step: imported, zoo | differ | memory of a device: imported, zoo |
|---|---|---|---|---|---|---|---|---|"""
_LLAMA = {
    "vocab_size": 128_256,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
}


@dataclass(frozen=True)
class Model:
    """A model in both libraries.

    Parameters
    ----------
    zoo : str
        The model of the zoo.
    kind : str
        The type of the configuration of transformers.
    sizes : mapping
        What is given to the configuration; the rest is its default.
    batch, sequence : int
        The shape of the tokens.
    """

    zoo: str
    kind: str
    sizes: Mapping[str, Any]
    batch: int
    sequence: int


MODELS = {
    "Llama-3 8B": Model(
        "llama3-8b",
        "llama",
        {
            **_LLAMA,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "intermediate_size": 14_336,
        },
        8,
        8192,
    ),
    "Llama-3 70B": Model(
        "llama3-70b",
        "llama",
        {
            **_LLAMA,
            "hidden_size": 8192,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "intermediate_size": 28_672,
        },
        8,
        8192,
    ),
    "GPT-2 XL": Model("gpt2-xl", "gpt2", {"n_embd": 1600, "n_layer": 48, "n_head": 25}, 64, 1024),
    "Mixtral 8x7B": Model("mixtral-8x7b:capacity=4", "mixtral", {"sliding_window": None}, 8, 4096),
}


def imported_definition(model: Model) -> Definition:
    """Return the module of transformers on the device `meta`, imported."""
    logging.disable(logging.WARNING)
    config = transformers.AutoConfig.for_model(model.kind, use_cache=False, **model.sizes)
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(config)
    tokens = torch.zeros(model.batch, model.sequence, dtype=torch.int64)
    return from_torch(module.eval(), {"input_ids": tokens, "labels": tokens})


def zoo_definition(model: Model) -> Definition:
    """Return the model of the zoo with the same batch."""
    sizes = f"batch={model.batch},sequence={model.sequence}"
    return load(f"{model.zoo}{',' if ':' in model.zoo else ':'}{sizes}")


def measured(name: str, library: str) -> dict[str, float]:
    """Return the figures of one compilation; seconds are those of the processor."""
    warnings.simplefilter("ignore")
    begin = time.process_time()
    make = zoo_definition if library == "zoo" else imported_definition
    definition = make(MODELS[name])
    made = time.process_time()
    compilation = shardwright.compile(definition, DEVICES, **OPTIONS)
    end = time.process_time()
    memory = peak_memory_bytes()
    limit = compilation.plan.document.memory.limit
    document = compile_document(
        compilation, compilation.cluster.device.usable_bytes if limit is None else limit
    )
    return {
        "import": made - begin,
        "compile": end - made,
        "peak": memory,
        "overlapped": document["overlapped_step_seconds"],
        "serial": document["predicted_step_seconds"],
        "memory": document["memory_bytes_per_device"],
    }


def figures(name: str, library: str) -> dict[str, float]:
    """Return the figures of one compilation in a process of its own."""
    words = [sys.executable, str(HERE), "--one", name, library]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(name: str) -> str:
    """Return the row of a model."""
    ours, zoo = figures(name, "imported"), figures(name, "zoo")
    cells = [
        name,
        f"{ours['import']:.1f} s",
        f"{ours['compile']:.1f} s",
        bytes_text(ours["peak"]),
    ]
    for step in ("overlapped", "serial"):
        cells.append(f"{seconds_text(ours[step])}, {seconds_text(zoo[step])}")
        cells.append(f"{abs(ours[step] / zoo[step] - 1):.2%}")
    cells.append(f"{bytes_text(ours['memory'])}, {bytes_text(zoo['memory'])}")
    return f"| {' | '.join(cells)} |"


def main(*names: str) -> None:
    """Measure all models, or those that are named."""
    if names[:1] == ("--one",):
        print(json.dumps(measured(*names[1:])))
        return
    for name in names or MODELS:
        found = row(name)
        print(found, flush=True)
        put_rows(HERE.with_suffix(".md"), _HEAD, [found], [(each,) for each in MODELS])


if __name__ == "__main__":
    main(*sys.argv[1:])
