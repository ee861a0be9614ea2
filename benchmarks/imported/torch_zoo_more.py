"""More small modules with random weights, for `torch_models.py`: other heads, losses, operators."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torchvision
import transformers
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch_zoo import (
    BATCH,
    GROUPED,
    HEADS,
    LENGTH,
    VOCABULARY,
    WIDE,
    Made,
    Output,
    decoder,
    image_classifier,
    random_tokens,
    small_config,
    vision_network,
)

MIXED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "head_dim": 4,
}


def _labelled(kind: str, auto: str, head: str, **options: Any) -> Callable[[], Made]:
    """Return what makes an encoder with a head; the attention mask leaves out the last tokens."""

    def make() -> Made:
        made = small_config(kind, **{"max_position_embeddings": 64, **options})
        network = getattr(transformers, auto).from_config(made)
        mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
        mask[1, -2:] = 0
        inputs = {"input_ids": random_tokens(), "attention_mask": mask}
        if head == "span":
            inputs |= {f"{end}_positions": torch.randint(0, LENGTH, (BATCH,)) for end in _ENDS}
        else:
            shape = (BATCH,) if head == "sequence" else (BATCH, LENGTH)
            inputs["labels"] = torch.randint(0, 2, shape) if head != "words" else random_tokens()
        return network.eval(), inputs

    return make


_ENDS = ("start", "end")


def _sequence(kind: str, **options: Any) -> Callable[[], Made]:
    return _labelled(kind, "AutoModelForSequenceClassification", "sequence", **options)


def _translation(kind: str, **options: Any) -> Callable[[], Made]:
    sizes = {
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 4,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "max_position_embeddings": 16,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 0,
    }

    def make() -> Made:
        made = transformers.AutoConfig.for_model(kind, **{**sizes, **options})
        made.use_cache = False
        network = transformers.AutoModelForSeq2SeqLM.from_config(made)
        inputs = {"input_ids": random_tokens(), "labels": random_tokens(6)}
        return network.eval(), {**inputs, "attention_mask": torch.ones_like(inputs["input_ids"])}

    return make


def _pairs(kind: str, text: Mapping[str, Any], vision: Mapping[str, Any]) -> Callable[[], Made]:
    shared = {"hidden_size": 32, "num_hidden_layers": 2, **HEADS, **WIDE}

    def make() -> Made:
        made = transformers.AutoConfig.for_model(
            kind,
            text_config={**shared, "vocab_size": VOCABULARY, "max_position_embeddings": 16, **text},
            vision_config={**shared, "image_size": 16, "patch_size": 4, **vision},
        )
        network = transformers.AutoModel.from_config(made)
        inputs = {"input_ids": random_tokens(), "pixel_values": torch.randn(BATCH, 3, 16, 16)}
        return network.eval(), inputs

    return make


def _network(
    kind: str, auto: str, inputs: Callable[[], dict[str, torch.Tensor]], **options: Any
) -> Callable[[], Made]:
    """Return what makes a network of the class `auto` with its inputs."""

    def make() -> Made:
        made = transformers.AutoConfig.for_model(kind, **options)
        made.use_cache = False
        return getattr(transformers, auto)._from_config(made).eval(), inputs()

    return make


def _history() -> dict[str, torch.Tensor]:
    past, future = (BATCH, 19), (BATCH, 6)
    return {
        "past_values": torch.rand(past) + 1,
        "past_time_features": torch.randn(*past, 2),
        "past_observed_mask": torch.ones(past),
        "future_values": torch.rand(future) + 1,
        "future_time_features": torch.randn(*future, 2),
    }


def _words() -> dict[str, torch.Tensor]:
    return {"input_ids": random_tokens(), "labels": random_tokens(6)}


def _sound() -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(BATCH, 400), "labels": torch.randint(0, 5, (BATCH,))}


def _deit() -> Made:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "image_size": 16, "patch_size": 4}
    made = transformers.DeiTConfig(**sizes, **HEADS, **WIDE, num_labels=5)
    inputs = {"pixel_values": torch.randn(BATCH, 3, 16, 16), "labels": torch.arange(BATCH)}
    return transformers.DeiTForImageClassification(made).eval(), inputs


def _swin(**options: Any) -> Callable[[], Made]:
    def make() -> Made:
        sizes = ([4, 4], 24, [2, 2], [2, 4], [4, 4])
        network = torchvision.models.SwinTransformer(*sizes, num_classes=5, **options)
        return network.eval(), {"x": torch.randn(BATCH, 3, 64, 64)}

    return make


def _segmentation(name: str) -> Callable[[], Made]:
    def make() -> Made:
        network = getattr(torchvision.models.segmentation, name)
        made = network(weights=None, weights_backbone=None, num_classes=5)
        return Output(made).eval(), {"x": torch.randn(BATCH, 3, 64, 64)}

    return make


class GraphAttention(nn.Module):
    """Attention along edges: a softmax over those that enter a vertex."""

    def __init__(self) -> None:
        super().__init__()
        self.values, self.score = nn.Linear(4, 8), nn.Linear(16, 1)
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Return scores of every vertex."""
        source, target = edges.unbind(1)
        h = self.values(x)
        score = F.leaky_relu(self.score(torch.cat([h[source], h[target]], 1)))[:, 0]
        lowest = score.new_full((x.shape[0],), -1e9)
        peak = lowest.scatter_reduce(0, target, score.detach(), "amax")
        weight = (score - peak[target]).exp()
        total = weight.new_zeros(x.shape[0]).scatter_add(0, target, weight)
        share = (weight / total[target])[:, None]
        return self.out(h.new_zeros(h.shape).index_add(0, target, share * h[source]))


