"""Fusions that reduce, on tiles: in each way, whichever is cheapest, values stay."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pytest

from hloipu_compiler.lowering.core.alternatives import Candidate, cheapest
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.values import Value
from hloipu_compiler.lowering.regions import fusions
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import ComputeSet
from tests.support.passes import SUM
from tests.support.tile_runs import run_on_tiles

TINY, GC200 = load_machine("tiny"), load_machine("gc200")
RNG = np.random.default_rng(3)
NORM = """\
HloModule m

SUMrows (x: f32[R,C], g: f32[C]) -> f32[R,C] {
  x = f32[R,C] parameter(0)
  g = f32[C] parameter(1)
  zero = f32[] constant(0)
  q = f32[R,C] multiply(x, x)
  s = f32[R] reduce(q, zero), dimensions={1}, to_apply=sum
  i = f32[R] rsqrt(s)
  b = f32[R,C] broadcast(i), dimensions={0}
  h = f32[R,C] broadcast(g), dimensions={1}
  n = f32[R,C] multiply(x, b)
  ROOT y = f32[R,C] multiply(n, h)
}

ENTRY e {
  x = f32[R,C] parameter(0)
  g = f32[C] parameter(1)
  ROOT f = f32[R,C] fusion(x, g), kind=kInput, calls=rows
}
"""
SQUARES = """\
HloModule m

SUMrows (x: f32[R,C]) -> f32[KEPT] {
  x = f32[R,C] parameter(0)
  zero = f32[] constant(0)
  q = f32[R,C] multiply(x, x)
  ROOT s = f32[KEPT] reduce(q, zero), dimensions={D}, to_apply=sum
}

ENTRY e {
  x = f32[R,C] parameter(0)
  ROOT f = f32[KEPT] fusion(x), kind=kInput, calls=rows
}
"""


def sized(text: str, rows: int, columns: int) -> str:
    """Return a text with its sizes and its reducer."""
    text = text.replace("R,C", f"{rows},{columns}").replace("[R]", f"[{rows}]")
    return text.replace("[C]", f"[{columns}]").replace("SUM", SUM + "\n")


def codelets(program: Program) -> list[str]:
    """Return the codelets of the outermost steps."""
    sets = [x for x in program.body.steps if isinstance(x, ComputeSet)]
    return [group.codelet.name for x in sets for group in x.groups]


def close(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.fixture(params=[0, 1, 2])
def candidate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Have one of the ways gone, whatever it costs."""

    def chosen(
        builder: Builder, candidates: Sequence[Candidate], key: object = None
    ) -> Sequence[Value]:
        leaves: Sequence[Value] | None = candidates[min(request.param, len(candidates) - 1)]()
        assert leaves is not None
        return leaves

    monkeypatch.setattr(fusions, "cheapest", chosen)
    return int(request.param)


@pytest.mark.parametrize("machine", [TINY, GC200], ids=lambda x: x.name)
def test_all_ways_compute_the_same(machine: Any, candidate: int) -> None:
    rows = RNG.uniform(1, 2, (9, 40)).astype(np.float32)
    scale = RNG.uniform(1, 2, 40).astype(np.float32)
    run = run_on_tiles(sized(NORM, 9, 40), machine, [rows, scale])
    close(run.functional, run.evaluated)
    close(run.exact, run.evaluated)
    # Nine rows are many for four tiles: they are not cut there.
    assert ("row_region" in codelets(run.program)) == (candidate > (machine is GC200))


@pytest.mark.parametrize(("dimension", "kept"), [(0, 600), (1, 24)])
def test_a_producer_goes_into_the_first_stage(dimension: int, kept: int, candidate: int) -> None:
    text = sized(SQUARES.replace("KEPT", str(kept)).replace("D}", f"{dimension}}}"), 24, 600)
    run = run_on_tiles(text, TINY, [RNG.uniform(1, 2, (24, 600)).astype(np.float32)])
    close(run.functional, run.evaluated)
    close(run.exact, run.evaluated)
    assert ("fused_reduce" in codelets(run.program)) == bool(candidate)


