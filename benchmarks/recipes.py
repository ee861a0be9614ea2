"""Published steps in several precisions beside predicted ones: ``python -m benchmarks.recipes``.

A group is a model on the same devices, by the same degrees, in releases of one software. The page
compares ratios of its steps, which errors of everything else than the recipe leave alone. Two
shares of GB200 and GB300 are fitted to groups: each of those is left out once, too, and the shares
are found anew. Takes six minutes of one core.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from pathlib import Path
from statistics import mean, median

import numpy as np

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
_SHARES = ("fp8-current", "nvfp4")
_NEAR = (0.7, 0.85, 1.0, 1.2, 1.4)  # times a share of the file; in between the line of logarithms
_FINE = [0.7 * 2 ** (i / 60) for i in range(61)]  # shares that are tried, 1.2 % apart


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

    def __hash__(self) -> int:
        # Explicit, because a dictionary has no hash.
        return hash((self.model, self.plan, self.cluster))

    @property
    def precisions(self) -> list[str]:
        """The precisions of all releases."""
        return list(dict.fromkeys(name for one in self.steps for name in one))

    @property
    def is_fitted(self) -> bool:
        """Whether shares of its devices were fitted to it."""
        return self.cluster.startswith("gb")

    def fitted(self, *pair: str) -> bool:
        """Return whether a figure of a recipe was fitted to the ratio of two precisions."""
        return self.is_fitted or (self.source == _TITAN and "fp8-rowwise" in pair)

    @cache  # noqa: B019 - as long as the program
    def predicted(self, precision: str, near: float = 1.0) -> float:
        """Return the step of the plan as its software runs it; the recipe's share `near` times."""
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
        if near != 1:
            figure = where.device.recipes[precision]
            shares = where.device.recipes | {precision: figure.with_value(figure.value * near)}
            device = where.device.model_copy(update={"recipes": shares})
            where = where.model_copy(update={"device": device})
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
        ({"bfloat16": 14.61, "fp8-delayed": 10.46},),
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


def errors_at(group: Group, near: Mapping[str, float]) -> list[float]:
    """Return the errors of a group's ratios, as logarithms, with shares `near` times as large."""
    steps = {name: _step(group, name, near.get(name, 1.0)) for name in group.precisions}
    return [
        math.log(steps[one] / steps[other] * published[other] / published[one])
        for published in group.steps
        for one, other in combinations(published, 2)
    ]


def _step(group: Group, precision: str, near: float) -> float:
    if precision not in _SHARES:
        return group.predicted(precision)
    known = [math.log(group.predicted(precision, one)) for one in _NEAR]
    return math.exp(np.interp(math.log(near), [math.log(one) for one in _NEAR], known))


def nearest(groups: Sequence[Group]) -> dict[str, float]:
    """Return the shares, over those of the files, with the least squares of errors."""
    tried = [dict(zip(_SHARES, pair, strict=True)) for pair in product(_FINE, repeat=2)]

    def squares(near: Mapping[str, float]) -> float:
        return sum(error**2 for group in groups for error in errors_at(group, near))

    return min(tried, key=squares)


def left_out() -> str:
    """Return how far ratios of groups are from shares that are fitted to the other groups."""
    own = [group for group in GROUPS if group.is_fitted]
    files = cluster("gb200-nvl72").device.recipes
    best = " and ".join(
        f"`{name}` {files[name].value * near:.2f} (in the files {files[name].value:.2f})"
        for name, near in nearest(own).items()
    )
    sizes, shares = list[float](), {name: list[float]() for name in _SHARES}
    for group in own:
        near = nearest([other for other in own if other is not group])
        sizes += [abs(math.expm1(error)) for error in errors_at(group, near)]
        for name in _SHARES:
            shares[name].append(files[name].value * near[name])
    ranges = " and ".join(
        f"`{name}` {min(values):.2f} to {max(values):.2f}" for name, values in shares.items()
    )
    return (
        f"The least squares of all ratios on GB200 and GB300 are at {best}. "
        f"With each of the {len(own)} groups on GB200 and GB300 left out and the two shares found "
        f"anew from the others ({ranges}), its {len(sizes)} ratios have errors of {min(sizes):.1%} "
        f"to {max(sizes):.1%}, {mean(sizes):.1%} in the mean."
    )


def ratios(group: Group) -> Iterator[tuple[str, str, float, float]]:
    """Yield pairs of precisions, with their ratio in each release and the predicted one."""
    steps = {name: group.predicted(name) for name in group.precisions}
    for published in group.steps:
        for one, other in combinations(published, 2):
            yield one, other, published[one] / published[other], steps[one] / steps[other]


def main() -> int:
    """Write the page."""
    head = "| model | devices | plan | steps | published | predicted | error | fitted |"
    lines, errors = [head, "|---" * 8 + "|"], dict[bool, list[float]]()
    for group in GROUPS:
        found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for one, other, published, predicted in ratios(group):
            found.setdefault((one, other), []).append((published, predicted))
        for (one, other), pairs in found.items():
            own = [predicted / published - 1 for published, predicted in pairs]
            is_fitted = group.fitted(one, other)
            errors.setdefault(is_fitted, []).extend(own)
            lines.append(
                f"| `{group.model.partition(':')[0]}` | {group.devices} x {group.cluster} "
                f"| `{group.plan}` | {one} : {other} "
                f"| {', '.join(f'{published:.3f}' for published, _ in pairs)} "
                f"| {pairs[0][1]:.3f} | {', '.join(f'{error:+.1%}' for error in own)} "
                f"| {'yes' if is_fitted else 'no'} |"
            )
            print(lines[-1], flush=True)
    lines.append("")
    for is_fitted, found_errors in errors.items():
        sizes = [abs(error) for error in found_errors]
        lines.append(
            f"{len(sizes)} {'fitted' if is_fitted else 'predicted'} ratios: mean error "
            f"{mean(sizes):.1%}, median {median(sizes):.1%}, "
            f"{sum(size <= 0.08 for size in sizes)} within 8 %."
        )
    lines += [
        left_out(),
        "",
        "Sources: " + "; ".join(dict.fromkeys(group.source for group in GROUPS)) + ".",
    ]
    print(*lines[-5:], sep="\n")
    text = "\n".join(lines)
    begin, _, rest = _PAGE.read_text(encoding="utf-8").partition("<!-- table -->\n")
    _, _, end = rest.partition("<!-- end -->")
    _PAGE.write_text(f"{begin}<!-- table -->\n{text}\n<!-- end -->{end}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
