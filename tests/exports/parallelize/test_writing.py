"""Whatever text stands in a plan, what calls PyTorch for it is the same code."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

sys.path.insert(0, str(Path(__file__).parent))

from parallel_models import PIPELINES, Decoder, scores, tokens  # noqa: E402

import shardwright as sw  # noqa: E402
from shardwright.exports.table import export  # noqa: E402
from tests.exports.hostile_names import HOSTILE, code, renamed  # noqa: E402

OPTIONS = {"cluster": "cpu", "optimizer": "sgd"}


def parallelized():
    inputs = {"ids": tokens(), "labels": tokens()}
    module = Decoder().double()
    return sw.compile(module, 4, example_inputs=inputs, plan="data=2,tensor=2", **OPTIONS).plan


def in_stages():
    module, plan = scores("recomputed")[0], PIPELINES["recomputed"][1]
    options = {"example_inputs": {"ids": tokens()}, "loss": "cross_entropy", **OPTIONS}
    return sw.compile(module, 2, plan=plan, **options).plan


@pytest.mark.parametrize(("to", "make"), [("parallelize", parallelized), ("pipelining", in_stages)])
def test_a_name_changes_no_line_of_code(to, make):
    plan = make()
    ((name, expected),) = export(plan, to).files.items()
    for text in HOSTILE:
        document = renamed(plan, text).document
        (found,) = export(replace(plan, document=document), to).files.values()
        assert code(name, found) == code(name, expected), text
