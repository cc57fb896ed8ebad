"""Long transforms as one on whole tensors: values by numpy, and only what the steps really are."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.dense.fft import Fft, Twiddle
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Definition
from hloipu_runtime.simulate.functional.logical_form import _block, collapse
from hloipu_runtime.simulate.functional.nodes import Node
from hloipu_runtime.simulate.functional.whole_transforms import with_whole_transforms

CASES = {
    "RFFT": ("f32[3,2048]", "c64[3,1025]", "2048"),
    "RFFT of an odd length": ("f32[2,1575]", "c64[2,788]", "1575"),
    "RFFT of wide reals": ("f64[2,2048]", "c128[2,1025]", "2048"),
    "RFFT of two dimensions": ("f32[2048,6]", "c64[2048,4]", "2048,6"),
    "IRFFT": ("c64[3,1025]", "f32[3,2048]", "2048"),
    "IRFFT of an odd length": ("c64[788]", "f32[1575]", "1575"),
    "FFT": ("c64[4,2048]", "c64[4,2048]", "2048"),
    "IFFT": ("c64[4,2048]", "c64[4,2048]", "2048"),
}


def _compiled(name: str) -> Any:
    given, made, length = CASES[name]
    kind = name.split()[0]
    text = f"""HloModule transform
      ENTRY e {{ x = {given} parameter(0)
                ROOT r = {made} fft(x), fft_type={kind}, fft_length={{{length}}} }}"""
    return hloipu.compile(text, target="gc200", cache=False)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text[text.index("[") + 1 : -1].split(","))


@pytest.mark.parametrize("name", CASES)
def test_one_transform_gives_what_numpy_gives(name: str) -> None:
    given, made, length = CASES[name]
    exe = _compiled(name)
    assert not any(isinstance(x.what, Twiddle | Definition) for x in collapse(exe.program).nodes)
    draw, sizes = np.random.default_rng(3), _sizes(given)
    x = draw.standard_normal(sizes)
    if given[0] == "c":
        x = x + 1j * draw.standard_normal(sizes)
    x = x.astype({"f32": "f4", "f64": "f8", "c64": "c8"}[given[: given.index("[")]])
    lengths = tuple(map(int, length.split(",")))
    axes = tuple(range(x.ndim - len(lengths), x.ndim))
    wide = x.astype(np.complex128 if given[0] == "c" else np.float64)
    transform = getattr(np.fft, f"{name.split()[0].lower()}n")
    wanted = transform(wide, s=lengths, axes=axes)
    (result,) = exe.run(x, mode="functional").outputs
    assert result.shape == _sizes(made)
    assert np.abs(result - wanted).max() < 1e-6 * np.abs(wanted).max()


def _steps(program: Program, monkeypatch: pytest.MonkeyPatch) -> list[Node]:
    """Return the logical form with the steps of the transform."""
    path = "hloipu_runtime.simulate.functional.whole_transforms.with_whole_transforms"
    with monkeypatch.context() as patched:
        patched.setattr(path, lambda nodes, table, results: nodes)
        return list(_block(program, program.body, "body", frozenset(), frozenset()).nodes)


def _others(what: Any) -> list[Any]:
    """Return steps that are nearly, but not, one of a transform."""
    match what:
        case Fft():
            return [replace(what, kind="IFFT" if what.kind == "FFT" else "FFT"),
                    replace(what, length=what.length + 1)]  # fmt: skip
        case Twiddle():
            return [replace(what, inverse=not what.inverse), replace(what, total=what.total + 1)]
        case Definition():
            pieces = [x._replace(shift=(*x.shift[:-1], 1)) for x in what.pieces]
            return [replace(what, pieces=tuple(pieces))]
    return []


@pytest.mark.parametrize("name", ["RFFT", "IRFFT"])
def test_other_steps_are_left_as_they_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _compiled(name).program
    nodes = _steps(program, monkeypatch)

    def whole(nodes: list[Node], results: frozenset[int] = frozenset()) -> list[str]:
        made = with_whole_transforms(nodes, program.values, results)
        return [x.what.kind for x in made if isinstance(x.what, Fft)]

    assert whole(nodes) == [name]
    for n, node in enumerate(nodes):
        for other in _others(node.what):
            wrong = [*nodes[:n], replace(node, what=other), *nodes[n + 1 :]]
            assert whole(wrong) != [name], node.what
        if isinstance(node.what, Codelet | Definition) and node.reads and n < len(nodes) - 2:
            assert whole(nodes, frozenset(node.writes)) != [name], "what is a result is made"
