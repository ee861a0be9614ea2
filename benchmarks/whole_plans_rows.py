"""The rows of the table of whole plans: models on devices, and the named plans beside them."""

from dataclasses import dataclass, field
from typing import Any

from pipelines import PUBLISHED, WAYS

from shardwright.cost_model.efficiency.lines import DATASHEET, with_figures

# Zoo models, with the batch of each device.
ZOO = {
    "mlp": 32,
    "two_matmul": 8,
    "lenet5": 32,
    "feature_hash": 512,
    "wide_deep": 2000,
    "resnet18-cifar": 32,
    "resnet18": 32,
    "gpt2": 4,
    "bert-base": 8,
    "gpt2-medium": 4,
    "gpt2-large": 4,
    "resnet50": 32,
    "resnet50-cifar": 32,
    "resnet50-32k": 32,
    "vit-b16": 32,
    "bert-large": 8,
    "gpt2-xl": 4,
    "llama3-8b": 1,
    "dlrm": 2048,
    "unet": 4,
    "vgg16": 32,
}
# Large models, with their cluster and the batch of each device.
LARGE = {
    "llama3-70b": ("h100-pod", 1),
    "llama3-405b": ("h100-pod", 1),
    "mixtral-8x7b": ("h100-pod", 1),
    "megatron-22b": ("a100-pod", 1),
    "gpt3-175b": ("a100-pod", 1),
    "megatron-530b": ("a100-pod", 1),
    "megatron-1t": ("a100-pod", 1),
}
SIZES = (8, 64, 1024)  # devices
# Large models whose stages are not searched: model, cluster, devices, batch.
ONE_STAGE = (
    ("llama3-70b", "h100-pod", 64, 64),
    ("llama3-70b", "h100-pod", 512, 512),
    ("gpt3-175b", "a100-pod", 64, 1536),
    ("gpt3-175b", "a100-pod", 256, 1536),
    ("gpt3-175b", "a100-pod", 1024, 1536),
    ("mixtral-8x7b", "h100-pod", 64, 64),
)
BEST = "best"  # stands for the best named plan of one stage
GAP = 1e-5  # of searches of the zoo: less than the default, so that none ends beside a better plan


@dataclass(frozen=True)
class Row:
    """One training run: a model on devices.

    Parameters
    ----------
    model, cluster, devices, batch
        The arguments of `compile`.
    plans : tuple of str
        Named plans beside the found one; `BEST` for the best one of one stage.
    options : dict
        Further options of the search.
    """

    model: str
    cluster: str
    devices: int
    batch: int
    plans: tuple[str, ...] = (BEST,)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def sheets(self) -> str:
        """The line of the cluster with figures of data sheets."""
        return with_figures(self.cluster, DATASHEET)


def rows() -> dict[str, Row]:
    """Return the rows of the table by name."""
    sharded = "zero=3,recompute=full"
    table = {
        f"llama3-70b-{devices}": Row(
            "llama3-70b", "h100-pod", devices, batch, (
                f"data={devices},{sharded},micro_batch=1",
                "tensor=8,zero=1,recompute=full,sequence_parallel,micro_batch=1",
                "tensor=8,pipeline=4,zero=1,sequence_parallel,micro_batch=1",
                "tensor=8,pipeline=4,zero=1,recompute=full,sequence_parallel,micro_batch=1",
                "tensor=4,pipeline=4,zero=1,recompute=full,sequence_parallel,micro_batch=1",
            ),
        )
        for devices, batch in ((64, 64), (512, 512))
    }  # fmt: skip
    megatron = "tensor=8,pipeline=16,micro_batch=1,"
    table["gpt3-175b-1024"] = Row(
        "gpt3-175b", "a100-pod", 1024, 1536,
        (
            megatron + "recompute=full",
            megatron + "recompute=selective,sequence_parallel",
            megatron + "zero=1,recompute=selective,sequence_parallel",
            megatron + "chunks=3,zero=1,recompute=selective,sequence_parallel",
            f"tensor=8,{sharded},sequence_parallel",
        ),
    )  # fmt: skip
    for model, where, devices, batch in ONE_STAGE:
        searched = {"mesh": "search", "micro_batches": "search"}
        name = f"{model}-{devices}-one-stage"
        table[name] = Row(model, where, devices, batch, (BEST,), searched)
    for one in PUBLISHED:
        plans = tuple(one.plan(rest).text for rest in WAYS)
        name = f"korthikanti-{one.model.partition(':')[0]}"
        table[name] = Row(one.model, "a100-pod", one.devices, one.batch, plans)
    table["llama3-405b-16384"] = Row(
        "llama3-405b", "h100-pods", 16384, 2048,
        (
            megatron + "zero=1,recompute=full,sequence_parallel",
            megatron + "chunks=8,zero=2,recompute=full,sequence_parallel",
        ),
    )  # fmt: skip
    table["mixtral-8x7b-64"] = Row("mixtral-8x7b", "h100-pod", 64, 64, (
        "data=64,expert=4,zero=1,recompute=full,micro_batch=1",
        "data=64,expert=8,zero=1,recompute=full,micro_batch=1",
    ))  # fmt: skip
    for name, (where, batch) in LARGE.items():
        for devices in SIZES:
            row = Row(name, where, devices, batch * devices)
            table.setdefault(f"{name}-{devices}", row)
    for name, batch in ZOO.items():
        for devices in SIZES:
            searched = {"mesh": "search", "gap": GAP}
            table[f"{name}-{devices}"] = Row(
                name, "h100-pod", devices, batch * devices, (BEST,), searched
            )
    return table
