"""Published training runs as models, named plans, clusters and software of the product.

A row that cannot be expressed is left out, with the reason.
"""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.operators.models.recipes import RECIPES
from shardwright.search.named_plan import NamedPlan

PUBLISHED = Path(__file__).parents[3] / "shared" / "measurements" / "published.json"
_VOCABULARY = 51_200  # of Megatron, where the source does not state it


@dataclass(frozen=True)
class Row:
    """A measured run.

    Parameters
    ----------
    id : str
        Its name in the data.
    source : str
        The short name of its source.
    family : str
        ``gpt`` or ``llama``.
    sizes : mapping of str to int
        Sizes of the model but for its layers.
    layers : int
        Blocks.
    plan : NamedPlan
        How it was divided, micro-batch included.
    devices, batch : int
        Devices and global batch.
    precision, reduce_type, accumulate_type : str
        Types, as options of a compilation.
    cluster, software : str
        Names of the product's cluster and profile.
    seconds : float
        The measured step.
    """

    id: str
    source: str
    family: str
    sizes: tuple[tuple[str, int], ...]
    layers: int
    plan: NamedPlan
    devices: int
    batch: int
    precision: str
    reduce_type: str
    accumulate_type: str
    cluster: str
    software: str
    seconds: float

    @property
    def kind(self) -> tuple[str, str, str]:
        """What tells the figures that it depends on: its cluster, software and precision."""
        return self.cluster, self.software, self.precision

    @property
    def group(self) -> Hashable:
        """What rows of one group have in common: they differ by the plan alone."""
        model = self.family, self.sizes, self.layers, self.batch, self.devices
        return self.source, *model, *self.kind

    @property
    def passes(self) -> int:
        """Micro-batches of a step."""
        return self.plan.passes(self.batch, self.devices)


class LeftOutError(Exception):
    """Why a row is not expressible."""


def groups(rows: Sequence[Row]) -> list[list[int]]:
    """Return the numbers of the rows of each group, the groups of several plans alone."""
    found: dict[Hashable, list[int]] = {}
    for number, row in enumerate(rows):
        found.setdefault(row.group, []).append(number)
    return [own for own in found.values() if len({rows[i].plan for i in own}) > 1]


def read_rows(path: Path = PUBLISHED) -> tuple[list[Row], list[tuple[str, str, str]]]:
    """Return the rows, and of every row that is left out its source, its name and the reason."""
    rows, left_out = [], []
    for record in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        source = record["source"]
        make = next((make for name, make in SOURCES.items() if source.startswith(name)), None)
        try:
            if make is None:
                raise LeftOutError("no reader for this source")
            rows.append(make(record))
        except LeftOutError as error:
            left_out.append((source, str(record["id"]), str(error)))
    return rows, left_out


def plan_of(record: Mapping[str, Any], **others: Any) -> NamedPlan:
    """Return the plan of a record."""
    return NamedPlan(
        tensor=record["tp"],
        pipeline=record["pp"],
        data=record["dp"],
        micro_batch=others.pop("micro_batch", record.get("mbs")),
        **others,
    )


def _gpt_sizes(record: Mapping[str, Any], heads: int | None = None) -> dict[str, int]:
    arch = record["arch"]
    return {
        "hidden": arch["hidden"],
        "heads": heads or arch["heads"],
        "sequence": record["seq"],
        "vocabulary": arch["vocab"] or _VOCABULARY,
    }


def gpt_row(
    record: Mapping[str, Any],
    source: str,
    sizes: Mapping[str, int],
    plan: NamedPlan,
    seconds: float,
    **others: Any,
) -> Row:
    """Return a row; by default of a GPT in float16."""
    settings = {
        "family": "gpt",
        "precision": "float16",
        "reduce_type": "float32",
        "accumulate_type": "float32",
        **others,
    }
    if any(b in record["precision"] for b in "48") and settings["precision"] not in RECIPES:
        raise LeftOutError(f"no rows of {settings['software']} in {record['precision']} to fit")
    if plan.passes(record["gbs"], record["gpus"]) % plan.pipeline and plan.chunks > 1:
        raise LeftOutError("micro-batches that are no multiple of the interleaved stages")
    return Row(
        id=str(record["id"]),
        source=source,
        sizes=tuple(sizes.items()),
        layers=record["arch"]["layers"],
        plan=plan,
        devices=record["gpus"],
        batch=record["gbs"],
        seconds=seconds,
        **settings,
    )


# Megatron on A100, 2021 and 2022

