"""The ONNX project's own tests, which come inside the package `onnx`, and how they are run here.

Every test is imported, run on one rank, and run again on 4 ranks with a random legal strategy for
each operator and a random layout for each input.
"""

import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.backend.test.case import node as node_tests
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import DATA_DIR, load_model_tests
from onnx.backend.test.runner import Runner

from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.redistribution.layout_graph import layouts
from shardwright.frontends.common.errors import NeedsConstantError
from shardwright.frontends.onnx import Imported, import_model
from shardwright.frontends.onnx.onnx_types import dtype_of
from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import ModelError, ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import plain_name
from shardwright.ir.types import TensorType, numpy_dtype
from shardwright.operators.info import operator_info
from shardwright.passes.annotate import Annotate
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.partition import Partition
from shardwright.runtime import Executor, LocalCommunicator, assemble, initialize

MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 2)))
ONE = Mesh(())
_NETWORK = "light"
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
        Types of the inputs that had to be known when it was imported.
    is_folded : bool
        Whether those were all, so that nothing but a constant was left to run.
    seconds : float
        How long importing and running on one rank took.
    """

    name: str
    operator: str
    is_plain: bool
    alone: bool = False
    sharded: bool = False
    reason: str = ""
    constants: tuple[str, ...] = ()
    is_folded: bool = False
    seconds: float = 0.0


@dataclass
class _Data:
    inputs: dict[str, Array] = field(default_factory=dict)
    expected: list[Array] = field(default_factory=list)


_CASES: dict[str, list[TestCase]] = {}  # of each module so far


def node_modules() -> list[str]:
    """Return the names of the modules of the `onnx` package that make its node tests."""
    prefix = f"{node_tests.__name__}."
    return [found.name.removeprefix(prefix) for found in walk_packages(node_tests.__path__, prefix)]


def node_cases(modules: Iterable[str] | None = None) -> list[TestCase]:
    """Return the node tests of some modules; of all if not given, which takes seconds."""
    found = []
    for name in node_modules() if modules is None else modules:
        if name not in _CASES:
            before = len(node_tests._NodeTestCases)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import_module(f"{node_tests.__name__}.{name}")
            _CASES[name] = node_tests._NodeTestCases[before:]
        found += _CASES[name]
    return found


def exported_cases() -> list[TestCase]:
    """Return the small models that PyTorch exported, with their data."""
    found = []
    for kind in ("pytorch-operator", "pytorch-converted"):
        for case in load_model_tests(kind=kind):
            if case.model_dir is not None:
                folder = Path(case.model_dir)
                model = onnx.load(folder / "model.onnx")
                data = folder / "test_data_set_0"
                sides = tuple(_numbered(data, side) for side in ("input", "output"))
                found.append(replace(case, model=model, data_sets=[sides]))
    return found


def network_cases() -> list[TestCase]:
    """Return well-known networks at full size, with constant weights."""
    found = []
    for path in sorted(Path(DATA_DIR, "light").glob("*.onnx")):
        model = onnx.load(path)
        weights = {tensor.name for tensor in model.graph.initializer}
        inputs = [
            Runner.generate_dummy_data(value)
            for value in model.graph.input
            if value.name not in weights
        ]
        outputs = [_stored(path.with_name(f"{path.stem}_output_0.pb"))]
        name = path.stem.removeprefix("light_")
        found.append(
            TestCase(name, name, None, None, model, [(inputs, outputs)], _NETWORK, 1e-3, 1e-7)
        )
    return found


def _numbered(folder: Path, side: str) -> list[TensorProto]:
    count = len(list(folder.glob(f"{side}_*.pb")))
    return [_stored(folder / f"{side}_{i}.pb") for i in range(count)]


def _stored(path: Path) -> TensorProto:
    tensor = TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return tensor


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
    found = Outcome(case.name, tested_operator(case), is_plain(model))
    begin = time.perf_counter()
    try:
        data = _data(case)
        imported, constants = _imported(model, data.inputs)
        given = {n: a for n, a in data.inputs.items() if n not in constants}
        types = tuple(array.dtype.name for array in constants.values())
        found = replace(found, constants=types, is_folded=bool(types) and not given)
        _check(imported.graph, run_alone(imported, given), data.expected, case)
        found = replace(found, alone=True, seconds=time.perf_counter() - begin)
        random = np.random.default_rng((seed, *case.name.encode()))
        if case.kind == _NETWORK:
            _check_scores(imported, given, random)
        else:
            split = run_sharded(imported, given, random)
            _check(imported.graph, split, data.expected, case, is_sharded=True)
    except (ShardwrightError, _WrongError) as error:
        reason = error.what if isinstance(error, ShardwrightError) else str(error)
        return replace(found, reason=f"sharded: {reason}" if found.alone else reason)
    return replace(found, sharded=True)


def imported_case(case: TestCase) -> tuple[Imported, dict[str, Array]] | None:
    """Return a test, imported, and its inputs by their names in our graph; None if it cannot be."""
    try:
        data = _data(case)
        imported, constants = _imported(model_of(case), data.inputs)
    except (ShardwrightError, _WrongError):
        return None
    inputs = {plain_name(n): a for n, a in data.inputs.items() if n not in constants}
    return imported, inputs


class _WrongError(Exception):
    """A result differs, or a test is not of our kind."""


def _data(case: TestCase) -> _Data:
    model = model_of(case)
    assert case.data_sets is not None
    inputs, outputs = case.data_sets[0]
    weights = {tensor.name for tensor in model.graph.initializer}
    fed = [value for value in model.graph.input if value.name not in weights]
    found = _Data()
    for value, given in zip(fed, inputs, strict=False):
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


def _is_rounding(found: Array, right: Array, dtype: "np.dtype[Any]") -> bool:
    """Whether results differ by no more than the rounding of the greatest number."""
    if not np.issubdtype(dtype, np.floating) or not np.isfinite(right).all():
        return False
    unit = float(np.finfo(dtype).eps) * float(np.abs(right).max())
    return bool(np.abs(found - right).max() <= 4 * unit)


# Running


def run_alone(
    imported: Imported, inputs: Mapping[str, Array], float_dtype: str | None = None
) -> list[Array]:
    """Return the results on one rank."""
    return _run(imported.graph, imported, inputs, ONE, float_dtype)


def run_sharded(
    imported: Imported,
    inputs: Mapping[str, Array],
    random: np.random.Generator,
    float_dtype: str | None = None,
) -> list[Array]:
    """Return the results on four ranks, every operator split at random.

    With `float_dtype` every real number is held in that type.
    """
    graph = imported.graph
    program = Partition().run(Annotate(random_decisions(graph, random)).run(graph))
    program = LowerRedistributions(cluster("cpu")).run(program)
    return _run(program, imported, inputs, MESH, float_dtype)


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


def _run(
    graph: Graph,
    imported: Imported,
    inputs: Mapping[str, Array],
    mesh: Mesh,
    float_dtype: str | None = None,
) -> list[Array]:
    communicator = LocalCommunicator(mesh)
    executor = Executor(graph, communicator, float_dtype=float_dtype)
    state = initialize(graph, 0, communicator, imported.initial, float_dtype)
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
            if _is_rounding(a, b, result.dtype):
                raise _WrongError(f"small numbers of a {kind} result are rounded otherwise")
            raise _WrongError(f"a result of type {kind}{held} has other numbers")


def _check_scores(
    imported: Imported, inputs: Mapping[str, Array], random: np.random.Generator
) -> None:
    """Compare what goes into the softmax at the end of a network, in float64.

    With constant weights all scores are equal but for rounding, of which the softmax of numbers as
    large as these is a matter.
    """
    graph = imported.graph
    last = graph.producers[graph.outputs[0]]
    scores = last.operands[0] if last.operator == "softmax" else graph.outputs[0]
    asked = replace(imported, graph=replace(graph, outputs=(scores,)))
    right = run_alone(asked, inputs, "float64")[0]
    found = run_sharded(asked, inputs, random, "float64")[0]
    error = float(np.abs(found - right).max() / np.abs(right).max())
    if error > 1e-9:
        raise _WrongError(f"scores differ by {error:.1g} relative")


def outcomes(cases: Iterable[TestCase], seed: int = 0) -> Iterator[Outcome]:
    """Run tests, one at a time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases:
            yield run_case(case, seed)
