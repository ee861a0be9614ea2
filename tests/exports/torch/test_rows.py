"""Products of the filled rows of experts: PyTorch's grouped kernel and one product an expert."""

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from shardwright.exports.torch.support import rows  # noqa: E402


@pytest.mark.skipif(
    not hasattr(torch.nn.functional, "grouped_mm"), reason="a release without grouped products"
)
@pytest.mark.parametrize("transposed", [False, True])
def test_grouped_products_are_those_of_each_expert(transposed, monkeypatch):
    torch.manual_seed(0)
    mask = torch.rand(4, 3, 8) < 0.4
    mask[2] = False  # an expert without tokens
    count = int(mask.sum())
    x, y = (rows.Rows(torch.randn(count, n).bfloat16(), mask) for n in (16, 8))
    matrices = torch.randn(*((4, 8, 16) if transposed else (4, 16, 8))).bfloat16()

    def products():
        return rows.grouped_matmul(x, matrices, transposed=transposed), rows.grouped_outer(x, y)

    apart = products()
    monkeypatch.setattr(rows, "_is_grouped", lambda *_: True)
    grouped = products()
    torch.testing.assert_close(grouped[0].values, apart[0].values)
    torch.testing.assert_close(grouped[1], apart[1])
    assert not grouped[1][2].any()