class FourierOperator(nn.Module):
    """A layer of a Fourier neural operator: weights of the lowest frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Conv1d(2, 8, 1), nn.Conv1d(8, 1, 1)
        self.real, self.imaginary = (nn.Parameter(torch.randn(8, 5) / 8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a signal."""
        h = self.up(x)
        modes = torch.fft.rfft(h, norm="ortho")[..., :5]
        turned = modes * torch.complex(self.real, self.imaginary)
        mixed = torch.fft.irfft(turned, n=x.shape[-1], norm="ortho")
        return self.down(F.gelu(mixed + h))


class SpatialTransformer(nn.Module):
    """A network that turns its images before it looks at them."""

    def __init__(self) -> None:
        super().__init__()
        self.where = nn.Linear(3 * 64, 6)
        self.look = nn.Conv2d(3, 8, 3)
        self.out = nn.Linear(8 * 4 * 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of classes."""
        turns = self.where(F.adaptive_max_pool2d(x, 8).flatten(1)).view(-1, 2, 3)
        grid = F.affine_grid(turns, list(x.shape), align_corners=False)
        turned = F.grid_sample(x, grid, align_corners=False)
        return self.out(F.adaptive_avg_pool2d(F.relu(self.look(turned)), 4).flatten(1))


class Translator(nn.Module):
    """A bidirectional LSTM with a projection, a GRU, and attention between them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 16, padding_idx=0)
        self.read = nn.LSTM(16, 12, bidirectional=True, proj_size=8, batch_first=True)
        self.write = nn.GRU(16, 16, batch_first=True)
        self.look = nn.MultiheadAttention(16, 2, batch_first=True)
        self.out = nn.Linear(16, VOCABULARY)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss, with smoothed labels; padding does not count."""
        memory = self.read(self.table(source))[0]
        h = self.write(self.table(target))[0]
        h = h + self.look(h, memory, memory, key_padding_mask=source == 0)[0]
        scores = self.out(h).transpose(1, 2)
        return F.cross_entropy(scores, target.roll(-1, 1), ignore_index=0, label_smoothing=0.1)


MODELS: Mapping[str, Callable[[], Made]] = {
    "gpt_neo": decoder("gpt_neo", attention_types=[[["global", "local"], 1]], window_size=4),
    "gptj": decoder("gptj", n_inner=64, rotary_dim=4),
    "codegen": decoder("codegen", n_inner=64, rotary_dim=4),
    "mpt": decoder("mpt"),
    "olmo": decoder("olmo", **GROUPED),
    "cohere": decoder("cohere", **GROUPED),
    "cohere2": decoder("cohere2", **GROUPED, sliding_window=4),
    "granite": decoder("granite", **GROUPED),
    "starcoder2": decoder("starcoder2", **GROUPED),
    "nemotron": decoder("nemotron", **GROUPED, head_dim=8),
    "glm": decoder("glm", **GROUPED, head_dim=8, pad_token_id=0),
    "glm4": decoder("glm4", **GROUPED, head_dim=8, pad_token_id=0),
    "smollm3": decoder("smollm3", **GROUPED, pad_token_id=0),
    "olmoe": decoder("olmoe", "eager", **GROUPED, num_experts=4, num_experts_per_tok=2),
    "qwen2_moe": decoder("qwen2_moe", "eager", **GROUPED, **MIXED),
    "phimoe": decoder("phimoe", "eager", **GROUPED, num_local_experts=4, num_experts_per_tok=2),
    "deepseek_v3": decoder(
        "deepseek_v3",
        "eager",
        **LATENT,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
    ),
    "gpt_oss": decoder(
        "gpt_oss",
        "eager",
        **GROUPED,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=4,
        pad_token_id=0,
    ),
    "qwen3_next": decoder(
        "qwen3_next",
        "eager",
        **GROUPED,
        **MIXED,
        head_dim=8,
        shared_expert_intermediate_size=16,
        layer_types=["linear_attention", "full_attention"],
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        pad_token_id=0,
    ),
    "rwkv": decoder("rwkv", attention_hidden_size=32),
    "recurrent_gemma": decoder("recurrent_gemma", num_key_value_heads=1, lru_width=32),
    "mamba2": decoder("mamba2", num_heads=8, head_dim=8, n_groups=1, state_size=4, chunk_size=4),
    "mpnet": _labelled("mpnet", "AutoModelForQuestionAnswering", "span"),
    "xlm_roberta": _labelled("xlm-roberta", "AutoModelForTokenClassification", "tokens"),
    "modernbert": _labelled("modernbert", "AutoModelForMaskedLM", "words", pad_token_id=0),
    "big_bird": _sequence("big_bird", attention_type="original_full"),
    "fnet": _sequence("fnet"),
    "convbert": _sequence("convbert", embedding_size=16),
    "roformer": _sequence("roformer", embedding_size=16),
    "layoutlm": _labelled("layoutlm", "AutoModelForTokenClassification", "tokens"),
    "mt5": _translation("mt5"),
    "longt5": _translation("longt5", local_radius=3),
    "marian": _translation("marian"),
    "m2m_100": _translation("m2m_100"),
    "prophetnet": _network(
        "prophetnet",
        "ProphetNetForConditionalGeneration",
        _words,
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_encoder_attention_heads=4,
        num_decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=32,
        pad_token_id=0,
        decoder_start_token_id=0,
    ),
    "time_series": _network(
        "time_series_transformer",
        "TimeSeriesTransformerForPrediction",
        _history,
        prediction_length=6,
        context_length=12,
        num_time_features=2,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        lags_sequence=[1, 2, 7],
    ),
    "wav2vec2": _network(
        "wav2vec2",
        "Wav2Vec2ForSequenceClassification",
        _sound,
        hidden_size=32,
        num_hidden_layers=2,
        **HEADS,
        **WIDE,
        conv_dim=[16, 16],
        conv_stride=[5, 2],
        conv_kernel=[10, 3],
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4,
        classifier_proj_size=16,
        num_labels=5,
    ),
    "perceiver": _network(
        "perceiver",
        "PerceiverForMaskedLM",
        lambda: {"inputs": random_tokens(), "labels": random_tokens()},
        vocab_size=VOCABULARY,
        d_model=16,
        d_latents=32,
        num_latents=4,
        num_blocks=1,
        num_self_attends_per_block=2,
        num_self_attention_heads=4,
        num_cross_attention_heads=4,
        max_position_embeddings=LENGTH,
    ),
    "siglip": _pairs("siglip", {}, {}),
    "blip": _pairs("blip", {"projection_dim": 24}, {}),
    "deit": _deit,
    "beit": image_classifier(
        "beit", hidden_size=32, num_hidden_layers=2, image_size=16, patch_size=4, **HEADS, **WIDE
    ),
    "cvt": image_classifier("cvt", depth=[1, 2, 3]),
    "poolformer": image_classifier("poolformer", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1]),
    "swinv2": image_classifier(
        "swinv2",
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    "convnextv2": image_classifier("convnextv2", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1]),
    "focalnet": image_classifier(
        "focalnet",
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[1, 1],
        hidden_sizes=[16, 32],
        focal_levels=[2, 2],
        focal_windows=[3, 3],
    ),
    "alexnet": vision_network(torchvision.models.alexnet),
    "squeezenet": vision_network(torchvision.models.squeezenet1_1),
    "mnasnet": vision_network(torchvision.models.mnasnet0_5),
    "shufflenet_v2": vision_network(torchvision.models.shufflenet_v2_x0_5, training=True),
    "regnet_y": vision_network(torchvision.models.regnet_y_400mf),
    "swin_v1": _swin(),
    "lraspp": _segmentation("lraspp_mobilenet_v3_large"),
    "graph_attention": lambda: (
        GraphAttention(),
        {"x": torch.randn(32, 4), "edges": torch.randint(0, 32, (120, 2))},
    ),
    "fourier": lambda: (FourierOperator(), {"x": torch.randn(BATCH, 2, 20)}),
    "spatial": lambda: (SpatialTransformer(), {"x": torch.randn(BATCH, 3, 12, 12)}),
    "translator": lambda: (Translator(), {"source": random_tokens(), "target": random_tokens(6)}),
}