# Heads, micro-batch and chunks of examples/sc21/run_table_1.sh of Megatron-LM, by hidden size.
_SC21 = {
    3072: (32, 16, 1),
    4096: (32, 16, 1),
    6144: (48, 8, 1),
    12288: (96, 2, 2),
    16384: (128, 1, 2),
    20480: (128, 1, 3),
}


def _sc21(record: Mapping[str, Any]) -> Row:
    arch = record["arch"]
    heads, micro_batch, chunks = _SC21[arch["hidden"]]
    plan = plan_of(record, micro_batch=micro_batch, chunks=chunks, recompute="full")
    sizes = _gpt_sizes(record, heads)
    flops = _with_recomputation(arch["layers"], sizes, record["gbs"])
    seconds = flops / (record["tflops_per_gpu"] * 1e12 * record["gpus"])
    return gpt_row(record, "SC21", sizes, plan, seconds, cluster="a100-selene", software="megatron")


def _with_recomputation(layers: int, sizes: Mapping[str, int], batch: int) -> float:
    """Return the flops of a step, full recomputation included (Narayanan et al., 2021, eq. 3)."""
    hidden, sequence, vocabulary = sizes["hidden"], sizes["sequence"], sizes["vocabulary"]
    each = 1 + sequence / (6 * hidden) + vocabulary / (16 * layers * hidden)
    return 96 * batch * sequence * layers * hidden**2 * each


def _korthikanti(record: Mapping[str, Any]) -> Row:
    if "step_s" not in record:
        raise LeftOutError("memory alone, by the authors' formula")
    selective = record["recompute"].startswith("selective")
    plan = plan_of(
        record,
        chunks=record["vp"] or 1,
        recompute="selective" if selective else "full",
        sequence_parallel=selective,
    )
    sizes, where = _gpt_sizes(record), {"cluster": "a100-selene", "software": "megatron"}
    return gpt_row(record, "Korthikanti", sizes, plan, record["step_s"], **where)


# Megatron-DeepSpeed on A100, 2024


def _vtrain(record: Mapping[str, Any]) -> Row:
    multi = "multi" in record["source"]
    plan = plan_of(record, recompute="full")
    sizes, name = _gpt_sizes(record), "vTrain multi" if multi else "vTrain single"
    where = {"cluster": "a100-800g", "software": "megatron-deepspeed"}
    return gpt_row(record, name, sizes, plan, record["step_s"], **where)


# Composer's FSDP on A100


_MOSAIC = {"a100_40gb": "a100-40gb-1600g", "a100": "a100-1600g", "h100": "h100-3200g"}


def _mosaic(record: Mapping[str, Any]) -> Row:
    plan = NamedPlan(
        data=record["dp"],
        micro_batch=record["mbs"],
        zero=3,
        recompute="full" if record["recompute"] == "full" else "none",
    )
    described = next((name for gpu, name in _MOSAIC.items() if gpu in record["gpu"]), None)
    if described is None:
        raise LeftOutError(f"no cluster for {record['gpu']}")
    if record["sharding"] != "FULL_SHARD" or "offload True" in record["notes"]:
        raise LeftOutError("offloaded, or not sharded over all devices")
    return gpt_row(
        record,
        "MPT",
        _gpt_sizes(record),
        plan,
        record["step_s_derived"],
        precision="bfloat16",
        reduce_type="lower",
        accumulate_type="lower",
        cluster=described,
        software="composer",
    )


# Llamas


def _llama_sizes(record: Mapping[str, Any]) -> dict[str, int]:
    arch = record["arch"]
    return {
        "hidden": arch["hidden"],
        "heads": arch["heads"],
        "kv_heads": arch["kv_heads"],
        "inner": arch["ffn"],
        "sequence": record["seq"],
        "vocabulary": arch["vocab"],
    }


def _llama(
    record: Mapping[str, Any],
    source: str,
    described: str,
    software: str,
    chunks: int = 1,
    precision: str = "bfloat16",
) -> Row:
    shards, context = record["dp"] * (record["cp"] or 1), record["cp"] or 1
    plan = plan_of(
        record,
        zero=1 if shards > 1 else 0,
        sequence_parallel=record["tp"] > 1,
        context=context,
        chunks=chunks,
    )
    return gpt_row(
        record,
        source,
        _llama_sizes(record),
        plan,
        record.get("step_s") or record["step_s_derived"],
        family="llama",
        precision=precision,
        cluster=described,
        software=software,
    )


def _simumax(record: Mapping[str, Any]) -> Row:
    if "deepseek" in record["model"]:
        raise LeftOutError("latent attention and its experts are not in the zoo")
    return _llama(record, "SimuMax", "b200-node", "megatron-core")


