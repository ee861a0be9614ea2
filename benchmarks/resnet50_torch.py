"""ResNet-50 in PyTorch, with the weights and images that `resnet50.py` leaves in a file."""

import json
import os
import resource
import sys
import time

import numpy as np
import torch
from torch import nn


def convolution(before: int, after: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution and its normalization."""
    layer = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(after))


class Block(nn.Module):
    """A bottleneck and its shortcut."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = convolution(before, width, 1)
        self.conv2 = convolution(width, width, 3, stride)
        self.conv3 = convolution(width, 4 * width, 1)
        changes = stride != 1 or before != 4 * width
        self.shortcut = convolution(before, 4 * width, 1, stride) if changes else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve, add the shortcut."""
        y = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        return torch.relu(self.conv3(y) + self.shortcut(x))


def network() -> nn.Module:
    """Return ResNet-50."""
    layers: list[nn.Module] = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for i, (depth, width) in enumerate(zip((3, 4, 6, 3), (64, 128, 256, 512), strict=True)):
        for j in range(depth):
            layers.append(Block(before, width, 2 if i and j == 0 else 1))
            before = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))


def main() -> None:
    """Measure, and print a document."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    data = np.load(sys.argv[1])
    model = network()
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.from_numpy(data[str(i)]))
    image, label = torch.from_numpy(data["image"]), torch.from_numpy(data["label"]).long()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    seconds, clock, losses = [], [], []
    for _ in range(int(sys.argv[2])):
        begin, began = time.process_time(), time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(image), label)
        loss.backward()
        optimizer.step()
        seconds.append(time.process_time() - begin)
        clock.append(time.perf_counter() - began)
        losses.append(loss.item())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    document = {"seconds": min(seconds), "clock": min(clock), "memory": memory, "loss": losses[0]}
    print(json.dumps({**document, "version": torch.__version__.partition("+")[0]}))


if __name__ == "__main__":
    main()
