"""Small modules with random weights, for `torch_models.py`: networks of torchvision, our own."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torchvision
from torch import nn
from torch.nn import functional as F  # noqa: N812

Made = tuple[nn.Module, dict[str, torch.Tensor]]
BATCH, LENGTH, VOCABULARY = 4, 8, 64


def random_tokens(length: int = LENGTH) -> torch.Tensor:
    """Return random tokens of a batch."""
    return torch.randint(3, VOCABULARY, (BATCH, length))


def vision_network(make: Callable[..., nn.Module], training: bool = False) -> Callable[[], Made]:
    """Return what makes a network of torchvision."""

    def build() -> Made:
        network = make(weights=None, num_classes=5).train(training)
        for part in network.modules():
            if isinstance(part, nn.Dropout):
                part.eval()
        return network, {"x": torch.randn(BATCH, 3, 64, 64)}

    return build


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
    "mlp": lambda: (Mlp(), {"x": torch.randn(8, 16), "labels": torch.randint(0, 4, (8,))}),
    "resnet18": vision_network(torchvision.models.resnet18, training=True),
    "mobilenet_v3": vision_network(torchvision.models.mobilenet_v3_small, training=True),
    "efficientnet_b0": vision_network(torchvision.models.efficientnet_b0),
    "deeplab_v3": _segmentation("deeplabv3_mobilenet_v3_large"),
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
