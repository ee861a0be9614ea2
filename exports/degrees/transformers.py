"""transformers' `DistributedConfig`: the nearest plan that it can say, a style for every module.

The styles of ``tp_plan`` and the degrees are those of `transformers/distributed` since 5.20. The
keys of ``tp_plan`` are the modules of the model that was compiled; layers that agree share a line,
with ``*`` in place of their number. A module without a line keeps the rule of the model's own
``base_model_tp_plan``, so modules that stay whole are named too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Final

from shardwright.compiler.plans.plan import Plan
from shardwright.exports.degrees.nearest import Words, nearest
from shardwright.exports.degrees.readings import (
    Reading,
    forward_nodes,
    merged,
    readings,
    weights_of,
)
from shardwright.exports.degrees.text import Facts, check_choice_of, optimizer_notes
from shardwright.exports.emission.exported import Exported
from shardwright.exports.emission.writing import Code, code, document
from shardwright.ir.errors import OptionError
from shardwright.ir.graph import Graph, Node
from shardwright.ir.types import TF32
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import operator_class
from shardwright.search.named_plan import ZERO, NamedPlan, copies_and_shards
from shardwright.search.plan_axes import PlanAxes

_PRECISIONS: Final = ("float32", TF32, "bfloat16")
_WHOLE = "replicate"
_LINEAR = ("matmul", "head_log_sum_and_pick")


def refusal(plan: NamedPlan) -> str:
    """Return why transformers' `DistributedConfig` cannot say a plan; empty if it can."""
    for name in ("pipeline", "context"):
        if getattr(plan, name) > 1:
            return f"`{name}={getattr(plan, name)}` for training"
    if plan.folds and (plan.tensor > 1 or plan.of_experts > 1):
        return "experts beside `tensor` or `expert_tensor`"
    if copies_and_shards(plan)[1] % plan.expert:
        return f"`expert={plan.expert}` where FSDP does not divide over so many"
    if plan.sequence_parallel:
        return "`sequence_parallel`"
    if plan.zero not in (0, ZERO[-1]):  # FSDP2
        return f"`zero={plan.zero}`"
    return "" if plan.recompute in ("none", "full") else f"`recompute={plan.recompute}`"


WORDS: Final = Words("transformers", refusal)


def export(plan: Plan) -> Exported:
    """Return ``distributed_config.json`` and ``training_arguments.json``.

    Raises
    ------
    OptionError
        If the plan has a precision that transformers has no word for, nothing that it can say fits,
        or a module has no style for how its parameter lies.
    """
    facts = Facts.of(plan)
    check_choice_of("transformers", "precision", facts.precision, _PRECISIONS)
    found = nearest(plan, WORDS)
    styles = Styles.of(found.built) if found.plan.tensor > 1 else {}
    notes = (
        *found.sentences,
        "`DistributedConfig(**json)` of `distributed_config.json` is for `from_pretrained`, "
        "`training_arguments.json` for `TrainingArguments`",
        "scores of the head are gathered there before the loss, here they stay divided",
        *_expert_notes(found.plan),
        *optimizer_notes(plan, "transformers"),
    )
    return Exported(files(found.plan, facts, styles), notes)


def _expert_notes(named: NamedPlan) -> list[str]:
    if named.expert == 1:
        return []
    return ["experts are divided by the rules of the model's own `base_model_ep_plan`"]


def files(named: NamedPlan, facts: Facts, styles: Mapping[str, str]) -> dict[str, Code]:
    """Return both files of a named plan in full."""
    copies, shards = copies_and_shards(named)
    degrees = {
        "tp_size": named.tensor,
        "fsdp_size": shards,
        "dp_replicate_size": copies,
        "ep_size": named.expert,
        "ep_implementation": "all_to_all" if named.expert > 1 else "auto",
        "tp_plan": dict(styles),
    }
    training = {
        "per_device_train_batch_size": named.micro_batch,
        "gradient_accumulation_steps": named.passes(facts.batch, facts.devices),
        "gradient_checkpointing": named.recompute == "full",
        "bf16": facts.precision == "bfloat16",
        **({"tf32": True} if facts.precision == TF32 else {}),
    }
    contents = {"distributed_config.json": degrees, "training_arguments.json": training}
    return {name: code("{}\n", document(content, indent=1)) for name, content in contents.items()}


