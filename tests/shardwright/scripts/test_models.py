import numpy as np
import pytest

import shardwright as sw
import shardwright.dataset as ds
from shardwright import nn, train
from shardwright.ir.errors import ModelError, OptionError


class Network(nn.Cell):
    def __init__(self):
        self.first = nn.Dense(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Dense(8, 3)

    def construct(self, x):
        return self.second(self.drop(self.norm(self.first(x))))


@pytest.fixture
def data():
    random = np.random.default_rng(0)
    x = random.normal(size=(32, 6)).astype(np.float32)
    return ds.ArrayDataset({"x": x, "y": x[:, :3].argmax(1).astype(np.int32)}).batch(8)


def trained(data, epochs=20, callbacks=None, devices=2):
    net = Network()
    optimizer = nn.Adam(net.trainable_params(), 0.05)
    network = sw.AutoParallel(net, "auto", devices=devices, cluster="cpu")
    model = sw.Model(network, nn.CrossEntropyLoss(), optimizer, ["accuracy", "loss"])
    return net, model, model.train(epochs, data, callbacks)


def numbers(net, x):
    """Return what a network returns that does not train, in numpy."""
    value = {name: p.asnumpy().astype(np.float64) for name, p in net.parameters_and_names()}
    x = x @ value["first.weight"].T + value["first.bias"]
    x = (x - value["norm.moving_mean"]) / np.sqrt(value["norm.moving_variance"] + 1e-5)
    x = x * value["norm.gamma"] + value["norm.beta"]
    return x @ value["second.weight"].T + value["second.bias"]


def test_a_trained_network_is_evaluated_with_what_it_learned(data):
    net, model, _ = trained(data)
    before = net.first.weight.asnumpy()
    batches = list(data.create_dict_iterator())
    scores = [numbers(net, batch["x"]) for batch in batches]
    right = np.mean([s.argmax(1) == b["y"] for s, b in zip(scores, batches, strict=True)])
    found = model.eval(data)
    assert found["accuracy"] == right > 0.8
    logs = [s - np.log(np.exp(s).sum(1, keepdims=True)) for s in scores]
    loss = -np.mean([log[np.arange(8), b["y"]] for log, b in zip(logs, batches, strict=True)])
    np.testing.assert_allclose(found["loss"], loss, rtol=1e-5)
    x = batches[0]["x"]
    np.testing.assert_allclose(model.predict(x).asnumpy(), scores[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(net(sw.Tensor(x)).asnumpy(), scores[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(net.first.weight.asnumpy(), before)


def test_a_checkpoint_gives_another_network_what_one_learned(data, tmp_path):
    net, _, _ = trained(data)
    other = Network()
    train.save_checkpoint(net, tmp_path / "net", append_dict={"epoch": 3})
    found = train.load_checkpoint(tmp_path / "net.ckpt")
    assert int(found["epoch"].asnumpy()) == 3
    assert train.load_param_into_net(other, found) == ([], ["epoch"])
    x = sw.Tensor(next(iter(data))[0])
    np.testing.assert_array_equal(other(x).asnumpy(), net(x).asnumpy())
    part = train.load_checkpoint(tmp_path / "net.ckpt", filter_prefix="first")
    assert "first.weight" not in part
    assert train.load_param_into_net(Network(), part)[0] == ["first.weight", "first.bias"]


def test_values_that_are_set_are_trained_on(data):
    net, model, _ = trained(data, 1)
    for parameter in net.get_parameters():
        parameter.set_data(np.zeros(parameter.shape))
    np.testing.assert_allclose(model.train(1, data)[0], np.log(3), rtol=1e-6)
    with pytest.raises(ModelError, match=r"of type f32\[8, 6\] is given data of shape \(2,\)"):
        net.first.weight.set_data(np.zeros(2))


class Hooks(train.Callback):
    def __init__(self):
        self.seen = []

    def __getattribute__(self, name):
        if name.startswith("on_"):
            self.seen.append(name)
        return super().__getattribute__(name)


def test_callbacks_are_called_in_order_and_may_end_the_run(data):
    hooks = Hooks()
    _, model, _ = trained(data, 1, hooks)
    step = ["on_train_step_begin", "on_train_step_end"]
    epoch = ["on_train_epoch_begin", *step * 4, "on_train_epoch_end"]
    assert hooks.seen == ["on_train_begin", *epoch, "on_train_end"]
    hooks.seen.clear()
    model.eval(data, hooks)
    assert hooks.seen == [
        name.replace("train", "eval") for name in ["on_train_begin", *epoch, "on_train_end"]
    ]

    class Stop(train.Callback):
        def step_end(self, run_context):
            arguments = run_context.original_args()
            seen.append((arguments.cur_epoch_num, arguments.cur_step_num, arguments.batch_num))
            if arguments.cur_step_num == 6:
                run_context.request_stop()

    seen = []
    assert len(model.train(5, data, [Stop()])) == 6
    assert seen[-1] == (2, 6, 4)


def test_monitors_print_lines_of_mindspore(data, capsys):
    trained(data, 2, [train.LossMonitor(4), train.TimeMonitor()])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in lines[::2]] == [
        "epoch: 1 step: 4",
        "epoch: 2 step: 4",
    ]
    assert lines[1].startswith("Train epoch time: ")
    assert " ms, per step time: " in lines[1]


def test_checkpoints_are_written_in_training_and_the_newest_are_kept(data, tmp_path):
    config = train.CheckpointConfig(3, keep_checkpoint_max=2, append_info=["epoch_num"])
    saver = train.ModelCheckpoint("net", tmp_path, config)
    net, _, _ = trained(data, 2, saver)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net-2_2.ckpt", "net-2_4.ckpt"]
    assert saver.latest_ckpt_file_name.endswith("net-2_4.ckpt")
    found = train.load_checkpoint(saver.latest_ckpt_file_name)
    assert int(found["epoch_num"].asnumpy()) == 2
    assert "first.weight.m" in found
    np.testing.assert_array_equal(found["first.weight"].asnumpy(), net.first.weight.asnumpy())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda m, d: m.train(1, d, ["loss"]),
            "`callbacks` is the text `loss`, expected a `Callback`",
        ),
        (lambda m, d: sw.Model(Network(), metrics=["acuracy"]), "did you mean `accuracy`"),
        (lambda m, d: sw.Model(Network()).eval(d), "the model has no metrics to evaluate"),
        (lambda m, d: sw.Model(Network(), metrics=["loss"]).eval(d), "`Loss` needs a loss"),
        (lambda m, d: train.CheckpointConfig(0), "after neither steps nor seconds"),
        (
            lambda m, d: train.CheckpointConfig(async_save=True),
            "`async_save` is True, expected False",
        ),
        (lambda m, d: train.save_checkpoint(3, "x"), "`save_obj` is 3, expected a network"),
        (lambda m, d: Network().first.weight.asnumpy(), "has no value yet"),
    ],
)
def test_wrong_uses_are_refused(wrong, message, data):
    with pytest.raises((ModelError, OptionError), match=message):
        wrong(sw.Model(Network(), nn.CrossEntropyLoss()), data)
