"""Run the scripts of MindSpore's documentation on distributed training, and write a page.

    python benchmarks/mindspore_scripts.py CHECKOUT [--only NAME ...] [--out mindspore_scripts.md]

CHECKOUT is a copy of the repository of MindSpore's documentation, with ``docs/sample_code``. The
scripts are copied with ``shardwright.`` before ``mindspore`` in their imports and are as they are
otherwise. Each is started by its own shell script, whose ``msrun`` and ``mpirun`` are `launch`
here; data sets are few samples in the same files. Needs the extra ``mpi``, pytest and scikit-learn.
"""

import argparse
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from mindspore_tests import ported
from sklearn.datasets import load_digits

ROOT = Path(__file__).parents[1]
SAMPLES = Path("docs/sample_code")
TRAINED, TESTED = 64, 32  # pictures: two batches of 32, or one of 8 for each of 8 ranks


@dataclass(frozen=True)
class Row:
    """A script of the documentation.

    Parameters
    ----------
    script : str
        Its path among the samples.
    command : str
        What its page says to run, in its folder.
    note : str
        What is not as on the page.
    """

    script: str
    command: str = ". ./run.sh"
    note: str = ""


CLUSTER = "by roles: a scheduler and eight workers, without MPI"
ROWS = (
    Row("comm_subgraph/train.py"),
    Row("dataset_slice/train.py"),
    Row("disaster_recover/train.py", note=CLUSTER),
    Row("distributed_comm_fusion/fusion_example_cell.py"),
    Row("distributed_data_parallel/distributed_data_parallel.py"),
    Row("distributed_gradient_accumulation/train.py"),
    Row("distributed_graph_partition/lenet.py", "python lenet.py", "defines the model alone"),
    Row("distributed_graph_partition/train.py", ". ./run.sh"),
    Row(
        "distributed_operator_parallel/advanced_distributed_mint_operator_parallel.py",
        ". ./run_advanced_mint.sh",
    ),
    Row(
        "distributed_operator_parallel/advanced_distributed_operator_parallel.py",
        ". ./run_advanced.sh",
    ),
    Row("distributed_operator_parallel/distributed_mint_operator_parallel.py", ". ./run_mint.sh"),
    Row("distributed_operator_parallel/distributed_operator_parallel.py"),
    Row("distributed_optimizer_parallel/distributed_optimizer_parallel.py"),
    Row("distributed_pipeline_parallel/distributed_pipeline_parallel.py"),
    Row(
        "distributed_pipeline_parallel/distributed_pipeline_parallel_inference.py",
        ". ./run_inference.sh",
    ),
    Row(
        "fault_recover/train.py",
        ". ./run.sh && for i in 0 1 2 3 4 5 6 7; do cp checkpoints/rank_$i/checkpoint-2_2.ckpt "
        "checkpoints/rank_$i/checkpoint-2_1875.ckpt; done && . ./recover.sh",
        "and again from its checkpoint, which has the name of 1,875 steps there",
    ),
    Row("graceful_exit/graceful_exit.py", ". ./train.sh"),
    Row("high_dimension_tensor_parallel/high_dimension_tensor_parallel.py"),
    Row("host_device/train.py"),
    Row("manual_parallel/train.py"),
    Row("memory_offload/train.py", "set -- 2 ON; . ./run.sh"),
    Row("multiple_copy/train.py"),
    Row("multiple_mix/sapp_mix_train.py", ". ./run_sapp_mix_train.sh"),
    Row("parallel_support_dynamic_shape/main.py"),
    Row("parameter_server/train.py", note="a scheduler, eight servers and eight workers"),
    Row("recompute/example.py", "python example.py"),
    Row("sapp/train.py"),
    Row(
        "shard_function_parallel/shard_function_example.py",
        ". ./run_mpirun_shard_function_example.sh",
    ),
    Row("sharding_propagation/train.py"),
    Row("startup_method/net.py", ". ./msrun_single.sh"),
)
LAUNCH = """#!/usr/bin/env python3
import os, sys
given, found, script = sys.argv[1:], [], False
while given:
    word = given.pop(0)
    if word.startswith("--cluster_time_out") or word in DROPPED:
        continue
    if word == "--output-filename":
        found += ["--log_dir", given.pop(0)]
    elif word == "python" and not script:
        continue
    elif word == "pytest" and not script:
        found.append(os.path.join(os.path.dirname(__file__), "as_pytest.py"))
        script = True
    else:
        script = script or word.endswith(".py")
        found.append(word)
os.execv(PYTHON, [PYTHON, "-m", "shardwright", "launch", *found])
"""
DROPPED = ("--merge-stderr-to-stdout", "--allow-run-as-root")
PYTEST_MAIN = """import sys
import pytest
options = ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "."]
code = pytest.main([*options, *sys.argv[1:]])
raise SystemExit(0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code)
"""


