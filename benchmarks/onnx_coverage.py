"""How much of ONNX is imported: runs the ONNX project's own node tests, and writes docs/onnx.md.

Every test is imported, run on one rank, and run again on 4 ranks with a random legal strategy for
each operator and a random layout for each input.

    python benchmarks/onnx_coverage.py            # all tests, and docs/onnx.md anew
    python benchmarks/onnx_coverage.py --only conv --verbose
"""

import argparse
import re
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase

from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.layout_graph import layouts
from shardwright.cost_model.redistribution import RedistributionPlanner
from shardwright.frontends.onnx import Imported, import_model
from shardwright.frontends.onnx.table import NeedsConstantError
from shardwright.frontends.onnx.types import dtype_of, plain_name
from shardwright.ir.errors import ModelError, ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType, numpy_dtype
from shardwright.operators.info import operator_info
from shardwright.passes.lowering import lower_redistributions
from shardwright.passes.partition import Decisions, partition
from shardwright.runtime import Executor, LocalCommunicator, assemble, initialize

MARK = "<!-- All below is written by benchmarks/onnx_coverage.py. -->"
DOCUMENT = Path(__file__).parent.parent / "docs" / "onnx.md"
MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 2)))
ONE = Mesh(())
_ROUNDED = 4 * float(np.finfo(np.float16).eps)
PLAIN = {
    *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16),
    *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
    TensorProto.BOOL,
}
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Outcome:
    """What became of one test.

    Parameters
    ----------
    name, operator : str
        The test, and the ONNX operator it is of.
    is_plain : bool
        Whether it is of float, int and bool tensors alone.
    alone, sharded : bool
        Whether it passes on one rank, and on four.
    reason : str
        Why it does not.
    constants : tuple of str
        Inputs that had to be known when it was imported.
    """

    name: str
    operator: str
    is_plain: bool
    alone: bool = False
    sharded: bool = False
    reason: str = ""
    constants: tuple[str, ...] = ()


@dataclass
class _Data:
    inputs: dict[str, Array] = field(default_factory=dict)
    expected: list[Array] = field(default_factory=list)


def node_cases() -> list[TestCase]:
    """Return the node tests that come inside the `onnx` package."""
    from onnx.backend.test.case.node import collect_testcases  # noqa: PLC0415  # takes seconds

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(collect_testcases(None))


def tested_operator(case: TestCase) -> str:
    """Return the operator that a test is of; for an expanded one, the function it composes."""
    model = model_of(case)
    first = model.graph.node[0]
    expanded = "_expanded" in case.name and "_expanded_function_" in "".join(first.output)
    return first.output[0].split("_test_")[0] if expanded else first.op_type


def model_of(case: TestCase) -> ModelProto:
    """Return the model of a test."""
    assert case.model is not None
    return case.model


def is_plain(model: ModelProto) -> bool:
    """Whether all inputs and outputs are tensors of floats, ints and bools."""
    values = [*model.graph.input, *model.graph.output]
    return all(
        value.type.WhichOneof("value") == "tensor_type"
        and value.type.tensor_type.elem_type in PLAIN
        for value in values
    )


def run_case(case: TestCase, seed: int = 0) -> Outcome:
    """Run one test on one rank, and on four."""
    model = model_of(case)
    base = {"name": case.name, "operator": tested_operator(case), "is_plain": is_plain(model)}
    constants: dict[str, Array] = {}
    try:
        data = _data(case)
        imported, constants = _imported(model, data.inputs)
        given = {n: a for n, a in data.inputs.items() if n not in constants}
    except (ShardwrightError, _WrongError) as error:
        return Outcome(**base, reason=_reason(error))
    known = tuple(constants)
    try:
        _check(imported.graph, run_alone(imported, given), data.expected, case)
    except (ShardwrightError, _WrongError) as error:
        return Outcome(**base, reason=_reason(error), constants=known)
    random = np.random.default_rng((seed, *case.name.encode()))
    try:
        found = run_sharded(imported, given, random)
        _check(imported.graph, found, data.expected, case, is_sharded=True)
    except (ShardwrightError, _WrongError) as error:
        return Outcome(**base, alone=True, reason=f"sharded: {_reason(error)}", constants=known)
    return Outcome(**base, alone=True, sharded=True, constants=known)


class _WrongError(Exception):
    """A result differs, or a test is not of our kind."""


def _data(case: TestCase) -> _Data:
    model = model_of(case)
    assert case.data_sets is not None
    inputs, outputs = case.data_sets[0]
    found = _Data()
    for value, given in zip(model.graph.input, inputs, strict=False):
        found.inputs[value.name] = _array(given, value)
    for value, given in zip(model.graph.output, outputs, strict=False):
        found.expected.append(_array(given, value))
    return found


