"""Published steps in several precisions beside predicted ones: ``python -m benchmarks.recipes``.

A group is a model on the same devices, by the same degrees, in releases of one software. The page
compares ratios of its steps, which errors of everything else than the recipe leave alone. Takes
three minutes of one core.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import mean, median

from shardwright.compiler.evaluation.model import EvaluatedModel
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.efficiency.software import software
from shardwright.models import training_definition
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.search.named_plan import NamedPlan

_PAGE = Path(__file__).with_suffix(".md")
_BRIDGE = "Megatron-Bridge, docs/performance-summary.md and its archive"
_DGXC = "NVIDIA DGX Cloud benchmarks, llama3.1/README_70b.md"
_TITAN = "torchtitan, benchmarks on H100 of 96 GB"


@dataclass(frozen=True)
class Group:
    """A model on devices by degrees, whose steps were published in several precisions.

    Parameters
    ----------
    model, plan, cluster : str
        As `estimate` takes them.
    devices, batch, row : int
        Devices, samples of a step, and tokens of a sample.
    software, source : str
        The software as `estimate` takes it, and where the steps were published.
    steps : tuple of mapping
        Of each release the seconds of a step, or any number they are proportional to, by precision.
    """

    model: str
    plan: str
    cluster: str
    devices: int
    batch: int
    row: int
    software: str
    source: str
    steps: tuple[dict[str, float], ...]

    @property
    def precisions(self) -> list[str]:
        """The precisions of all releases."""
        return list(dict.fromkeys(name for one in self.steps for name in one))

    def predicted(self, precision: str) -> float:
        """Return the step of the plan as its software runs it."""
        definition, _ = training_definition(
            f"{self.model}{',' if ':' in self.model else ':'}sequence={self.row}", self.batch, 1
        )
        options = CompileOptions(
            optimizer=Optimizer("adam"),
            micro_batches=1,
            precision=precision,
            accumulate_type="float32",
            reduce_type="float32",
        )
        where, run_by = cluster(self.cluster).without_host(), software(self.software)
        model = EvaluatedModel(definition.graph, where, options, run_by)
        return model.evaluation(NamedPlan.parse(self.plan), self.devices).seconds


def _tokens(*releases: dict[str, float]) -> tuple[dict[str, float], ...]:
    """Return steps, of tokens each second."""
    return tuple({name: 1 / value for name, value in one.items()} for one in releases)


_CORE = "megatron-core+overlap"
GROUPS = (
    Group(
        *(
            "llama3-70b",
            "tensor=2,pipeline=4,chunks=5,data=8,micro_batch=1,zero=1,sequence_parallel",
        ),
        *("gb200-nvl72", 64, 256, 8192, _CORE, _BRIDGE),
        _tokens(
            {"mxfp8": 3613, "nvfp4": 4458},
            {"mxfp8": 3837, "nvfp4": 4557},
            {"mxfp8": 3828, "nvfp4": 4898},
            {"mxfp8": 3712, "nvfp4": 4864},
        ),
    ),
    Group(
        *("llama3-70b", "pipeline=4,chunks=5,data=16,micro_batch=1,zero=1"),
        *("gb300-nvl72", 64, 256, 8192, _CORE, _BRIDGE),
        _tokens(
            {"mxfp8": 4596, "nvfp4": 6798},
            {"mxfp8": 4742, "nvfp4": 7397},
            {"mxfp8": 4864, "nvfp4": 7296},
        ),
    ),
    Group(
        *(
            "llama3.1-405b",
            "tensor=4,pipeline=16,chunks=8,data=4,micro_batch=1,zero=1,sequence_parallel",
        ),
        *("gb200-nvl72:racks=4", 256, 1536, 8192, _CORE, _BRIDGE),
        _tokens(
            {"mxfp8": 786, "nvfp4": 1076},
            {"mxfp8": 793, "nvfp4": 1136},
            {"mxfp8": 800, "nvfp4": 1184},
            {"mxfp8": 783, "nvfp4": 1166},
        ),
    ),
    Group(
        *(
            "llama3.1-405b",
            "tensor=4,pipeline=16,chunks=4,data=4,micro_batch=1,zero=1,sequence_parallel",
        ),
        *("gb200-nvl72:racks=4", 256, 1536, 8192, _CORE, _BRIDGE),
        _tokens({"fp8-current": 818, "nvfp4": 1083}),
    ),
    Group(
        *(
            "llama3.1-405b",
            "tensor=4,pipeline=8,chunks=4,data=8,micro_batch=1,zero=1,sequence_parallel",
        ),
        *("gb300-nvl72:racks=4", 256, 1536, 8192, _CORE, _BRIDGE),
        (
            {"fp8-current": 46.9008, "nvfp4": 34.7856},
            {"fp8-current": 48.0, "nvfp4": 34.1333},
            {"fp8-current": 47.444, "nvfp4": 34.5169},
            {"fp8-current": 49.749, "nvfp4": 36.8732},
        ),
    ),
    Group(
        *(
            "llama3.1-405b",
            "tensor=2,pipeline=8,chunks=4,context=2,data=8,micro_batch=1,zero=1,sequence_parallel",
        ),
        *("gb300-nvl72:racks=4", 256, 1536, 8192, _CORE, _BRIDGE),
        ({"fp8-current": 48.0, "mxfp8": 51.7935},),
    ),
    Group(
        *("llama3-70b", "pipeline=2,chunks=20,data=16,micro_batch=1,zero=1"),
        *("gb300-nvl72", 32, 32, 4096, _CORE, _BRIDGE),
        _tokens({"fp8-current": 4819, "mxfp8": 4312}),
    ),
    Group(
        *("llama3-70b", "pipeline=8,chunks=10,data=4,micro_batch=1,zero=1"),
        *("gb200-nvl72", 32, 32, 4096, _CORE, _BRIDGE),
        _tokens({"fp8-current": 3864, "mxfp8": 3593}),
    ),
    Group(
        *("llama3-70b:lora=16,lora_alpha=32", "pipeline=2,chunks=20,data=4,micro_batch=1,zero=1"),
        *("gb300-nvl72", 8, 32, 4096, _CORE, _BRIDGE),
        _tokens({"fp8-current": 7481, "mxfp8": 7447}),
    ),
    Group(
        *(
            "llama3.1-70b",
            "tensor=4,pipeline=4,chunks=5,context=2,data=2,micro_batch=1,zero=1,sequence_parallel",
        ),
        *("h100-3200g", 64, 128, 8192, _CORE, _DGXC),
        ({"bfloat16": 14.61, "fp8-current": 10.46},),
    ),
    Group(
        *(
            "llama3.1-70b",
            "tensor=8,data=32,micro_batch=16,zero=3,recompute=full,sequence_parallel",
        ),
        *("h100-96gb-3200g", 256, 512, 8192, "torchtitan", _TITAN),
        ({"bfloat16": 27.4301, "fp8-current": 20.2322, "fp8-rowwise": 27.3249},),
    ),
    Group(
        *(
            "llama3.1-8b",
            "tensor=8,data=8,micro_batch=12,zero=3,recompute=operators,sequence_parallel",
        ),
        *("h100-96gb-3200g", 64, 96, 8192, "torchtitan", _TITAN),
        ({"bfloat16": 2.8068, "fp8-current": 2.4198, "fp8-rowwise": 3.3135},),
    ),
)


def ratios(group: Group) -> Iterator[tuple[str, str, float, float]]:
    """Yield pairs of precisions, with their ratio in each release and the predicted one."""
    steps = {name: group.predicted(name) for name in group.precisions}
    for published in group.steps:
        for one, other in combinations(published, 2):
            yield one, other, published[one] / published[other], steps[one] / steps[other]


def main() -> int:
    """Write the page."""
    head = "| model | devices | plan | steps | published | predicted | error |"
    lines, errors = [head, "|---" * 7 + "|"], []
    for group in GROUPS:
        found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for one, other, published, predicted in ratios(group):
            found.setdefault((one, other), []).append((published, predicted))
        for (one, other), pairs in found.items():
            own = [predicted / published - 1 for published, predicted in pairs]
            errors += own
            lines.append(
                f"| `{group.model.partition(':')[0]}` | {group.devices} x {group.cluster} "
                f"| `{group.plan}` | {one} : {other} "
                f"| {', '.join(f'{published:.3f}' for published, _ in pairs)} "
                f"| {pairs[0][1]:.3f} | {', '.join(f'{error:+.1%}' for error in own)} |"
            )
            print(lines[-1], flush=True)
    sizes = [abs(error) for error in errors]
    within = sum(size <= 0.08 for size in sizes)
    lines += [
        "",
        f"{len(sizes)} ratios: mean error {mean(sizes):.1%}, median {median(sizes):.1%}, "
        f"{within} within 8 %.",
        "",
        "Sources: " + "; ".join(dict.fromkeys(group.source for group in GROUPS)) + ".",
    ]
    print(lines[-3])
    text = "\n".join(lines)
    begin, _, rest = _PAGE.read_text(encoding="utf-8").partition("<!-- table -->\n")
    _, _, end = rest.partition("<!-- end -->")
    _PAGE.write_text(f"{begin}<!-- table -->\n{text}\n<!-- end -->{end}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
