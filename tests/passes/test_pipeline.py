"""The text form of pipelines: it prints and parses, and nothing wrong in it is ignored."""

from pathlib import Path

import pytest

from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.mindspore.allreduce_fusion import FusionSettings
from shardwright.ir.errors import ShardwrightError
from shardwright.passes import base
from shardwright.passes.append_optimizer import AppendOptimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.clean_up import CleanUp
from shardwright.passes.differentiate import Differentiate
from shardwright.passes.fuse_all_reduces import FuseAllReduces
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.mirror_shared_values import MirrorSharedValues
from shardwright.passes.partition import Partition
from shardwright.passes.pipeline import BUILT_IN, Pipeline, parse_pipeline, pipeline_text

PIPELINES: dict[str, Pipeline] = {
    "": (),
    "canonicalize,differentiate{loss_scale=2}": (Canonicalize(), Differentiate(2)),
    "differentiate{loss_scale=0.1},clean_up": (Differentiate(0.1), CleanUp()),
    "differentiate{loss_scale=0.30000000000000004}": (Differentiate(0.1 + 0.2),),
    "partition,lower_redistributions{cluster=h100-pod}": (
        Partition(),
        LowerRedistributions(cluster("h100-pod")),
    ),
    "lower_redistributions{cluster='h100-pod:figures=datasheet'}": (
        LowerRedistributions(cluster("h100-pod:figures=datasheet")),
    ),
    "lower_redistributions{cluster='h100:nodes=4,network=400Gb/s'}": (
        LowerRedistributions(cluster("h100:nodes=4,network=400Gb/s")),
    ),
    "mirror_shared_values{devices=4,mean=True}": (MirrorSharedValues(4, mean=True),),
    "canonicalize{pins={'a': ((2, 1), (1, 1))}}": (Canonicalize({"a": ((2, 1), (1, 1))}),),
    "append_optimizer{optimizer=adam,settings={'beta1': 0.5}}": (
        AppendOptimizer("adam", {"beta1": 0.5}),
    ),
    "append_optimizer{overrides={'w, {b}': {'learning_rate': 1}}}": (
        AppendOptimizer(overrides={"w, {b}": {"learning_rate": 1}}),
    ),
    "fuse_all_reduces{fusion=25}": (FuseAllReduces(25.0),),
    "fuse_all_reduces{fusion={'algorithm': 1, 'times': 3}}": (
        FuseAllReduces(FusionSettings(algorithm=1, times=3)),
    ),
}


@pytest.mark.parametrize("text", PIPELINES)
def test_text_and_pipeline_are_inverse(text: str) -> None:
    assert parse_pipeline(text) == PIPELINES[text]
    assert pipeline_text(PIPELINES[text]) == text


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (" canonicalize ,\n clean_up{} ", "canonicalize,clean_up"),
        ("differentiate{ loss_scale = 2.0 }", "differentiate{loss_scale=2}"),
        ("differentiate{loss_scale=1}", "differentiate"),
        ("lower_redistributions{cluster='cpu'}", "lower_redistributions{cluster=cpu}"),
        ("canonicalize{pins={'a': [[2, 1]]}}", "canonicalize{pins={'a': ((2, 1),)}}"),
    ],
)
def test_other_spellings(text: str, same: str) -> None:
    assert pipeline_text(parse_pipeline(text)) == same


