"""Published steps in several precisions beside predicted ones: ``python -m benchmarks.recipes``.

A group is a model on the same devices, by the same degrees, in releases of one software. The page
compares ratios of its steps, which errors of everything else than the recipe leave alone. Shares
of GB200 and GB300, one for both of `fp8-current` and one of each of `nvfp4`, are fitted to groups:
each of those is left out once, too, and the shares are found anew. Takes three minutes of one core.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import mean, median

import numpy as np

from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
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
    def device(self) -> str:
        """The device, as the names of clusters begin."""
        return self.cluster.partition("-")[0]

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


@dataclass(frozen=True)
class Shares:
    """Where in `_FINE` the fitted shares are, over those of the files.

    Parameters
    ----------
    current : int
        Of `fp8-current`, for all devices.
    nvfp4 : mapping of str to int
        Of `nvfp4`, by device.
    """

    current: int
    nvfp4: Mapping[str, int]

    def errors(self, group: Group) -> np.ndarray:
        """Return the errors of a group's ratios, as logarithms."""
        return errors_over(group)[:, self.current, self.nvfp4[group.device]]

    @property
    def values(self) -> dict[str, float]:
        """The shares by what they are of, as the page calls it."""
        files = {device: cluster(f"{device}-nvl72").device.recipes for device in self.nvfp4}
        current = next(iter(files.values()))["fp8-current"].value * _FINE[self.current]
        own = {
            f"`nvfp4` of {device.upper()}": files[device]["nvfp4"].value * _FINE[at]
            for device, at in self.nvfp4.items()
        }
        return {"`fp8-current`": current} | own


@cache
def errors_over(group: Group) -> np.ndarray:
    """Return the errors of a group's ratios by the shares of `fp8-current`, and of `nvfp4`."""
    steps = {name: _steps(group, name) for name in group.precisions}
    found = [
        steps[one] - steps[other] - math.log(published[one] / published[other])
        for published in group.steps
        for one, other in combinations(published, 2)
    ]
    return np.array([np.broadcast_to(one, (len(_FINE), len(_FINE))) for one in found])


def _steps(group: Group, precision: str) -> np.ndarray:
    """Return the logarithms of a step by its share, along the dimension of its recipe."""
    if precision not in _SHARES:
        return np.full((1, 1), math.log(group.predicted(precision)))
    known = [math.log(group.predicted(precision, one)) for one in _NEAR]
    steps = np.interp(np.log(_FINE), np.log(_NEAR), known)
    return np.expand_dims(steps, 1 - _SHARES.index(precision))


def nearest(groups: Sequence[Group]) -> Shares:
    """Return the shares with the least squares of errors."""
    squares = {
        device: sum((errors_over(one) ** 2).sum(0) for one in groups if one.device == device)
        for device in sorted({one.device for one in groups})
    }
    current = int(np.argmin(sum(one.min(1) for one in squares.values())))
    return Shares(current, {name: int(one[current].argmin()) for name, one in squares.items()})


def left_out() -> str:
    """Return how far ratios of groups are from shares that are fitted to the other groups."""
    own = [group for group in GROUPS if group.is_fitted]
    others = [nearest([other for other in own if other is not group]) for group in own]
    pairs = zip(own, others, strict=True)
    sizes = np.abs(np.expm1(np.concatenate([near.errors(group) for group, near in pairs])))
    best = ", ".join(f"{name} {value:.2f}" for name, value in nearest(own).values.items())
    found = [near.values for near in others]
    ranges = ", ".join(
        f"{name} {min(one[name] for one in found):.2f} to {max(one[name] for one in found):.2f}"
        for name in found[0]
    )
    return (
        f"The least squares of all ratios on GB200 and GB300 are at {best}. "
        f"With each of the {len(own)} groups left out and the shares found anew from the others "
        f"({ranges}), its {len(sizes)} ratios have errors of {sizes.min():.1%} to "
        f"{sizes.max():.1%}, {sizes.mean():.1%} in the mean, {(sizes <= 0.08).sum()} within 8 %."
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
