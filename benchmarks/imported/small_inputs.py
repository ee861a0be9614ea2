"""Inputs of the architectures of transformers, by the names of the arguments of `forward`.

Where a name leaves several shapes open, candidates are tried in order until the module runs; what
the module says of one that it does not run on, corrects it, or names an argument that it needs.
"""

import inspect
import re
import traceback
from collections.abc import Iterator, Mapping
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
from small_configs import VOCABULARY
from torch import nn
from transformers import PretrainedConfig

BATCH, LENGTH = 4, 8
_MOST_CANDIDATES, _MOST_CORRECTIONS, _MOST_ROUNDS = 48, 4, 3
_FIRST, _LAST = 5, 60  # of ordinary tokens
# Lengths of sounds: of spectrograms, and of waves, for labels and without.
_FRAMES, _WAVE, _LABELLED_WAVE = 64, 800, 3200
Inputs = dict[str, torch.Tensor]
# Words in the names of heads that are trained with labels.
_LABELLED = ("LM", "CLASSIFICATION", "TEXT_TO_TEXT", "SEQ", "CTC")
_DEPTHS = ("temporal_patch_size", "patch_temporal")
_MELS = (
    "feature_projection_input_dim",
    "num_mel_bins",
    "feature_size",
    "n_mels",
    "input_feat_per_channel",
)
# What is taken even where `forward` has a default for it.
_WANTED = (
    "input_ids",
    "pixel_values",
    "input_features",
    "input_features_mask",
    "input_values",
    "pixel_values_videos",
    "image_grid_thw",
    "grid_thw",
    "bbox",
    "image_sizes",
    "spatial_shapes",
    "pixel_attention_mask",
    "past_values",
    "states",
    "actions",
    "rewards",
    "returns_to_go",
    "timesteps",
)


def found_inputs(module: nn.Module, head: str, extra: Mapping[str, Any]) -> Inputs:
    """Return the first inputs that a module runs on.

    Parameters
    ----------
    module : Module
        The module.
    head : str
        What it is trained for, as the name of the mapping of its class says.
    extra : mapping of str to shape
        Shapes of inputs that no rule knows: floating-point numbers, or integers below the last
        element where the shape starts with ``"int"``, or ones after ``"ones"``; None for an input
        that is left out.
    """
    names = _names(module, head, extra)
    errors: list[Exception] = []
    for _ in range(_MOST_ROUNDS):
        met: list[Exception] = []
        for made in _candidates(module, names, head, extra):
            inputs: Inputs | None = made
            for _ in range(_MOST_CORRECTIONS):
                try:
                    with torch.no_grad():
                        module(**inputs)
                except Exception as error:
                    met.append(error)
                    inputs = _corrected(inputs, module, str(error))
                    if inputs is None:
                        break
                else:
                    return inputs
        errors += met
        asked = [n for error in met for n in _asked_for(error, module) if n not in names]
        if not asked:
            break
        names += dict.fromkeys(asked)
    raise max(errors, key=_depth, default=LookupError("no inputs"))


def _depth(error: Exception) -> int:
    """Return how deep in the module an error was raised: the likeliest inputs come furthest."""
    return len(traceback.extract_tb(error.__traceback__))


def _asked_for(error: Exception, module: nn.Module) -> list[str]:
    """Return the arguments that were left out and are in the message or the line of an error."""
    if not re.search(r"None|must be|should be|need|specif|missing|provide", str(error)):
        return []
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{error} {frame.line}"
    if "torch" in Path(frame.filename).parts:
        text = str(error)
    words = set(re.findall(r"\w+", text))
    named = inspect.signature(module.forward).parameters
    never = {"kwargs", "cache", "past_key_values", "inputs_embeds", "return_dict", "use_cache"}
    return [n for n in named if n in words - never and not n.startswith("output_")]


def _names(module: nn.Module, head: str, extra: Mapping[str, Any]) -> list[str]:
    """Return the arguments that are given first."""
    signature = inspect.signature(module.forward)
    named = {n: p for n, p in signature.parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD}
    needed = [n for n, p in named.items() if p.default is p.empty]
    main = module.main_input_name if isinstance(module.main_input_name, str) else ""
    names = [n for n in named if n in needed or n in _WANTED or n == main or n in extra]
    if "pixel_values" in names and "pixel_values_videos" not in (*needed, main, *extra):
        names = [n for n in names if n != "pixel_values_videos"]
    is_labelled = any(word in head for word in _LABELLED)
    if "labels" in named and is_labelled and "labels" not in names:
        names.append("labels")
    elif "decoder_input_ids" in named and "decoder_input_ids" not in names:
        names.append("decoder_input_ids")
    return names


def _candidates(
    module: nn.Module, names: list[str], head: str, extra: Mapping[str, Any]
) -> Iterator[Inputs]:
    """Yield inputs that a module may take, the likeliest first."""
    options = [list(_options(name, names, module.config, head, extra)) for name in names]
    for chosen in islice(product(*options), _MOST_CANDIDATES):
        pairs = zip(names, chosen, strict=True)
        yield {name: item for name, item in pairs if item is not None}
    if head == "CAUSAL_LM" and "input_ids" in names and "labels" in names:
        yield {"input_ids": tokens(BATCH, LENGTH), "labels": tokens(BATCH, LENGTH)}


