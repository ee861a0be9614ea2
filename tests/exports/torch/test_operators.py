"""The functions that run operators in PyTorch: on every rank they give what the kernels give."""

import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

sys.path.insert(0, str(Path(__file__).parents[1]))

from on_ranks import MESH, cases, difference, operators_of, without_signs  # noqa: E402

from shardwright.exports.emission.vocabulary import MODULES  # noqa: E402
from shardwright.exports.torch.support.mesh import Mesh as TorchMesh  # noqa: E402
from shardwright.exports.torch.torch_program import VOCABULARY  # noqa: E402
from shardwright.ir.mesh import Mesh  # noqa: E402
from shardwright.ir.text import parse_type  # noqa: E402
from shardwright.operators.info import operator_info  # noqa: E402

FUNCTIONS = {name: import_module(f"shardwright.exports.torch.support.{name}") for name in MODULES}


def mesh_of(rank):
    """Return the mesh of an exported program on a rank, without processes."""
    mesh = TorchMesh.__new__(TorchMesh)
    mesh.sizes = mesh.ranks = dict(MESH.sizes)
    mesh._in_time, mesh.rank = (), rank
    return mesh


@pytest.mark.parametrize("name", operators_of(VOCABULARY))
def test_an_operator_gives_what_its_kernel_gives_on_every_rank(name):
    for text, rank, parts, right in cases(name, VOCABULARY):
        names = {f"i{n}": torch.from_numpy(np.asarray(p)) for n, p in enumerate(parts)}
        found = eval(text, {**FUNCTIONS, "mesh": mesh_of(rank), **names})
        found = found if isinstance(found, tuple | list) else (found,)
        found, right = (without_signs(name, one) for one in (found, right))
        for ours, theirs in zip(found, right, strict=True):
            assert difference(ours, theirs) < 1e-12, text


@pytest.mark.parametrize("inside", [False, True])
def test_the_gradient_of_a_clip_is_that_of_the_kernel_at_its_bounds(inside):
    x, dy = np.array([-1.0, -0.5, 0.0, 1.0, 2.0]), np.arange(1.0, 6.0)
    attributes = {"low": -0.5, "high": 1.0, "inside": inside}
    kind = parse_type("f64[5]")[0]
    info = operator_info("clip_gradient", [kind, kind], attributes)
    right = info.kernel(info.rule.view(info.generate_strategies(Mesh(()))[0], Mesh(()), 0), dy, x)
    function = FUNCTIONS["pointwise"].clip_gradient
    found = function(torch.from_numpy(dy), torch.from_numpy(x), **attributes)
    assert difference(found.numpy(), right) == 0


@pytest.mark.parametrize("heads", [2, 4])
def test_a_kernel_for_lengths_is_called_with_each_document(heads, monkeypatch):
    attention, called = FUNCTIONS["attention"], []

    def kernel(q, k, v, begins, _, longest, *others, scale, window_size, enable_gqa):
        called.append((begins.tolist(), longest, window_size, enable_gqa))
        bounds, rows = begins.tolist(), [x.transpose(0, 1)[None] for x in (q, k, v)]
        parts = [[x[:, :, a:b] for x in rows] for a, b in pairwise(bounds)]
        how = {"is_causal": True, "scale": scale, "enable_gqa": enable_gqa}
        found = [torch.nn.functional.scaled_dot_product_attention(*one, **how) for one in parts]
        return torch.cat(found, 2)[0].transpose(0, 1)

    tensors = [torch.randn(2, n, 6, 4, dtype=torch.float64) for n in (heads, heads, 2, 2)]
    positions = torch.tensor([[0, 1, 2, 0, 1, 0], [0, 1, 0, 1, 2, 3]])
    gradient = attention.scaled_dot_product_attention_gradient
    right = gradient(*tensors, positions, causal=True, documents=3)
    monkeypatch.setattr(attention, "varlen_attn", kernel)
    monkeypatch.setattr(attention, "_has_lengths", lambda *_: True)
    found = gradient(*tensors, positions, causal=True, documents=3)
    assert called == [([0, 3, 5, 6, 8, 12], 4, (-1, 0), heads > 2)]
    for ours, theirs in zip(found, right, strict=True):
        assert difference(ours.numpy(), theirs) < 1e-12


def test_positions_that_change_in_place_turn_anew():
    rotary, x = FUNCTIONS["attention"].rotary_embedding, torch.randn(1, 1, 3, 4)
    positions = torch.tensor([[0, 1, 2]])
    first = rotary(x, positions, whole_d=4)
    positions += 5
    assert torch.equal(rotary(x, positions, whole_d=4), rotary(x, positions.clone(), whole_d=4))
    assert torch.equal(first, rotary(x, whole_d=4))


def test_lookups_of_other_ranks_are_zero_where_an_own_element_is_infinite():
    tensors, losses = FUNCTIONS["tensors"], FUNCTIONS["losses"]
    x, indices = torch.full((2, 3), -torch.inf), torch.tensor([0, 1])
    columns, shift = indices[:, None], torch.zeros(2)
    found = [
        tensors.pick(x, indices, start_v=3),
        tensors.gather(x, indices, start_v=3),
        tensors.gather_elements(x, columns, axis=1, start_v=3),
        tensors.gather_nd(x, columns, start_v0=3),
        losses.exp_sum_and_pick(x, shift, indices, start_v=3)[1],
    ]
    assert all(torch.equal(one, torch.zeros_like(one)) for one in found)


def test_eigenvectors_of_matrices_that_are_not_symmetric():
    a = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 5, 5)))
    values, vectors = map(torch.view_as_complex, FUNCTIONS["matrices"].eig(a))
    assert values.imag.abs().max() > 0.1
    assert (a.cdouble() @ vectors - vectors * values[:, None]).abs().max() < 1e-12
    assert difference(vectors.norm(dim=1).numpy(), np.ones((2, 5))) < 1e-12


def test_a_sum_that_leaves_the_element_out_is_finite_behind_an_infinite_one():
    x = torch.tensor([1.0, torch.inf, 2.0])
    found = FUNCTIONS["scans"].cumsum(x, exclusive=True)
    assert found.tolist() == [0, 1, torch.inf]
