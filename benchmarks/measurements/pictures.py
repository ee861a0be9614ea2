"""A picture of pairs of values on logarithmic axes, such as measured and predicted ones, as SVG."""

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10

_SIDE, _LEFT, _TOP, _LEGEND = 560, 70, 20, 190  # pixels
COLOURS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#ccbb44",
    "#66ccee",
    "#aa3377",
    "#bb5500",
    "#009988",
    "#777777",
)
_WITHIN = 1.1  # the lines beside the diagonal

Point = tuple[str, float, float]
"""A source, and the values on both axes: what was measured, and what is predicted."""


def picture(
    points: Sequence[Point], unit: str, axes: tuple[str, str] = ("measured", "predicted")
) -> str:
    """Return the SVG of points, the most frequent source below the others.

    Parameters
    ----------
    points : sequence of Point
        What to draw; all values above 0.
    unit : str
        The unit of both axes.
    axes : tuple of str
        What they have.
    """
    values = [value for _, *pair in points for value in pair]
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    scale = _SIDE / max(high - low, 1)

    def at(measured: float, predicted: float) -> tuple[float, float]:
        return (
            _LEFT + (log10(measured) - low) * scale,
            _TOP + _SIDE - (log10(predicted) - low) * scale,
        )

    counts = {source: sum(p[0] == source for p in points) for source, _, _ in points}
    sources = sorted(counts, key=lambda source: (-counts[source], source))
    colours = {source: COLOURS[i % len(COLOURS)] for i, source in enumerate(sources)}
    titles = [f"{axis}, {unit}" for axis in axes]
    lines = [_head(), *_axes(low, high, scale, titles), *_diagonals(low, high)]
    for source in sources:
        for own, measured, predicted in points:
            if own == source:
                x, y = at(measured, predicted)
                lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colours[source]}"/>')
    for i, source in enumerate(sources):
        y = _TOP + 10 + 20 * i
        lines.append(f'<circle cx="{_LEFT + _SIDE + 20}" cy="{y}" r="5" fill="{colours[source]}"/>')
        text = f"{escape(source)} ({counts[source]})"
        lines.append(f'<text x="{_LEFT + _SIDE + 30}" y="{y + 4}">{text}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _head() -> str:
    width, height = _LEFT + _SIDE + _LEGEND, _TOP + _SIDE + 50
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n'
        "<style>circle { fill-opacity: 0.6 }</style>"
    )


def _axes(low: int, high: int, scale: float, axes: Sequence[str]) -> list[str]:
    """Return lines at powers of ten, and what the axes are."""
    lines, bottom, right = [], _TOP + _SIDE, _LEFT + _SIDE
    for power in range(low, high + 1):
        x, y = _LEFT + (power - low) * scale, bottom - (power - low) * scale
        text = f"{10.0**power:g}"
        lines += [
            f'<path d="M{x:.1f} {_TOP}V{bottom}M{_LEFT} {y:.1f}H{right}" stroke="#dddddd"/>',
            f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{text}</text>',
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>',
        ]
    middle = _TOP + _SIDE / 2
    return [
        *lines,
        f'<text x="{_LEFT + _SIDE / 2}" y="{bottom + 40}" text-anchor="middle">'
        f"{escape(axes[0])}</text>",
        f'<text x="20" y="{middle}" text-anchor="middle" transform="rotate(-90 20 {middle})">'
        f"{escape(axes[1])}</text>",
    ]


def _diagonals(low: int, high: int) -> list[str]:
    """Return the line of equal values, and those of 10 % more and less."""
    scale = _SIDE / max(high - low, 1)
    lines = []
    for factor, style in ((1.0, ""), (_WITHIN, ' stroke-dasharray="4"')):
        off = log10(factor) * scale
        for side in sorted({off, -off}):
            x, y = _LEFT + max(-side, 0), _TOP + _SIDE - max(side, 0)
            length = _SIDE - abs(side)
            lines.append(
                f'<path d="M{x:.1f} {y:.1f}l{length:.1f} {-length:.1f}" '
                f'stroke="#444444" fill="none"{style}/>'
            )
    return lines
