"""Tests of `fit` ask the same few models about many limits and numbers of devices."""

from dataclasses import replace

import pytest

from shardwright.compiler.fit.model import FitModel
from shardwright.tools.fit import subject


@pytest.fixture(scope="package", autouse=True)
def _each_model_is_priced_once():
    """Share the prices of layers, and the small models that are built, between commands."""
    known: list[FitModel] = []

    def shared(graph, cluster, options, software):
        unlimited = replace(options, memory_limit=None)
        for one in known:
            own = one.options, one.cluster, one.software, one.graph
            if own == (unlimited, cluster, software, graph):
                break
        else:
            one = FitModel(graph, cluster, unlimited, software)
            known.append(one)
        # By whether links are told of, and within another limit.
        found = replace(one, options=options, _timed={}, _evaluators={}, _evaluations={})
        found.__dict__["_small"] = one._small
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject, "FitModel", shared)
        yield
