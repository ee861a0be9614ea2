"""``shardwright models``: the zoo."""

import argparse
import inspect

from shardwright.tools.tables import print_table
from shardwright.zoo import MODELS, PRESETS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def run(arguments: argparse.Namespace) -> int:
    """Print every model with its sizes, and the sizes that have names."""
    rows = []
    for name, function in sorted(MODELS.items()):
        sizes = inspect.signature(function).parameters.values()
        defaults = ", ".join(f"{size.name}={size.default}" for size in sizes)
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        rows.append((name, f"{summary}\n{defaults}"))
    print_table("", ("model", "description and sizes"), rows)
    presets = [(name, f"{model}:{own}" if own else model) for name, (model, own) in PRESETS.items()]
    print("write sizes after a colon: `gpt:layers=4,hidden=256,tied=false`\n")
    print_table("", ("preset", "stands for"), presets)
    return 0