def tokens(*shape: int) -> torch.Tensor:
    """Return random ordinary tokens."""
    return torch.randint(_FIRST, _LAST, shape)


def _options(
    name: str, names: list[str], config: PretrainedConfig, head: str, extra: Mapping[str, Any]
) -> Iterator[torch.Tensor | None]:
    """Yield what an argument may be."""
    if name in extra:
        yield _given(extra[name])
    elif name in ("input_ids", "decoder_input_ids"):
        yield tokens(BATCH, LENGTH)
    elif name == "labels":
        yield from _label_options(config, head)
    elif "pixel_values" in name:
        yield from _images(name, config)
    elif name in ("image_grid_thw", "grid_thw", "video_grid_thw"):
        yield torch.tensor([[1, 4, 4]] * BATCH)
    elif name in ("spatial_shapes", "target_sizes"):
        yield torch.tensor([[4, 4]] * BATCH)
    elif name == "bbox":
        yield torch.tensor([1, 2, 8, 9]).expand(BATCH, LENGTH, 4).clone()
    elif name == "image_sizes":
        yield None
        yield torch.tensor([_image_sides(config)] * BATCH)
    elif name == "pixel_attention_mask":
        yield None
        yield torch.ones(BATCH, 16, dtype=torch.int64)
    elif name == "image_attention_mask":
        yield torch.ones(BATCH, LENGTH, 1, dtype=torch.int64)
    elif "position_ids" in name and "pixel" in name:
        places = torch.arange(4)
        yield torch.cartesian_prod(places, places).expand(BATCH, 16, 2).clone()
    else:
        yield from _sounds_and_states(name, names, config, head)


def _sounds_and_states(
    name: str, names: list[str], config: PretrainedConfig, head: str
) -> Iterator[torch.Tensor | None]:
    """Yield what an argument may be that is neither text nor an image."""
    mel = int(_found(config, *_MELS) or 16)
    width = int(_found(config, "hidden_size", "d_model") or 32)
    if name in ("input_features", "audio_features"):
        if longest := _found(config, "max_source_positions", "n_ctx"):
            yield torch.randn(BATCH, mel, 2 * int(longest))
        yield torch.randn(BATCH, mel, _FRAMES)
        yield torch.randn(BATCH, _FRAMES, mel)
        yield torch.randn(BATCH, 1, _FRAMES, mel)
    elif name in ("input_features_mask", "feature_attention_mask", "audio_mel_mask"):
        if longest := _found(config, "max_source_positions", "n_ctx"):
            yield torch.ones(BATCH, 2 * int(longest), dtype=torch.int64)
        yield torch.ones(BATCH, _FRAMES, dtype=torch.int64)
    elif name in ("input_values", "padding_mask") and "pixel_values" not in names:
        length = _LABELLED_WAVE if head == "CTC" else _WAVE
        mask = (lambda *shape: torch.ones(shape, dtype=torch.bool)) if "mask" in name else None
        made = mask or torch.randn
        yield made(BATCH, length)
        yield made(BATCH, 1, length)
        yield made(BATCH, 1, _LABELLED_WAVE)
        yield made(BATCH, _FRAMES, 16)
    elif name == "hidden_states" and "grid_thw" in names:
        yield _patches(config)
    elif name in ("hidden_states", "query_embeds", "inputs_embeds", "encoder_hidden_states"):
        if name == "encoder_hidden_states":
            width = int(_found(config, "encoder_hidden_size", "cross_attention_dim") or width)
        yield torch.randn(BATCH, LENGTH, width)
        yield torch.randn(BATCH, width, LENGTH)
    elif name == "attention_mask" and not {"input_ids", "decoder_input_ids"} & {*names}:
        for length in (LENGTH, _FRAMES, 16, _WAVE, _LABELLED_WAVE):
            yield torch.ones(BATCH, length, dtype=torch.int64)
    elif name == "image_merge_sizes":
        yield torch.ones(BATCH, dtype=torch.int64)
    elif name == "past_values":
        length = int(_found(config, "context_length") or 16)
        yield torch.rand(BATCH, length) + 1
        yield torch.rand(BATCH, length, int(_found(config, "num_input_channels") or 1)) + 1
    else:
        yield torch.ones(BATCH, LENGTH, dtype=torch.int64)
        yield torch.randn(BATCH, LENGTH)


def _patches(config: PretrainedConfig) -> torch.Tensor:
    """Return patches of images, four by four of each, as rows."""
    channels = int(_found(config, "num_channels", "in_channels", "in_chans") or 3)
    patch = _first(_found(config, "patch_size") or 4)
    depth = int(_found(config, *_DEPTHS) or 1)
    return torch.randn(BATCH * 16, channels * depth * patch * patch)


