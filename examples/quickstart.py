"""Two models from definition to training on eight ranks, by the commands of shardwright.

    python examples/quickstart.py [FOLDER]

The first learns handwritten digits: scikit-learn's, or MNIST's files in FOLDER. The second learns
the bytes of Python's manual, which comes with Python.
"""

import os
import shlex
import sys

# Eight ranks take turns in this process on matrices too small for several threads each.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from rich.console import Console

from shardwright.tools.main import main

# Processors compute in float32 faster than in bfloat16.
SMALL_GPT = "gpt:layers=2,hidden=64,heads=4,batch=16,sequence=64,vocabulary=256,dtype=float32"
PLACE = "--devices 8 --mesh 2x2x2 --cluster cpu"


def commands(digits: str | None, steps: int) -> list[str]:
    data = f" --data {shlex.quote(digits)}" if digits else ""
    momentum = "--optimizer momentum --learning-rate 0.02"
    adam = "--optimizer adam --learning-rate 0.003"
    return [
        f"compile mlp {PLACE} {momentum} --out plans/mlp",
        f"run plans/mlp --steps {2 * steps}{data}",
        "verify plans/mlp",
        f"compile {SMALL_GPT} {PLACE} {adam} --out plans/gpt",
        f"run plans/gpt --steps {steps}",
        "verify plans/gpt",
    ]


def quickstart(digits: str | None = None, steps: int = 100) -> int:
    """Run the commands in order, and return the exit code of the last."""
    console = Console(highlight=False, soft_wrap=True)
    for command in commands(digits, steps):
        console.print(f"[bold]$ shardwright {command}[/bold]")
        code = main(shlex.split(command))
        if code:
            return code
        print()
    return 0


if __name__ == "__main__":
    sys.exit(quickstart(*sys.argv[1:2]))
