"""Functions and cells of `mint.nn` against PyTorch, whose arguments they have."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from shardwright.ir.errors import ShardwrightError  # noqa: E402
from shardwright.mindspore import Tensor, grad, mint  # noqa: E402

RANDOM = np.random.default_rng(0)


def drawn(*shape):
    return RANDOM.standard_normal(shape)


X, IMAGES, LINE, VOLUME = drawn(4, 6), drawn(2, 4, 6, 8), drawn(2, 4, 9), drawn(2, 4, 4, 6, 5)
CLASSES = np.array([1, 0, 5, 2], np.int64)
SIGNS = np.array([1.0, -1.0, 1.0, -1.0])
SHARES = np.exp(X) / np.exp(X).sum(1, keepdims=True)
BITS = (drawn(4, 6) > 0).astype(float)
FUNCTIONS = [
    ("relu(x)", X),
    ("relu6(x * 8)", X),
    ("silu(x)", X),
    ("elu(x, 0.7)", X),
    ("hardtanh(x, -0.5, 0.7)", X),
    ("threshold(x, 0.1, 20)", X),
    ("leaky_relu(x)", X),
    ("leaky_relu(x, 0.3)", X),
    ("sigmoid(x)", X),
    ("tanh(x)", X),
    ("logsigmoid(x)", X),
    ("glu(x)", X),
    ("glu(x, 1)", IMAGES),
    ("gelu(x)", X),
    ("gelu(x, approximate='tanh')", X),
    ("softmax(x, 0)", X),
    ("log_softmax(x, -1)", X),
    ("prelu(x, y)", IMAGES, drawn(4)),
    ("prelu(x, y)", IMAGES, drawn(1)),
    ("dropout(x, 0.5, False)", X),
    ("linear(x, y, z)", X, drawn(3, 6), drawn(3)),
    ("pad(x, (1, 2, 0, 3), value=0.5)", IMAGES),
    ("pad(x, (1, 2), mode='reflect')", LINE),
    ("pad(x, (1, 2, 2, 0), mode='replicate')", IMAGES),
    ("embedding(y, x)", X, np.array([[3, 0], [1, 1]])),
    ("avg_pool1d(x, 3, 2, 1)", LINE),
    ("avg_pool2d(x, 2)", IMAGES),
    ("avg_pool2d(x, (3, 2), (2, 1), (1, 0), count_include_pad=False)", IMAGES),
    ("avg_pool2d(x, 3, 2, ceil_mode=True)", IMAGES),
    ("avg_pool3d(x, 2)", VOLUME),
    ("max_pool2d(x, 3, 2, 1)", IMAGES),
    ("max_pool2d(x, 2, dilation=2)", IMAGES),
    ("adaptive_avg_pool1d(x, 4)", LINE),
    ("adaptive_avg_pool2d(x, (3, 5))", IMAGES),
    ("adaptive_avg_pool2d(x, 1)", IMAGES),
    ("adaptive_avg_pool3d(x, (2, 3, 4))", VOLUME),
    ("conv1d(x, y, z, 2, 1)", LINE, drawn(3, 4, 3), drawn(3)),
    ("conv2d(x, y, stride=2, padding=(1, 2), groups=2)", IMAGES, drawn(6, 2, 3, 3)),
    ("conv2d(x, y, padding='same', dilation=2)", IMAGES, drawn(3, 4, 3, 3)),
    ("conv3d(x, y, padding=1)", VOLUME, drawn(3, 4, 3, 3, 3)),
    ("interpolate(x, scale_factor=2)", IMAGES),
    ("interpolate(x, (5, 11), mode='bilinear')", IMAGES),
    ("interpolate(x, (5, 11), mode='bilinear', align_corners=True)", IMAGES),
    ("interpolate(x, 13, mode='linear')", LINE),
    ("layer_norm(x, (6, 8))", IMAGES),
    ("layer_norm(x, (6,), y, z)", X, drawn(6), drawn(6)),
    ("group_norm(x, 2, y, z)", IMAGES, drawn(4), drawn(4)),
    ("group_norm(x, 4)", IMAGES),
    ("pixel_shuffle(x, 2)", IMAGES),
    ("normalize(x)", X),
    ("normalize(x, 1, 0)", X),
    ("mse_loss(x, y)", X, drawn(4, 6)),
    ("l1_loss(x, y, reduction='sum')", X, drawn(4, 6)),
    ("smooth_l1_loss(x, y, beta=0.5)", X, drawn(4, 6)),
    ("binary_cross_entropy(x, y)", SHARES, BITS),
    ("binary_cross_entropy_with_logits(x, y, pos_weight=z)", X, BITS, np.abs(drawn(6))),
    ("soft_margin_loss(x, y)", X, BITS * 2 - 1),
    ("cosine_embedding_loss(x, y, z, 0.2)", X, drawn(4, 6), SIGNS),
    ("cross_entropy(x, y)", X, CLASSES),
    ("cross_entropy(x, y, label_smoothing=0.1, ignore_index=5)", X, CLASSES),
    ("cross_entropy(x, y)", X, SHARES),
    ("nll_loss(x, y, z)", X, CLASSES, np.abs(drawn(6))),
    ("kl_div(x, y, reduction='batchmean')", X, SHARES),
    ("kl_div(x, y, reduction='sum', log_target=True)", X, np.log(SHARES)),
    ("one_hot(x, 7)", CLASSES),
]


def check(text, values, theirs, ours):
    """Compare what an expression gives, and the gradient of the sum of its squares by `x`."""
    trains = values[0].dtype == float
    inputs = [torch.tensor(v) for v in values]
    inputs[0].requires_grad_(trains)
    right = eval(f"module.{text}", {"module": theirs, **dict(zip("xyz", inputs, strict=False))})

    def called(*given):
        return eval(f"module.{text}", {"module": ours, **dict(zip("xyz", given, strict=False))})

    tensors = [Tensor(v) for v in values]
    wide = values[0].dtype != np.float32
    close = {"rtol": 1e-9, "atol": 1e-11} if wide else {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(called(*tensors).asnumpy(), right.detach().numpy(), **close)
    if trains:
        (right * right).sum().backward()
        found = grad(lambda *given: (called(*given) * called(*given)).sum())(*tensors)
        np.testing.assert_allclose(found.asnumpy(), inputs[0].grad.numpy(), **close)


@pytest.mark.parametrize("case", FUNCTIONS, ids=[case[0] for case in FUNCTIONS])
def test_functions(case):
    text, *values = case
    check(text, values, torch.nn.functional, mint.nn.functional)


CELLS = [
    ("AdaptiveAvgPool2d((3, 5))(x)", IMAGES),
    ("AvgPool2d(3, 2, 1, count_include_pad=False)(x)", IMAGES),
    ("BCELoss()(x, y)", SHARES, BITS),
    ("BCEWithLogitsLoss(reduction='sum')(x, y)", X, BITS),
    ("ConstantPad3d((1, 0, 2, 1, 0, 1), 0.5)(x)", VOLUME),
    ("CosineEmbeddingLoss(0.1)(x, y, z)", X, drawn(4, 6), SIGNS),
    ("ELU(0.5)(x)", X),
    ("Flatten()(x)", IMAGES),
    ("Flatten(1, 2)(x)", IMAGES),
    ("PReLU(1, 0.1)(x)", IMAGES.astype(np.float32)),
    ("GroupNorm(2, 4)(x)", IMAGES.astype(np.float32)),
    ("GELU()(x)", X),
    ("Hardshrink(0.3)(x)", X),
    ("Hardsigmoid()(x * 3)", X.astype(np.float32)),
    ("Hardswish()(x * 3)", X),
    ("Hardtanh()(x)", X),
    ("Identity()(x)", X),
    ("KLDivLoss(reduction='sum')(x, y)", X, SHARES),
    ("L1Loss()(x, y)", X, drawn(4, 6)),
    ("LogSigmoid()(x)", X),
    ("LogSoftmax(dim=0)(x)", X),
    ("MSELoss()(x, y)", X, drawn(4, 6)),
    ("MaxPool2d(3, 2, 1)(x)", IMAGES),
    ("Mish()(x)", X),
    ("NLLLoss()(x, y)", X, CLASSES),
    ("PixelShuffle(2)(x)", IMAGES),
    ("ReLU6()(x)", X),
    ("ReflectionPad2d((1, 2, 2, 1))(x)", IMAGES),
    ("ReplicationPad1d(2)(x)", LINE),
    ("SELU()(x)", X),
    ("SiLU()(x)", X),
    ("SmoothL1Loss(beta=0.5)(x, y)", X, drawn(4, 6)),
    ("SoftMarginLoss()(x, y)", X, BITS * 2 - 1),
    ("Softmax(dim=1)(x)", IMAGES),
    ("Threshold(0.1, 5.0)(x)", X),
    ("Upsample(scale_factor=2)(x)", IMAGES),
    ("UpsamplingBilinear2d((9, 9))(x)", IMAGES),
    ("UpsamplingNearest2d(scale_factor=3)(x)", IMAGES),
    ("ZeroPad2d(1)(x)", IMAGES),
]


@pytest.mark.parametrize("case", CELLS, ids=[case[0] for case in CELLS])
def test_cells(case):
    text, *values = case
    check(text, values, torch.nn, mint.nn)


def test_layers_have_the_shapes_and_names_of_pytorch():
    for text in ("Linear(6, 3)", "Conv1d(4, 6, 3)", "Conv2d(4, 6, 3, groups=2)", "Conv3d(4, 2, 2)"):
        right = {n: tuple(p.shape) for n, p in eval(f"torch.nn.{text}").named_parameters()}
        found = {n: p.shape for n, p in eval(f"mint.nn.{text}").parameters_and_names()}
        assert found == right
    layer, right = mint.nn.Conv2d(4, 6, 3, padding=1), torch.nn.Conv2d(4, 6, 3, padding=1)
    images = IMAGES.astype(np.float32)
    with torch.no_grad():
        for own, other in ((layer.weight, right.weight), (layer.bias, right.bias)):
            own.set_data(Tensor(other.numpy()))
        expected = right(torch.tensor(images)).numpy()
    np.testing.assert_allclose(layer(Tensor(images)).asnumpy(), expected, rtol=1e-4, atol=1e-5)


def test_what_is_not_supported_is_told():
    with pytest.raises(ShardwrightError, match="`inplace` is True, expected False"):
        mint.nn.ReLU6(inplace=True)(Tensor(X))
    with pytest.raises(ShardwrightError, match="`num_classes` is -1, expected their number"):
        mint.nn.functional.one_hot(Tensor(CLASSES))
    with pytest.raises(TypeError, match="windows have no"):
        mint.nn.functional.max_pool2d(Tensor(IMAGES), 2, return_indices=True)
