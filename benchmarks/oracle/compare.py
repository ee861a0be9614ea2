"""Compare operators, layers, optimizers, schedules, datasets and metrics with MindSpore's.

    python benchmarks/oracle/compare.py PYTHON [--only TEXT] [--out compared.md]

PYTHON is the interpreter of an environment that has MindSpore's CPU wheel; make one with
``python3.11 -m venv there && there/bin/pip install mindspore==2.10.* "numpy<2"``. Each case of
``cases.txt`` is computed there and here, on the same values. Results, gradients and types must be
equal. What differs is listed with its reason, if ``reasons.json`` has one; names of the namespace
that no case uses are listed as not compared.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

HERE = Path(__file__).absolute().parent
SHOWN = 160  # characters of what differs: twice as many make the page wide, half hide sentences
SHORT = "a float64 of MindSpore's that is a float32"
TOLERANCES = {"float16": 1e-3, "float32": 1e-5, "float64": 1e-12}
SIDES = {"mindspore": "MindSpore", "shardwright.mindspore": "here"}
USED = re.compile(r"\b(nn|ops|mint|ds|vision|transforms|train|initializer|x)\.([\w.]+)")
VERDICTS = ("equal", "float32", "differs", "not here", "only here", "neither")
COMPARED = VERDICTS[:4]
REASONS = json.loads((HERE / "reasons.json").read_text())
MODULES = {
    "ds": "dataset",
    "vision": "dataset.vision",
    "transforms": "dataset.transforms",
    "initializer": "common.initializer",
    "x": "Tensor",
}


def expanded(text):
    """Yield the lines that a line with ``{a,b}`` stands for."""
    found = re.search(r"\{(\w+(?:,\w+)*)\}", text)
    if found is None:
        yield text
        return
    for choice in found[1].split(","):
        yield from expanded(text.replace(found[0], choice, 1))


def read_cases(text):
    """Return the jobs of a table of cases."""
    kind, jobs = "", []
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("["):
            found = re.fullmatch(r"\[(\w+)\]", line)
            if found:
                kind = found[1]
                continue
        if not line or line.startswith("#"):
            continue
        expression, _, inputs = line.partition(" | ")
        for one in expanded(expression):
            for given in inputs.split(" / "):
                both = re.search(r"=f\[", given) and "float32" not in given
                for dtype in (
                    ("float32", "float64") if both or kind == "optimizers" else ("float32",)
                ):
                    job = {"kind": kind, "expression": one.strip(), "inputs": given.strip()}
                    job |= {"forward": "forward" in given, "dtype": dtype}
                    number = zlib.crc32(json.dumps(job).encode())
                    jobs.append({"number": number, **job})
    return jobs


def run(python, namespace, folder, document):
    """Compute jobs in an environment; begin again behind one that ends the process."""
    environment = {**os.environ, "GLOG_v": "4", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(HERE.parents[1])
    jobs = [job for job in document["jobs"] if not (folder / f"{job['number']}.npz").exists()]
    while True:
        child = subprocess.run(
            [os.path.abspath(python), str(HERE / "side.py"), namespace, str(folder.absolute())],
            cwd=folder,  # MindSpore writes what it could not compile
            input=json.dumps({**document, "jobs": jobs}),
            capture_output=True,
            text=True,
            env=environment,
        )
        if child.returncode == 0:
            return
        begun = [int(line) for line in child.stdout.split() if line.isdigit()]
        if not begun:
            raise SystemExit(f"{namespace} does not start: {child.stderr[-2000:]}")
        ended = np.array(f"the process ends with {child.returncode}")
        np.savez(folder / f"{begun[-1]}.npz", error=ended)
        jobs = jobs[[job["number"] for job in jobs].index(begun[-1]) + 1 :]


def difference(theirs, ours):
    """Return how two arrays differ, in words; nothing where they are equal."""
    if theirs.shape != ours.shape:
        return f"shape {ours.shape}, MindSpore {theirs.shape}"
    if theirs.dtype != ours.dtype:
        return f"type {ours.dtype}, MindSpore {theirs.dtype}"
    if theirs.dtype.kind not in "fc":
        return "" if np.array_equal(theirs, ours) else f"{shown(ours)}, MindSpore {shown(theirs)}"
    both = np.isfinite(theirs) & np.isfinite(ours)
    if not np.array_equal(theirs[~both], ours[~both], equal_nan=True):
        return "not finite at other places"
    left, right = theirs[both].astype(np.float64), ours[both].astype(np.float64)
    greatest = max(1.0, np.abs(left).max(initial=0))
    apart = np.abs(left - right).max(initial=0) / greatest
    if apart <= TOLERANCES[str(theirs.dtype)]:
        return ""
    with np.errstate(over="ignore"):
        short = np.array_equal(theirs.astype(np.float32).astype(np.float64)[both], left)
    inside = theirs.dtype == np.float64 and apart <= TOLERANCES["float32"] and short
    return SHORT if inside else f"{apart:.1e} apart"


def shown(array):
    """Return the first elements of an array."""
    return " ".join(str(item) for item in array.ravel()[:6])


def compared(theirs, ours):
    """Return the verdict of a case and what differs.

    ``equal``, ``differs``, ``not here`` where we refuse, ``only here`` where MindSpore does;
    ``float32`` where MindSpore's result in float64 is to the bit one of float32, close to ours.
    """
    if "error" in theirs:
        if "error" in ours:
            return "neither", f"{ours['error']}; MindSpore: {theirs['error']}"
        return "only here", str(theirs["error"])
    if "error" in ours:
        return "not here", str(ours["error"])
    if set(theirs) != set(ours):
        return (
            "differs",
            f"has {sorted(set(ours) - set(theirs))}, MindSpore {sorted(set(theirs) - set(ours))}",
        )
    apart = {name: difference(array, ours[name]) for name, array in theirs.items()}
    apart = {name: found for name, found in apart.items() if found}
    if not apart:
        return "equal", ""
    short = set(apart.values()) == {SHORT}
    left = {name: found for name, found in apart.items() if short or found != SHORT}
    return "float32" if short else "differs", "; ".join(f"{n}: {what}" for n, what in left.items())


def names_used(jobs):
    """Return the names that cases use, as module and name."""
    found = set()
    for job in jobs:
        for place, name in USED.findall(job["expression"]):
            *inner, last = name.split(".")
            found.add((".".join([MODULES.get(place, place), *inner]), last))
    return found


def not_compared(names, jobs):
    """Return the names that no case of these uses, by module, and the number of all names."""
    used = names_used(jobs)
    everyone = {(place, name) for place, found in names.items() for name in found}
    left = {}
    for place, name in sorted(everyone - used):
        left.setdefault(place, []).append(name)
    return left, len(everyone)


def version(python):
    """Return the version of MindSpore in an environment."""
    code = "import importlib.metadata as m; print(m.version('mindspore'))"
    return subprocess.check_output([python, "-c", code], text=True).strip()


def reason_of(row):
    """Return why a case differs, if that is known of each result that does."""
    parts = row["what"].split("; ") if row["verdict"] == "differs" else [row["what"]]
    texts = [f"{row['expression']} {part}" for part in parts]
    found = [next((why for p, why in REASONS if re.search(p, text)), "") for text in texts]
    return "; ".join(dict.fromkeys(found)) if all(found) else ""


def page(rows, left, total, release):
    """Return the page of compared cases."""
    missing = sum(map(len, left.values()))
    lines = [
        "# Operators, layers and data beside MindSpore's",
        "",
        f"Written by `benchmarks/oracle/compare.py` with MindSpore {release} on a CPU.",
        f"Of {total} names that both have **{total - missing} are compared**, by {len(rows)}",
        "cases: the same expression on the same values, there and here, results and gradients, in",
        "float32 to 1e-5 and in float64 to 1e-12 of the greatest element (or of 1). `float32`:",
        "MindSpore's result in float64 is one of float32 to the bit, and within 1e-5 of ours.",
        "`not here` is refused by us, `only here` by MindSpore's CPU kernels, `neither` by both.",
        "Of a case in several types one row is shown for each reason, which is one of all results",
        "that differ. A row without a reason is open; a reason that was not checked by numbers is",
        "`inferred`.",
        "A name that MindSpore has no kernel for on a CPU is not compared.",
        "",
        "| kind | cases | " + " | ".join(VERDICTS) + " | of these with a reason |",
        "| --- | --- | " + "--- | " * (len(VERDICTS) + 1),
    ]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        own = [row for row in rows if row["kind"] == kind]
        counts = Counter(row["verdict"] for row in own)
        known = sum(
            bool(reason_of(row)) for row in own if row["verdict"] in ("differs", "not here")
        )
        numbers = [len(own), *(counts[verdict] for verdict in VERDICTS), known]
        lines.append(f"| {kind} | {' | '.join(map(str, numbers))} |")
    for verdict in ("differs", "not here"):
        lines += [
            "",
            f"## {verdict}",
            "",
            "| case | inputs | what | reason |",
            "| --- | --- | --- | --- |",
        ]
        seen = set()
        for row in rows:
            key = (row["expression"], row["inputs"], reason_of(row))
            if row["verdict"] == verdict and key not in seen:
                seen.add(key)
                inputs = f"`{row['inputs']}`" if row["inputs"] else ""
                what = row["what"][:SHOWN]
                cells = (f"`{row['expression']}`", inputs, what, reason_of(row))
                lines.append("| " + " | ".join(cell.replace("|", "or") for cell in cells) + " |")
    lines += ["", f"## Not compared ({missing})", ""]
    lines += [f"`{place}`: {', '.join(names)}.\n" for place, names in left.items()]
    return "\n".join(lines).rstrip() + "\n"


def results(folder, job):
    """Return the arrays of a job."""
    with np.load(folder / f"{job['number']}.npz") as arrays:
        found = {name: arrays[name] for name in arrays.files}
    if len(found) > 1 and "error" in found:  # values are there, a gradient is not
        found = {"error": found["error"]}
    return found


def of(job):
    """Return what tells a case from the others."""
    return tuple(job[name] for name in ("kind", "expression", "inputs", "dtype"))


def rows_of(page):
    """Return the rows of an earlier run, by case."""
    path = page.with_suffix(".jsonl")
    lines = path.read_text().splitlines() if path.exists() else []
    return {of(row): row for row in map(json.loads, lines)}


def main():
    """Compare, and write the page and its rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("python")
    parser.add_argument("--only", default="", help="cases to run; with --out the others' rows stay")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--kept", type=Path, help="where MindSpore's results are kept, and read")
    arguments = parser.parse_args()
    found = subprocess.run([arguments.python, "-c", "import mindspore"], capture_output=True)
    if found.returncode:
        print(f"skipped: `{arguments.python}` has no MindSpore; see `--help` for how to install it")
        return
    every = read_cases((HERE / "cases.txt").read_text())
    known = rows_of(arguments.out) if arguments.only and arguments.out else {}
    jobs = [job for job in every if re.search(arguments.only, job["expression"])]
    with TemporaryDirectory() as folder:
        places = {name: Path(folder, label) for name, label in SIDES.items()}
        names = None
        places["mindspore"] = arguments.kept or places["mindspore"]
        for namespace, place in places.items():
            place.mkdir(exist_ok=True, parents=True)
            python = arguments.python if namespace == "mindspore" else sys.executable
            run(python, namespace, place, {"names": names, "jobs": jobs})
            names = json.loads((place / "names.json").read_text())
        for job in jobs:
            verdict, what = compared(*(results(place, job) for place in places.values()))
            known[of(job)] = {**job, "verdict": verdict, "what": what}
        rows = [known[of(job)] for job in every if of(job) in known]
    left, total = not_compared(names, [row for row in rows if row["verdict"] in COMPARED])
    text = page(rows, left, total, version(arguments.python))
    if arguments.out:
        arguments.out.write_text(text)
        lines = (json.dumps({k: v for k, v in row.items() if k != "number"}) for row in rows)
        arguments.out.with_suffix(".jsonl").write_text("\n".join(lines) + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