def _nanotron(record: Mapping[str, Any]) -> Row:
    if record["quality"] != "exact":
        raise LeftOutError("noisy, as the data say")
    return _llama(record, "nanotron", "h100-3200g", "nanotron")


# torchtitan


def _torchtitan(record: Mapping[str, Any]) -> Row:
    how, precision = record["software"].lower(), record["precision"]
    recipe = "fp8-rowwise" if "rowwise" in precision else "fp8-current"
    options = {
        "async_tensor": "async" in how,
        "eager": "compile" not in how,
    }
    recompute = record["recompute"] or "none"
    stages = record["pp"]
    samples = record["gbs"] // record["dp"]
    plan = plan_of(
        record,
        micro_batch=record.get("mbs") or samples // stages,  # as many micro-batches as stages
        context=record["cp"],
        ring=record["cp"] > 1,
        zero=3 if stages == 1 else 1,  # not regathered in a pipeline
        sequence_parallel=record["tp"] > 1,
        recompute="operators" if "selective" in recompute else recompute,
        chunks=2 if stages > 1 and "interleaved" in how else 1,
    )
    return gpt_row(
        record,
        "torchtitan",
        _llama_sizes(record),
        plan,
        record["step_s_derived"],
        family="llama",
        precision=recipe if "float8" in precision else "bfloat16",
        accumulate_type="lower" if stages > 1 else "float32",
        cluster="h200-3200g" if "H200" in record["gpu"] else "h100-96gb-3200g",
        software="+".join(["torchtitan", *(name for name, is_on in options.items() if is_on)]),
    )


# Megatron-Core on H100

_MOST_CHUNKS = 6  # of the weak scaling, which does not state them


def _weak_scaling(record: Mapping[str, Any]) -> Row:
    sizes, layers, stages = _gpt_sizes(record), record["arch"]["layers"], record["pp"]
    micro_batch = 2 if stages == 1 else 1
    passes = record["gbs"] // (record["dp"] * micro_batch)
    chunks = [n for n in range(1, _MOST_CHUNKS + 1) if layers % (stages * n) == 0]
    plan = plan_of(
        record,
        micro_batch=micro_batch,
        chunks=max(chunks) if stages > 1 and passes % stages == 0 else 1,
        sequence_parallel=record["tp"] > 1,
        zero=1,
    )
    hidden, sequence, vocabulary = sizes["hidden"], sizes["sequence"], sizes["vocabulary"]
    each = 1 + sequence / (6 * hidden) + vocabulary / (12 * layers * hidden)
    flops = 72 * record["gbs"] * sequence * layers * hidden**2 * each
    seconds = flops / (record["tflops_per_gpu"] * 1e12 * record["gpus"])
    where = {"cluster": "h100-3200g", "software": "megatron-core+overlap"}
    return gpt_row(record, "Megatron-Core", sizes, plan, seconds, precision="bfloat16", **where)


def _megatron_core(record: Mapping[str, Any]) -> Row:
    arch = record.get("arch") or {}
    if not arch.get("layers") or arch.get("experts"):
        raise LeftOutError("sizes of its model not given, or a mixture of experts")
    if "H100" not in record["gpu"]:
        raise LeftOutError("no rows of Megatron-Core in bfloat16 or fp8 on this device to fit")
    if "FP8" not in record["precision"] and record["precision"] != "BF16":
        raise LeftOutError(f"precision {record['precision']}")
    if "alternatives" in (record.get("notes") or "") or record["quality"] == "ambiguous":
        raise LeftOutError("ambiguous, as the data say")
    precision = "bfloat16"
    if "FP8" in record["precision"]:  # delayed scaling is what Megatron does by default
        names_one = record["source"].startswith("NVIDIA Megatron-Bridge")
        precision = "fp8-current" if names_one else "fp8-delayed"
    chunks = (record.get("vp") or 1) if record["pp"] > 1 else 1
    where = "h100-3200g", "megatron-core+overlap", chunks, precision
    return _llama(record, "Megatron-Core", *where)


SOURCES: dict[str, Callable[[Mapping[str, Any]], Row]] = {
    "Megatron-LM README 2021": _sc21,
    "Korthikanti": _korthikanti,
    "vTrain": _vtrain,
    "MosaicML": _mosaic,
    "SimuMax": _simumax,
    "Hugging Face nanotron": _nanotron,
    "torchtitan": _torchtitan,
    "Megatron-LM README weak scaling": _weak_scaling,
    "Megatron-LM examples/llama": _megatron_core,
    "NVIDIA Megatron-Bridge": _megatron_core,
    "NeMo Framework": _megatron_core,
}
