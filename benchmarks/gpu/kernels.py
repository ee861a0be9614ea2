"""Figures of kernels of a GPU from measured ones, and how well they tell those left out.

``python benchmarks/gpu/kernels.py fit h100`` prints the curves of a device file, ``... page h100``
the table of ``kernels.md``: of each kind the mean error of kernels that a fit to the others did not
see; ``... scaled h200`` the errors of the figures of a device file that are scaled from another's.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.cost_model.efficiency.cluster_files import base_device
from shardwright.cost_model.efficiency.fitting import Unknown, fit
from shardwright.cost_model.efficiency.kernels import Curve, Kernels

HERE = Path(__file__).parent
PEAK = {"bf16": 989e12, "fp8 tensorwise": 1979e12, "fp8 rowwise": 1979e12}  # flop/s, data sheet
BANDWIDTH = {"h100": 3.35e12, "h200": 4.8e12}  # bytes/s, data sheet
ATTAINED = (
    0.77  # of the bandwidth, the least time of a product, as the files of the devices have it
)
LONG = 6.0  # ms, from which products of large sizes are seen to be slower: power
FULL = 128  # the width of a head from which shares of others are told
Row = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """Kernels of one curve.

    Parameters
    ----------
    name : str
        What they are.
    rows : tuple of mapping
        Their measurements.
    amount : callable
        Flops, or bytes where they move memory.
    peak : float
        The peak of that in a second.
    bandwidth : float
        Bytes that a product moves in a second.
    sizes : callable
        The sizes that the curve has halves of.
    halves : tuple of str
        Their names; one that has several is the half of each of them: ``n+k``.
    """

    name: str
    rows: tuple[Row, ...]
    amount: Callable[[Row], float]
    peak: float
    bandwidth: float
    sizes: Callable[[Row], dict[str, float]] = lambda _: {}
    halves: tuple[str, ...] = ()

    def widths(self, rows: Sequence[Row]) -> list[int]:
        """Return the widths of heads whose share of that of 128 is to be found."""
        return sorted({row["width"] for row in rows if "length" in row} - {FULL})

    def curve(self, rows: Sequence[Row]) -> Curve:
        """Return the curve that is fitted to some of the rows."""
        widths = self.widths(rows)
        unknowns = [
            Unknown("start", 3e-5, 0.7),
            Unknown("share", 0.7, 0.5, most=1.0),
            *(Unknown(half, 100.0, 1.5) for half in self.halves),
            *(Unknown(f"width {width}", 0.8, 0.5, most=1.2) for width in widths),
        ]
        weights = np.full(len(rows), 1e3)  # a kernel says more than the priors

        def residuals(values: Sequence[float]) -> Any:
            found = self.made(values, widths)
            return np.log([self.seconds(found, row) / row["ms"] * 1e3 for row in rows])

        def derivatives(values: Sequence[float], step: float) -> Any:
            at = residuals(values)
            more = [
                np.multiply(values, np.where(np.arange(len(values)) == i, 1 + step, 1.0))
                for i in range(len(values))
            ]
            return np.array([(residuals(each) - at) / np.log1p(step) for each in more]).T

        return self.made(fit(unknowns, residuals, derivatives, weights, steps=60).values, widths)

    def made(self, values: Sequence[float], widths: Sequence[int]) -> Curve:
        """Return the curve of some values of the unknowns."""
        start, share, *rest = values
        halves = {
            size: half
            for name, half in zip(self.halves, rest, strict=False)
            for size in name.split("+")
        }
        points = sorted(zip([FULL, *widths], [1.0, *rest[len(self.halves) :]], strict=True))
        found = {"share": min(share, 1.0), "halves": halves, "start": start}
        return Curve(**found, widths=points if widths else (), tag="measured", source=self.name)

    def seconds(self, curve: Curve, row: Row) -> float:
        """Return the seconds of a kernel by itself."""
        rate = self.peak * curve.attained(self.sizes(row), row.get("width"))
        return curve.start + max(self.amount(row) * waves(row) / rate, moved(row) / self.bandwidth)

    def left_out(self) -> Iterator[tuple[Row, float]]:
        """Yield each row with its relative error by a fit to the others."""
        for i, row in enumerate(self.rows):
            others = [*self.rows[:i], *self.rows[i + 1 :]]
            yield row, self.seconds(self.curve(others), row) / row["ms"] * 1e3 - 1


def waves(row: Row) -> float:
    """Return the tiles that the waves of a product have room for, over those that it has."""
    if row["kind"] != "product":
        return 1.0
    tiles = -(-row["m"] // 128) * -(-row["n"] // 128)
    return -(-tiles // 132) * 132 / tiles


def moved(row: Row) -> float:
    """Return the least bytes of a product, which bound it from below."""
    if "n" not in row or "k" not in row:
        return 0.0
    item = 2 if row["type"] == "bf16" else 1
    rows, groups = row.get("m", row.get("tokens", 0)), row.get("experts", 1)
    return item * (rows * row["k"] + groups * row["k"] * row["n"]) + 2 * rows * row["n"]


def flops(row: Row) -> float:
    """Return the flops of a product, or of causal attention."""
    if "n" in row:
        return 2.0 * row.get("m", row.get("tokens", 0)) * row["n"] * row["k"]
    products = 2.5 if "backward" in row["kind"] else 1.0
    scores = row["batch"] * row["heads"] * row["length"] ** 2 / 2
    return products * 2.0 * scores * (row["width"] + row["value_width"])


def sides(row: Row) -> dict[str, float]:
    """Return the sizes of the product of an expert as the program has it: rows, columns, depth."""
    each = row["tokens"] / row["experts"]
    if "weight" in row["kind"]:
        return {"m": row["k"], "n": row["n"], "k": each}
    if "data" in row["kind"]:
        return {"m": each, "n": row["k"], "k": row["n"]}
    return {"m": each, "n": row["n"], "k": row["k"]}


def kinds(card: str) -> Iterator[Kind]:
    """Yield the kinds of kernels that were measured on a card and have a curve."""
    return (kind for kind in all_kinds(card) if kind.rows)


def all_kinds(card: str) -> Iterator[Kind]:
    """Yield the kinds of kernels that have a curve, some without a measurement."""
    rows = json.loads((HERE / f"{card}_kernels.json").read_text())["rows"]
    bandwidth = BANDWIDTH[card]
    own = ATTAINED * bandwidth

    def those(*names: str, **fields: Any) -> tuple[Row, ...]:
        named = (row for row in rows if row["kind"] in names)
        return tuple(row for row in named if fields.items() <= row.items())

    for kind, peak in PEAK.items():
        found = those("product", type=kind)
        yield Kind(f"products, {kind}", found, flops, peak, own, lambda r: {"k": r["k"]}, ("k",))
    for loads, skew in (("", 0.0), (", uneven loads", 1.0)):
        fields: dict[str, Any] = {"type": "bf16", "skew": skew}
        found = those("grouped forward", "grouped data gradient", **fields)
        yield Kind(f"experts, rows{loads}", found, flops, PEAK["bf16"], own, sides, ("m", "n+k"))
        found = those("grouped weight gradient", **fields)
        yield Kind(f"experts, weights{loads}", found, flops, PEAK["bf16"], own, sides, ("k", "m+n"))
    lower = those("grouped forward", type="fp8 rowwise")
    for size, is_large in (("large", True), ("other", False)):
        found = tuple(row for row in lower if has_large_tiles(row) == is_large)
        yield Kind(
            f"experts, rows, fp8 rowwise, {size}",
            found,
            flops,
            PEAK["fp8 rowwise"],
            own,
            sides,
            ("m", "n+k"),
        )
    for name in ("cudnn", "flash"):
        for way in ("forward", "backward"):
            found = those(f"attention {way}", kernel=name)
            yield Kind(
                f"attention {way}, {name}",
                found,
                flops,
                PEAK["bf16"],
                own,
                lambda r: {"keys": r["length"] / 2},
                ("keys",),
            )
    yield Kind("copies", those("copy"), lambda r: 4.0 * r["elements"], bandwidth, own)
    yield Kind(
        "updates", those("fused AdamW float32"), lambda r: 28.0 * r["parameters"], bandwidth, own
    )
    for name in ("permute eager", "unpermute eager", "unpermute compiled"):
        yield Kind(name, those(name), chosen_bytes, bandwidth, own)
    for name in ("rms_norm eager", "rms_norm compiled"):
        yield Kind(name, those(name), lambda r: 4.0 * r["tokens"] * r["width"], bandwidth, own)
    found = those("quantize tensorwise")
    yield Kind("quantize, fp8 tensorwise", found, lambda r: 3.0 * r["m"] * r["k"], bandwidth, own)
    yield Kind("router", those("router forward"), router_bytes, bandwidth, own)


def has_large_tiles(row: Row) -> bool:
    """Return whether PyTorch 2.11 takes its large tiles: two sides of 2,048 (ScaledGroupMM.cu)."""
    return sum(side >= 2048 for side in sides(row).values()) >= 2


def chosen_bytes(row: Row) -> float:
    """Return the bytes of the rows of tokens, and of those of the experts that they chose."""
    return 2.0 * row["tokens"] * row["width"] * (1 + row["top_k"])


def router_bytes(row: Row) -> float:
    """Return the bytes of tokens, and of their scores, which several kernels read and write."""
    return row["tokens"] * (2.0 * row["width"] + 32.0 * row["experts"])


def print_fit(card: str) -> None:
    """Print the curve of each kind, and what the longest products keep of theirs."""
    for kind in kinds(card):
        short = [row for row in kind.rows if row["kind"] != "product" or row["ms"] < LONG]
        curve = kind.curve(short)
        print(kind.name, curve.model_dump(exclude={"tag", "source"}))
        for row in kind.rows:
            if row not in short:
                kept = kind.seconds(curve, row) / row["ms"] * 1e3
                print(f"  of {row['ms']:.1f} ms: {kept:.3f} of the rate")


def print_page(card: str) -> None:
    """Print the table of the page."""
    errors: list[float] = []
    for kind in kinds(card):
        found = list(kind.left_out())
        each = [abs(error) for _, error in found]
        errors += each
        row, worst = max(found, key=lambda pair: abs(pair[1]))
        named = ", ".join(
            f"{k} {v}"
            for k, v in row.items()
            if k not in ("ms", "kind", "type", "skew", "largest", "kernel")
        )
        print(f"| {kind.name} | {len(each)} | {np.mean(each):.1%} | {worst:+.0%}: {named} |")
    print(f"| all | {len(errors)} | **{np.mean(errors):.1%}** | |")


def print_scaled(card: str) -> None:
    """Print how far kernels of a card are from the figures that its file scales from another's."""
    kernels = Kernels.model_validate(base_device(card)["kernels"])
    grouped = kernels.grouped["bfloat16"]
    curves = {
        "products, bf16": kernels.products["bfloat16"],
        "experts, rows": grouped.matrices,
        "experts, weights": grouped.rows,
        "copies": kernels.copies,
        "updates": kernels.updates,
    }
    for name, attention in kernels.attention.items():
        curves |= {f"attention forward, {name}": attention.forward}
        curves |= {f"attention backward, {name}": attention.backward}
    errors: list[float] = []
    for kind in kinds(card):
        if (curve := curves.get(kind.name)) is None:
            continue
        found = [kind.seconds(curve, row) / row["ms"] * 1e3 - 1 for row in kind.rows]
        errors += found
        print(row_of_errors(kind.name, found))
    print(row_of_errors("all", errors))


def row_of_errors(name: str, found: Sequence[float]) -> str:
    """Return the row of a table: number, mean, mean size and worst of relative errors."""
    worst = max(found, key=abs)
    mean, size = np.mean(found), np.mean(np.abs(found))
    return f"| {name} | {len(found)} | {mean:+.1%} | {size:.1%} | {worst:+.0%} |"


if __name__ == "__main__":
    {"fit": print_fit, "page": print_page, "scaled": print_scaled}[sys.argv[1]](sys.argv[2])