BATCH_NORM = """\
HloModule m

SUMrows (x: f16[I,J,C], g: f16[I,J,C]) -> (f16[I,J,C], f32[C], f32[C]) {
  x = f16[I,J,C] parameter(0)
  g = f16[I,J,C] parameter(1)
  zero = f32[] constant(0)
  w = f32[I,J,C] convert(x)
  q = f32[I,J,C] multiply(w, w)
  s = f32[C] reduce(w, zero), dimensions={0,1}, to_apply=sum
  p = f32[C] reduce(q, zero), dimensions={0,1}, to_apply=sum
  d = f32[C] add(s, p)
  spread = f32[I,J,C] broadcast(d), dimensions={2}
  v = f32[I,J,C] convert(g)
  y = f32[I,J,C] multiply(v, spread)
  t = f32[C] reduce(y, zero), dimensions={0,1}, to_apply=sum
  z = f16[I,J,C] convert(y)
  ROOT r = (f16[I,J,C], f32[C], f32[C]) tuple(z, s, t)
}

ENTRY e {
  x = f16[I,J,C] parameter(0)
  g = f16[I,J,C] parameter(1)
  ROOT f = (f16[I,J,C], f32[C], f32[C]) fusion(x, g), kind=kInput, calls=rows
}
"""


@pytest.mark.parametrize("sizes", [(33, 7, 12), (32, 40, 8)])
def test_sums_that_wait_for_the_same_are_one_vertex(
    sizes: tuple[int, int, int], candidate: int
) -> None:
    text = BATCH_NORM.replace("I,J,C", ",".join(map(str, sizes)))
    x, g = (RNG.integers(-4, 5, sizes).astype(np.float16) for _ in range(2))
    run = run_on_tiles(sized(text, 0, sizes[-1]), GC200, [x, g])
    wide = x.astype(float)
    y = g * (wide.sum((0, 1)) + (wide * wide).sum((0, 1)))
    for found in (run.functional, run.exact, run.evaluated):
        np.testing.assert_allclose(found[0], y.astype(np.float16).astype(np.float32))
        close(found[1:], [wide.sum((0, 1)), y.sum((0, 1))])
    sets = [x for x in run.program.body.steps if isinstance(x, ComputeSet)]
    outputs = {
        len(group.outputs)
        for x in sets
        for group in x.groups
        if group.codelet.name == "fused_reduce"
    }
    assert (2 in outputs) == (candidate == 1)


def test_the_cheaper_way_is_gone() -> None:
    """Rows that lie whole on tiles need no exchange; a few long ones would leave tiles idle."""
    short = run_on_tiles(
        sized(NORM, 2944, 8), GC200, [np.ones((2944, 8), np.float32), np.ones(8, np.float32)]
    )
    assert codelets(short.program) == ["row_region"]
    long = run_on_tiles(
        sized(NORM, 2, 60000), GC200, [np.ones((2, 60000), np.float32), np.ones(60000, np.float32)]
    )
    assert "row_region" not in codelets(long.program)


PRODUCTS = """\
rows{0} (x: f32[1024], y: f32[1024]) -> f32[] {{
  x = f32[1024] parameter(0)
  y = f32[1024] parameter(1)
  zero = f32[] constant(0)
  q = f32[1024] multiply(x, y)
  ROOT s = f32[] reduce(q, zero), dimensions={{0}}, to_apply=sum
}}

"""


def test_one_form_for_arrays_that_lie_alike_on_other_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight arrays lie behind one another; products of two are summed up, of two the other way."""
    keys: list[Hashable] = []

    def noted(
        builder: Builder, candidates: Sequence[Candidate], key: Hashable = None
    ) -> Sequence[Value]:
        keys.append(key)
        return cheapest(builder, candidates, key)

    monkeypatch.setattr(fusions, "cheapest", noted)
    pairs = ((0, 1), (2, 3), (4, 5), (7, 6))
    takes = "".join(f"  x{n} = f32[1024] parameter({n})\n" for n in range(8))
    sums = "".join(
        f"  s{n} = f32[] fusion(x{a}, x{b}), kind=kInput, calls=rows{n}\n"
        for n, (a, b) in enumerate(pairs)
    )
    text = f"HloModule m\n\n{SUM}\n" + "".join(map(PRODUCTS.format, range(4)))
    numbers = ", ".join(["f32[]"] * 4)
    text += f"ENTRY e {{\n{takes}{sums}  ROOT r = ({numbers}) tuple(s0, s1, s2, s3)\n}}\n"
    run = run_on_tiles(text, GC200, [RNG.uniform(1, 2, 1024).astype(np.float32)] * 8)
    close(run.functional, run.evaluated)
    places = [run.program.variables[n].mapping.tiles for n in range(8)]
    step = places[1].first - places[0].first
    assert [x.first for x in places] == [n * step for n in range(8)]
    assert step > 0
    assert keys[0] == keys[1] == keys[2] != keys[3]
