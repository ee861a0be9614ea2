"""Where onnx's evaluator and onnxruntime differ, a file means what onnxruntime does.

The expected numbers are formulas of onnxruntime, written here for one dimension;
`benchmarks/imported/onnx_runtime.py` compares with onnxruntime itself.
"""

from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, helper
from onnx_tests import run_alone

from shardwright.frontends.onnx import import_model
from shardwright.ir.errors import ModelError
from tests.frontends.models import model

Array = np.ndarray[Any, Any]
X = np.array([3.0, -1.0, 4.0, 1.0, -5.0], np.float32)


def _computed(node: NodeProto, weights: dict[str, Array], x: Array, opset: int) -> Array:
    proto = model("m", [node], {"x": x.shape}, "y", weights, opset=opset)
    return run_alone(import_model(proto), {"x": x})[0]


def _resized(factor: float, opset: int = 13, **attributes: Any) -> Array:
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes)
    scales = np.array([1, 1, factor], np.float32)
    return _computed(node, {"scales": scales}, X.reshape(1, 1, 5), opset).ravel()


@pytest.mark.parametrize("factor", [0.6, 0.7, 1.3, 1.7, 2.0])
def test_aligned_corners_by_scales_use_the_size_of_the_result(factor: float) -> None:
    size = int(np.float32(5 * factor))
    found = _resized(factor, mode="linear", coordinate_transformation_mode="align_corners")
    places = np.linspace(0, 4, size) if size > 1 else np.zeros(1)
    np.testing.assert_allclose(found, np.interp(places, np.arange(5), X), rtol=1e-6)


def test_one_result_of_aligned_corners_or_half_pixels_of_pytorch_is_the_first_element() -> None:
    for coordinates in ("align_corners", "pytorch_half_pixel"):
        found = _resized(0.3, mode="linear", coordinate_transformation_mode=coordinates)
        assert found.tolist() == [3.0]


@pytest.mark.parametrize(("operator", "opset"), [("Upsample", 9), ("Resize", 10)])
def test_old_resizings_have_no_half_pixels(operator: str, opset: int) -> None:
    node = helper.make_node(operator, ["x", "scales"], ["y"], mode="linear")
    scales = np.array([1, 1, 2], np.float32)
    found = _computed(node, {"scales": scales}, X.reshape(1, 1, 5), opset).ravel()
    np.testing.assert_allclose(found, np.interp(np.arange(10) / 2, np.arange(5), X), rtol=1e-6)
    node = helper.make_node(operator, ["x", "scales"], ["y"], mode="nearest")
    scales = np.array([1, 1, 1.4], np.float32)
    found = _computed(node, {"scales": scales}, X.reshape(1, 1, 5), opset).ravel()
    assert found.tolist() == X[[0, 0, 1, 2, 2, 3, 4]].tolist()


def test_hardmax_of_old_operator_sets_joins_dimensions() -> None:
    x = np.array([[[1, 5, 2], [7, 0, 3]], [[9, 1, 1], [0, 2, 3]]], np.float32)
    found = _computed(helper.make_node("Hardmax", ["x"], ["y"]), {}, x, 9)
    assert found.reshape(2, 6).tolist() == [[0, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0]]


def test_regions_before_operator_set_16_have_no_half_pixels() -> None:
    x = np.random.default_rng(0).normal(size=(1, 1, 6, 6)).astype(np.float32)
    weights = {"rois": np.array([[1, 1, 4, 5]], np.float32), "batch": np.array([0])}
    how = {"output_height": 2, "output_width": 3, "sampling_ratio": 2}
    node = helper.make_node("RoiAlign", ["x", "rois", "batch"], ["y"], **how)
    named = helper.make_node(
        "RoiAlign",
        ["x", "rois", "batch"],
        ["y"],
        coordinate_transformation_mode="output_half_pixel",
        **how,
    )
    expected = _computed(named, weights, x, 16)
    for opset in (10, 11, 13):
        np.testing.assert_array_equal(_computed(node, weights, x, opset), expected)
    assert not np.allclose(_computed(node, weights, x, 16), expected)


POOLED = {"kernel_shape": [3], "dilations": [2], "auto_pad": "SAME_UPPER"}
REFUSED = {
    "MaxPool": (POOLED, "dilated windows with `SAME_UPPER` (`pads` can be) cannot be imported"),
    "AveragePool": (POOLED, "dilated windows with `SAME_UPPER` (`pads` can be) cannot be imported"),
    "ConvTranspose": (
        {"strides": [3], "auto_pad": "SAME_LOWER"},
        "windows smaller than their stride with `SAME_LOWER` cannot be imported",
    ),
}


@pytest.mark.parametrize("operator", REFUSED)
def test_what_onnxruntime_and_the_standard_size_differently_is_refused(operator: str) -> None:
    attributes, why = REFUSED[operator]
    weights = {"w": np.ones((1, 1, 2), np.float32)} if operator == "ConvTranspose" else {}
    node = helper.make_node(operator, ["x", *weights], ["y"], "it", **attributes)
    with pytest.raises(ModelError) as caught:
        _computed(node, weights, X.reshape(1, 1, 5), 19)
    assert str(caught.value) == f"{why} (in {operator} `it`)"


def test_scales_that_leave_all_sizes_are_refused_where_onnxruntime_copies() -> None:
    with pytest.raises(ModelError, match=r"^a resizing by 1\.1 that leaves all sizes cannot be"):
        _resized(1.1, mode="linear")
    assert _resized(1.1, mode="linear", coordinate_transformation_mode="align_corners").size == 5


def test_a_reduction_along_no_axes_is_one_along_all() -> None:
    axes = {"axes": np.zeros(0, np.int64)}
    for operator, right in (("ReduceMax", 4.0), ("ReduceSum", 2.0)):
        node = helper.make_node(operator, ["x", "axes"], ["y"], keepdims=0)
        assert _computed(node, axes, X, 18).tolist() == right


def test_a_single_tuple_of_positions_and_slopes_of_a_vector() -> None:
    node = helper.make_node("GatherND", ["x", "i"], ["y"])
    assert _computed(node, {"i": np.array([2])}, X, 13).tolist() == 4.0
    node = helper.make_node("PRelu", ["x", "slope"], ["y"])
    slope = {"slope": np.arange(5, dtype=np.float32)}
    assert _computed(node, slope, X, 16).tolist() == [3, -1, 4, 1, -20]
