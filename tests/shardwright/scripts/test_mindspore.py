import numpy as np
import pytest

import shardwright.dataset as own
import shardwright.mindspore as ms
import shardwright.mindspore.dataset as ds
from shardwright.communication import get_group_size, get_rank, world
from shardwright.eager import drawn
from shardwright.ir.errors import ModelError, OptionError
from shardwright.mindspore import nn, ops
from shardwright.mindspore.common import initializer as initial
from shardwright.mindspore.dataset import transforms, vision
from shardwright.mindspore.nn.utils import no_init_parameters
from shardwright.mindspore.parallel.auto_parallel import AutoParallel


@pytest.fixture(autouse=True)
def as_begun(monkeypatch):
    """Restore the settings of the process."""
    monkeypatch.delenv("MS_DEV_SAVE_GRAPHS", raising=False)
    yield
    ms.reset_auto_parallel_context()
    ms.set_context(deterministic="OFF")
    ms.set_seed(0)


def numbers(samples=22):
    random = np.random.default_rng(0)
    x = random.normal(size=(samples, 6)).astype(np.float32)
    return {"x": x, "y": x[:, :3].argmax(1).astype(np.int32)}


def network():
    return nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 3))


# Settings


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (lambda: ms.set_context(mode=2), "`mode` is 2, expected GRAPH_MODE or PYNATIVE_MODE"),
        (lambda: ms.set_context(device_target="TPU"), "`device_target` is `TPU`, expected CPU"),
        (lambda: ms.set_context(enable_dump=True), "`set_context` has no setting `enable_dump`"),
        (lambda: ms.set_context(save_graphs=4), "`save_graphs` is 4, expected True, False"),
        (lambda: ms.set_context(deterministic=True), "`deterministic` is True, expected ON or OFF"),
        (
            lambda: ms.set_auto_parallel_context(parallel_mode="auto"),
            "`parallel_mode` is `auto`, expected stand_alone",
        ),
        (lambda: ms.set_auto_parallel_context(device_num=0), "`device_num` is 0, expected an int"),
        (lambda: ms.set_auto_parallel_context(gradient_mean=True), "did you mean `gradients_mean`"),
        (lambda: ms.set_ps_context(enable_ps=1), "`enable_ps` is 1, expected True or False"),
        (lambda: ms.set_ps_context(port=1), "`set_ps_context` has no setting `port`"),
        (lambda: ds.config.set_enable_autotune(1), "`enable` is 1, expected True or False"),
        (lambda: ms.set_seed(-1), "`seed` is -1, expected an integer of at least 0"),
        (lambda: ms.jit(jit_levle="O0"), "`jit` has no option `jit_levle`"),
        (lambda: ms.Model(network(), boost_level="O1"), "`boost_level` is `O1`, expected O0"),
        (lambda: initial.Normal(mean=1), "`mean` is 1, expected 0"),
        (lambda: vision.RandomHorizontalFlip(2), "`prob` is 2, expected a number from 0 to 1"),
        (lambda: vision.RandomCrop(4, (1, 2, 3)), "`padding` is .*, expected one, two or four"),
        (lambda: ds.NumpySlicesDataset(numbers(), sampler=3), "`sampler` is 3, expected none"),
        (lambda: ds.NumpySlicesDataset(numbers()).shuffle(), "`buffer_size` is None"),
    ],
)
def test_settings_that_have_no_meaning_here_are_refused(setting, message):
    with pytest.raises(OptionError, match=message):
        setting()


@pytest.mark.parametrize("setting", [{"device_num": 3}, {"global_rank": 1}])
def test_what_runs_needs_as_many_ranks_as_the_context_says(setting):
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(**setting)
    net = network()
    data = ds.NumpySlicesDataset(numbers(), shuffle=False).batch(8)
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    try:
        with pytest.raises(OptionError, match=f"`{next(iter(setting))}` is .*, expected the "):
            ms.Model(net, nn.CrossEntropyLoss(), optimizer).train(1, data)
    finally:
        ms.reset_auto_parallel_context()


def losses_in(mode, mean=True, ranks=2, **settings):
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(parallel_mode=mode, gradients_mean=mean, **settings)
    net = network()
    data = ds.NumpySlicesDataset(numbers(), shuffle=False).batch(8, drop_remainder=True)
    with world(ranks):
        optimizer = nn.SGD(net.trainable_params(), 0.1)
        return ms.Model(net, nn.CrossEntropyLoss(), optimizer).train(3, data)


@pytest.mark.parametrize("mode", ["data_parallel", "semi_auto_parallel", "auto_parallel"])
def test_a_model_is_trained_in_the_mode_of_the_context(mode):
    alone = losses_in("stand_alone", ranks=1)
    np.testing.assert_allclose(losses_in(mode), alone, rtol=1e-5)
    hsdp = {"enable_parallel_optimizer": True}
    hsdp["parallel_optimizer_config"] = {"parallel_optimizer_threshold": 0}
    np.testing.assert_allclose(losses_in(mode, **hsdp), alone, rtol=1e-5)


