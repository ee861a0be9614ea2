"""Time steps of training here and in MindSpore, of networks of ``networks.py``.

    python benchmarks/oracle/speed.py PYTHON [--out speed.md]

PYTHON is that of `compare.py`. A step is a call of `nn.TrainOneStepCell`, compiled (MindSpore's
graph mode). Both sides run at once as processes that take turns, some steps each, so that whatever
else the machine does meets both; the number is the median over the turns of their ratio. Time is
that of the processor, of all threads of a process: a shared machine lengthens the other one.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from compare import HERE, SIDES, version
from networks import inputs_of, networks

TIMED = ("MLP", "LeNet", "ResNet-18, CIFAR, width 16", "GPT, small", "LSTM")
TURNS = 5  # of each side; twice as many take twice the time, of half as many there is no middle
SECONDS = 0.5  # of a turn, at least a step; half of it is one step of the slower networks


def trained(ms, name):
    """Return a compiled training step, and its inputs."""
    make, shapes = networks(ms)[name]
    nn, inputs = ms.nn, inputs_of(ms, shapes)
    network = make()
    is_text = isinstance(shapes[0][0], tuple)
    count, classes = (np.prod(shapes[0][0]), shapes[0][1]) if is_text else (shapes[0][0], 10)
    labels = np.random.RandomState(2).randint(0, classes, count)

    class Loss(nn.Cell):
        def __init__(self):
            super().__init__()
            self.loss = nn.CrossEntropyLoss()

        def construct(self, scores, labels):
            return self.loss(scores.reshape((-1, scores.shape[-1])), labels)

    whole = nn.WithLossCell(network, Loss())
    optimizer = nn.Momentum(network.trainable_params(), 0.01, 0.9)
    step = nn.TrainOneStepCell(whole, optimizer)
    step.set_train()
    return step, [*inputs, ms.Tensor(labels.astype(np.int32))]


def side(namespace):
    """Run a step for as long as each line of the input says, and print the seconds of one."""
    ms = importlib.import_module(namespace)
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(1)
    step, inputs = None, []
    for line in sys.stdin:
        if line.strip() in TIMED:
            step, inputs = trained(ms, line.strip())
            losses = [float(step(*inputs).asnumpy()) for _ in range(3)]
            print(json.dumps(losses), flush=True)
            continue
        begin, count = time.process_time(), 0
        while not count or time.process_time() - begin < float(line):
            step(*inputs).asnumpy()
            count += 1
        print((time.process_time() - begin) / count, flush=True)


def asked(process, line):
    """Return the answer of a side."""
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise SystemExit(f"a side ended with {process.wait()}")
    return json.loads(answer)


def measured(python, name):
    """Return the seconds of a step on both sides by turns, and their first losses."""
    environment = {**os.environ, "GLOG_v": "4", "OMP_NUM_THREADS": "1"}
    environment |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])}
    sides = [
        subprocess.Popen(
            [which, str(HERE / "speed.py"), "", "--side", namespace],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for namespace, which in zip(SIDES, (python, sys.executable), strict=True)
    ]
    losses = [asked(process, name) for process in sides]
    turns = [[asked(process, SECONDS) for process in sides] for _ in range(TURNS)]
    for process in sides:
        process.stdin.close()
        process.wait()
    return turns, losses


def page(rows, release):
    """Return the page."""
    lines = [
        "# Steps here and in MindSpore, in seconds of the processor",
        "",
        f"Written by `benchmarks/oracle/speed.py` with MindSpore {release} on a CPU.",
        "Compiled steps of training with momentum in float32, operators with one thread, in",
        f"seconds of the processor: the least of {TURNS} turns of each side. Ratios are the median",
        "of the turns, with their middle half.",
        "",
        "| network | MindSpore | here | MindSpore's time over ours |",
        "| --- | --- | --- | --- |",
    ]
    for name, turns in rows.items():
        theirs, ours = (min(turn[i] for turn in turns) for i in (0, 1))
        ratios = sorted(turn[0] / turn[1] for turn in turns)
        quarter = statistics.quantiles(ratios, n=4)
        middle = f"{statistics.median(ratios):.2f} ({quarter[0]:.2f} to {quarter[2]:.2f})"
        lines.append(f"| {name} | {theirs * 1e3:.2f} ms | {ours * 1e3:.2f} ms | {middle} |")
    return "\n".join(lines) + "\n"


def main():
    """Time all networks, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("python")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        side(arguments.side)
        return
    rows = {}
    for name in TIMED:
        if arguments.only in name:
            rows[name], losses = measured(arguments.python, name)
            print(name, losses, file=sys.stderr)
    text = page(rows, version(arguments.python))
    if arguments.out:
        arguments.out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