def _array(given: Any, value: onnx.ValueInfoProto) -> Array:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise _WrongError(f"inputs or outputs are of a {kind.replace('_', ' ')}")
    enum = value.type.tensor_type.elem_type
    if enum not in PLAIN:
        raise _WrongError(f"no element type {TensorProto.DataType.Name(enum)}")
    array = numpy_helper.to_array(given) if isinstance(given, TensorProto) else np.asarray(given)
    if enum == TensorProto.BFLOAT16 and array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(numpy_dtype(dtype_of(enum)))


def _imported(model: ModelProto, inputs: Mapping[str, Array]) -> tuple[Imported, dict[str, Array]]:
    """Import a model; inputs that it must know when it is imported are given to it."""
    constants = {name: array for name, array in inputs.items() if array.size == 0}
    while True:
        try:
            return import_model(model, constants=constants), constants
        except ModelError as error:
            cause = error.__cause__
            if not isinstance(cause, NeedsConstantError):
                raise
            found = [n for n in _sources(model, cause.name) if n in inputs and n not in constants]
            if not found:
                raise
            constants |= {name: inputs[name] for name in found}


def _sources(model: ModelProto, name: str) -> set[str]:
    """Return the inputs that a tensor is computed from."""
    made = {output: node for node in model.graph.node for output in node.output}
    waiting, found = [name], set()
    for tensor in waiting:
        if tensor in made:
            waiting += [source for source in made[tensor].input if source not in waiting]
        elif tensor:
            found.add(tensor)
    if not found - {value.name for value in model.graph.input}:
        return found
    return {value.name for value in model.graph.input}


# Running


def run_alone(imported: Imported, inputs: Mapping[str, Array]) -> list[Array]:
    """Return the results on one rank."""
    return _run(imported.graph, imported, inputs, ONE)


def run_sharded(
    imported: Imported, inputs: Mapping[str, Array], random: np.random.Generator
) -> list[Array]:
    """Return the results on four ranks, every operator split at random."""
    graph = imported.graph
    program = partition(graph, random_decisions(graph, random))
    program = lower_redistributions(program, RedistributionPlanner(MESH, cluster("cpu")))
    return _run(program, imported, inputs, MESH)


def random_decisions(graph: Graph, random: np.random.Generator) -> Decisions:
    """Return a random legal strategy for every operator, one that splits it if there is one."""
    strategies = {}
    for node in graph.nodes:
        types = [value.type for value in graph.operand_values(node)]
        info = operator_info(node.operator, types, node.attributes)
        options = info.generate_strategies(MESH)
        split = [option for option in options if option.assignment] or options
        strategies[node.name] = split[int(random.integers(len(split)))]
    starts = [*graph.inputs, *(parameter.value for parameter in graph.parameters)]
    stored = {value.name: _random_layout(value.type, random) for value in starts}
    return Decisions(MESH, strategies, stored)


def _random_layout(kind: TensorType, random: np.random.Generator) -> Layout:
    found = [
        layout
        for layout in layouts(MESH, kind.rank, partial=False)
        if all(n >= c for n, c in zip(kind.shape, layout.counts(MESH), strict=True))
    ]
    return found[int(random.integers(len(found)))]


def _run(graph: Graph, imported: Imported, inputs: Mapping[str, Array], mesh: Mesh) -> list[Array]:
    communicator = LocalCommunicator(mesh)
    executor = Executor(graph, communicator)
    state = initialize(graph, 0, communicator, imported.initial)
    with np.errstate(all="ignore"):
        result = executor.step({plain_name(n): a for n, a in inputs.items()}, state)
    held = [communicator.collect(result.outputs[name]) for name in graph.outputs]
    return [
        assemble(graph, name, parts, mesh) for name, parts in zip(graph.outputs, held, strict=True)
    ]


def _check(
    graph: Graph,
    found: Sequence[Array],
    expected: Sequence[Array],
    case: TestCase,
    is_sharded: bool = False,
) -> None:
    for name, result, right in zip(graph.outputs, found, expected, strict=True):
        if result.shape != right.shape or result.dtype != right.dtype:
            raise _WrongError(
                f"a result is {result.dtype}{list(result.shape)}, "
                f"expected {right.dtype}{list(right.shape)}"
            )
        within, absolute = case.rtol, case.atol
        if is_sharded and result.dtype == np.float16 and result.size:
            # Sums in another order are rounded otherwise, and a thousandth is one unit of the
            # last place: four are allowed, of the greatest number.
            absolute = _ROUNDED * float(np.nanmax(np.abs(right.astype(np.float32))))
        a, b = result.astype(np.float64), right.astype(np.float64)
        if not np.allclose(a, b, within, absolute, equal_nan=True):
            kind = graph.values[name].type.dtype
            held = " (held as float32)" if kind == "bfloat16" else ""
            raise _WrongError(f"a result of type {kind}{held} has other numbers")