def test_sums_of_gradients_are_refused_where_means_are_taken():
    with pytest.raises(OptionError, match="`gradients_mean` is False, expected True"):
        losses_in("data_parallel", mean=False)


# Datasets


def test_an_epoch_of_a_dataset_is_shuffled_by_the_seed_and_gives_tensors():
    data = ds.NumpySlicesDataset({"n": np.arange(12)}).batch(5)

    def order():
        return [batch.asnumpy().tolist() for (batch,) in data]

    ms.set_seed(1)
    first, second = order(), order()
    assert [len(batch) for batch in first] == [5, 5, 2]
    assert first != second
    for batches in (first, second):
        assert sorted(number for batch in batches for number in batch) == list(range(12))
    again = ds.NumpySlicesDataset({"n": np.arange(12)}).batch(5)
    assert [b["n"].tolist() for b in again.create_dict_iterator(output_numpy=True)] == first
    assert (data.get_dataset_size(), data.get_batch_size(), data.get_col_names()) == (3, 5, ["n"])


def test_shards_have_the_same_batches_one_by_one_and_together():
    def dataset(**shards):
        data = ds.NumpySlicesDataset({"n": np.arange(24.0)}, num_shards=3, **shards)
        data = data.map(Noise(), "n").shuffle(4).batch(2)
        return [batch["n"] for batch in data.create_dict_iterator(output_numpy=True)]

    with world(3):
        together = dataset(shard_id=get_rank())
    apart = [dataset(shard_id=rank) for rank in range(3)]
    for i, batch in enumerate(together):
        np.testing.assert_array_equal(batch, np.concatenate([each[i] for each in apart]))


class Noise(own.transforms.RandomOperation):
    def draw(self, x, random):
        return x + random.random()


def test_pictures_are_cropped_flipped_and_resized():
    random = np.random.default_rng(0)
    picture = random.integers(0, 255, (6, 5, 3)).astype(np.uint8)
    crop = vision.RandomCrop((4, 4), (1, 2, 3, 4))
    padded = np.pad(picture, ((2, 4), (1, 3), (0, 0)))
    windows = [padded[i : i + 4, j : j + 4] for i in range(9) for j in range(6)]
    found = crop(picture)
    assert any(np.array_equal(found, window) for window in windows)
    np.testing.assert_array_equal(vision.RandomHorizontalFlip(1.0)(picture), picture[:, ::-1])
    np.testing.assert_array_equal(vision.CenterCrop((2, 3))(picture), picture[2:4, 1:4])
    ramp = np.arange(4, dtype=np.float32)[None, :, None].repeat(2, 0)
    wide = vision.Resize((2, 8))(ramp)[0, :, 0]
    np.testing.assert_allclose(wide, [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3])
    assert vision.Resize(3)(picture).shape == (3, 3, 3)
    assert (
        vision.Resize((12, 10), vision.Inter.NEAREST)(picture)[::2, ::2].tolist()
        == picture.tolist()
    )
    both = transforms.Compose([vision.RandomVerticalFlip(1.0), vision.HWC2CHW()])
    np.testing.assert_array_equal(both(picture), picture[::-1].transpose(2, 0, 1))
    assert transforms.OneHot(3)(np.array(1)).tolist() == [0, 1, 0]


# Training


def test_the_last_smaller_batch_of_an_epoch_is_trained_on():
    net = network()
    data = ds.NumpySlicesDataset(numbers(), shuffle=False).batch(8)
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    losses = ms.Model(net, nn.CrossEntropyLoss(), optimizer).train(2, data)
    assert len(losses) == 6
    by_hand = step_losses(2, data)
    np.testing.assert_allclose(losses, by_hand, rtol=1e-5)


def step_losses(epochs, data):
    """Return the losses of training with momentum, in numpy."""
    batches = [list(batch.values()) for batch in data.create_dict_iterator(output_numpy=True)]
    weights = {
        name: drawn(name, parameter.initializer, parameter.type).astype(np.float64)
        for name, parameter in network().parameters_and_names()
    }
    speed = {name: 0.0 for name in weights}
    losses = []
    for _ in range(epochs):
        for x, y in batches:
            a, b, c, d = (weights[n] for n in ("0.weight", "0.bias", "2.weight", "2.bias"))
            h = x @ a.T + b
            r = np.maximum(h, 0)
            z = r @ c.T + d
            p = np.exp(z - z.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            rows = np.arange(len(y))
            losses.append(-np.log(p[rows, y]).mean())
            p[rows, y] -= 1
            p /= len(y)
            g = (p @ c) * (h > 0)
            slopes = {
                "0.weight": g.T @ x,
                "0.bias": g.sum(0),
                "2.weight": p.T @ r,
                "2.bias": p.sum(0),
            }
            for name, slope in slopes.items():
                speed[name] = 0.9 * speed[name] + slope
                weights[name] = weights[name] - 0.1 * speed[name]
    return losses


def test_a_step_function_trains_when_it_is_called():
    net = network()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    loss_fn = nn.CrossEntropyLoss()
    grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, net.trainable_params())

    @ms.jit
    def step(x, y):
        loss, gradients = grad_fn(x, y)
        optimizer(gradients)
        return loss

    data = numbers(8)
    first = float(loss_fn(net(ms.Tensor(data["x"])), ms.Tensor(data["y"])).asnumpy())
    losses = [float(step(ms.Tensor(data["x"]), data["y"]).asnumpy()) for _ in range(3)]
    np.testing.assert_allclose(losses[0], first, rtol=1e-6)
    assert losses[2] < losses[1] < losses[0]


