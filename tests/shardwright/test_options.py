"""Wrong options get the same sentence from every way to compile."""

from math import inf, nan
from pathlib import Path

import numpy as np
import pytest

import shardwright as sw
from shardwright import nn
from shardwright.ir.errors import InfeasibleError, OptionError, PassError, ShardwrightWarning
from shardwright.parallel import AutoParallel
from shardwright.planner.options import OPTION_NAMES, OPTIONS, CompileOptions
from shardwright.tools.console.arguments import Parser
from shardwright.tools.console.options import add_compile_options
from shardwright.tools.main import main

SLICES = "a number of slices for each dimension of each tensor"
WRONG = [
    ({"cost_model": "foo"}, "`cost_model` is `foo`, expected time or mindspore"),
    ({"plan": "tensr=2"}, "a named plan has no `tensr`; did you mean `tensor`?"),
    ({"plan": 8}, "`plan` is 8, expected a named plan; write `tensor=8,data=4,zero=1`"),
    ({"gap": -1}, "`gap` is -1, expected a number of at least 0 and below 1"),
    ({"gap": "0.1"}, "`gap` is the text `0.1`, expected a number of at least 0 and below 1"),
    ({"fusion": "64"}, "`fusion` is the text `64`, expected settings such as `algorithm=1`"),
    ({"fusion": "algorithm=3"}, "all-reduce fusion has no algorithm 3, only 0, 1 and 2"),
    ({"fusion": "times=two"}, "`times` of `fusion` is the text `two`, expected a number"),
    ({"fusion": "tail=2"}, "`fusion` has no setting `tail`"),
    ({"cost_weights": "beta=50"}, "`cost_weights` has no effect with the cost model `time`"),
    ({"cost_weights": "beta=-1"}, "`beta` of `cost_weights` is -1, expected a number of at least"),
    ({"cost_weights": "delta=1"}, "`cost_weights` has no setting `delta`"),
    ({"cost_weights": 3}, "`cost_weights` is 3, expected weights, such as `alpha=1,beta=400"),
    ({"fusion": -1}, "`fusion` is -1, expected a number of at least 0"),
    ({"memory_limit": 0}, "`memory_limit` is 0, expected a number above 0"),
    ({"memory_limit": nan}, "`memory_limit` is nan, expected a number above 0"),
    ({"memory_limt": 3}, "has no option `memory_limt`; did you mean `memory_limit`?"),
    ({"time_limit": 0}, "`time_limit` is 0, expected a number above 0"),
    ({"effort": 0}, "`effort` is 0, expected a number above 0"),
    ({"effort": None}, "`effort` is None, expected a number above 0"),
    ({"optimizer_parallel": "yes"}, "has no setting `yes`; expected shard_size"),
    ({"pins": 3}, "`pins` is 3, expected a mapping from names"),
    ({"pins": {"matmul_0": 3}}, f"`strategy of matmul_0` is 3, expected {SLICES}"),
    ({"pins": {"matmul_0": ((0, 1), (1, 1))}}, f"is ((0, 1), (1, 1)), expected {SLICES}"),
]
# Of `compile` alone.
ARGUMENTS = [
    ({"devices": "4"}, "`devices` is the text `4`, expected an integer of at least 1"),
    ({"devices": 4.0}, "`devices` is 4.0, expected an integer of at least 1"),
    ({"model": 3}, "`model` is 3, expected the name of a model, or what `trace` returns"),
    ({"cluster": 3}, "`cluster` is 3, expected the name of a cluster, a file, or a `Cluster`"),
    ({"mesh": (2, 2)}, "`mesh` is (2, 2), expected a text such as `2x4`, or a `Mesh`"),
    ({"batch": 0}, "`batch` is 0, expected an integer of at least 1"),
    ({"seed": -1}, "`seed` is -1, expected an integer of at least 0"),
    ({"strategies": 3}, "`strategies` is 3, expected a file, or a mapping from operators"),
    ({"dataset_strategy": "whole"}, "is `whole`, expected data_parallel or full_batch"),
    ({"mode": "stand"}, "`mode` is `stand`, expected auto_parallel, semi_auto_parallel, "),
    ({"search": "exat"}, "fully_sharded; did you mean `exact`?"),
    (
        {"optimizer": "adm"},
        "amsgrad, dampened, centered, adamw or adamw8bit; did you mean `adam`?",
    ),
    ({"optimizer": nn.SGD}, 'expected the rule of an update; write `optimizer="adam"`'),
]
UNUSED = [
    ("hybrid_parallel", {"fusion": 64.0}),
    ("hybrid_parallel", {"mesh": "4"}),
    ("stand_alone", {"optimizer_parallel": True}),
    ("stand_alone", {"cost_model": "mindspore"}),
    ("stand_alone", {"strategies": {"matmul_0": ((1, 1), (1, 1))}}),
    ("stand_alone", {"dataset_strategy": "full_batch"}),
    ("stand_alone", {"mesh": "1"}),
    ("semi_auto_parallel", {"gradients_mean": True}),
    ("data_parallel", {"search": "fully_sharded"}),
]