def _given(shape: Any) -> torch.Tensor | None:
    if shape is None:
        return None
    if isinstance(shape, torch.Tensor):
        return shape.clone()
    if shape[0] == "ones":
        return torch.ones(shape[1:], dtype=torch.int64)
    if shape[0] == "int":
        return torch.randint(0, shape[-1], tuple(shape[1:-1]))
    return torch.randn(shape)


def _label_options(config: PretrainedConfig, head: str) -> Iterator[torch.Tensor]:
    if "TOKEN_CLASS" in head:
        yield torch.randint(0, 2, (BATCH, LENGTH))
    elif "CLASSIFICATION" in head:
        yield torch.randint(0, 2, (BATCH,))
    elif head == "CTC":
        yield torch.randint(1, 20, (BATCH, 3))
    else:
        yield tokens(BATCH, LENGTH)


def _image_sides(config: PretrainedConfig) -> tuple[int, int]:
    side = _found(config, "image_size", "pretrain_image_size", "input_size") or 32
    return (side[0], side[-1]) if isinstance(side, (list, tuple)) else (int(side), int(side))


def _first(size: Any) -> int:
    return int(size[0] if isinstance(size, (list, tuple)) else size)


def _images(name: str, config: PretrainedConfig) -> Iterator[torch.Tensor]:
    sides = _image_sides(config)
    channels = int(_found(config, "num_channels", "in_channels", "in_chans") or 3)
    frames = int(_found(config, "num_frames", "frames_per_clip") or 2)
    flat = _patches(config)
    if hasattr(_vision(config), "spatial_merge_size") or _found(config, *_DEPTHS):
        yield flat
    videos = torch.randn(BATCH, frames, channels, *sides)
    if name == "pixel_values_videos":
        yield videos
    yield torch.randn(BATCH, channels, *sides)
    if name == "pixel_values":
        yield videos
    yield torch.randn(BATCH, 1, channels, *sides)
    yield torch.randn(BATCH, 2, channels, *sides)
    yield flat.reshape(BATCH, 16, -1)
    yield flat
    yield torch.randn(BATCH, 3, 64, 64)
    patch = _first(_found(config, "patch_size") or 4)
    if flat.shape[1] == channels * patch * patch:
        yield flat.reshape(-1, channels, patch, patch)
        yield flat.reshape(1, -1, channels, patch, patch)


def _vision(config: PretrainedConfig) -> PretrainedConfig:
    return getattr(config, "vision_config", None) or config


def _found(config: PretrainedConfig, *names: str) -> Any:
    """Return a field of a configuration, or of those inside of it."""
    inner = [v for k, v in vars(config).items() if isinstance(v, PretrainedConfig)]
    inner = [v for v in inner if v is not getattr(config, "text_config", None)]
    for one in (_vision(config), config, *inner):
        for name in names:
            value = getattr(one, name, None)
            if isinstance(value, (int, list, tuple)) and not isinstance(value, bool) and value:
                return value
    for one in inner:
        if (value := _found(one, *names)) is not None:
            return value
    return None


# Numbers in messages about tokens that stand for images.
_COUNTS = re.compile(
    r"tokens: ?(?P<tokens>\d+).*?features:? ?(?:torch\.Size\(\[)?(?P<features>\d+)"
    r"|Got (?P<patches>\d+) (?:image patches|feature vectors) for (?P<places>\d+)"
)


def _corrected(made: Inputs, module: nn.Module, message: str) -> Inputs | None:
    """Return inputs with as many tokens for features as a message asks for.

    Parameters
    ----------
    made : dict
        The inputs.
    module : Module
        The module; its configuration names the token.
    message : str
        What the module said.
    """
    found = _COUNTS.search(message.replace("\n", " "))
    token = _token(module.config, message)
    if found is None or token is None or "input_ids" not in made:
        return None
    before = int(found["tokens"] or found["places"])
    count = int(found["features"] or found["patches"])
    if before == count or count > 100 * BATCH:  # the message counts elements
        count //= module.get_input_embeddings().weight.shape[-1]
    if count % BATCH or not count:
        return None
    text = tokens(BATCH, LENGTH)
    text[text == token] = _FIRST if token != _FIRST else _LAST
    marks = torch.full((BATCH, count // BATCH), token)
    ids = torch.cat([text[:, :2], marks, text[:, 2:]], 1)
    made = {**made, "input_ids": ids}
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in inspect.signature(module.forward).parameters:
            made[name] = (ids == token).long()
    if "labels" in made and made["labels"].dim() == 2:
        made["labels"] = tokens(*ids.shape)
    return made


def _token(config: PretrainedConfig, message: str) -> int | None:
    kind = next((k for k in ("video", "audio", "image") if k in message.lower()), "image")
    for name in (f"{kind}_token_id", f"{kind}_token_index"):
        for one in (config, *(v for v in vars(config).values() if isinstance(v, PretrainedConfig))):
            value = getattr(one, name, None)
            if isinstance(value, int) and 0 <= value < VOCABULARY:
                return value
    return None
