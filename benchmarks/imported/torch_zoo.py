"""Small modules with random weights, for `torch_models.py`: transformers, torchvision, our own."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torchvision
import transformers
from torch import nn
from torch.nn import functional as F  # noqa: N812

Made = tuple[nn.Module, dict[str, torch.Tensor]]
BATCH, LENGTH, VOCABULARY = 4, 8, 64
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4}
WIDE = {"intermediate_size": 64}
GROUPED = {"num_key_value_heads": 2}


def random_tokens(length: int = LENGTH) -> torch.Tensor:
    """Return random tokens of a batch."""
    return torch.randint(3, VOCABULARY, (BATCH, length))


def small_config(kind: str, **options: Any) -> Any:
    """Return a small configuration of an architecture."""
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **HEADS, **WIDE, **options})
    config.use_cache = False
    return config


def decoder(kind: str, experts: str | None = None, **options: Any) -> Callable[[], Made]:
    """Return what makes a language model with labels."""

    def make() -> Made:
        config = small_config(kind, **options)
        chosen = {"experts_implementation": experts} if experts else {}
        network = transformers.AutoModelForCausalLM.from_config(config, **chosen)
        return network.eval(), {"input_ids": random_tokens(), "labels": random_tokens()}

    return make


def encoder(kind: str, labelled: bool = True, **options: Any) -> Callable[[], Made]:
    """Return what makes a classifier of sequences."""

    def make() -> Made:
        config = small_config(kind, **{"max_position_embeddings": 16, **options})
        network = transformers.AutoModelForSequenceClassification.from_config(config)
        mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
        mask[1, -2:] = 0
        tokens = {"input_ids": random_tokens(), "attention_mask": mask}
        if labelled:
            tokens["labels"] = torch.randint(0, 2, (BATCH,))
        return network.eval(), tokens

    return make


def _t5() -> Made:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4
    )
    config.use_cache = False
    config.decoder_start_token_id = 0
    network = transformers.T5ForConditionalGeneration(config)
    return network.eval(), {"input_ids": random_tokens(), "labels": random_tokens(6)}


def _bart() -> Made:
    config = transformers.BartConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=16,
    )
    config.use_cache = False
    network = transformers.BartForConditionalGeneration(config)
    return network.eval(), {"input_ids": random_tokens(), "labels": random_tokens(6)}


def _whisper() -> Made:
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=8,
        max_source_positions=8,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    config.use_cache = False
    network = transformers.WhisperForConditionalGeneration(config)
    return network.eval(), {"input_features": torch.randn(BATCH, 8, 16), "labels": random_tokens(6)}


def _clip() -> Made:
    shared = {"hidden_size": 32, "num_hidden_layers": 2, **HEADS, **WIDE}
    config = transformers.CLIPConfig(
        text_config={**shared, "vocab_size": VOCABULARY, "max_position_embeddings": 16},
        vision_config={**shared, "image_size": 16, "patch_size": 4},
        projection_dim=24,
    )
    network = transformers.CLIPModel(config)
    inputs = {"input_ids": random_tokens(), "pixel_values": torch.randn(BATCH, 3, 16, 16)}
    return network.eval(), inputs


def image_classifier(kind: str, **options: Any) -> Callable[[], Made]:
    """Return what makes a classifier of images of transformers."""

    def make() -> Made:
        config = transformers.AutoConfig.for_model(kind, **{"num_labels": 5, **options})
        network = transformers.AutoModelForImageClassification.from_config(config)
        side = options.get("image_size", 32)
        labels = torch.randint(0, 5, (BATCH,))
        return network.eval(), {"pixel_values": torch.randn(BATCH, 3, side, side), "labels": labels}

    return make


def _segformer() -> Made:
    config = transformers.SegformerConfig(
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 3, 4],
        decoder_hidden_size=16,
        num_labels=5,
    )
    network = transformers.SegformerForSemanticSegmentation(config)
    return network.eval(), {"pixel_values": torch.randn(BATCH, 3, 64, 64)}


def vision_network(make: Callable[..., nn.Module], training: bool = False) -> Callable[[], Made]:
    """Return what makes a network of torchvision."""

    def build() -> Made:
        network = make(weights=None, num_classes=5).train(training)
        for part in network.modules():
            if isinstance(part, nn.Dropout):
                part.eval()
        return network, {"x": torch.randn(BATCH, 3, 64, 64)}

    return build


def _segmentation() -> Made:
    made = torchvision.models.segmentation.deeplabv3_mobilenet_v3_large
    network = made(weights=None, weights_backbone=None, num_classes=5)
    return Output(network).eval(), {"x": torch.randn(BATCH, 3, 64, 64)}


class Output(nn.Module):
    """A segmentation network that returns its scores alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores [sample, class, row, column]."""
        return self.network(x)["out"]


class Mlp(nn.Module):
    """A perceptron with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return F.cross_entropy(self.layers(x), labels)