# From the command line, `compile` and `AutoParallel`.
EVERYWHERE = [
    ("--cost-model", "cost_model", "foo"),
    ("--cost-model", "cost_model", "tme"),
    ("--effort", "effort", 0),
    ("--effort", "effort", inf),
    ("--effort", "effort", "much"),
    ("--fusion", "fusion", -1),
    ("--fusion", "fusion", "64M"),
    ("--gap", "gap", -1),
    ("--gap", "gap", 1.5),
    ("--gap", "gap", "small"),
    ("--memory", "memory_limit", 0),
    ("--memory", "memory_limit", nan),
    ("--memory", "memory_limit", "80GiB"),
    ("--time-limit", "time_limit", 0),
    ("--time-limit", "time_limit", inf),
    ("--time-limit", "time_limit", "1h"),
]
# From the command line and `compile`; the model, or a method, says them to `AutoParallel`.
OF_COMPILE = [
    ("--batch", "batch", 0),
    ("--devices", "devices", 0),
    ("--devices", "devices", "many"),
    ("--dataset-strategy", "dataset_strategy", "whole"),
    ("--loss-scale", "loss_scale", 0),
    ("--mode", "mode", "stand"),
    ("--optimizer", "optimizer", "adm"),
    ("--search", "search", "exat"),
    ("--seed", "seed", -1),
]


def training_step():
    """Return a training step that applies its optimizer."""
    network, loss = nn.Dense(4, 2), nn.MSELoss()
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    forward = sw.value_and_grad(lambda x, y: loss(network(x), y), None, network.trainable_params())

    def step(x, y):
        value, gradients = forward(x, y)
        optimizer(gradients)
        return value

    return step


def complaint(act):
    with pytest.raises(OptionError) as caught:
        act()
    return str(caught.value)


@pytest.mark.parametrize(("options", "expected"), [*WRONG, *ARGUMENTS])
def test_compile_refuses_wrong_options(options, expected):
    arguments = {"model": "two_matmul", "devices": 4, "cluster": "cpu", **options}
    assert expected in complaint(lambda: sw.compile(**arguments))


@pytest.mark.parametrize(("options", "expected"), WRONG)
def test_auto_parallel_refuses_wrong_options(options, expected):
    assert expected in complaint(lambda: AutoParallel(nn.Dense(2, 2), devices=4, **options))


def from_the_command_line(capsys, flag, value):
    """Return what the command line says to a wrong value, less the name."""
    assert main(["compile", "two_matmul", "--devices", "4", f"{flag}={value}"]) == 2
    return capsys.readouterr().err.rstrip("\n").removeprefix(f"shardwright: `{flag}` ")


