"""Tests of `fit` ask the same few models about many limits and numbers of devices."""

from dataclasses import replace
from functools import cache

import pytest

from shardwright.compiler.evaluation import evaluated_model
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.evaluation.evaluator import Evaluator
from shardwright.tools import fit
from shardwright.tools.fit import subject


@pytest.fixture(scope="package", autouse=True)
def _each_model_is_priced_once():
    """Share the parts of models between commands, and what plans take between equal ones."""
    known: list[EvaluatedModel] = []
    evaluators: list[tuple[tuple[object, ...], Evaluator]] = []

    def shared(graph, cluster, options, software):
        unlimited = replace(options, memory_limit=None)
        for one in known:
            own = one.options, one.cluster, one.software, one.graph
            if own == (unlimited, cluster, software, graph):
                break
        else:
            one = EvaluatedModel(graph, cluster, unlimited, software)
            known.append(one)
        return replace(one, options=options, _evaluators={}, _evaluations={})

    def evaluator(graph, *given):
        *setting, _ = given  # what is shared on other numbers of devices is of no account
        for (own, *others), one in evaluators:
            if others == setting and own == graph:
                return one
        one = Evaluator(graph, *setting)
        one.evaluation = cache(one.evaluation)
        evaluators.append(((graph, *setting), one))
        return one

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject, "EvaluatedModel", shared)
        patch.setattr(evaluated_model, "Evaluator", evaluator)
        patch.setattr(fit, "usable_workers", lambda most: 1)  # others would not share them
        yield