def _reason(error: Exception) -> str:
    return error.what if isinstance(error, ShardwrightError) else str(error)


# The report


def outcomes(cases: Iterable[TestCase], seed: int = 0) -> Iterator[Outcome]:
    """Run tests one after the other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases:
            yield run_case(case, seed)


def counted(found: Sequence[Outcome]) -> list[tuple[str, int, int, int]]:
    """Return how many tests there are, pass on one rank, and pass on four; of all, and of ours."""
    plain = [outcome for outcome in found if outcome.is_plain]
    return [
        (title, len(group), sum(o.alone for o in group), sum(o.sharded for o in group))
        for title, group in (("all", found), ("of float, int and bool tensors", plain))
    ]


def document(text: str, found: Sequence[Outcome]) -> str:
    """Return the document with what stands behind its mark written anew."""
    head = text.partition(MARK)[0]
    return f"{head}{MARK}\n\n{_numbers(found)}\n{_operators(found)}\n{_rest(found)}"


def _numbers(found: Sequence[Outcome]) -> str:
    newest = onnx.defs.onnx_opset_version()
    lines = [
        f"The node tests of onnx {onnx.__version__} (operator set {newest}),",
        "on one rank, and on 4 ranks (2x2) with a random legal strategy for every operator:",
        "",
        "| tests | number | on one rank | on 4 ranks |",
        "|---|---|---|---|",
    ]
    for title, total, alone, sharded in counted(found):
        lines.append(f"| {title} | {total} | {_share(alone, total)} | {_share(sharded, total)} |")
    fixed = sum(bool(o.constants) for o in found if o.alone)
    lines += [
        "",
        f"In {fixed} of those that pass, inputs that say a shape, an axis or positions are known",
        "when the model is imported, as they are in models: every shape of a plan is.",
    ]
    return "\n".join(lines) + "\n"


def _share(part: int, total: int) -> str:
    return f"{part} ({100 * part / total:.1f}%)"


def _operators(found: Sequence[Outcome]) -> str:
    """Return the operators all of whose tests of our kind pass, and those with some that do not."""
    groups: dict[str, list[bool]] = {}
    for outcome in found:
        if outcome.is_plain:
            groups.setdefault(outcome.operator, []).append(outcome.sharded)
    whole = sorted(name for name, passed in groups.items() if all(passed))
    partly = sorted(name for name, passed in groups.items() if any(passed) and not all(passed))
    listed = [f"{name} ({sum(groups[name])} of {len(groups[name])})" for name in partly]
    return (
        f"## Operators\n\nAll tests pass of {len(whole)}: {', '.join(whole)}.\n\n"
        f"Some pass of {len(partly)}: {', '.join(listed)}.\n"
    )


def _rest(found: Sequence[Outcome]) -> str:
    """Return the tests that do not pass, by the reason."""
    reasons: dict[str, list[str]] = {}
    for outcome in found:
        if not outcome.sharded:
            reasons.setdefault(_summary(outcome), []).append(outcome.name.removeprefix("test_"))
    lines = ["## What does not pass, and why", ""]
    for reason, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"- {reason} ({len(names)}): {', '.join(sorted(names))}")
    return "\n".join(lines) + "\n"


def _summary(outcome: Outcome) -> str:
    """Return a reason without what is special to one test."""
    reason = re.sub(r" at `[^`]*`(, `[^`]*`)*( and \d+ more)?", "", outcome.reason)
    reason = reason.replace("the model has 1 operators that cannot be imported: ", "no operator ")
    reason = re.sub(r"a tensor has the shape .*", "tensors without elements", reason)
    return re.sub(r" \(nearest: `\w+`\)", "", reason)


def main() -> int:
    """Run the tests and write the document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="tests whose name contains this; writes nothing")
    parser.add_argument("--verbose", action="store_true", help="print every test that fails")
    parser.add_argument("--seed", type=int, default=0, help="of the random strategies")
    parser.add_argument("--out", type=Path, default=DOCUMENT, help="the document")
    arguments = parser.parse_args()
    begin = time.perf_counter()
    cases = [case for case in node_cases() if arguments.only in case.name]
    found = list(outcomes(cases, arguments.seed))
    if arguments.verbose:
        for outcome in found:
            if not outcome.sharded:
                sys.stdout.write(f"{outcome.name}: {outcome.reason}\n")
    for title, total, alone, sharded in counted(found):
        sys.stdout.write(f"{title}: {total} tests, {alone} on 1 rank, {sharded} on 4\n")
    sys.stdout.write(f"{time.perf_counter() - begin:.1f} s\n")
    if not arguments.only:
        arguments.out.write_text(document(DOCUMENT.read_text(), found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