NO_TEXT = "the text of a pipeline"
WRONG = {
    "canonicalise": "unknown pass `canonicalise`; did you mean `canonicalize`?",
    "clean-up": "unknown pass `clean-up`; did you mean `clean_up`?",
    "canonicalize,,clean_up": f"a pass is missing next to a comma (in {NO_TEXT}); separate the "
    "passes by single commas",
    "canonicalize,": f"a pass is missing next to a comma (in {NO_TEXT}); separate the passes by "
    "single commas",
    "differentiate 2": f"`differentiate 2` is not a pass (in {NO_TEXT}); a pass reads `name` or "
    "`name{option=value,...}`",
    "differentiate{loss_scale=2": "`}` is missing at the end (in `differentiate{loss_scale=2`)",
    "differentiate}": "`}` closes nothing (in `differentiate}`)",
    "differentiate{loss_scale='2}": "`'` is missing at the end (in `differentiate{loss_scale='2}`)",
    "differentiate{loss_scale}": "`loss_scale` is not an option of pass `differentiate`; write "
    "`differentiate{option=value,...}`",
    "differentiate{loss_scale=}": "the option `loss_scale` of pass `differentiate` has no value",
    "differentiate{loss_scale=2*}": f"the value `2*` cannot be read (in {NO_TEXT}); write a "
    "number, a name, a text in quotes, or a mapping `{'name': value}`",
    "differentiate{loss_scale=1,loss_scale=2}": "the option `loss_scale` of pass `differentiate` "
    "is set twice",
    "differentiate{scale=2}": "pass `differentiate` has no option `scale`; its options are "
    "loss_scale",
    "clean_up{scale=2}": "pass `clean_up` has no option `scale`; it has no options",
    "differentiate{loss_scale=two}": "`loss_scale` is the text `two`, expected a positive number "
    "or `dynamic` (in pass `differentiate`); write `dynamic`, or `dynamic:INITIAL:FACTOR:WINDOW`",
    "differentiate{loss_scale=True}": "`loss_scale` is True, expected a positive number or "
    "`dynamic` (in pass `differentiate`)",
    "differentiate{loss_scale=0}": "`loss_scale` is 0, expected a number above 0 and below "
    "3.40282e+38 (in pass `differentiate`)",
    "mirror_shared_values": "pass `mirror_shared_values` needs the option `devices`; write "
    "`mirror_shared_values{devices=...}`: an integer of at least 1",
    "mirror_shared_values{devices=2.5}": "`devices` is 2.5, expected an integer of at least 1 (in "
    "pass `mirror_shared_values`)",
    "mirror_shared_values{devices=2,mean=1}": "`mean` is 1, expected True or False (in pass "
    "`mirror_shared_values`)",
    "lower_redistributions{cluster=3}": "`cluster` is 3, expected the name of a cluster, or a file "
    "(in pass `lower_redistributions`)",
    "annotate{decisions=nowhere.ir}": "cannot read the decisions `nowhere.ir`: no such file or "
    "directory (in pass `annotate`)",
    "canonicalize{pins=3}": "`pins` is 3, expected a mapping (in pass `canonicalize`)",
    "canonicalize{pins={'a': 2}}": "`strategy of a` is 2, expected a number of slices for each "
    "dimension of each tensor (in pass `canonicalize`); write `((2, 4), (4, 1))`",
    "append_optimizer{optimizer=lion}": "`optimizer` is `lion`, expected sgd, momentum, adam, "
    "adam8bit, muon, ftrl, adagrad, rmsprop, lamb, lars, amsgrad, dampened, centered or gradient "
    "(in pass `append_optimizer`)",
    "append_optimizer{settings={'lr': 1}}": "`sgd` has no setting `lr` (in pass "
    "`append_optimizer`); expected learning_rate or weight_decay",
    "append_optimizer{overrides={'w': 3}}": "`overrides of w` is 3, expected a mapping (in pass "
    "`append_optimizer`)",
    "fuse_all_reduces{fusion=-1}": "`fusion` is -1, expected a number of megabytes, or a mapping "
    "of MindSpore's settings (in pass `fuse_all_reduces`)",
    "fuse_all_reduces{fusion={'algorithms': 1}}": "all-reduce fusion has no setting `algorithms` "
    "(in pass `fuse_all_reduces`); did you mean `algorithm`?",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_texts(text: str) -> None:
    with pytest.raises(ShardwrightError) as caught:
        parse_pipeline(text)
    assert str(caught.value) == WRONG[text]


def test_python_is_told_as_text_is() -> None:
    with pytest.raises(ShardwrightError) as caught:
        Differentiate(loss_scale="two")  # type: ignore[arg-type]
    assert str(caught.value) == WRONG["differentiate{loss_scale=two}"]


# Passes in the modules of those that they follow.
BESIDE = {"delay_statistics": "clean_up", "quantize_products": "apply_precision"}


def test_every_module_of_the_passes_is_a_pass() -> None:
    modules = {path.stem for path in Path(base.__file__).parent.glob("*.py")}
    places = {kind: BESIDE.get(kind.name, kind.name) for kind in BUILT_IN}
    assert modules - {"__init__", "base", "manager", "pipeline"} == set(places.values())
    assert all(kind.__module__ == f"shardwright.passes.{at}" for kind, at in places.items())