@pytest.mark.parametrize(("flag", "name", "value"), [*EVERYWHERE, *OF_COMPILE])
def test_the_command_line_and_compile_say_the_same(flag, name, value, capsys):
    arguments = {"model": "two_matmul", "devices": 4, "cluster": "cpu", name: value}
    said = complaint(lambda: sw.compile(**arguments))
    assert said == f"`{name}` {from_the_command_line(capsys, flag, value)}"


@pytest.mark.parametrize(("flag", "name", "value"), EVERYWHERE)
def test_the_command_line_and_auto_parallel_say_the_same(flag, name, value, capsys):
    said = complaint(lambda: AutoParallel(nn.Dense(2, 2), devices=4, **{name: value}))
    assert said == f"`{name}` {from_the_command_line(capsys, flag, value)}"


def test_unknown_passes_get_the_same_sentence_everywhere(capsys):
    expected = "unknown pass `canonicalise`; did you mean `canonicalize`?"
    options = {"extra_passes": "canonicalise"}
    for act in (
        lambda: sw.compile("two_matmul", 4, cluster="cpu", **options),
        lambda: AutoParallel(nn.Dense(2, 2), devices=4, **options),
    ):
        with pytest.raises(PassError) as caught:
            act()
        assert str(caught.value) == expected
    assert main(["compile", "two_matmul", "--devices", "4", "--extra-passes=canonicalise"]) == 2
    assert capsys.readouterr().err == f"shardwright: {expected}\n"


def test_the_command_line_has_the_defaults_of_the_class():
    parser = Parser()
    add_compile_options(parser, devices=False)
    defaults = vars(parser.parse_args([]))
    shared = {name: defaults[name] for name in OPTION_NAMES if defaults.get(name) is not None}
    assert CompileOptions(**shared) == CompileOptions()


def test_every_option_is_documented():
    documentation = CompileOptions.__doc__
    assert all(
        f"\n    {name}\n        {OPTIONS[name].text[:1].upper()}" in documentation
        for name in OPTION_NAMES
    )


@pytest.mark.parametrize(("mode", "options"), UNUSED)
def test_options_without_an_effect_are_refused(mode, options):
    devices = 1 if mode == "stand_alone" else 4
    said = complaint(lambda: sw.compile("mlp", devices, cluster="cpu", mode=mode, **options))
    name = {"strategies": "pins"}.get(*options, *options)
    assert said.startswith(f"`{name}` has no effect in the mode `{mode}`; leave it out")


def test_devices_that_are_not_used_are_told():
    with pytest.warns(ShardwrightWarning, match="`stand_alone` uses one of the 4 devices"):
        sw.compile("mlp", 4, cluster="cpu", mode="stand_alone")


def test_an_optimizer_may_be_given_by_name():
    plan = sw.compile("mlp:hidden=8,batch=4", 2, cluster="cpu", optimizer="adam").plan
    assert plan.document.optimizer.kind == "adam"


def test_auto_parallel_takes_the_options_of_the_compiler():
    options = {
        "memory_limit": 3e9,
        "gap": 0.0,
        "effort": 0.1,
        "time_limit": 5.0,
        "cost_model": "mindspore",
        "fusion": 32.0,
        "optimizer_parallel": True,
        "pins": {"matmul_0": ((2, 1), (1, 1))},
    }
    parallel = AutoParallel(nn.Dense(2, 2), "auto", devices=2, **options)
    assert parallel.options.how == CompileOptions(**options)


def test_auto_parallel_compiles_within_its_memory_limit():
    step = AutoParallel(training_step(), "auto", devices=4, cluster="cpu", memory_limit=100.0)
    with pytest.raises(InfeasibleError, match="100 B"):
        step(np.ones((8, 4), np.float32), np.ones((8, 2), np.float32))


@pytest.mark.parametrize(("mesh", "axes"), [("2x2", [2, 2]), ("rows=4", [4]), ("search", [2, 2])])
def test_auto_parallel_compiles_for_a_mesh(mesh, axes):
    step = AutoParallel(training_step(), "auto", devices=4, cluster="cpu", mesh=mesh)
    step(np.ones((8, 4), np.float32), np.ones((8, 2), np.float32))
    assert [axis.size for axis in step.session.compiled.mesh.axes] == axes


