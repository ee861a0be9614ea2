"""The model of `fit`: its program at any sequence length, and plans that are built."""

import argparse
import warnings
from dataclasses import replace
from typing import Any

from shardwright.api import compile
from shardwright.arguments import asked_options, with_own_options
from shardwright.compilation import Compilation
from shardwright.compiler.evaluation.evaluated import Evaluated
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.cluster import cluster as cluster_named
from shardwright.cost_model.efficiency.software import software
from shardwright.cost_model.model_flops import batch_size
from shardwright.dataflow.update_rules import with_rules
from shardwright.ir.errors import OptionError, ShardwrightWarning
from shardwright.models import training_definition, with_new_size, with_size
from shardwright.planner.options import OPTION_NAMES
from shardwright.tools.answers.kept import Kept
from shardwright.tools.console.options import compile_arguments
from shardwright.tracing import Definition

SEQUENCE, BATCH = "sequence", "batch"


class Subject:
    """A model by its name, on a cluster, as the command line trains it.

    Parameters
    ----------
    arguments : Namespace
        The command line.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.cluster: Cluster = cluster_named(arguments.cluster)
        self.software = software(arguments.software)
        given = with_new_size(arguments.model, SEQUENCE, arguments.sequence)
        self.definition, self.name = training_definition(given, arguments.batch, 1)
        self._given = compile_arguments(arguments.model, arguments)
        # Workers find the plan; to build it takes none.
        named = (name for name in OPTION_NAMES if name != "workers")
        self._options = {name: self._given[name] for name in named if name in self._given}
        _check(self.definition)

    def model(
        self, sequence: int | None = None, batch: int | None = None, **options: Any
    ) -> EvaluatedModel:
        """Return the model, with another sequence, another batch or other options.

        Raises
        ------
        ModelError
            If the model has no such size.
        """
        definition, name = self.definition, self.name
        for size, value in ((SEQUENCE, sequence), (BATCH, batch)):
            name = name if value is None else with_size(name, size, value)
        if name != self.name:
            with warnings.catch_warnings():  # they were told of the model itself
                warnings.simplefilter("ignore", ShardwrightWarning)
                definition, _ = training_definition(name, None, 1)
        given = {**self._options, **options}
        asked = with_own_options(asked_options(given, None, ()), definition, given)
        rules = with_rules(asked.optimizer, definition.graph)
        asked = replace(asked, micro_batches=1, optimizer=rules)
        return EvaluatedModel(definition.graph, self.cluster.without_host(), asked, self.software)

    @property
    def tokens(self) -> int | None:
        """Tokens of a step; None where the model reads none."""
        return batch_size(self.definition.graph).tokens

    @property
    def samples(self) -> int:
        """Samples of a step."""
        return batch_size(self.definition.graph).samples

    @property
    def sequence(self) -> int | None:
        """Tokens of a sample; None where the model has no size ``sequence``."""
        return None if self.tokens is None else self.tokens // self.samples

    def built(self, one: Evaluated) -> Compilation:
        """Return the compilation of a plan that fits."""
        return compile(
            self.definition,
            one.devices,
            cluster=self.cluster.for_programs_of(self.software),
            plan=one.plan,
            **self._options,
        )

    def kept(self, compilation: Compilation) -> Kept | None:
        """Return what the training software keeps of a plan; None if unknown."""
        cluster = self.cluster.run_by(self.software)
        return Kept.of(compilation.plan.program, cluster, self._options.get("memory_limit"))


def _check(definition: Definition) -> None:
    """Refuse what plans of the family cannot keep.

    Raises
    ------
    OptionError
        If the model fixes strategies, or a number of micro-batches.
    """
    if definition.pins or definition.result_pins:
        raise OptionError(
            "the model fixes strategies of operators, and a named plan decides all of them",
            hint="leave them out, or search with `compile`",
        )
    if definition.micro_batches != 1:
        raise OptionError(
            f"the model fixes {definition.micro_batches} micro-batches, and `fit` chooses them",
            hint="leave them out, or search with `compile`",
        )
