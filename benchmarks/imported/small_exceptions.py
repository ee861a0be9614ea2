"""Classes and inputs of architectures that the rules of small configurations do not find."""

from collections.abc import Mapping
from typing import Any

import torch

_CODES = {"input_ids": ("int", 16, 8, 30), "labels": ("int", 4, 8, 4, 30)}
_HISTORY = {
    "past_values": (4, 19),
    "past_time_features": (4, 19, 2),
    "past_observed_mask": (4, 19),
    "future_values": (4, 6),
    "future_time_features": (4, 6, 2),
}
# Head and class, where another one than that of the auto classes is meant.
CLASSES: Mapping[str, tuple[str, str]] = {
    "bark": ("", "BarkSemanticModel"),
    "qwen2_5_omni": ("MULTIMODAL_LM", "Qwen2_5OmniThinkerForConditionalGeneration"),
    "qwen3_omni_moe": ("MULTIMODAL_LM", "Qwen3OmniMoeThinkerForConditionalGeneration"),
}
# Shapes of inputs by name.


def _marked(token: int, count: int) -> torch.Tensor:
    """Return texts with as many tokens of a kind in each of them."""
    text = torch.arange(5, 13).expand(4, 8)
    return torch.cat([text[:, :2], torch.full((4, count), token), text[:, 2:]], 1)


