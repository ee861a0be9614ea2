"""Parameters that are not trained, by patterns of their names."""

import difflib
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from shardwright.ir.errors import ModelError
from shardwright.ir.units import MOST_NAMES
from shardwright.tracing import Definition, without_training

SIZE = "freeze"


def taken_out(model: str) -> tuple[str, tuple[str, ...]]:
    """Return the name of a model without its size ``freeze``, and the patterns that this has.

    Examples
    --------
    >>> taken_out("gpt:layers=2,freeze=embedding+blocks.0"), taken_out("a.py:f")
    (('gpt:layers=2', ('embedding', 'blocks.0')), ('a.py:f', ()))
    """
    name, colon, sizes = model.rpartition(":")
    items = [(item, item.partition("=")) for item in sizes.split(",")]
    own = [value for _, (key, _, value) in items if key.strip() == SIZE]
    if not own:
        return model, ()
    if len(own) > 1:
        raise ModelError(f"the size `{SIZE}` of `{name}` is given twice", hint="give it once")
    others = ",".join(item for item, (key, _, _) in items if key.strip() != SIZE)
    patterns = tuple(pattern.strip() for pattern in own[0].split("+"))
    return f"{name}{colon}{others}".removesuffix(":"), patterns


def frozen(definition: Definition, patterns: Sequence[str]) -> Definition:
    """Return a model of which some parameters are not trained.

    Parameters
    ----------
    definition : Definition
        The model.
    patterns : sequence of str
        Names of parameters or of what they are in, with ``*`` for any characters: ``blocks.0``,
        ``*.norm1.*``.

    Raises
    ------
    ModelError
        If a pattern is of no trained parameter, or none is left.
    """
    if not patterns:
        return definition
    trained = [p.name for p in definition.graph.parameters if p.trainable]
    found = {one: {x for x in trained if _is_of(x, one)} for one in patterns}
    for pattern, names in found.items():
        if not names:
            known = (
                difflib.get_close_matches(pattern, trained, MOST_NAMES, 0) or trained[:MOST_NAMES]
            )
            raise ModelError(
                f"`{SIZE}` has `{pattern}`, which is of no trained parameter of the model",
                hint=f"there are {', '.join(f'`{name}`' for name in known)} and others",
            )
    every = frozenset[str]().union(*found.values())
    if len(every) == len(trained):
        raise ModelError(
            f"`{SIZE}` leaves none of the {len(trained)} parameters to train",
            hint="name fewer of them",
        )
    return replace(definition, graph=without_training(definition.graph, every))


def _is_of(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
