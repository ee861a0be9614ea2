"""Complex parameters and Fourier transforms: results and gradients are autograd's."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402

from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402

KIND = torch.complex128


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Weights(nn.Module):
    """Complex parameters by name, and a real one."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.randn(shape, dtype=KIND)))
        self.scale = nn.Parameter(torch.randn(6, dtype=torch.float64))


class Spectral(Weights):
    """A Fourier neural operator: low frequencies times weights, in one dimension and in two."""

    def __init__(self) -> None:
        super().__init__(line=(3, 5, 4), low=(3, 2, 3, 4), high=(3, 2, 3, 4))

    def forward(self, x: Any, y: Any) -> Any:
        found = torch.fft.rfft(x)
        out = torch.zeros(x.shape[0], 5, 7, dtype=KIND)
        out[:, :, :4] = torch.einsum("bix,iox->box", found[:, :, :4], self.line)
        plane = torch.fft.rfft2(y, norm="ortho")
        kept = torch.zeros(x.shape[0], 2, 8, 5, dtype=KIND)
        kept[:, :, :3, :4] = torch.einsum("bixy,ioxy->boxy", plane[:, :, :3, :4], self.low)
        kept[:, :, -3:, :4] = torch.einsum("bixy,ioxy->boxy", plane[:, :, -3:, :4], self.high)
        both = torch.fft.irfft(out, n=12), torch.fft.irfft2(kept, s=(8, 9))
        return sum(one.square().mean() for one in both)


class Transforms(Weights):
    """Transforms of complex numbers, and functions of one and two."""

    def __init__(self) -> None:
        super().__init__(a=(4, 6), b=(6,), matrix=(6, 6))

    def forward(self, x: Any) -> Any:
        z = self.a * x * self.scale + (0.5 - 2j)
        waves = torch.fft.fft2(torch.fft.ifftn(z, dim=(-1,)), norm="ortho") / (1 + 1j)
        waves = torch.fft.fftshift(torch.fft.ifft(torch.fft.fft(waves, n=5), n=9, dim=0))
        found = [waves, torch.fft.hfft(z), z.exp(), z.log(), z.log10(), z.sqrt(), z.rsqrt()]
        found += [z / self.b, 1 / z, 2**z, z**3, z**-0.5, z**self.b, z.sgn(), z.conj() * z]
        found += [z.sin(), z.cos(), z.tan(), z.sinh(), z.cosh(), z.tanh(), z.sigmoid(), z.square()]
        found += [
            z @ self.matrix,
            nn.functional.linear(z, self.matrix, self.b),
            z.T,
            z[:, 0].norm(),
        ]
        found += [torch.einsum("ij,jk,k->i", z, self.matrix, self.b), z.sum(), z.mean(0), z.angle()]
        found += [torch.where(z.real > 0, z, z.mH.mean()), torch.stack([z, z.conj()]), z.cumsum(0)]
        found += [torch.cat([z, z], 1).roll(1), torch.polar(z.abs(), z.angle()), z.reshape(3, 8)]
        found += [torch.view_as_real(z), torch.view_as_complex(x.view(4, 3, 2)) * self.b[:3]]
        found += [(z == z) * x, z.isfinite() * x, torch.linalg.vector_norm(z, dim=0)]
        found += [z.conj().imag, torch.fft.ihfft(x).imag]
        return sum(one.abs().sin().mean() + 0.1 * one.real.sin().mean() for one in found)


def spectral() -> tuple[Any, ...]:
    return tuple(torch.randn(shape, dtype=torch.float64) for shape in ((4, 3, 12), (4, 3, 8, 9)))


@pytest.mark.parametrize(
    ("module", "inputs"),
    [(Spectral, spectral), (Transforms, lambda: (torch.randn(4, 6, dtype=torch.float64),))],
)
def test_complex_parameters_are_trained_as_pytorchs(module: Any, inputs: Any) -> None:
    module, inputs = module(), inputs()
    found = compare.gradients_differ(module, inputs)
    assert max(found.loss, found.gradient) < 1e-12
    assert found.missing == found.extra == []
    assert max(compare.on_ranks(module, inputs, 4)) < 1e-12


def test_a_vector_is_transformed() -> None:
    class Convolution(Weights):
        def forward(self, x: Any) -> Any:
            waves = torch.fft.rfft(x, 10) * torch.fft.rfft(self.scale, 10)
            return torch.fft.irfft(waves, 10).square().mean() + torch.fft.fft(self.b)[0].abs()

    module, inputs = Convolution(b=(5,)), (torch.randn(4, 6, dtype=torch.float64),)
    found = compare.gradients_differ(module, inputs)
    assert max(found.loss, found.gradient, *compare.on_ranks(module, inputs, 4)) < 1e-12


def test_a_complex_parameter_is_one_of_pairs() -> None:
    module = Transforms()
    imported = import_module(module, torch.randn(4, 6, dtype=torch.float64))
    (found,) = (p for p in imported.graph.parameters if p.name == "b")
    assert found.value.type.shape == (6, 2)
    assert (imported.initial["b"] == torch.view_as_real(module.b).detach().numpy()).all()


def test_what_complex_numbers_lack_is_refused_by_its_name() -> None:
    class Product(Weights):
        def forward(self, x: Any) -> Any:
            return (self.a * x).prod(1).real.mean()

    with pytest.raises(ModelError, match=r"aten\.prod\.dim_int of complex numbers"):
        import_module(Product(a=(4, 6)), torch.randn(4, 6, dtype=torch.float64))