def commands(folder: Path) -> None:
    """Write the commands that shell scripts call."""
    folder.mkdir()
    launch = LAUNCH.replace("DROPPED", repr(DROPPED)).replace("PYTHON", repr(sys.executable))
    texts = {
        "msrun": launch.replace("/usr/bin/env python3", sys.executable),
        "mpirun": launch.replace("/usr/bin/env python3", sys.executable),
        "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
        "wget": "#!/bin/sh\n",
        "unzip": "#!/bin/sh\n",
        "tar": "#!/bin/sh\n",
        "as_pytest.py": PYTEST_MAIN,
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def digits(folder: Path) -> None:
    """Write digits as the files of MNIST and of CIFAR-10."""
    found = load_digits()
    random = np.random.default_rng(0)
    for name, prefix, count in (("train", "train", TRAINED), ("test", "t10k", TESTED)):
        own = folder / "MNIST_Data" / name
        own.mkdir(parents=True)
        chosen = random.integers(0, len(found.images), count)
        pictures = np.kron(found.images[chosen], np.ones((1, 3, 3))) * 15.9
        pictures = np.pad(pictures, ((0, 0), (2, 2), (2, 2))).clip(0, 255).astype(np.uint8)
        head = struct.pack(">IIII", 2051, count, 28, 28)
        (own / f"{prefix}-images-idx3-ubyte").write_bytes(head + pictures.tobytes())
        labels = found.target[chosen].astype(np.uint8)
        head = struct.pack(">II", 2049, count)
        (own / f"{prefix}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())
    own = folder / "cifar-10-batches-bin"
    own.mkdir()
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        rows = random.integers(0, 255, (16, 3073)).astype(np.uint8)
        rows[:, 0] %= 10
        (own / name).write_bytes(rows.tobytes())


def prepared(row: Row, source: Path, work: Path) -> Path:
    """Copy the folder of a script, ported, with the data beside it."""
    folder = work / Path(row.script).with_suffix("").as_posix().replace("/", "-")
    shutil.copytree(source / SAMPLES / Path(row.script).parent, folder)
    for path in folder.glob("*.py"):
        path.write_text(ported(path.read_text()))
    for name in ("MNIST_Data", "cifar-10-batches-bin"):
        (folder / name).symlink_to(work / "data" / name)
    return folder


def run(row: Row, source: Path, work: Path, seconds: int) -> tuple[bool, str]:
    """Run a script; return whether it came to its end, and the last line that says something."""
    folder = prepared(row, source, work)
    paths = os.pathsep.join((str(work / "bin"), os.environ["PATH"]))
    environment = {**os.environ, "PATH": paths, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    waits = 'for job in $(jobs -p); do wait "$job" || exit 1; done'
    command = ["bash", "-c", f"{row.command}\ncode=$?\n{waits}\nexit $code"]
    with (folder / "shell.log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return False, f"takes longer than {seconds} s"
    lines = [line for path in logs(folder) for line in path.read_text(errors="replace").split("\n")]
    errors = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception)\b", line)]
    if code or errors:
        return False, (errors or [line for line in lines if line.strip()] or [""])[-1][:200]
    said = [line for line in lines if re.search(r"(loss|sum|output|Accuracy) is|Finish", line)]
    return True, (said or [""])[-1][:80]


def logs(folder: Path) -> list[Path]:
    """Return the files that processes wrote to, those of workers last."""
    found = [folder / "shell.log", *sorted(folder.rglob("*.log"))]
    return [*dict.fromkeys(path for path in found if path.is_file())]


def page(results: dict[Row, tuple[bool, str]]) -> str:
    """Return the page."""
    ended = sum(good for good, _ in results.values())
    rows = [
        f"| `{row.script}` | {'yes' if good else 'no'} | {cell(said)} | {row.note} |"
        for row, (good, said) in results.items()
    ]
    return "\n".join(
        [
            "# Scripts of MindSpore's documentation",
            "",
            "Written by `benchmarks/mindspore_scripts.py` from a copy of the repository of "
            "MindSpore's documentation: its sample scripts on distributed training, with "
            "`shardwright.` before `mindspore` in their imports and as they are otherwise. Each is "
            "started by its own shell script, on as many processes as it wants, most on eight; "
            "`msrun` and `mpirun` are `shardwright launch`. Data sets have few samples "
            f"({TRAINED} pictures of digits in the files of MNIST, 96 random ones in those of "
            "CIFAR-10).",
            f"**{ended} of {len(results)} run to their end.**",
            "",
            "| script | to its end | the last it says, or the first obstacle | |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
        ]
    )


def cell(text: str) -> str:
    """Return a text for a table."""
    return f"`{text.strip()}`".replace("|", "\\|") if text.strip() else ""


def main() -> None:
    """Run the scripts, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of scripts")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", type=Path, help="a folder that is kept, with the logs")
    parser.add_argument("--seconds", type=int, default=1800, help="that a script may take")
    arguments = parser.parse_args()
    with TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        commands(work / "bin")
        digits(work / "data")
        results = {}
        for row in ROWS:
            if not arguments.only or any(part in row.script for part in arguments.only):
                results[row] = run(row, arguments.checkout, work, arguments.seconds)
                print("yes" if results[row][0] else "no ", row.script, results[row][1], flush=True)
    if not arguments.only:
        out = arguments.out or Path(__file__).with_suffix(".md")
        out.write_text(page(results))
    print(sum(good for good, _ in results.values()), "of", len(results), "run to their end")


if __name__ == "__main__":
    main()