def test_a_model_without_optimizer_only_runs():
    seen = []

    class Seen(ms.train.Callback):
        def step_end(self, run_context):
            seen.append(run_context.original_args().net_outputs.shape)

    net = nn.Dense(6, 3)
    data = ds.NumpySlicesDataset({"x": numbers()["x"]}).batch(11)
    ms.Model(net).train(1, data, Seen())
    assert seen == [(11, 3)] * 2
    assert not net.weight.has_value


def test_parameters_are_initialized_late_with_and_without_a_call():
    with no_init_parameters:
        one = nn.Dense(2, 2)
    with no_init_parameters():
        other = nn.Dense(2, 2)
    assert not one.weight.has_value
    assert not other.weight.has_value


def test_initializers_have_mindspores_names():
    names = ["Zeros", "ones", "XavierUniform", "xavier_uniform", "HeNormal", "Uniform"]
    names += [initial.XavierUniform(2), initial.Constant(3), initial.HeUniform(5**0.5), 0.5]
    texts = [initial.initializer(name, [4, 4]).text for name in names]
    assert texts[:4] == ["zeros", "ones", "xavier_uniform", "xavier_uniform"]
    assert texts[4:8] == ["he_normal", "uniform", "xavier_uniform(2.0)", "constant(3.0)"]
    outputs = initial.HeNormal(mode="fan_out", nonlinearity="relu")
    assert outputs.text == "he_normal_out(1.0)"
    with pytest.raises(OptionError, match="`mode` is `fan`, expected fan_in or fan_out"):
        initial.HeUniform(mode="fan")
    layer = nn.BatchNorm2d(2, gamma_init=initial.Constant(2), moving_mean_init="ones")
    x = ms.Tensor(np.ones((1, 2, 1, 1), np.float32) * 3)
    np.testing.assert_allclose(layer(x).asnumpy().ravel(), [4, 4], rtol=1e-4)


def test_sizes_are_read_and_numbers_are_tensors():
    x = ms.Tensor(np.ones((2, 3), np.float32))
    assert ops.shape(x) == ops.Shape()(x) == (2, 3)
    assert (ops.scalar_to_tensor(2.0) * x).asnumpy().sum() == 12
    assert AutoParallel(network(), "stand_alone").seed == 0
    assert (get_group_size(), int(get_rank())) == (1, 0)


def test_a_generator_is_read_and_named():
    data = ds.GeneratorDataset(lambda: iter([(1, 2), (3, 4)]), ["a", "b"])
    assert [[int(item.asnumpy()) for item in row] for row in data] == [[1, 2], [3, 4]]
    parts = data.map(lambda a: (a, 10 * a), "a", ["c", "d"])
    assert parts.get_col_names() == ["c", "d", "b"]
    assert [[int(i.asnumpy()) for i in row] for row in parts.project(["b", "d"])] == [
        [2, 10],
        [4, 30],
    ]
    with pytest.raises(ModelError, match="`map` makes 2 columns, and `output_columns` has 1"):
        next(iter(data.map(lambda a: (a, a), "a", "c")))


def test_a_generator_is_augmented_anew_in_every_epoch_by_the_seed():
    def augmented():
        for i in range(3):
            yield np.float32(np.random.rand()), np.int32(i)

    found = []
    for _ in range(2):
        ms.set_seed(7)
        data = ds.GeneratorDataset(augmented, ["x", "i"], shuffle=True).batch(3)
        epochs = [next(data.create_dict_iterator(output_numpy=True)) for _ in range(2)]
        assert all(sorted(epoch["i"]) == [0, 1, 2] for epoch in epochs)
        assert not set(epochs[0]["x"]) & set(epochs[1]["x"])
        found.append([epoch["x"].tolist() for epoch in epochs])
    assert found[0] == found[1]


def test_gradients_outside_of_a_step_are_refused_on_several_ranks():
    net = network()
    function = ops.value_and_grad(
        lambda x: net(x).sum(), None, nn.SGD(net.trainable_params(), 0.1).parameters
    )
    with world(2), pytest.raises(ModelError, match="outside of a training step, on 2 ranks"):
        function(ms.Tensor(np.ones((2, 6), np.float32)))
