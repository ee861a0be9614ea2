"""Load checkpoints of MindSpore's here, and ours in MindSpore, of the networks of ``networks.py``.

    python benchmarks/oracle/checkpoints.py PYTHON [--out checkpoints.md]

PYTHON is that of `compare.py`. Each side saves a network with values that follow from the number of
the parameter, and what it computes; the other side loads the file into a network of its own, and
must find every parameter and compute the same.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from compare import HERE, SIDES, version
from networks import inputs_of, networks

WITHIN = 1e-5  # of the greatest element, in float32: twice as much or half changes no verdict


def values(ms, cell, number):
    """Give parameters values: those of variances positive."""
    for i, (name, parameter) in enumerate(cell.parameters_and_names()):
        random = np.random.RandomState(1000 * number + i)
        array = random.uniform(-0.3, 0.3, parameter.shape)
        array = np.abs(array) + 0.5 if "var" in name else array
        parameter.set_data(ms.Tensor(array.astype(np.float32)))


def saved(namespace, folder):
    """Save all networks of a side, and what they compute."""
    ms = importlib.import_module(namespace)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    for number, (make, shapes) in enumerate(networks(ms).values()):
        cell = make()
        cell.set_train(False)
        values(ms, cell, number)
        ms.save_checkpoint(cell, str(folder / f"{number}.ckpt"))
        np.save(folder / f"{number}.npy", cell(*inputs_of(ms, shapes)).asnumpy())


def loaded(namespace, folder, theirs):
    """Load all networks of the other side; write what is missing, and what they compute."""
    ms = importlib.import_module(namespace)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    found = {}
    for number, (name, (make, shapes)) in enumerate(networks(ms).items()):
        cell = make()
        cell.set_train(False)
        try:
            parameters = ms.load_checkpoint(str(theirs / f"{number}.ckpt"))
            missing = ms.load_param_into_net(cell, parameters)
            own = {parameter.name for parameter in cell.get_parameters()}
            made = cell(*inputs_of(ms, shapes)).asnumpy()
            right = np.load(theirs / f"{number}.npy")
            apart = np.abs(made - right).max() / max(1.0, np.abs(right).max())
            found[name] = {
                "parameters": len(own),
                "missing": list(missing[0] if isinstance(missing, tuple) else missing),
                "unused": sorted(set(parameters) - own),
                "apart": float(apart),
            }
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    (folder / "loaded.json").write_text(json.dumps(found))


def called(python, *arguments):
    """Run this file in the environment of a side."""
    environment = {**os.environ, "GLOG_v": "4", "PYTHONPATH": str(HERE.parents[1])}
    command = [python, str(HERE / "checkpoints.py"), "", "--side", *map(str, arguments)]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def verdict(row):
    """Return what became of a file, in words."""
    if "error" in row:
        return row["error"].split("\n")[0].replace("|", "or")
    if row["missing"] or row["unused"]:
        return f"without {row['missing']}, and {row['unused']} is not there"
    if row["apart"] > WITHIN:
        return f"{row['apart']:.1e} apart"
    return f"{row['parameters']} parameters, the same results"


def page(found, release):
    """Return the page."""
    good = [all(verdict(row[name]).endswith("results") for row in found) for name in found[0]]
    lines = [
        "# Checkpoints of MindSpore's here, and ours there",
        "",
        f"Written by `benchmarks/oracle/checkpoints.py` with MindSpore {release} on a CPU: a side",
        "saves a network, the other one loads the file, finds every parameter and computes the",
        f"same within {WITHIN:g} of the greatest result. **{sum(good)} of {len(good)}** networks",
        "do both ways.",
        "",
        "| network | written by MindSpore, read here | written here, read by MindSpore |",
        "| --- | --- | --- |",
    ]
    verdicts = {name: [verdict(row[name]) for row in found] for name in found[0]}
    lines += [f"| {name} | {' | '.join(both)} |" for name, both in verdicts.items()]
    return "\n".join(lines) + "\n"


def main():
    """Save on both sides, load on the other, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("python")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        namespace, folder, *theirs = arguments.side
        if theirs:
            loaded(namespace, Path(folder), Path(theirs[0]))
        else:
            saved(namespace, Path(folder))
        return
    with TemporaryDirectory() as place:
        folders = {namespace: Path(place, label) for namespace, label in SIDES.items()}
        pythons = dict(zip(SIDES, (arguments.python, sys.executable), strict=True))
        for namespace, folder in folders.items():
            folder.mkdir()
            called(pythons[namespace], namespace, folder)
        theirs, ours = SIDES
        for namespace, other in ((ours, theirs), (theirs, ours)):
            called(pythons[namespace], namespace, folders[namespace], folders[other])
        found = [json.loads((folders[n] / "loaded.json").read_text()) for n in (ours, theirs)]
    text = page(found, version(arguments.python))
    if arguments.out:
        arguments.out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