def test_auto_parallel_trains_on_a_named_plan():
    step = AutoParallel(training_step(), "auto", devices=4, plan="tensor=2,zero=1")
    batch = np.ones((8, 4), np.float32), np.ones((8, 2), np.float32)
    assert step(*batch) > step(*batch)
    assert step.session.compiled.result.how == "tensor=2,data=2,zero=1"
    with pytest.raises(OptionError, match="`plan` has no effect in the mode `semi_auto_parallel`"):
        AutoParallel(training_step(), devices=4, plan="tensor=2")
    with pytest.raises(OptionError, match="`mesh` has no effect with `plan`, which decides it"):
        AutoParallel(training_step(), "auto", devices=4, plan="tensor=2", mesh="2x2")


def test_batches_arrive_as_asked_whatever_is_minimised():
    arrived = {}
    for strategy in ("data_parallel", "full_batch"):
        found = sw.compile(
            "mlp", 4, cluster="cpu", cost_model="mindspore", dataset_strategy=strategy
        )
        arrived[strategy] = str(found.plan.program.inputs[0].layout)
    assert arrived == {"data_parallel": "[d0@d1, *]", "full_batch": "[*, *]"}


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda plan: sw.run(plan, 0), "`steps` is 0, expected an integer of at least 1"),
        (lambda plan: sw.run(plan, seed=-1), "`seed` is -1, expected an integer of at least 0"),
        (lambda plan: sw.run(plan, 1, save=3), "`save` is 3, expected the path of a file"),
        (lambda plan: sw.run(plan, 1, data=3), "`data` is 3, expected the path of a file"),
        (lambda plan: sw.verify(3), "`plan` is 3, expected the folder of a plan, or what"),
        (lambda plan: sw.verify(plan, "3"), "`steps` is the text `3`, expected an integer"),
    ],
)
def test_run_and_verify_refuse_wrong_arguments(act, expected):
    plan = sw.compile("mlp:hidden=8,batch=4", 2, cluster="cpu")
    assert expected in complaint(lambda: list(act(plan)))


@pytest.mark.parametrize("mode", ["stand_alone", "hybrid_parallel"])
def test_the_memory_limit_holds_in_every_mode(mode):
    programs = f"{Path(__file__).parents[1] / 'tools' / 'hybrid_model.py'}"
    model = "mlp" if mode == "stand_alone" else f"{programs}:split_batch"
    with pytest.raises(InfeasibleError, match=f"and the mode `{mode}` has no other program"):
        sw.compile(model, 1, cluster="cpu", mode=mode, memory_limit=1000)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"gap": 0.1, "plan": "data=4"}, "with `plan`, which decides it"),
        ({"gap": 0.01, "search": "fully_sharded"}, "with the search `fully_sharded`"),
        ({"objective": "serial", "search": "data_parallel"}, "with the search `data_parallel`"),
        ({"objective": "serial", "mode": "data_parallel"}, "in the mode `data_parallel`"),
        ({"objective": "serial", "cost_model": "mindspore"}, "with the cost model `mindspore`"),
        ({"gap": 0.1, "mode": "stand_alone"}, "in the mode `stand_alone`"),
    ],
)
def test_options_of_the_exact_search_are_refused_where_it_does_not_run(options, where):
    assert f"has no effect {where}" in complaint(
        lambda: sw.compile(
            "two_matmul", 1 if "stand_alone" in where else 4, cluster="cpu", **options
        )
    )


def test_automatic_parallelism_refuses_options_of_another_search():
    complained = complaint(lambda: AutoParallel(nn.Dense(2, 2), "semi_auto", devices=4, gap=0.1))
    assert "`gap` has no effect in the mode `semi_auto_parallel`" in complained


def test_the_objective_of_a_named_plan_chooses_its_buckets():
    sw.compile("two_matmul", 4, cluster="cpu", plan="data=4", objective="serial")
