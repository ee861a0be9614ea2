"""ONNX operators against onnxruntime: random attributes, shapes and versions of each.

    python benchmarks/imported/onnx_runtime.py [CASES] [OPERATOR ...]

Compares what our import computes with onnxruntime and with onnx's reference evaluator, and writes
`onnx_runtime.md`. A file means what onnxruntime does; where the evaluator differs, the page says
which one the import follows. Needs `onnx` and `onnxruntime`.
"""

import re
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_cases_layers  # noqa: F401  # registers its makers
import onnxruntime
from onnx import ModelProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_cases import MAKERS, Array, Case
from onnx_tests import run_alone

from shardwright.frontends.onnx import import_model
from shardwright.ir.errors import ShardwrightError

PAGE = Path(__file__).with_name("onnx_runtime.md")


def model_of(case: Case) -> ModelProto:
    """Return the model of one node."""
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(case.inputs)]
    inputs, stored = [], []
    for i, x in enumerate(case.inputs):
        if x is None:
            continue
        if i in case.constants:
            stored.append(numpy_helper.from_array(np.asarray(x), names[i]))
        else:
            kind = helper.np_dtype_to_tensor_dtype(x.dtype)
            inputs.append(helper.make_tensor_value_info(names[i], kind, x.shape))
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.operator, names, outputs, "node", **case.attributes)
    values = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph([node], "case", inputs, values, stored)
    opset = [helper.make_opsetid("", case.opset)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10)


def fed(case: Case) -> dict[str, Array]:
    """Return the inputs that are given when the model runs."""
    found = {f"x{i}": x for i, x in enumerate(case.inputs) if i not in case.constants}
    return {name: x for name, x in found.items() if x is not None}


def of_runtime(case: Case) -> list[Array] | str:
    """Return onnxruntime's results, or why it has none."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    try:
        session = onnxruntime.InferenceSession(
            model_of(case).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return [np.asarray(y) for y in session.run(None, fed(case))]
    except Exception as error:  # its errors share no class
        return f"{error}".replace("\n", " ")[:160]


def of_evaluator(case: Case) -> list[Array] | str:
    """Return the results of onnx's reference evaluator, or why it has none."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return [np.asarray(y) for y in ReferenceEvaluator(model_of(case)).run(None, fed(case))]
    except Exception as error:  # it fails by many errors
        return f"{type(error).__name__}: {error}".replace("\n", " ")[:160]


def of_import(case: Case) -> list[Array] | str:
    """Return our results, or why the import is refused."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return run_alone(import_model(model_of(case)), fed(case))
    except ShardwrightError as error:
        return f"refused: {error.what}"


def equal(found: list[Array] | str, right: list[Array] | str) -> bool:
    """Return whether results are equal but for rounding."""
    if isinstance(found, str) or isinstance(right, str):
        return False
    return len(found) == len(right) and all(map(_near, found, right))


def _near(found: Array, right: Array) -> bool:
    if found.shape != right.shape or found.dtype != right.dtype:
        return False
    a, b = found.astype(np.float64), right.astype(np.float64)
    if found.dtype == np.uint8 or found.dtype == np.int8:
        return bool(np.abs(a - b).max(initial=0) <= 1)  # halves are rounded after other roundings
    finite = np.abs(b[np.isfinite(b)])
    size = float(finite.max()) if finite.size else 0.0
    return np.allclose(a, b, 1e-4, 1e-5 * max(size, 1.0), equal_nan=True)


def main(count: int, operators: list[str]) -> None:
    """Compare, print what differs, and write the page for all operators."""
    rows: list[str] = []
    totals: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    for operator in operators or sorted(MAKERS):
        tally: Counter[str] = Counter()
        for seed in range(count):
            random = np.random.default_rng((seed, *operator.encode()))
            case = MAKERS[operator](random, operator)
            right, ours = of_runtime(case), of_import(case)
            if isinstance(right, str):
                tally["not run"] += 1
                if operators:
                    print(operator, seed, "onnxruntime:", right)
                continue
            same = equal(ours, right)
            kind = "equal" if same else "refused" if isinstance(ours, str) else "differs"
            tally[kind] += 1
            tally["evaluator differs"] += not equal(of_evaluator(case), right)
            if isinstance(ours, str):
                cause = re.sub(r"[if]\d+\[[\d, ]*\]|\([\d, ]*\)", "...", ours)
                causes[f"{operator}: {cause.removeprefix('refused: ')}"] += 1
            if kind == "differs":
                assert not isinstance(ours, str)
                _tell(case, seed, ours, right)
        print(operator, dict(tally), flush=True)
        for cause, times in causes.items():
            if operators and cause.startswith(operator):
                print("   ", times, cause)
        totals.update(tally)
        kinds = ("equal", "refused", "differs", "evaluator differs", "not run")
        rows.append(f"| {operator} | {' | '.join(str(tally[kind] or '') for kind in kinds)} |")
    if not operators:
        PAGE.write_text(_page(count, rows, totals, causes))


def _tell(case: Case, seed: int, ours: list[Array], right: list[Array]) -> None:
    """Print a case that differs."""
    inputs = [
        None if x is None else x.tolist() if i in case.constants and x.size < 10 else x.shape
        for i, x in enumerate(case.inputs)
    ]
    print(f"  {case.operator} {seed} of operator set {case.opset}: {case.attributes}, {inputs}")
    for found, wanted in zip(ours, right, strict=True):
        sides = f"{found.ravel()[:6]}, onnxruntime {wanted.shape} {wanted.ravel()[:6]}"
        print(f"    {found.shape} {sides}")
    print(f"    the evaluator agrees with {'us' if equal(of_evaluator(case), ours) else 'neither'}")


def _page(count: int, rows: list[str], totals: Counter[str], causes: Counter[str]) -> str:
    """Return the page of results."""
    refused = "\n".join(f"- {cause} ({times})" for cause, times in sorted(causes.items()))
    ran = totals["equal"] + totals["refused"] + totals["differs"]
    versions = f"onnxruntime {onnxruntime.__version__} and onnx {onnx.__version__}"
    return f"""# ONNX operators beside onnxruntime

`python benchmarks/imported/onnx_runtime.py {count}`, with {versions}: {count} random
nodes of each of {len(rows)} operators (attributes, shapes, element types, operator sets).

onnxruntime runs {ran} of them: {totals["equal"]} are equal here, {totals["refused"]} are refused,
{totals["differs"]} differ. The evaluator of the standard differs from onnxruntime, or cannot run,
in {totals["evaluator differs"]}; the import follows onnxruntime.

| operator | equal | refused | differs | evaluator differs | onnxruntime cannot run |
|---|---|---|---|---|---|
{chr(10).join(rows)}

## Refused

{refused}
"""


if __name__ == "__main__":
    given: list[Any] = sys.argv[1:]
    main(int(given[0]) if given else 40, given[1:])
