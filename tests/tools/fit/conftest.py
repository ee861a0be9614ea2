"""Tests of `fit` ask the same few models about many limits and numbers of devices."""

from dataclasses import replace

import pytest

from shardwright.compiler.fit.model import FitModel
from shardwright.tools.fit import subject


@pytest.fixture(scope="package", autouse=True)
def _each_model_is_priced_once():
    """Share the parts of models between commands."""
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
        return replace(one, options=options, _evaluators={}, _evaluations={})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject, "FitModel", shared)
        yield
