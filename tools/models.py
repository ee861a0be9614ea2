"""``shardwright models``: the zoo, and what a decoder is made of."""

import argparse
import inspect
from collections import Counter

from shardwright.frontends.configs.architecture import (
    Architecture,
    Experts,
    GatedDelta,
    Latent,
    Layer,
    StateSpace,
)
from shardwright.ir.errors import ModelError
from shardwright.tools.console.tables import print_table
from shardwright.zoo import MODELS, PRESETS, presets
from shardwright.zoo.loading import is_decoder
from shardwright.zoo.presets import counted, read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument of one model."""
    parser.add_argument(
        "model",
        nargs="?",
        help="a preset, a `config.json` or a folder that holds one: tell what it is made of",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print every model with its sizes, and the sizes that have names; or one decoder."""
    if arguments.model is not None:
        return _one(arguments.model)
    rows = []
    for name, function in sorted(MODELS.items()):
        sizes = inspect.signature(function).parameters.values()
        defaults = ", ".join(f"{size.name}={size.default}" for size in sizes)
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        rows.append((name, f"{summary}\n{defaults}"))
    print_table("", ("model", "description and sizes"), rows)
    named = [(name, f"{model}:{own}" if own else model) for name, (model, own) in PRESETS.items()]
    print("write sizes after a colon: `gpt:layers=4,hidden=256,tied=false`\n")
    print_table("", ("preset", "stands for"), named)
    _decoders()
    return 0


def _decoders() -> None:
    """Print the decoders of the table, with their parameters and the published figures."""
    rows = []
    for name, one in presets().items():
        total, active = counted(_architecture(name))
        own = f"{active / 1e9:,.2f}" if active != total else ""
        published = " / ".join(text for text in (one.parameters, one.active) if text)
        rows.append((name, f"{total:,}", own, published, one.source.partition(",")[0]))
    print(
        "`shardwright models NAME` tells what one of these is made of; active parameters, in "
        "billions, are all\nbut the routed experts that a token does not choose\n"
    )
    print_table("", ("decoder", "parameters", "active", "published", "fields from"), rows)


def _architecture(model: str) -> Architecture:
    name, _, sizes = model.partition(":")
    given = dict(item.partition("=")[::2] for item in sizes.split(",")) if sizes else {}
    found = read(name, given).architecture if is_decoder(name) else None
    if found is None:
        raise ModelError(
            f"`{name}` is no decoder of the table, no `config.json` and no folder that holds one",
            hint="`shardwright models` lists all models and their sizes",
        )
    return found


def _one(model: str) -> int:
    """Print what a decoder is made of."""
    found = _architecture(model)
    total, active = counted(found)
    chosen = f", of which a token goes through {active:,}" if active != total else ""
    print(f"{model}: {total:,} parameters{chosen}")
    print(f"{len(found.layers)} layers of {found.hidden:,} features, {found.vocabulary:,} words")
    kinds = Counter(found.layers)
    rows = [(f"{count}", _attention(layer), _feed_forward(layer)) for layer, count in kinds.items()]
    print_table("", ("layers", "attention", "feed-forward"), rows)
    own = presets().get(model)
    if own is not None:
        figures = " / ".join(text for text in (own.parameters, own.active) if text)
        print(f"published: {figures} parameters, {own.published_in}")
        print(f"fields from: {own.source}")
    return 0


def _attention(layer: Layer) -> str:
    kind = layer.attention
    if kind is None:
        return ""
    if isinstance(kind, Latent):
        sizes = f"{kind.heads} heads of {kind.plain} + {kind.turned} features"
        return f"{sizes}, keys and values from {kind.kv_rank}"
    if isinstance(kind, GatedDelta):
        return f"gated delta rule, {kind.value_heads} heads of {kind.key} x {kind.value} features"
    if isinstance(kind, StateSpace):
        return f"state space, {kind.heads} heads of {kind.state} x {kind.head} features"
    words = [f"{kind.heads} heads of {kind.head} features, {kind.kv_heads} of keys"]
    words += [f"a window of {kind.window:,}"] if kind.window else []
    words += [f"chunks of {kind.chunk:,}"] if kind.chunk else []
    words += ["sinks"] if kind.sinks else []
    words += ["no positions"] if kind.rotary is None else []
    return ", ".join(words)


def _feed_forward(layer: Layer) -> str:
    kind = layer.feed_forward
    if kind is None:
        return ""
    if not isinstance(kind, Experts):
        return f"{kind.inner:,} features{', gated' if kind.gated else ''}"
    shared = f" and a shared one of {kind.shared.inner:,}" if kind.shared else ""
    return f"{kind.top_k} of {kind.count} experts of {kind.each.inner:,} features{shared}"
