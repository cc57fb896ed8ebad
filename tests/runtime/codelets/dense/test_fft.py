"""FFT: the law, the definition as a sum, long transforms in two steps, and cycles by hand."""

import numpy as np
import pytest

from hloipu_runtime.codelets.core.tensors import Array, Tensor
from hloipu_runtime.codelets.dense.fft import Fft, Twiddle
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split, close_values, run_whole

RNG = np.random.default_rng(7)
NEAR = close_values(1e-5, 1e-5)


def _complex(*shape: int) -> Given:
    values = RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)
    return Given("c64", values.astype(np.complex64))


def _sum(x: Array, sign: int) -> Array:
    """Return the transform along the last dimension, as the definition says."""
    n = x.shape[-1]
    places = np.arange(n)
    matrix = np.exp(sign * 2j * np.pi * np.outer(places, places) / n)
    return np.asarray(x.astype(np.complex128) @ matrix)


@pytest.mark.parametrize("dimension", [0, 1, 2])
@pytest.mark.parametrize("kind", ["FFT", "IFFT"])
def test_complex(kind: str, dimension: int) -> None:
    x = _complex(4, 5, 6)
    length = x.array.shape[dimension]
    (made,) = check_every_split(Fft(kind, dimension, length), [x], [x.tensor], same=NEAR)
    rows = np.moveaxis(x.array, dimension, -1)
    expected = _sum(rows, -1) if kind == "FFT" else _sum(rows, 1) / length
    np.testing.assert_allclose(np.moveaxis(made, dimension, -1), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [7, 8])
def test_real(length: int) -> None:
    x = Given("f32", RNG.standard_normal((3, length)).astype(np.float32))
    kept = Tensor("c64", (3, length // 2 + 1))
    (made,) = check_every_split(Fft("RFFT", 1, length), [x], [kept], same=NEAR)
    expected = _sum(x.array, -1)[:, : length // 2 + 1]
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)
    (back,) = check_every_split(
        Fft("IRFFT", 1, length), [Given("c64", made)], [x.tensor], same=NEAR
    )
    np.testing.assert_allclose(back, x.array, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inverse", [False, True])
def test_long_transform_in_two_steps(inverse: bool) -> None:
    n1, n2, kind = 6, 8, "IFFT" if inverse else "FFT"
    x = _complex(n1, n2)
    tensors = [x.tensor]
    (columns,) = run_whole(Fft(kind, 0, n1), [x], tensors)
    twiddle = Twiddle((0, 1), n1 * n2, inverse)
    (turned,) = check_every_split(twiddle, [Given("c64", columns)], tensors, same=NEAR)
    (rows,) = run_whole(Fft(kind, 1, n2), [Given("c64", turned)], tensors)
    flat = x.array.reshape(-1)
    expected = _sum(flat, 1) / flat.size if inverse else _sum(flat, -1)
    np.testing.assert_allclose(rows.T.reshape(-1), expected, rtol=1e-5, atol=1e-5)


def _cycles(kind: str, shape: tuple[int, ...], element_type: str, machine: str) -> int:
    x = Tensor(element_type, shape)
    work = Fft(kind, 1, shape[1]).work(load_machine(machine), [x], [x])
    assert work.assumed_cycles == work.cycles
    return work.cycles


def test_cycles_by_hand() -> None:
    # 8 points: 4 butterflies on each of 3 levels.
    assert _cycles("FFT", (6, 8), "c64", "tiny") == 6 * (30 + 12 * 6)
    assert _cycles("RFFT", (6, 8), "f32", "tiny") == 6 * (30 + 6 * 6)
    assert _cycles("FFT", (6, 8), "c128", "tiny") == 6 * (30 + 12 * 6 * 40)
    # One long row is shared: 1024 points are 10 levels of 512 butterflies.
    assert _cycles("FFT", (1, 1024), "c64", "tiny") == 110 + 6 * (300 + 854 * 6)
    # 7 points: three transforms of 16.
    assert _cycles("FFT", (1, 7), "c64", "unit") == 30 + 3 * 32 * 6
    assert _cycles("FFT", (0, 8), "c64", "tiny") == 0
    assert _cycles("FFT", (3, 0), "c64", "tiny") == 0


def test_twiddle_cycles_by_hand() -> None:
    x = Tensor("c64", (5, 6))
    work = Twiddle((0, 1), 30).work(load_machine("tiny"), [x], [x])
    assert work == (11 + 6 * (30 + 5 * 4), 11 + 6 * (30 + 5 * 4))
