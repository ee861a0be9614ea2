"""The JSON document of `diff`, of which the text and the page are made; its keys are stable."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.rounding import EQUAL
from shardwright.ir.units import TOLD_PART, pattern, seconds_text
from shardwright.operators.info import info_of
from shardwright.tools.diff.sides import Side, common_names


def diff_document(old: Side, new: Side, max_slower: float | None = None) -> dict[str, Any]:
    """Return what differs between two plans.

    Parameters
    ----------
    old, new : Side
        The plans.
    max_slower : float, optional
        How much slower the new plan may be, relative.
    """
    change = new.timeline.step_seconds / old.timeline.step_seconds - 1
    changed = changed_facts(old, new)
    equal = not changed and old.digests == new.digests
    if not (equal or changed or changed_layouts(old, new) or changed_strategies(old, new)):
        changed = [{"what": "program", "old": "", "new": "the same decisions in another program"}]
    return {
        "equal": equal,
        "old": side_document(old),
        "new": side_document(new),
        "step_change": change,
        "memory_change_bytes": new.plan.document.memory.peak_bytes
        - old.plan.document.memory.peak_bytes,
        "why": why(old, new),
        "changed": changed,
        "parts": _both(old.parts, new.parts, 0.0),
        "memory": _both(old.plan.document.memory.by_kind, new.plan.document.memory.by_kind, 0.0),
        "communication": _sent(old, new),
        "layouts": changed_layouts(old, new),
        "strategies": changed_strategies(old, new),
        "max_slower": max_slower,
        "too_slow": max_slower is not None and change > max_slower,
    }


def side_document(side: Side) -> dict[str, Any]:
    """Return the figures of a plan."""
    document, named = side.plan.document, side.parallelism.named
    return {
        "plan": side.name,
        "model": document.model,
        "devices": document.devices,
        "cluster": document.cluster.name,
        "degrees": side.degrees,
        "near": None if named is None else named.text,
        "step_seconds": side.timeline.step_seconds,
        "tokens_per_second_per_device": side.tokens_per_second,
        "memory_bytes_per_device": document.memory.peak_bytes,
        "lower_bound": document.lower_bound,
        "gap": document.gap,
    }


def _both(
    old: Mapping[str, float], new: Mapping[str, float], missing: float
) -> dict[str, list[float]]:
    """Return the numbers of both plans by name."""
    return {name: [old.get(name, missing), new.get(name, missing)] for name in {**old, **new}}


def _sent(old: Side, new: Side) -> dict[str, dict[str, list[float]]]:
    kinds = [side.plan.document.communication for side in (old, new)]
    return {
        kind: {
            "count": [one[kind].count if kind in one else 0 for one in kinds],
            "bytes": [one[kind].bytes if kind in one else 0.0 for one in kinds],
        }
        for kind in {**kinds[0], **kinds[1]}
    }


def why(old: Side, new: Side) -> list[str]:
    """Return the parts of the step that make the difference, the greatest first.

    All parts together are the step, so that their changes add up to its change.
    """
    parts = _both(old.parts, new.parts, 0.0)
    changes = {name: later - before for name, (before, later) in parts.items()}
    most = max((abs(change) for change in changes.values()), default=0.0)
    if most <= EQUAL * old.timeline.step_seconds:
        return []
    told = sorted(changes, key=lambda name: -abs(changes[name]))
    return [
        f"{seconds_text(abs(changes[name]))} {'more' if changes[name] > 0 else 'less'} of {name}"
        for name in told
        if abs(changes[name]) >= TOLD_PART * most
    ]


def changed_facts(old: Side, new: Side) -> list[dict[str, str]]:
    """Return what the plans are of, and how they were compiled, where that differs."""
    left, right = old.facts, new.facts
    found = [
        {"what": name, "old": left[name], "new": right[name]}
        for name in left
        if left[name] != right[name]
    ]
    for row in found:
        if row["what"] == _OF_CLUSTER:
            row |= {"old": old.plan.document.cluster.name, "new": "other figures"}
    return found


_OF_CLUSTER = "figures of the cluster"


def changed_layouts(old: Side, new: Side) -> list[dict[str, Any]]:
    """Return the parameters whose layouts differ, repeated layers as one."""

    def of(side: Side, names: Mapping[str, str]) -> dict[str, str]:
        program = side.plan.program
        weights = (one.name for one in program.parameters if one.role != "state")
        return {
            name: _layout_text(program.value(name).layout, names, side.plan.mesh)
            for name in weights
        }

    return _folded(old, new, of, pattern)


def _layout_text(layout: Layout | None, names: Mapping[str, str], mesh: Mesh) -> str:
    if layout is None:
        return "whole"
    renamed = layout.renamed({**dict.fromkeys(mesh.names, ""), **names}, mesh) if names else layout
    return str(renamed)


def changed_strategies(old: Side, new: Side) -> list[dict[str, Any]]:
    """Return the operators whose strategies differ, repeated layers as one."""
    model = old.plan.model

    def of(side: Side, names: Mapping[str, str]) -> dict[str, str]:
        return {
            name: " ".join(
                f"{factor}={'@'.join(names.get(axis, axis) for axis in axes)}"
                for factor, axes in strategy.factors.items()
                if axes
            )
            or "whole"
            for name, strategy in side.plan.document.strategies.items()
        }

    def place(name: str) -> str:
        node = model.producers.get(name) or new.plan.model.producers.get(name)
        return name if node is None else pattern(f"{node.scope}/{node.operator}".lstrip("/"))

    return _folded(old, new, of, place)


def _folded(
    old: Side,
    new: Side,
    of: Callable[[Side, Mapping[str, str]], dict[str, str]],
    place: Callable[[str], str],
) -> list[dict[str, Any]]:
    """Return the names whose texts differ, those of repeated layers with equal texts as one."""
    names = common_names(old.plan.mesh, new.plan.mesh)
    left, right = of(old, {}), of(new, names)
    folds: dict[tuple[str, str, str], int] = {}
    for name in _ordered(old, {**left, **right}):
        texts = left.get(name, "not there"), right.get(name, "not there")
        if texts[0] != texts[1]:
            key = (place(name), *texts)
            folds[key] = folds.get(key, 0) + 1
    return [
        {"name": name, "count": count, "old": before, "new": later}
        for (name, before, later), count in folds.items()
    ]


def _ordered(old: Side, names: Collection[str]) -> list[str]:
    """Return names in the order of the model, products first; those that it does not have last."""
    model = old.plan.model
    places = {
        node.name: (not info_of(model, node).product_flops, i) for i, node in enumerate(model.nodes)
    }
    return sorted(names, key=lambda name: places.get(name, (True, len(places))))
