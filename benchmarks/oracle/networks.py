"""Networks that are written once and built in MindSpore or here: ``networks(ms)`` by name.

Each is a function that returns a cell, and the shapes of its inputs: real numbers, or whole ones
below a limit.
"""

import numpy as np


def networks(ms):
    """Return makers of cells with their inputs, for a namespace."""
    nn, ops = ms.nn, ms.ops

    def convolution(inputs, outputs, stride=1, kernel=3):
        return nn.Conv2d(inputs, outputs, kernel, stride, "same")

    class Block(nn.Cell):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.conv1, self.bn1 = convolution(inputs, outputs, stride), nn.BatchNorm2d(outputs)
            self.conv2, self.bn2 = convolution(outputs, outputs), nn.BatchNorm2d(outputs)
            self.relu, self.down = nn.ReLU(), None
            if stride > 1 or inputs != outputs:
                parts = convolution(inputs, outputs, stride, 1), nn.BatchNorm2d(outputs)
                self.down = nn.SequentialCell(*parts)

        def construct(self, x):
            y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            return self.relu(y + (x if self.down is None else self.down(x)))

    class ResNet(nn.Cell):
        """ResNet-18 at the sizes of CIFAR: no first pooling, a first kernel of three, narrow."""

        def __init__(self, width=16):
            super().__init__()
            self.conv, self.bn, self.relu = convolution(3, width), nn.BatchNorm2d(width), nn.ReLU()
            blocks, before = [], width
            for i in range(4):
                for j in range(2):
                    blocks.append(Block(before, width << i, 2 if i and not j else 1))
                    before = width << i
            self.layers = nn.SequentialCell(*blocks)
            self.fc = nn.Dense(before, 10)

        def construct(self, x):
            return self.fc(self.layers(self.relu(self.bn(self.conv(x)))).mean((2, 3)))

    class Layer(nn.Cell):
        def __init__(self, width, heads):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm((width,)), nn.LayerNorm((width,))
            self.attention = nn.Dense(width, 3 * width)
            self.projection = nn.Dense(width, width)
            self.up, self.down = nn.Dense(width, 4 * width), nn.Dense(4 * width, width)
            self.gelu, self.heads = nn.GELU(), heads

        def construct(self, x, mask):
            batch, length, width = x.shape
            parts = self.attention(self.norm1(x)).reshape((batch, length, 3, self.heads, -1))
            q, k, v = (parts[:, :, i].transpose((0, 2, 1, 3)) for i in range(3))
            scores = ops.matmul(q, k.transpose((0, 1, 3, 2))) * (width // self.heads) ** -0.5
            read = ops.matmul(ops.softmax(scores + mask, -1), v).transpose((0, 2, 1, 3))
            x = x + self.projection(read.reshape((batch, length, width)))
            return x + self.down(self.gelu(self.up(self.norm2(x))))

    class Gpt(nn.Cell):
        def __init__(self, words=1000, width=128, heads=4, layers=4, length=64):
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
            self.layers = nn.CellList([Layer(width, heads) for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm((width,)), nn.Dense(width, words, has_bias=False)
            self.numbers = ms.Tensor(np.arange(length, dtype=np.int32))
            hidden = np.triu(np.full((length, length), -1e9, np.float32), 1)
            self.mask = ms.Tensor(hidden)

        def construct(self, tokens):
            x = self.words(tokens) + self.places(self.numbers)
            for layer in self.layers:
                x = layer(x, self.mask)
            return self.head(self.norm(x))

    class Encoder(nn.Cell):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(50, 16, padding_idx=0)
            self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
            self.norm, self.fc = nn.LayerNorm((16,)), nn.Dense(16, 5)

        def construct(self, tokens):
            x = self.embedding(tokens)
            x = self.norm(x + self.attention(x, x, x)[0])
            return self.fc(x.mean(1))

    class Recommender(nn.Cell):
        def __init__(self):
            super().__init__()
            self.users, self.items = nn.Embedding(20, 8), nn.Embedding(30, 8)
            self.deep = nn.SequentialCell(nn.Dense(16, 8), nn.PReLU(), nn.Dense(8, 1))

        def construct(self, users, items):
            return self.deep(ops.concat((self.users(users), self.items(items)), 1))

    class Words(nn.Cell):
        """A model of language by an LSTM of two layers."""

        def __init__(self, words=1000, width=128):
            super().__init__()
            self.table = nn.Embedding(words, width)
            self.lstm = nn.LSTM(width, width, 2, batch_first=True)
            self.head = nn.Dense(width, words)

        def construct(self, tokens):
            return self.head(self.lstm(self.table(tokens))[0])

    def lenet():
        return nn.SequentialCell(
            nn.Conv2d(1, 6, 5, pad_mode="valid"),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
            nn.Conv2d(6, 16, 5, pad_mode="valid"),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
            nn.Flatten(),
            nn.Dense(400, 120),
            nn.ReLU(),
            nn.Dense(120, 84),
            nn.ReLU(),
            nn.Dense(84, 10),
        )

    def mlp():
        return nn.SequentialCell(nn.Dense(784, 512), nn.ReLU(), nn.Dense(512, 10))

    def vgg():
        parts, before = [], 3
        for width in (8, 16):
            parts += [convolution(before, width), nn.BatchNorm2d(width), nn.ReLU()]
            parts += [nn.MaxPool2d(2, 2)]
            before = width
        return nn.SequentialCell(*parts, nn.Flatten(), nn.Dense(16 * 64, 10))

    def separable():
        return nn.SequentialCell(
            nn.Conv2d(4, 8, 1, has_bias=True),
            nn.Conv2d(8, 8, 3, stride=2, group=8),
            nn.GroupNorm(2, 8),
            nn.HSwish(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dense(8, 3),
        )

    def autoencoder():
        return nn.SequentialCell(
            nn.Conv2d(3, 8, 3, 2, "pad", 1, has_bias=True),
            nn.LeakyReLU(),
            nn.Conv2dTranspose(8, 3, 3, 2, "pad", 1, 1, has_bias=True),
            nn.Sigmoid(),
        )

    def signals():
        return nn.SequentialCell(
            nn.Conv1d(2, 4, 5, pad_mode="pad", padding=2, has_bias=True),
            nn.PReLU(4),
            nn.Flatten(),
            nn.Dense(64, 6),
            nn.BatchNorm1d(6),
        )

    def volumes():
        return nn.SequentialCell(
            nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4), nn.ReLU(), nn.Flatten(), nn.Dense(256, 2)
        )

    return {
        "MLP": (mlp, [(32, 784)]),
        "LeNet": (lenet, [(32, 1, 32, 32)]),
        "VGG, small": (vgg, [(4, 3, 32, 32)]),
        "ResNet-18, CIFAR, width 16": (ResNet, [(8, 3, 32, 32)]),
        "separable convolutions": (separable, [(2, 4, 9, 9)]),
        "autoencoder": (autoencoder, [(2, 3, 8, 8)]),
        "signals": (signals, [(3, 2, 16)]),
        "volumes": (volumes, [(2, 1, 4, 4, 4)]),
        "GPT, small": (Gpt, [((8, 64), 1000)]),
        "attention": (Encoder, [((3, 7), 50)]),
        "LSTM": (Words, [((8, 32), 1000)]),
        "recommender": (Recommender, [((9,), 20), ((9,), 30)]),
    }


def inputs_of(ms, shapes):
    """Return tensors of these shapes."""
    random, made = np.random.RandomState(1), []
    for shape in shapes:
        if isinstance(shape[0], tuple):
            made.append(random.randint(0, shape[1], shape[0]).astype(np.int32))
        else:
            made.append(random.randn(*shape).astype(np.float32))
    return [ms.Tensor(array) for array in made]
