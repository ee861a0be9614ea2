"""Inputs and buffers whose elements decide sizes and branches of a module of PyTorch."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "imported"))
import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402

import shardwright  # noqa: E402
from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import ModelError, OptionError  # noqa: E402

GRID = torch.tensor([[1, 2, 3], [2, 1, 2]])


class Images(nn.Module):
    """Patches of images in one row, whose sides are the elements of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Linear(3, 4)
        self.rows = nn.Embedding(8, 4)
        self.register_buffer("shown", torch.tensor([True, False, True, True]))

    def forward(self, x: Any, grid: Any) -> Any:
        """Return the sum over images."""
        h = self.patch(x)
        cuts = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0])
        rows = torch.cat([torch.arange(h).repeat_interleave(w) for t, h, w in grid.tolist() * 1])
        counted = torch.zeros(h.shape[0], dtype=torch.int64)
        counted[: rows.numel()] = rows
        h = h + self.rows(counted)
        parts = torch.split(h, cuts.tolist())
        total = torch.stack([part.mean(0) for part in parts]).square().sum()
        return total + h[:, self.shown].sum() + h[:, counted[:4] < 1].square().sum()


@pytest.fixture
def images() -> nn.Module:
    torch.manual_seed(0)
    return Images().double()


def test_sizes_by_the_elements_of_an_input(images: nn.Module) -> None:
    inputs = {"x": torch.randn(10, 3, dtype=torch.float64), "grid": GRID}
    found = compare.gradients_differ(images, inputs)
    assert found.loss < 1e-12
    assert found.gradient < 1e-12
    assert not found.missing
    assert [value.name for value in found.imported.graph.inputs] == ["x"]
    assert found.imported.warnings == (
        "sizes or branches depend on the elements of the input `grid`: the program is that of the "
        "example's elements, and does not take it",
    )


def test_elements_written_in_place_are_followed() -> None:
    class Marks(nn.Module):
        def forward(self, x: Any, lengths: Any) -> Any:
            marks = torch.zeros(6, dtype=torch.bool)
            view = marks[2:]
            for n in lengths:
                view[n] = True
            marks[0:1].logical_or_(lengths[:1] > 0)
            return x[marks].square().sum()

    x = torch.randn(6, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([1, 3])
    imported = import_module(Marks(), {"x": x.detach(), "lengths": lengths})
    found = compare.run(
        imported.graph, imported.initial, {"x": x.detach().numpy()}, [imported.graph.outputs[0]]
    )
    right = Marks()(x, lengths)
    assert abs(found[imported.graph.outputs[0]] - right.item()) < 1e-12


def test_what_is_written_with_unknown_elements_is_unknown() -> None:
    class Unknown(nn.Module):
        def forward(self, x: Any, lengths: Any) -> Any:
            marks = torch.zeros(4, dtype=torch.bool)
            view = marks.view_as(x)
            view.copy_(x > 0)
            return x[marks].sum() + x[: int(lengths[0])].sum()

    with pytest.raises(ModelError, match="depends on"):
        import_module(Unknown(), {"x": torch.randn(4), "lengths": torch.tensor([2])})


def test_tokens_that_decide_sizes_are_refused() -> None:
    class Ends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 4)

        def forward(self, tokens: Any) -> Any:
            return self.table(tokens)[tokens == 2].square().sum()

    with pytest.raises(ModelError) as error:
        import_module(Ends(), {"tokens": torch.tensor([[1, 2], [2, 3]])})
    assert "a tensor of shape (u0, 4), which depends on data" in str(error.value)


def test_labels_that_decide_sizes_are_refused() -> None:
    class Lengths(nn.Module):
        def forward(self, x: Any, labels: Any) -> Any:
            return sum(x[: int(n)].sum() for n in labels)

    with pytest.raises(ModelError) as error:
        import_module(Lengths(), {"x": torch.ones(4), "labels": torch.tensor([1, 2])})
    assert str(error.value) == (
        "sizes or branches depend on the elements of `labels`, which differ in every batch (in "
        "test_known_values.py:112: return sum(x[: int(n)].sum() for n in labels)); give what "
        "decides sizes as an input of its own, or import with `as_example=True` if it is as in "
        "the example in every batch, which is checked"
    )


def test_a_condition_on_finite_values_is_taken_for_finite_ones() -> None:
    class Clamped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            h = self.first(x)
            if not torch.isfinite(h).all():
                h = h.clamp(-1.0, 1.0)
            if torch.isinf(h).any() or h.isnan().any():
                h = h.clamp(-1.0, 1.0)
            return h.square().sum()

    found = compare.gradients_differ(Clamped().double(), (torch.ones(2, 3, dtype=torch.float64),))
    assert found.loss < 1e-12
    assert found.gradient < 1e-12


def test_a_buffer_that_changes_decides_no_branch() -> None:
    class Started(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Any) -> Any:
            scale = 2.0 if self.steps.item() == 0 else 1.0
            self.steps.add_(1)
            return (x * self.weight * scale).sum()

    line = "if self.steps.item\\(\\) == 0"
    with pytest.raises(ModelError, match=f"`steps`, which every step changes .*{line}.*; decide"):
        import_module(Started(), {"x": torch.ones(3)})


