"""FFT on tiles, in both modes, against the definition."""

from typing import Any

import numpy as np
import pytest

from tests.support.on_tiles import check_on_tiles, groups_of

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(13)


def _matrix(n: int, sign: int) -> Array:
    places = np.arange(n)
    return np.asarray(np.exp(sign * 2j * np.pi * (np.outer(places, places) % n) / n))


def _transformed(x: Array, lengths: tuple[int, ...], sign: int) -> Array:
    """Transform the last dimensions by matrices in f64; an inverse is scaled."""
    made = x.astype(np.complex128)
    for axis, n in zip(range(-len(lengths), 0), lengths, strict=True):
        made = np.moveaxis(np.moveaxis(made, axis, -1) @ _matrix(n, sign), -1, axis)
        made = made / n if sign > 0 else made
    return np.asarray(made)


def _complex(*shape: int) -> Array:
    x = RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)
    return np.asarray(x.astype(np.complex64))


def _text(kind: str, given: str, made: str, lengths: tuple[int, ...]) -> str:
    sizes = ",".join(map(str, lengths))
    return f"""HloModule transforms
    ENTRY e {{
      x = {given} parameter(0)
      ROOT r = {made} fft(x), fft_type={kind}, fft_length={{{sizes}}}
    }}"""


@pytest.mark.parametrize("kind", ["FFT", "IFFT"])
@pytest.mark.parametrize(
    ("shape", "lengths"),
    [((6, 8), (8,)), ((3, 4, 5), (4, 5)), ((4, 3, 2), (4, 3, 2)), ((7,), (7,))],
)
def test_complex(kind: str, shape: tuple[int, ...], lengths: tuple[int, ...]) -> None:
    x = _complex(*shape)
    array = f"c64[{','.join(map(str, shape))}]"
    expected = _transformed(x, lengths, -1 if kind == "FFT" else 1)
    text = _text(kind, array, array, lengths)
    check_on_tiles(text, [x], [expected], relative=1e-5, absolute=1e-5)


@pytest.mark.parametrize("kind", ["FFT", "IFFT"])
@pytest.mark.parametrize("length", [1024, 1500])
def test_long_transforms_use_many_tiles(kind: str, length: int) -> None:
    x = _complex(2, length)
    expected = _transformed(x, (length,), -1 if kind == "FFT" else 1)
    text = _text(kind, f"c64[2,{length}]", f"c64[2,{length}]", (length,))
    programs = check_on_tiles(text, [x], [expected], relative=1e-4, absolute=1e-4)
    assert min(g.tiles.count for g in groups_of(programs[-1]) if g.codelet.name == "fft") >= 50


def test_real_there_and_back() -> None:
    x = RNG.standard_normal((3, 4, 6)).astype(np.float32)
    spectrum = _transformed(x, (4, 6), -1)[..., :4]
    there = _text("RFFT", "f32[3,4,6]", "c64[3,4,4]", (4, 6))
    back = _text("IRFFT", "c64[3,4,4]", "f32[3,4,6]", (4, 6))
    check_on_tiles(there, [x], [spectrum], relative=1e-5, absolute=1e-5)
    check_on_tiles(back, [spectrum.astype(np.complex64)], [x], relative=1e-5, absolute=1e-5)


@pytest.mark.parametrize("length", [1024, 1125])
def test_long_real_transforms_use_many_tiles(length: int) -> None:
    x = RNG.standard_normal((2, length)).astype(np.float32)
    half = length // 2 + 1
    spectrum = _transformed(x, (length,), -1)[:, :half]
    there = _text("RFFT", f"f32[2,{length}]", f"c64[2,{half}]", (length,))
    back = _text("IRFFT", f"c64[2,{half}]", f"f32[2,{length}]", (length,))
    given = spectrum.astype(np.complex64)
    given[:, 0] += 3j  # ignored, as it can be no part of a real signal's spectrum
    programs = check_on_tiles(there, [x], [spectrum], relative=1e-4, absolute=1e-4)
    programs += check_on_tiles(back, [given], [x], relative=1e-4, absolute=1e-4)
    for program in programs[2::3]:
        assert min(g.tiles.count for g in groups_of(program) if g.codelet.name == "fft") >= 50


def test_nothing_to_transform() -> None:
    x = np.zeros((0, 4), np.complex64)
    check_on_tiles(_text("FFT", "c64[0,4]", "c64[0,4]", (4,)), [x], [x])