@dataclass(frozen=True)
class Styles:
    """The style of every module that has parameters, by how these lie over the tensor ranks.

    Parameters
    ----------
    program : Graph
        The program of a named plan, on the mesh of `NamedPlan.mesh`.
    tensor : frozenset of str
        The axes of its tensor ranks.
    """

    program: Graph
    tensor: frozenset[str]

    @staticmethod
    def of(plan: Plan) -> dict[str, str]:
        """Return the style of each module, one line for layers that agree.

        Raises
        ------
        OptionError
            If a parameter lies in a way that no style has.
        """
        axes = PlanAxes.of(plan.mesh.of_ranks)
        found = Styles(plan.program, frozenset(axes.tensor))
        found._check_forward()
        return merged(dict(found._lines()))

    def _lines(self) -> Iterator[tuple[str, str]]:
        """Yield each module with its style; a bias goes with the weight, others by their names."""
        for name in self._weights:
            module, _, kind = name.rpartition(".")
            if kind != "bias" or f"{module}.weight" not in self._weights:
                yield module if kind == "weight" else name, self._style(name)

    def _style(self, name: str) -> str:
        """Return the style of the module of a parameter.

        Raises
        ------
        OptionError
            If there is none, or several modules share the parameter.
        """
        readers = [reading for reading in self._readings if reading.weight == name]
        if len({reading.node.operator for reading in readers}) > 1:
            raise OptionError(
                f"`{name}` is read by an embedding and by a linear layer; transformers' `tp_plan` "
                "names modules, and this parameter has one name for two",
                hint="export `placements` or `torch`",
            )
        if not readers:
            return _WHOLE
        reader, operand = readers[0].node, readers[0].operand
        divided = self._divided(name)
        if not divided:
            others = [one for one in reader.operands if one != operand]
            return "replicated_with_grad_allreduce" if any(map(self._divided, others)) else _WHOLE
        if reader.operator == "gather" and divided in ([0], [1]):
            return ("embedding_rowwise", "embedding_colwise")[divided[0]]
        is_linear = reader.operator in _LINEAR and reader.operands[1] == operand
        if is_linear and reader.attributes.get("transpose_b") and divided == [0]:
            return "colwise_gather_output" if reader is self._head else "colwise"
        if is_linear and reader.attributes.get("transpose_b") and divided == [1]:
            return "rowwise"
        raise OptionError(
            f"transformers' `tp_plan` has no style for `{name}`, which `{reader.operator}` reads "
            f"and the tensor ranks divide in dimension {', '.join(map(str, divided))}",
            hint="export `placements` or `torch`, which say any plan of one stage",
        )

    @cached_property
    def _weights(self) -> dict[str, None]:
        return weights_of(self.program)

    @cached_property
    def _readings(self) -> tuple[Reading, ...]:
        return readings(self.program)

    @cached_property
    def _head(self) -> Node | None:
        """The last linear layer of the forward pass."""
        linear = (one.node for one in reversed(self._readings) if one.node.operator in _LINEAR)
        return next(linear, None)

    def _divided(self, name: str) -> list[int]:
        """Return the dimensions of a value that the tensor ranks divide."""
        layout = self.program.value(name).layout
        splits = () if layout is None else layout.splits
        return [i for i, axes in enumerate(splits) if self.tensor & {*axes}]

    def _check_forward(self) -> None:
        """Refuse what the hooks of the styles do not communicate, up to the head.

        They add up what a linear layer divided by rows, or a divided table, leaves in parts.

        Raises
        ------
        OptionError
            If the forward pass communicates anything else over the tensor ranks.
        """
        for node in takewhile(lambda node: node is not self._head, forward_nodes(self.program)):
            over = self.tensor & {*node.attributes.get("axes", ())}  # type: ignore[misc]
            if not over or not issubclass(operator_class(node.operator), Communication):
                continue
            source = self.program.producers.get(node.operands[0])
            sums = source is not None and source.operator in ("matmul", "gather")
            if node.operator != "all_reduce" or not sums:
                raise OptionError(
                    f"transformers' `tp_plan` has no style for the {node.operator} that "
                    f"`{node.scope or node.name}` needs over the tensor ranks",
                    hint="choose tensor ranks that divide the heads, or export `torch`",
                )
