"""Pipelines: tuples of passes, and their text form.

``canonicalize,differentiate{loss_scale=2}``: the names of passes, separated by commas; options in
braces, ``name=value``. A value is a Python literal; a text may stand without quotes where it looks
like a name or a path: ``lower_redistributions{cluster=h100-pod}``. `parse_pipeline` and
`pipeline_text` are inverse to each other.
"""

import ast
import re
from collections.abc import Iterator
from typing import Any

from shardwright.ir.errors import OptionError, PassError
from shardwright.ir.values import in_words, suggestion
from shardwright.passes.annotate import Annotate
from shardwright.passes.append_optimizer import AppendOptimizer
from shardwright.passes.apply_precision import ApplyPrecision, QuantizeProducts
from shardwright.passes.base import PASSES, Pass, options_of
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.chunk_loss import ChunkLoss
from shardwright.passes.clean_up import CleanUp, DelayStatistics
from shardwright.passes.differentiate import Differentiate
from shardwright.passes.expect_imbalance import ExpectImbalance
from shardwright.passes.fuse_all_reduces import FuseAllReduces
from shardwright.passes.fuse_gathers import FuseGathers
from shardwright.passes.group_statistics import GroupStatistics
from shardwright.passes.insert_mirrors import InsertMirrors
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.mirror_shared_values import MirrorSharedValues
from shardwright.passes.partition import Partition
from shardwright.passes.recompute import Recompute
from shardwright.passes.schedule_micro_batches import ScheduleMicroBatches

Pipeline = tuple[Pass, ...]
BUILT_IN: tuple[type[Pass], ...] = (
    ChunkLoss,
    ExpectImbalance,
    ApplyPrecision,
    QuantizeProducts,
    GroupStatistics,
    Canonicalize,
    Recompute,
    Annotate,
    Partition,
    InsertMirrors,
    MirrorSharedValues,
    Differentiate,
    ScheduleMicroBatches,
    LowerRedistributions,
    AppendOptimizer,
    CleanUp,
    DelayStatistics,
    FuseAllReduces,
    FuseGathers,
)
_BARE = re.compile(r"[\w./~-][\w./~:+-]*")  # a text that needs no quotes
_ITEM = re.compile(r"\s*([\w-]*)\s*(?:\{(.*)\})?\s*", re.DOTALL)
_CLOSING = {"(": ")", "[": "]", "{": "}"}


# Text of a pipeline


def pipeline_text(pipeline: Pipeline) -> str:
    """Return the text form of a pipeline.

    Examples
    --------
    >>> pipeline_text((Canonicalize(), Differentiate(loss_scale=2)))
    'canonicalize,differentiate{loss_scale=2}'
    """
    return ",".join(map(pass_text, pipeline))


def pass_text(work: Pass) -> str:
    """Return the text form of one pass; options that have their defaults are left out."""
    values = [(option, getattr(work, option.name)) for option in options_of(type(work))]
    options = [
        f"{option.name}={value_text(option.literal(value))}"
        for option, value in values
        if option.required or option.default != value
    ]
    return work.name + (f"{{{','.join(options)}}}" if options else "")


def value_text(value: object) -> str:
    """Return the text of the value of an option."""
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    if isinstance(value, str) and _BARE.fullmatch(value) and _value(value) == value:
        return value
    return repr(value)


# Parser


def parse_pipeline(text: str) -> Pipeline:
    """Return the pipeline that a text spells; the empty text spells no passes.

    Raises
    ------
    PassError
        If the text cannot be read, or names a pass or an option that there is not.
    OptionError
        If an option has a value that is not allowed.

    Examples
    --------
    >>> parse_pipeline("canonicalize, differentiate{loss_scale=2}")
    (Canonicalize(pins={}, result_pins={}), Differentiate(loss_scale=2.0))
    """
    if not text.strip():
        return ()
    return tuple(_parse_pass(item) for item in _split(text))


def _parse_pass(text: str) -> Pass:
    if not text.strip():
        hint = "separate the passes by single commas"
        raise PassError("a pass is missing next to a comma", "the text of a pipeline", hint)
    item = _ITEM.fullmatch(text)
    if item is None:
        hint = "a pass reads `name` or `name{option=value,...}`"
        raise PassError(f"`{text.strip()}` is not a pass", "the text of a pipeline", hint)
    name, options = item.groups()
    kind = PASSES[name]
    known = {option.name: option for option in options_of(kind)}
    values: dict[str, Any] = {}
    for key, value in _options(name, options or ""):
        if key not in known:
            hint = f"its options are {in_words(list(known))}" if known else "it has no options"
            near = suggestion(key, list(known))
            raise OptionError(f"pass `{name}` has no option `{key}`", hint=near or hint)
        if key in values:
            raise OptionError(f"the option `{key}` of pass `{name}` is set twice")
        values[key] = value
    for key, option in known.items():
        if option.required and key not in values:
            hint = f"write `{name}{{{key}=...}}`: {option.expected}"
            raise OptionError(f"pass `{name}` needs the option `{key}`", hint=hint)
    return kind(**values)


def _options(name: str, text: str) -> Iterator[tuple[str, object]]:
    for item in _split(text) if text.strip() else ():
        key, equals, value = item.partition("=")
        if not equals or not key.strip().isidentifier():
            hint = f"write `{name}{{option=value,...}}`"
            raise OptionError(f"`{item.strip()}` is not an option of pass `{name}`", hint=hint)
        if not value.strip():
            raise OptionError(f"the option `{key.strip()}` of pass `{name}` has no value")
        yield key.strip(), _value(value.strip())


def _value(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        if _BARE.fullmatch(text):
            return text
    hint = "write a number, a name, a text in quotes, or a mapping `{'name': value}`"
    raise OptionError(f"the value `{text}` cannot be read", "the text of a pipeline", hint)


def _split(text: str) -> list[str]:
    """Return the pieces of a text between the commas that no bracket or quote encloses."""
    pieces, start = [], 0
    closing: list[str] = []
    quote = ""
    for position, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote and text[position - 1] != "\\" else quote
        elif letter in "'\"":
            quote = letter
        elif letter in _CLOSING:
            closing.append(_CLOSING[letter])
        elif letter in _CLOSING.values():
            if not closing or closing.pop() != letter:
                raise PassError(f"`{letter}` closes nothing", f"`{text}`")
        elif letter == "," and not closing:
            pieces.append(text[start:position])
            start = position + 1
    if quote or closing:
        missing = quote or closing[-1]
        raise PassError(f"`{missing}` is missing at the end", f"`{text}`")
    return [*pieces, text[start:]]
