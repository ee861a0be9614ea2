"""Plans as calls of PyTorch: their styles, what has no such form, and what stands for it."""

import re
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

sys.path.insert(0, str(Path(__file__).parent))

from parallel_models import Decoder, Perceptron, tokens  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import shardwright as sw  # noqa: E402
from shardwright.exports.degrees.readings import merged  # noqa: E402
from shardwright.exports.parallelize import refusal_of_built  # noqa: E402
from shardwright.exports.table import export  # noqa: E402
from shardwright.ir.errors import OptionError, PlanError  # noqa: E402
from shardwright.tools.main import main  # noqa: E402

LLAMA = "llama:layers=2,hidden=64,heads=4,kv_heads=2,batch=8,sequence=16,vocabulary=96"
MIXTRAL = LLAMA.replace("llama:", "mixtral:") + ",experts=4"


def compiled(model, inputs=None, **options):
    return sw.compile(model, 4, **{"example_inputs": inputs, "cluster": "cpu", **options})


def exported(model, inputs=None, **options):
    return export(compiled(model, inputs, **options).plan, "parallelize")


def sentences():
    return {"ids": tokens(), "labels": tokens()}


def decoder(plan, **options):
    return exported(Decoder(2), sentences(), plan=plan, **options)


def vectors():
    return {"x": torch.randn(8, 8), "labels": torch.randint(0, 4, (8,))}


class Summed(Perceptron):
    """A loss that is a sum."""

    def forward(self, x, labels):
        return F.cross_entropy(self.head(self.layers(x)), labels, reduction="sum")


class Weighted(Perceptron):
    """A loss whose classes weigh differently."""

    def forward(self, x, labels):
        weights = torch.arange(4) + 1.0
        return F.cross_entropy(self.head(self.layers(x)), labels, weight=weights)


class Between(Perceptron):
    """A module between two layers."""

    def __init__(self, module):
        super().__init__()
        self.between = module

    def forward(self, x, labels):
        return F.cross_entropy(self.head(self.layers[2](self.between(self.layers[0](x)))), labels)


class Scaled(nn.Module):
    """Divides activations by what they are over all samples."""

    def forward(self, x):
        return x / x.square().mean().sqrt()


def test_activations_divided_by_position_are_dtensors():
    text = decoder("tensor=2,sequence_parallel,zero=3,recompute=full").files["parallelize.py"]
    compile(text, "parallelize.py", "exec")
    assert 'init_device_mesh(device, (2, 2), mesh_dim_names=("shard", "tensor"))' in text
    assert '"blocks.*.second": SequenceParallel(sequence_dim=1),' in text
    assert '"blocks.*.query": ColwiseParallel(),' in text
    scattered = "RowwiseParallel(output_layouts=Shard(1), use_local_output=False)"
    assert f'"blocks.*.down": {scattered},' in text
    assert 'dict(mesh=mesh["shard"], reshard_after_forward=True)' in text
    assert "block.forward = partial(checkpoint, block.forward, use_reentrant=False)" in text


def test_what_is_kept_is_not_gathered_again_and_types_are_those_of_the_plan():
    made = decoder("data=4,zero=3,micro_batch=1,recompute=none", precision="bfloat16")
    text = made.files["parallelize.py"]
    compile(text, "parallelize.py", "exec")
    assert "param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16" in text
    assert "parallelize_module" not in text
    assert "checkpoint" not in text
    assert any(note.startswith("a step has 2 micro-batches here") for note in made.notes)
    made = exported(Perceptron(), vectors(), plan="data=4,zero=1")
    assert made == exported(Perceptron(), vectors(), plan="data=4,zero=1")
    text = made.files["parallelize.py"]
    assert "reshard_after_forward=False" in text


def test_a_file_in_tf32_switches_pytorch_and_shards_float32():
    own, plain = (
        exported(Perceptron(), vectors(), plan="data=4,zero=3", cluster="a100", precision=one)
        for one in ("tf32", "float32")
    )
    text, other = own.files["parallelize.py"], plain.files["parallelize.py"]
    compile(text, "parallelize.py", "exec")
    switch = """
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.allow_tf32 = True
"""
    assert text.count(switch) == 1
    assert text.replace(switch, "") == other


