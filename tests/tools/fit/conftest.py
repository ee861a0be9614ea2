"""Tests of `fit` ask the same few models about many limits and numbers of devices."""

from dataclasses import replace

import pytest

from shardwright.compiler.fit.model import FitModel
from shardwright.tools.fit import subject


@pytest.fixture(scope="package", autouse=True)
def _each_model_is_priced_once():
    """Share the prices of layers, and the small models that are built, between commands."""
    known: list[FitModel] = []

    def shared(graph, cluster, options):
        unlimited = replace(options, memory_limit=None)
        for one in known:
            if (one.options, one.cluster, one.graph) == (unlimited, cluster, graph):
                break
        else:
            one = FitModel(graph, cluster, unlimited)
            known.append(one)
        found = replace(one, options=options, _timed={})  # by whether links are told of
        found.__dict__["_small"] = one._small
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject, "FitModel", shared)
        yield
