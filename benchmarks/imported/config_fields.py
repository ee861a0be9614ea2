"""Changes every field of the configurations of transformers, and looks for one that is ignored.

    OMP_NUM_THREADS=1 python benchmarks/imported/config_fields.py

For each architecture that the zoo's decoder has, a small configuration is changed in one field. If
the decoder that is read from it is the same, the module of transformers with the changed
configuration has to make the same scores of the same weights. Writes `config_fields.md`. Needs
`torch` and `transformers`.
"""

import dataclasses
import json
import logging
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers
from documents import put_rows

from shardwright.frontends import configs
from shardwright.ir.errors import ModelError

HERE = Path(__file__)
sys.path.append(str(HERE.parents[2]))
from tests.frontends.configs.test_decoders import CASES, SMALL  # noqa: E402

_HEAD = """| architecture | changes | used | refused | no effect | refused there | ignored |
|---|---|---|---|---|---|---|"""
# Names of what generates or stores, and what every module reads in another way than by a number.
_LEFT = {
    *("pad_token_id", "bos_token_id", "eos_token_id", "use_cache", "return_dict", "dtype"),
    *("output_hidden_states", "output_attentions", "id2label", "label2id", "problem_type"),
    *("architectures", "is_encoder_decoder", "transformers_version", "initializer_range"),
    *("vocab_size", "chunk_size_feed_forward", "chunk_size"),
}
_ACTIVATIONS = ("silu", "gelu", "relu2", "gelu_pytorch_tanh", "gelu_new")


def changed(value: Any) -> list[Any]:
    """Return other values of a field."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value * 2, 0]
    if isinstance(value, float):
        return [value * 1.5 + 0.1, 0.0]
    if isinstance(value, str):
        return [one for one in _ACTIVATIONS if value in _ACTIVATIONS and one != value]
    if isinstance(value, dict):
        return [{**value, name: one} for name in value for one in changed(value[name])]
    return [1, 2, 3, True, 0.5] if value is None else []


def module_of(config: Any) -> Any:
    """Return a module with random weights."""
    config._attn_implementation = config._experts_implementation = "eager"
    torch.manual_seed(0)
    module = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return module


def scores(module: Any) -> Any:
    """Return the scores of some tokens."""
    tokens = torch.arange(14).reshape(2, 7) * 3 % 45 + 3
    with torch.no_grad():
        return module(input_ids=tokens, use_cache=False).logits


def read(kind: str, config: Any) -> Any:
    """Return the decoder of a configuration."""
    fields = {**json.loads(config.to_json_string(use_diff=True)), "model_type": kind}
    return configs.read_fields(kind, fields, {}).architecture


def outcome(config: Any, kind: str, before: Any, state: Any, right: Any) -> str:
    """Return what becomes of a changed configuration."""
    try:
        if read(kind, config) != before:
            return "used"
    except ModelError:
        return "refused"
    try:
        module = module_of(config)
    except Exception:  # whatever a constructor raises for its fields
        return "refused there"
    try:
        module.load_state_dict(state, strict=True)
        found = scores(module)
    except RuntimeError:  # weights of other shapes
        return "ignored"
    same = found.shape == right.shape and torch.allclose(found, right, atol=1e-6)
    return "no effect" if same else "ignored"


def count(name: str, own: dict[str, Any]) -> tuple[str, Counter[str]]:
    """Return the type of an architecture, and what became of the changes of its fields."""
    kind = getattr(transformers, f"{name}Config")
    base = kind(**{**SMALL, **own})
    before, module = read(kind.model_type, base), module_of(base)
    state, right = module.state_dict(), scores(module)
    counts: Counter[str] = Counter()
    for field in sorted({one.name for one in dataclasses.fields(kind)} - _LEFT):
        for value in changed(getattr(base, field, None)):
            try:
                config = kind(**{**SMALL, **own, field: value})
            except Exception:  # whatever a constructor raises for its fields
                counts["refused there"] += 1
                continue
            found = outcome(config, kind.model_type, before, state, right)
            counts[found] += 1
            if found == "ignored":
                print(f"{kind.model_type}: {field}={value} is ignored", flush=True)
    return kind.model_type, counts


def main() -> None:
    """Change all fields of all architectures, and write the page."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    rows, order = [], []
    for name, own in _first_cases().items():
        kind, counts = count(name, own)
        columns = ("used", "refused", "no effect", "refused there", "ignored")
        numbers = [str(sum(counts.values())), *(str(counts[column]) for column in columns)]
        rows.append(f"| {kind} | {' | '.join(numbers)} |")
        order.append((kind,))
        print(rows[-1], flush=True)
    put_rows(HERE.with_suffix(".md"), _HEAD, rows, order)


def _first_cases() -> dict[str, dict[str, Any]]:
    """Return one small configuration for each class."""
    found: dict[str, dict[str, Any]] = {}
    for name, own in CASES.values():
        found.setdefault(name, own)
    return found


if __name__ == "__main__":
    main()