def test_layers_that_differ_have_lines_of_their_own():
    styles = {"layers.0.up": "a", "layers.1.up": "", "head": "b"}
    assert merged(styles) == styles


def test_a_plan_that_was_found_is_written_as_the_nearest_with_what_that_costs(tmp_path, capsys):
    compiled(Decoder(2), sentences(), optimizer="sgd").write(tmp_path / "plan")
    arguments = ["export", str(tmp_path / "plan"), "--to", "parallelize", "--out"]
    assert main([*arguments, str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "parallelize.py").read_text()
    compile(text, "parallelize.py", "exec")
    for where in (capsys.readouterr().out, " ".join(text.split())):
        assert re.search(r"not the plan itself: `.*`fully_shard` exchanges", where, re.IGNORECASE)
        assert re.search(r"he nearest that can be said: \w+=\d", where)
        assert re.search(r"step .* us -> .* us \(\+.*%\), memory of a device .* KiB -> ", where)


def test_the_fastest_plan_is_not_taken_where_its_program_has_not_the_form():
    notes = exported(Weighted(), vectors(), plan="data=4").notes
    assert "`cross_entropy_loss` ends in `div`" in notes[0]
    assert re.search(r"tensor=4,data=1.*: 1 of 1 named plans fit; \d without such", notes[1])
    made = decoder("data=4,recompute=operators")
    assert "PyTorch cannot say `recompute=operators`" in made.notes[0]
    assert made.notes[1].startswith("the nearest that can be said: data=4,")


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        ("adam", "the optimizer is left to the script, here it is `adam`"),
        ("muon:learning_rate=0.1", "settings of the optimizer `muon` are left to the script, "),
    ],
)
def test_the_optimizer_that_is_left_to_the_script_is_named(optimizer, said):
    made = exported(Perceptron(), vectors(), plan="data=4,zero=1", optimizer=optimizer)
    assert any(note.startswith(said) for note in made.notes)


def test_types_of_what_stands_for_a_plan_are_those_of_the_plan():
    text = decoder(None, precision="bfloat16").files["parallelize.py"]
    assert "\n\nNot the plan itself: " in text
    assert "param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16" in text


def test_where_no_plan_has_the_form_it_is_refused_in_a_sentence():
    with pytest.raises(OptionError, match=r"^`div` in .*, and none of \d named plans .* has such"):
        exported(Between(Scaled()), vectors(), plan="data=4")
    with pytest.raises(PlanError, match="scales no loss for the precision float16"):
        exported(Perceptron(), vectors(), plan="data=4", precision="float16")


def test_blocks_of_which_a_part_is_computed_again_have_not_the_form():
    plan = compiled(Decoder(2), sentences(), plan="data=4,recompute=operators").plan
    message = r"`blocks/1` is computed again in part: `.*` of `blocks/1"
    assert re.match(message, refusal_of_built(plan))


@pytest.mark.filterwarnings("ignore:.*dropout draws other random numbers")
@pytest.mark.parametrize(
    ("model", "plan", "message"),
    [
        (LLAMA, "pipeline=2", "the plan has 2 pipeline stages"),
        (LLAMA, "context=2", "the input `tokens` is divided in another dimension"),
        (MIXTRAL, "tensor=4", "no style for `.*feed_forward.gate.weight`.* divide in dimension 2"),
        (Summed(), "data=4", "the loss `.*` ends in `reduce_sum`"),
        (Weighted(), "data=4", "the loss `.*` ends in `div`"),
        (Between(nn.BatchNorm1d(16)), "data=4", "`between` needs the all_reduce of `.*` between"),
        (Between(Scaled()), "data=4", "`div` in `between` reads a scalar of the samples"),
        (Between(nn.Dropout(0.1)), "tensor=4", "`dropout` in `between` draws random numbers"),
    ],
)
def test_what_has_not_the_form_is_told_by_name(model, plan, message):
    inputs = None if isinstance(model, str) else vectors()
    assert re.search(message, refusal_of_built(compiled(model, inputs, plan=plan).plan))
