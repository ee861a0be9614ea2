"""An epoch of training whose data has a slow step, with and without tuning of its processes.

    python benchmarks/data_tuning.py --samples 1024 --milliseconds 30

Every sample waits for its storage, as a picture does that is read over a network, and is augmented;
two processes make samples, as the dataset says. The tuner finds by measured waits how many are
needed. Waiting takes no processor, so that the seconds of the clock mean something on a busy
machine, too.
"""

import argparse
import logging
import time

import numpy as np

import shardwright as sw
import shardwright.mindspore.dataset as ds
from shardwright import nn
from shardwright.mindspore import set_seed

WORKERS, BATCH = 2, 32


class Stored:
    """Samples that arrive some time after they are asked for.

    Parameters
    ----------
    count : int
        Number of samples.
    seconds : float
        Time until one arrives.
    """

    def __init__(self, count: int, seconds: float) -> None:
        self.seconds = seconds
        random = np.random.default_rng(0)
        self.images = random.integers(0, 256, (count, 32, 32, 3), np.uint8)
        self.labels = random.integers(0, 10, count).astype(np.int32)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.images[index], self.labels[index]


def epochs(count: int, samples: int, seconds: float, tuned: bool) -> tuple[list[float], str]:
    """Return the seconds of each epoch of a training, and the losses in hexadecimal digits."""
    ds.config.set_enable_autotune(tuned)
    set_seed(1)

    def read(image: np.ndarray) -> np.ndarray:
        time.sleep(seconds)
        return np.ascontiguousarray(image[::-1]).astype(np.float32).reshape(-1) / 255

    data = ds.GeneratorDataset(Stored(samples, seconds), ["image", "label"], shuffle=True)
    data = data.map(read, ["image"], num_parallel_workers=WORKERS)
    data = data.batch(BATCH, drop_remainder=True)
    net = nn.SequentialCell(nn.Dense(3072, 32, activation="relu"), nn.Dense(32, 10))
    model = sw.Model(net, nn.CrossEntropyLoss(), nn.Momentum(net.trainable_params(), 0.01, 0.9))
    moments = []

    class Clock(sw.train.Callback):
        def epoch_begin(self, run: object) -> None:
            moments.append(time.perf_counter())

        def epoch_end(self, run: object) -> None:
            moments[-1] = time.perf_counter() - moments[-1]

    losses = model.train(count, data, Clock())
    return moments, " ".join(loss.hex() for loss in losses)


def main() -> None:
    """Train both ways, and print the seconds of each epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--milliseconds", type=float, default=30.0)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    found = {
        tuned: epochs(options.epochs, options.samples, options.milliseconds / 1e3, tuned)
        for tuned in (False, True)
    }
    for tuned, (seconds, _) in found.items():
        name = "tuned" if tuned else f"{WORKERS} processes"
        print(f"{name}: {', '.join(f'{part:.1f} s' for part in seconds)}")
    print(f"the losses are equal: {found[False][1] == found[True][1]}")


if __name__ == "__main__":
    main()