_BY_NUMBERS = {
    "interpolate": lambda x, h, w: nn.functional.interpolate(x, size=(h, w), mode="bilinear"),
    "repeat": lambda x, h, w: x.repeat(1, 1, h, w),
    "reshape": lambda x, h, w: x[..., :3].reshape(2, 3, h, -1),
    "expand": lambda x, h, w: x[..., None].expand(-1, -1, -1, -1, h),
    "pad": lambda x, h, w: nn.functional.pad(x, (0, w, 0, h)),
    "split": lambda x, h, w: x.split([h, 4 - h], -1)[0],
}


class ByNumbers(nn.Module):
    """A function whose sizes are tensors of one element each, rows of an input."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x: Any, sizes: Any) -> Any:
        """Return the sum over rows."""
        h = self.layer(x)
        return torch.stack([self.function(h, *row).square().mean() for row in sizes]).sum()


@pytest.mark.parametrize("name", _BY_NUMBERS)
def test_sizes_that_are_tensors_of_one_element(name: str) -> None:
    torch.manual_seed(0)
    inputs = {"x": torch.randn(2, 3, 4, 4).double(), "sizes": torch.tensor([[3, 1], [2, 2]])}
    found = compare.gradients_differ(ByNumbers(_BY_NUMBERS[name]).double(), inputs)
    assert max(found.loss, found.gradient) < 1e-12
    assert [value.name for value in found.imported.graph.inputs] == ["x"]


def test_sizes_of_images_may_be_called_targets() -> None:
    class Sized(nn.Linear):
        def forward(self, x: Any, target_sizes: Any) -> Any:
            return sum(super(Sized, self).forward(x[:n]).square().sum() for n in target_sizes)

    inputs = {"x": torch.randn(4, 3, dtype=torch.float64), "target_sizes": torch.tensor([2, 4])}
    found = compare.gradients_differ(Sized(3, 3).double(), inputs)
    assert max(found.loss, found.gradient) < 1e-12


# Assumptions


class Album(nn.Module):
    """Images of texts, without those that are padding, and a row for a kind of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 3)
        self.patch = nn.Linear(3, 3)
        self.mark = nn.Parameter(torch.randn(3))

    def forward(self, x: Any, tokens: Any) -> Any:
        """Return a loss."""
        real = (x == 0).sum(-1) != 3
        counts = real.sum(1)
        parts = self.patch(x[real]).split(counts.tolist())
        text = self.table(tokens)
        if (tokens == 2).any():
            text[tokens == 2] = self.mark
        return torch.stack([part.mean() for part in parts]).square().sum() + text.square().mean()


def album(*padding: tuple[int, int], tokens: Any = ((1, 2), (2, 3))) -> dict[str, Any]:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 3, dtype=torch.float64)
    for place in padding:
        x[place] = 0
    return {"x": x, "tokens": torch.tensor(tokens)}


def loss_of(imported: Any, inputs: Any) -> float:
    loss = imported.graph.outputs[0]
    found = compare.run(
        imported.graph, imported.initial, compare.arrays_of(imported, inputs), [loss]
    )
    return float(found[loss])


def test_what_is_read_is_assumed_to_be_as_in_the_example() -> None:
    module, inputs = Album().double(), album((1, 2))
    with pytest.raises(ModelError, match="as_example=True"):
        import_module(module, inputs)
    imported = import_module(module, inputs, as_example=True)
    found = compare.gradients_differ(module, inputs, imported)
    assert found.loss < 1e-12
    assert found.gradient < 1e-12
    assert not found.missing
    assert [value.name for value in imported.graph.inputs] == ["x", "tokens"]
    said = "it is assumed that what is read of the inputs is as in the example ("
    end = "): the loss is infinite for a batch that differs there"
    lines = [w.removeprefix(said).removesuffix(end) for w in imported.warnings]
    assert [line.partition(": ")[2] for line in lines] == [
        "parts = self.patch(x[real]).split(counts.tolist())",
        "if (tokens == 2).any():",
    ]


def test_a_batch_that_differs_from_the_example_has_no_loss() -> None:
    module = Album().double()
    imported = import_module(module, album((1, 2)), as_example=True)
    for differing in (album(), album((1, 1)), album((1, 2), tokens=((1, 1), (1, 3)))):
        assert math.isinf(loss_of(imported, differing))
    # Where the tokens are is not read, only that there are some.
    same = album((1, 2), tokens=((3, 1), (0, 2)))
    assert loss_of(imported, same) == pytest.approx(module(**same).item(), rel=1e-12)


def test_a_plan_checks_what_is_assumed_on_every_rank() -> None:
    differs = compare.on_ranks(
        Album().double(), album((1, 2)), 2, as_example=True, dataset_strategy="data_parallel"
    )
    assert max(differs) < 1e-12


def test_numbers_that_differ_in_every_batch_are_not_assumed() -> None:
    class Largest(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.sum() if x.max() > 1 and x.max().item() > 2 else x.mean()

    with pytest.raises(ModelError) as error:
        import_module(Largest(), (torch.full((3,), 3.0),), as_example=True)
    assert "a branch or a size depends on the elements of tensors" in str(error.value)


def test_only_modules_of_pytorch_have_an_example() -> None:
    with pytest.raises(OptionError) as error:
        shardwright.compile("mlp", 2, as_example=True)
    assert str(error.value) == (
        "`as_example` is True, expected False: it belongs to a module of PyTorch"
    )