class Dlrm(nn.Module):
    """A recommendation network: tables, a perceptron, and products of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(20, 8, mode="sum") for _ in range(3))
        self.bottom = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(14, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        """Return a score."""
        x = self.bottom(dense)
        rows = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        stacked = torch.stack([x, *rows], 1)
        pairs = stacked @ stacked.transpose(1, 2)
        left, right = torch.triu_indices(4, 4, 1)
        return self.top(torch.cat([x, pairs[:, left, right]], 1))


class Diffusion(nn.Module):
    """A block of a diffusion network: a residual of convolutions with time, and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, 16), nn.GroupNorm(4, 16)
        self.conv1, self.conv2 = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.time = nn.Linear(8, 16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Return an image of twice the side."""
        angles = time[:, None] * torch.exp(-torch.arange(4, device=time.device))
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(torch.cat([angles.sin(), angles.cos()], 1))[:, :, None, None]
        x = x + self.conv2(F.silu(self.norm2(h)))
        flat = x.flatten(2).transpose(1, 2)
        x = x + self.attention(flat, flat, flat)[0].transpose(1, 2).reshape(x.shape)
        return self.up(F.interpolate(x, scale_factor=2.0))


class Unet(nn.Module):
    """A small U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of every pixel."""
        first = F.relu(self.norm(self.down1(x)))
        second = F.relu(self.down2(F.max_pool2d(first, 2)))
        return self.out(torch.cat([first, self.up(second)], 1))


class GraphNetwork(nn.Module):
    """Two rounds of messages along edges, summed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Return scores of every vertex."""
        source, target = edges.unbind(1)
        messages = self.first(x)[source]
        summed = messages.new_zeros(x.shape[0], 8).index_add(0, target, messages)
        messages = torch.relu(summed)[source]
        return self.second(messages.new_zeros(x.shape[0], 8).index_add(0, target, messages))


class Recurrent(nn.Module):
    """A recurrent network, and a layer over its last step."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.recurrent = kind(6, 8, num_layers=2, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of the last step."""
        return self.head(self.recurrent(x)[0][:, -1])


MODELS: Mapping[str, Callable[[], Made]] = {
    "mlp": lambda: (Mlp(), {"x": torch.randn(8, 16), "labels": torch.randint(0, 4, (8,))}),
    "gpt2": decoder("gpt2", n_embd=32, n_layer=2, n_head=4, n_positions=16),
    "gpt_neox": decoder("gpt_neox"),
    "opt": decoder("opt", ffn_dim=64, word_embed_proj_dim=32, max_position_embeddings=16),
    "bloom": decoder("bloom", n_head=4),
    "llama": decoder("llama", **GROUPED),
    "mistral": decoder("mistral", **GROUPED, sliding_window=4),
    "qwen2": decoder("qwen2", **GROUPED),
    "qwen3": decoder("qwen3", **GROUPED, head_dim=8),
    "gemma": decoder("gemma", num_key_value_heads=1, head_dim=8),
    "gemma2": decoder("gemma2", **GROUPED, head_dim=8, sliding_window=4),
    "gemma3": decoder("gemma3_text", **GROUPED, head_dim=8, sliding_window=4),
    "phi": decoder("phi"),
    "phi3": decoder("phi3", pad_token_id=0, **GROUPED),
    "olmo2": decoder("olmo2", **GROUPED),
    "falcon": decoder("falcon", num_kv_heads=2, new_decoder_architecture=True),
    "stablelm": decoder("stablelm", **GROUPED),
    "mixtral": decoder("mixtral", "batched_mm", **GROUPED, num_local_experts=4),
    "qwen3_moe": decoder(
        "qwen3_moe",
        "batched_mm",
        **GROUPED,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
    ),
    "mamba": decoder("mamba", state_size=4, time_step_rank=4),
    "bert": encoder("bert"),
    "roberta": encoder("roberta"),
    "deberta_v2": encoder(
        "deberta-v2", labelled=False, relative_attention=True, pos_att_type=["p2c", "c2p"]
    ),
    "distilbert": encoder("distilbert", dim=32, n_layers=2, n_heads=4, hidden_dim=64),
    "electra": encoder("electra", embedding_size=32),
    "albert": encoder("albert", embedding_size=16),
    "t5": _t5,
    "bart": _bart,
    "whisper": _whisper,
    "clip": _clip,
    "vit": image_classifier(
        "vit", hidden_size=32, num_hidden_layers=2, image_size=16, patch_size=4, **HEADS, **WIDE
    ),
    "dinov2": image_classifier(
        "dinov2", hidden_size=32, num_hidden_layers=2, image_size=16, patch_size=4, **HEADS
    ),
    "swin": image_classifier(
        "swin",
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    "convnext": image_classifier("convnext", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1]),
    "segformer": _segformer,
    "resnet18": vision_network(torchvision.models.resnet18, training=True),
    "mobilenet_v3": vision_network(torchvision.models.mobilenet_v3_small, training=True),
    "efficientnet_b0": vision_network(torchvision.models.efficientnet_b0),
    "deeplab_v3": _segmentation,
    "unet": lambda: (Unet(), {"x": torch.randn(BATCH, 3, 16, 16)}),
    "dlrm": lambda: (
        Dlrm(),
        {"dense": torch.randn(BATCH, 6), "sparse": torch.randint(0, 20, (BATCH, 3, 2))},
    ),
    "diffusion": lambda: (
        Diffusion(),
        {"x": torch.randn(BATCH, 16, 4, 4), "time": torch.rand(BATCH)},
    ),
    "graph": lambda: (
        GraphNetwork(),
        {"x": torch.randn(32, 4), "edges": torch.randint(0, 32, (120, 2))},
    ),
    "lstm": lambda: (Recurrent(nn.LSTM), {"x": torch.randn(BATCH, 5, 6)}),
    "gru": lambda: (Recurrent(nn.GRU), {"x": torch.randn(BATCH, 5, 6)}),
}
