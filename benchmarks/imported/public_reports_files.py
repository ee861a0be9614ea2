"""ONNX nodes made after public reports: (source, what was reported, the case)."""

import numpy as np
from onnx_cases import Case

_R = np.random.default_rng(0)


def _x(*shape: int) -> np.ndarray:
    return _R.normal(size=shape).astype(np.float32)


def _scales(*factors: float) -> np.ndarray:
    return np.asarray(factors, np.float32)


_ALIGNED = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
_PLAIN = {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}
_ROIS = np.array([[0.5, 0.7, 5.1, 6.3]], np.float32)
_POOL = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}
_GRID = _R.uniform(-1.2, 1.2, (1, 3, 4, 2)).astype(np.float32)

FILES: list[tuple[str, str, Case]] = [
    (
        "onnx 2462",
        "`Resize` by 1.7 with `align_corners`",
        Case("Resize", [_x(1, 2, 5, 5), None, _scales(1, 1, 1.7, 1.7)], _ALIGNED, 17, (1, 2)),
    ),
    (
        "onnx 2462",
        "`Resize` by 0.6 with `align_corners`",
        Case("Resize", [_x(1, 1, 2, 4), None, _scales(1, 1, 0.6, 0.6)], _ALIGNED, 13, (1, 2)),
    ),
    (
        "onnxruntime 17564",
        "`Resize` with `align_corners` of dimensions before the last",
        Case("Resize", [_x(1, 3, 4, 2), None, _scales(1, 2, 2, 1)], _ALIGNED, 18, (1, 2)),
    ),
    (
        "onnxruntime 17564",
        "`Resize`, asymmetric, of dimensions before the last",
        Case("Resize", [_x(1, 3, 4, 2), None, _scales(1, 2, 2, 1)], _PLAIN, 18, (1, 2)),
    ),
    (
        "pytorch 18113",
        "`Upsample` of operator set 9, linear",
        Case("Upsample", [_x(1, 2, 3, 4), _scales(1, 1, 2, 2)], {"mode": "linear"}, 9, (1,)),
    ),
    (
        "onnx 4024",
        "`Upsample` of operator set 9, nearest, by 1.4",
        Case("Upsample", [_x(1, 2, 5, 5), _scales(1, 1, 1.4, 2)], {"mode": "nearest"}, 9, (1,)),
    ),
    (
        "onnx 5739",
        "einsum `b...,b->b...`",
        Case("Einsum", [_x(2, 3, 5), _x(2)], {"equation": "b...,b->b..."}, 12),
    ),
    (
        "onnx 8207",
        "einsum `i...,i...->...`",
        Case("Einsum", [_x(4, 3), _x(4, 3)], {"equation": "i...,i...->..."}, 12),
    ),
    (
        "iree 20803",
        "a constant without dimensions that is added",
        Case("Sub", [_x(1), np.asarray(1.0, np.float32)], {}, 17, (1,)),
    ),
    (
        "tvm 18598",
        "`PRelu` with a slope for the last dimension",
        Case("PRelu", [_x(1, 4, 4, 4), _x(4)], {}, 16),
    ),
    (
        "tvm 15651",
        "`Gather` by negative positions",
        Case("Gather", [_x(3, 4, 2), np.array([-1, -3])], {"axis": 1}, 13),
    ),
    ("tvm 7270", "`Flatten` of axis 0", Case("Flatten", [_x(3, 2, 5)], {"axis": 0}, 13)),
    (
        "tvm 18135",
        "`CumSum` in reverse",
        Case("CumSum", [_x(3, 4), np.array(1)], {"reverse": 1}, 14, (1,)),
    ),
    (
        "tvm 19692",
        "`CumSum` that excludes",
        Case("CumSum", [_x(1, 4), np.array(1)], {"exclusive": 1}, 14, (1,)),
    ),
    ("tvm 19437", "`CumSum` along an input", Case("CumSum", [_x(3, 4), np.array(1)], {}, 14)),
    ("tvm 12305", "`Sum` of five", Case("Sum", [_x(2, 3)] * 5, {}, 13)),
    (
        "tvm 14435",
        "`ReduceSum` along an input of two axes",
        Case("ReduceSum", [_x(2, 3, 4), np.array([0, 2])], {}, 13, (1,)),
    ),
    (
        "onnxruntime 10607, 28090",
        "`GridSample`, bicubic, `border`",
        Case(
            "GridSample", [_x(1, 1, 4, 4), _GRID], {"mode": "bicubic", "padding_mode": "border"}, 16
        ),
    ),
    (
        "TensorRT 4646",
        "`GridSample` of operator set 20",
        Case("GridSample", [_x(1, 1, 1, 8), _GRID], {"mode": "linear"}, 20),
    ),
    (
        "onnxruntime 2433",
        "`Pad` with negative sizes",
        Case("Pad", [_x(1, 1, 5, 6), np.array([0, 0, -1, 1, 0, 0, -2, -1])], {}, 13, (1,)),
    ),
    (
        "onnx 3428",
        "`RoiAlign` of operator set 10",
        Case(
            "RoiAlign",
            [_x(1, 2, 8, 8), _ROIS, np.array([0])],
            {"output_height": 3, "output_width": 3, "sampling_ratio": 2},
            10,
        ),
    ),
    (
        "onnx 4487",
        "`RoiAlign` of operator set 16",
        Case(
            "RoiAlign",
            [_x(1, 2, 8, 8), _ROIS, np.array([0])],
            {"output_height": 3, "output_width": 3, "sampling_ratio": 2},
            16,
        ),
    ),
    (
        "onnx 4958",
        "`AveragePool` with `ceil_mode`",
        Case("AveragePool", [_x(1, 1, 4, 5)], _POOL, 19),
    ),
    (
        "onnxruntime 16203",
        "`AveragePool` with `ceil_mode` and `count_include_pad`",
        Case("AveragePool", [_x(1, 2, 9, 9)], {**_POOL, "count_include_pad": 1}, 19),
    ),
    (
        "torch-mlir 3527",
        "`Bernoulli`",
        Case("Bernoulli", [np.abs(_x(2, 3)) % 1], {"seed": 1.0}, 20),
    ),
]