_FRAMES = {"input_features": (4, 16, 112), "input_features_mask": ("ones", 4, 16)}
_CODEC = {
    "input_features": (4, 8, 32),
    "input_values": (4, 1, 2560),
    "input_features_mask": ("ones", 4, 8),
}
_SPEECH = {
    "input_features": (4, 64, 32),
    "input_ids": _marked(98, 32),
    "labels": None,
    "input_features_mask": None,
}
INPUTS: Mapping[str, Mapping[str, Any]] = {
    "apertus1p5": {
        "pixel_values": (4, 3, 32, 32),
        "image_sizes": torch.tensor([[32, 32]] * 4),
        "input_values": None,
    },
    "csm": {
        "input_ids": ("int", 4, 8, 32, 30),
        "labels": None,
        "input_values": None,
    },
    "deepseek_ocr2": {"input_ids": _marked(98, 145), "labels": _marked(7, 145)},
    "fun_asr_nano_encoder": {
        "input_features": (4, 16, 112),
        "input_features_mask": ("ones", 4, 16),
    },
    "fun_asr_nano": {"input_features": (4, 16, 112), "input_features_mask": ("ones", 4, 16)},
    "gemma3n_audio": {
        "audio_mel": (4, 64, 32),
        "audio_mel_mask": torch.zeros(4, 64, dtype=torch.bool),
    },
    "granite_speech": _SPEECH,
    "granite_speech_plus": _SPEECH,
    "inkling2": {"pixel_values": (64, 16, 16, 3)},
    "inkling2_loop": {"pixel_values": (64, 16, 16, 3)},
    "inkling2_vision": {"pixel_values": (64, 16, 16, 3)},
    "inkling_mm_model": {"pixel_values": (4, 2, 8, 8, 3), "audio_input_ids": None},
    "muse_spark_audio": {"input_values": (4, 1920)},
    "nemotron_h_omni": {
        "pixel_values": (64, 3, 8, 8),
        "image_grid_hw": torch.tensor([[4, 4]] * 4),
    },
    "omniasr_ctc": {"input_values": (4, 1, 3200), "padding_mask": ("ones", 4, 3200)},
    "pp_ocrv5_mobile_rec": {"pixel_values": (4, 3, 96, 64)},
    "pp_ocrv5_server_rec": {"pixel_values": (4, 3, 48, 64)},
    "qwen2_audio": {
        "input_features": (4, 16, 256),
        "feature_attention_mask": ("ones", 4, 256),
        "attention_mask": ("ones", 4, 72),
        "input_ids": _marked(98, 64),
        "labels": _marked(7, 64),
    },
    "univnet": {"input_features": (4, 16, 16), "noise_sequence": (4, 16, 32)},
    "vibevoice": {"input_values": (4, 1, 64), "padding_mask": ("ones", 4, 64)},
    "video_llama_3": {"image_merge_sizes": ("ones", 4), "pixel_values": (64, 192)},
    "video_llama_3_vision": {"merge_sizes": ("ones", 4), "pixel_values": (64, 192)},
    "dia": {"labels": ("int", 36, 8, 60), "decoder_input_ids": ("int", 4, 8, 9, 60)},
    "kyutai_speech_to_text": {"input_ids": ("int", 4, 8, 5, 60)},
    "mimi_decoder": {"latents": (4, 32, 8)},
    "muse_glimmer_assistant": {
        "noise_embeds": (4, 16, 32),
        "context_hidden_states": (4, 4, 64),
        "attention_mask": ("ones", 4, 20),
    },
    "oneformer": {"task_inputs": (4, 77)},
    "pocket_tts_audio_tokenizer_decoder": {"latents": (4, 32, 8)},
    "seggpt": {
        "pixel_values": (4, 3, 32, 32),
        "prompt_pixel_values": (4, 3, 32, 32),
        "prompt_masks": (4, 3, 32, 32),
    },
    "tvp": {"pixel_values": (1, 4, 3, 64, 64), "input_ids": ("int", 1, 8, 60)},
    "audio-spectrogram-transformer": {"input_values": (4, 64, 16)},
    "musicgen_decoder": _CODES,
    "musicgen": _CODES,
    "musicgen_melody_decoder": _CODES,
    "musicgen_melody": _CODES,
    "granite_docling": {
        "pixel_values": (4, 2, 3, 32, 32),
        "pixel_attention_mask": torch.ones(4, 2, dtype=torch.bool),
    },
    "longt5": {"attention_mask": ("ones", 4, 8)},
    "lxmert": {"visual_feats": (4, 6, 32), "visual_pos": (4, 6, 4)},
    "embedding_gemma2": {"pixel_values": None, "input_features": None},
    "kosmos-2": {
        "pixel_values": (4, 3, 32, 32),
        "image_embeds_position_mask": torch.tensor([[0] * 2 + [1] * 32 + [0] * 6] * 4),
        "input_ids": ("int", 4, 40, 60),
        "labels": ("int", 4, 40, 60),
    },
    "moonshine": {"input_values": (4, 3200)},
    "perceiver": {
        "inputs": ("int", 4, 128, 60),
        "labels": ("int", 4, 128, 60),
        "input_ids": None,
    },
    "clap": {"input_features": (4, 1, 128, 32)},
    "muse_spark": {"input_values": None},
    "neucodec": _CODEC,
    "pp_doclayout_v2": {"pixel_values": (4, 3, 64, 64)},
    "qwen3_asr": {"input_features": (4, 16, 100), "input_features_mask": ("ones", 4, 100)},
    "qwen3_asr_encoder": {"input_features": (4, 16, 100), "input_features_mask": ("ones", 4, 100)},
    "xcodec2": _CODEC,
    "pi0": {
        "pixel_values": (4, 1, 3, 32, 32),
        "pixel_attention_mask": torch.ones(4, 1, dtype=torch.bool),
        "input_ids": _marked(98, 16),
        "attention_mask": ("ones", 4, 24),
        "actions": (4, 4, 32),
        "state": (4, 32),
        "noise": (4, 4, 32),
        "timestep": (4,),
    },
    "pix2struct": {"flattened_patches": torch.rand(4, 16, 34)},
    "speech-encoder-decoder": {"inputs": (4, 800)},
    "pop2piano": {"input_ids": None, "input_features": (4, 8, 32)},
    "timesfm": {
        "past_values": (4, 64),
        "past_values_padding": ("int", 4, 64, 1),
        "freq": ("int", 4, 1, 2),
    },
    "vibevoice_acoustic_tokenizer_encoder": {"hidden_states": (4, 1, 64)},
    "vit_mae": {"noise": (4, 16)},
    "vitmatte": {"pixel_values": (4, 4, 32, 32)},
    "switch_transformers": {"attention_mask": ("ones", 4, 8)},
    "autoformer": _HISTORY,
    "informer": _HISTORY,
    "time_series_transformer": _HISTORY,
    "decision_transformer": {
        "states": (4, 6, 17),
        "actions": (4, 6, 4),
        "rewards": (4, 6, 1),
        "returns_to_go": (4, 6, 1),
        "timesteps": ("int", 4, 6, 20),
    },
}
