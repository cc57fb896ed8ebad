"""Loops compiled whole, in both modes: the bits and counts of Python's turns, and XLA's values."""

from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloipu
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_runtime.kernels.computing import computing
from hloipu_runtime.kernels.native.llvm import the_compiler
from hloipu_runtime.kernels.native.settings import Settings, native_kernels
from hloipu_runtime.program.program import Program
from hloipu_runtime.simulate.exact import small_steps
from hloipu_runtime.simulate.exact.exact import ExactEngine
from hloipu_runtime.simulate.functional import loop_turns
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from hloipu_runtime.simulate.run.host import Arrays, Counts
from hloipu_runtime.simulate.run.ports import given_arrays
from tests.support.arrays import Array
from tests.support.xla_oracle import Oracle

pytestmark = pytest.mark.skipif(the_compiler() is None, reason="llvmlite is not installed")

REGIONS = """
add { a = {t}[] parameter(0) b = {t}[] parameter(1) ROOT r = {t}[] add(a, b) }
max { a = {t}[] parameter(0) b = {t}[] parameter(1) ROOT r = {t}[] maximum(a, b) }
last { a = {t}[] parameter(0) ROOT b = {t}[] parameter(1) }
or { a = pred[] parameter(0) b = pred[] parameter(1) ROOT r = pred[] or(a, b) }
best {
  a = {t}[] parameter(0) i = s32[] parameter(1) b = {t}[] parameter(2) j = s32[] parameter(3)
  better = pred[] compare(a, b), direction=GT eq = pred[] compare(a, b), direction=EQ
  lt = pred[] compare(i, j), direction=LT tie = pred[] and(eq, lt)
  first = pred[] or(better, tie) v = {t}[] select(better, a, b) k = s32[] select(first, i, j)
  ROOT r = ({t}[], s32[]) tuple(v, k)
}
argmax {
  a = {t}[] parameter(0) i = s32[] parameter(1) b = {t}[] parameter(2) j = s32[] parameter(3)
  gt = pred[] compare(a, b), direction=GT ne = pred[] compare(a, a), direction=NE
  better = pred[] or(gt, ne) eq = pred[] compare(a, b), direction=EQ
  lt = pred[] compare(i, j), direction=LT tie = pred[] and(eq, lt)
  first = pred[] or(better, tie) v = {t}[] select(better, a, b) k = s32[] select(first, i, j)
  ROOT r = ({t}[], s32[]) tuple(v, k)
}
"""
SCAN = "{t}[9,6] x, {t}[6] y"
BODIES = {
    "scalars": ("{t}[] x, s32[] y", """
      two = s32[] constant(2) h = s32[] divide(y, two) r = s32[] remainder(y, two)
      m = s32[] multiply(y, y) o = s32[] add(m, r) p = pred[] compare(r, k), direction=LT
      ny = s32[] select(p, h, o) f = {t}[] convert(ny) e = {t}[] logistic(x)
      g = {t}[] subtract(e, f) nx = {t}[] cosine(g)""", "nx, ny"),
    "transcendental": ("{t}[5,7] x, {t}[7] y", """
      b = {t}[5,7] broadcast(y), dimensions={1} a = {t}[5,7] tanh(x) e = {t}[5,7] exponential(a)
      l = {t}[5,7] logistic(b) p = {t}[5,7] power(e, l) r = {t}[5,7] rsqrt(p)
      nx = {t}[5,7] subtract(r, a)""", "nx, y"),
    "sums": ("{t}[4,40] x, {t}[4] y, {t}[40] z, {t}[] w", """
      o = {t}[] constant(0) ny = {t}[4] reduce(x, o), dimensions={1}, to_apply=add
      nz = {t}[40] reduce(x, o), dimensions={0}, to_apply=add
      nw = {t}[] reduce(x, o), dimensions={0,1}, to_apply=add
      b = {t}[4,40] broadcast(y), dimensions={0} c = {t}[4,40] broadcast(z), dimensions={1}
      d = {t}[4,40] multiply(b, c) e = {t}[4,40] add(x, d)
      small = {t}[] constant(0.01) f = {t}[4,40] broadcast(small), dimensions={}
      nx = {t}[4,40] multiply(e, f)""",
        "nx, ny, nz, nw"),
    "short sums": ("{t}[600,5] x, {t}[3,5] y", """
      o = {t}[] constant(0) s = {t}[600] reduce(x, o), dimensions={1}, to_apply=add
      b = {t}[600,5] broadcast(s), dimensions={0} c = {t}[600,5] subtract(b, x)
      small = {t}[] constant(0.1) f = {t}[600,5] broadcast(small), dimensions={}
      nx = {t}[600,5] multiply(c, f) u = {t}[3] reduce(y, o), dimensions={1}, to_apply=add
      v = {t}[3,5] broadcast(u), dimensions={0} w = {t}[3,5] add(v, y) ny = {t}[3,5] tanh(w)""",
        "nx, ny"),
    "softmax": ("{t}[6,33] x", """
      l = {t}[] constant(-inf) o = {t}[] constant(0)
      m = {t}[6] reduce(x, l), dimensions={1}, to_apply=max
      b = {t}[6,33] broadcast(m), dimensions={0} d = {t}[6,33] subtract(x, b)
      e = {t}[6,33] exponential(d) s = {t}[6] reduce(e, o), dimensions={1}, to_apply=add
      t = {t}[6,33] broadcast(s), dimensions={0} nx = {t}[6,33] divide(e, t)""", "nx"),
    "backwards": ("{t}[46] x", """
      a = {t}[23] slice(x), slice={[0:23]} b = {t}[23] slice(x), slice={[23:46]}
      r = {t}[23] reverse(a), dimensions={0} nx = {t}[46] concatenate(b, r), dimensions={0}""",
        "nx"),
    "largest of all": ("{t}[50] x, {t}[] y", """
      l = {t}[] constant(-inf) m = {t}[] reduce(x, l), dimensions={0}, to_apply=max
      ny = {t}[] sine(m) b = {t}[50] broadcast(m), dimensions={} d = {t}[50] subtract(x, b)
      nx = {t}[50] tanh(d)""", "nx, ny"),
    "best of many": ("{t}[3,70] x, s32[3] y", """
      l = {t}[] constant(-inf) o = s32[] constant(0) i = s32[3,70] iota(), iota_dimension=1
      r = ({t}[3], s32[3]) reduce(x, i, l, o), dimensions={1}, to_apply=best
      v = {t}[3] get-tuple-element(r), index=0 j = s32[3] get-tuple-element(r), index=1
      b = {t}[3,70] broadcast(v), dimensions={0} d = {t}[3,70] subtract(x, b)
      nx = {t}[3,70] cosine(d) ny = s32[3] add(y, j)""", "nx, ny"),
    "best of few": ("{t}[12] x, s32[] y", """
      l = {t}[] constant(-inf) o = s32[] constant(0) i = s32[12] iota(), iota_dimension=0
      r = ({t}[], s32[]) reduce(x, i, l, o), dimensions={0}, to_apply=best
      v = {t}[] get-tuple-element(r), index=0 j = s32[] get-tuple-element(r), index=1
      b = {t}[12] broadcast(v), dimensions={} d = {t}[12] subtract(x, b)
      nx = {t}[12] cosine(d) ny = s32[] add(y, j)""", "nx, ny"),
    "best handed on": ("{t}[12] x, s32[] y", """
      l = {t}[] constant(-inf) o = s32[] constant(0) i = s32[12] iota(), iota_dimension=0
      r = ({t}[], s32[]) reduce(x, i, l, o), dimensions={0}, to_apply=argmax
      j = s32[] get-tuple-element(r), index=1 c = {t}[] convert(y)
      b = {t}[12] broadcast(c), dimensions={} d = {t}[12] subtract(x, b)
      nx = {t}[12] cosine(d)""", "nx, j"),
    "scan": (SCAN, """
      o = s32[] constant(0) r = {t}[1,6] dynamic-slice(x, k, o), dynamic_slice_sizes={1,6}
      v = {t}[6] reshape(r) ny = {t}[6] add(y, v) u = {t}[1,6] reshape(ny)
      nx = {t}[9,6] dynamic-update-slice(x, u, k, o)""", "nx, ny"),
    "what is written over is read later": (SCAN, """
      o = s32[] constant(0) u = {t}[1,6] reshape(y)
      nx = {t}[9,6] dynamic-update-slice(x, u, k, o)
      l = {t}[1,1] dynamic-slice(nx, k, o), dynamic_slice_sizes={1,1} v = {t}[] reshape(l)
      i = s32[] convert(v) j = s32[] add(i, k)
      r = {t}[1,6] dynamic-slice(x, j, o), dynamic_slice_sizes={1,6} ny = {t}[6] reshape(r)""",
        "nx, ny"),
    "picked": ("{t}[9,6] x, s32[4,2] y, {t}[4,5] z", """
      kk = s32[1] reshape(k)
      r = {t}[1,6] gather(x, kk), offset_dims={0,1}, collapsed_slice_dims={},
        start_index_map={0}, index_vector_dim=0, slice_sizes={1,6}
      g = {t}[4,3] gather(x, y), offset_dims={1}, collapsed_slice_dims={0},
        start_index_map={0,1}, index_vector_dim=1, slice_sizes={1,3}
      o = {t}[] constant(0.5) p = {t}[4,5] pad(g, o), padding=0_0x1_-1_1
      nz = {t}[4,5] add(z, p) b = s32[4,2] broadcast(k), dimensions={} ny = s32[4,2] add(y, b)
      q = {t}[6] reshape(r) c = {t}[9,6] broadcast(q), dimensions={1} nx = {t}[9,6] add(x, c)""",
        "nx, ny, nz"),
    "picked by one number": ("{t}[9,6] x", """
      i = s32[9] broadcast(k), dimensions={}
      g = {t}[9,6] gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0},
        index_vector_dim=1, slice_sizes={1,6}
      s = {t}[9,6] add(g, x) nx = {t}[9,6] sine(s)""", "nx"),
    "picked by batches": ("{t}[3,9] x, s32[3,4] y, {t}[3,4] z", """
      i = s32[3,4,1] reshape(y)
      nz = {t}[3,4] gather(x, i), offset_dims={}, collapsed_slice_dims={1}, start_index_map={1},
        operand_batching_dims={0}, start_indices_batching_dims={0}, index_vector_dim=2,
        slice_sizes={1,1}
      ny = s32[3,4] add(y, y)
      nx = {t}[3,9] scatter(x, i, z), update_window_dims={}, inserted_window_dims={1},
        scatter_dims_to_operand_dims={1}, input_batching_dims={0},
        scatter_indices_batching_dims={0}, index_vector_dim=2, to_apply=max""", "nx, ny, nz"),
    "put": ("{t}[9,6] x, s32[12,1] y, {t}[12,6] u, s32[2] at, {t}[3,2] w", """
      a = {t}[9,6] scatter(x, y, u), update_window_dims={1}, inserted_window_dims={0},
        scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add
      nx = {t}[9,6] scatter(a, at, w), update_window_dims={0,1}, inserted_window_dims={},
        scatter_dims_to_operand_dims={0,1}, index_vector_dim=0, to_apply=last
      b = s32[2] broadcast(k), dimensions={} nat = s32[2] add(at, b)
      c = s32[12,1] broadcast(k), dimensions={} ny = s32[12,1] subtract(y, c)""",
        "nx, ny, u, nat, w"),
    "handed on": ("{t}[8] x, {t}[8] y, {t}[8] z", "nz = {t}[8] add(x, z)", "y, nz, x"),
    "columns": ("{t}[4,6] x", """
      a = {t}[4,2] slice(x), slice={[0:4], [0:2]} b = {t}[4,4] slice(x), slice={[0:4], [2:6]}
      c = {t}[4,6] concatenate(b, a), dimensions={1} d = {t}[6,4] transpose(c), dimensions={1,0}
      e = {t}[6,4] reverse(d), dimensions={0} f = {t}[4,6] transpose(e), dimensions={1,0}
      g = {t}[4,3] slice(f), slice={[0:4], [0:3]} h = {t}[4,3] slice(f), slice={[0:4], [3:6]}
      i = {t}[4,6] concatenate(h, g), dimensions={1} nx = {t}[4,6] add(i, x)""", "nx"),
    "shortest paths": ("{t}[8,8] x", """
      zo = s32[] constant(0) col = {t}[8,1] dynamic-slice(x, zo, k), dynamic_slice_sizes={8,1}
      row = {t}[1,8] dynamic-slice(x, k, zo), dynamic_slice_sizes={1,8}
      a = {t}[8] reshape(col) b = {t}[8] reshape(row)
      c = {t}[8,8] broadcast(a), dimensions={0} d = {t}[8,8] broadcast(b), dimensions={1}
      e = {t}[8,8] add(c, d) nx = {t}[8,8] minimum(x, e)""", "nx"),
    "products": ("{t}[4,8] x, {t}[8,8] y, {t}[8] z", """
      a = {t}[4,8] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      b = {t}[4,8] dot(a, y), lhs_contracting_dims={1}, rhs_contracting_dims={1}
      nx = {t}[4,8] sine(b)
      c = {t}[8] dot(z, y), lhs_contracting_dims={0}, rhs_contracting_dims={0} nz = {t}[8] tanh(c)
      """, "nx, y, nz"),
    "deep products": ("{t}[32,96] x, {t}[96,96] y, {t}[64,64] z", """
      a = {t}[32,96] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      c = {t}[] constant(0.01) b = {t}[32,96] broadcast(c), dimensions={}
      d = {t}[32,96] multiply(a, b) nx = {t}[32,96] tanh(d)
      w = {t}[64,64] dot(z, z), lhs_contracting_dims={1}, rhs_contracting_dims={1}
      e = {t}[64,64] broadcast(c), dimensions={} f = {t}[64,64] multiply(w, e)
      nz = {t}[64,64] tanh(f)""", "nx, y, nz"),
    "short last pieces": ("{t}[128,8] x, {t}[8] y", """
      o = {t}[] constant(0) ny = {t}[8] reduce(x, o), dimensions={0}, to_apply=add
      c = {t}[] constant(0.01) e = {t}[128,8] broadcast(c), dimensions={}
      b = {t}[128,8] broadcast(ny), dimensions={1} d = {t}[128,8] multiply(b, e)
      f = {t}[128,8] subtract(x, d) nx = {t}[128,8] sine(f)""", "nx, ny"),
    "batches": ("{t}[3,2,5] x, {t}[3,7,5] y", """
      s = {t}[3,2,7] dot(x, y), lhs_batch_dims={0}, rhs_batch_dims={0},
        lhs_contracting_dims={2}, rhs_contracting_dims={2}
      u = {t}[3,2,5] dot(s, y), lhs_batch_dims={0}, rhs_batch_dims={0},
        lhs_contracting_dims={2}, rhs_contracting_dims={1}
      nx = {t}[3,2,5] sine(u)""", "nx, y"),
    "bits": ("u32[17] x, pred[17] p, s8[17] y", """
      c = u32[] constant(13) one = u32[17] broadcast(c), dimensions={}
      l = u32[17] shift-left(x, one) r = u32[17] shift-right-logical(x, one) q = u32[17] or(l, r)
      n = u32[17] select(p, q, x) w = u32[17] add(n, one) nx = u32[17] xor(w, x)
      o = pred[] constant(false) t = pred[] reduce(p, o), dimensions={0}, to_apply=or
      v = u32[17] and(nx, one) np = pred[17] compare(v, one), direction=NE
      z = s8[17] convert(v) ny = s8[17] subtract(y, z)""", "nx, np, ny"),
}  # fmt: skip
"""State, lines of the body, and what is carried on."""


def module(name: str, element_type: str, *, by_data: bool = False) -> str:
    state, lines, following = (x.replace("{t}", element_type) for x in BODIES[name])
    shapes = [x.rsplit(" ", 1)[0] for x in state.split(", ")]
    names = [x.rsplit(" ", 1)[1] for x in state.split(", ")]
    whole = f"(s32[], {', '.join(shapes)})"
    taken = [
        f"{n} = {s} get-tuple-element(state), index={k}"
        for k, (n, s) in enumerate(zip(names, shapes, strict=True), 1)
    ]
    bound = "limit = s32[] constant(23)"
    if by_data:  # no compiler counts these turns
        bound = "q = s32[] multiply(k, k) a = s32[] constant(550) b = s32[] subtract(a, q) "
        bound += "limit = s32[] add(k, b)"
    results = [f"r{k} = {s} get-tuple-element(w), index={k}" for k, s in enumerate(shapes, 1)]
    return f"""HloModule m
{REGIONS.replace("{t}", element_type)}
body {{
  state = {whole} parameter(0) k = s32[] get-tuple-element(state), index=0
  {" ".join(taken)}
  unit = s32[] constant(1) nk = s32[] add(k, unit)
  {lines}
  ROOT following = {whole} tuple(nk, {following})
}}
while_condition {{
  state = {whole} parameter(0) k = s32[] get-tuple-element(state), index=0
  {bound}
  ROOT c = pred[] compare(k, limit), direction=LT
}}
ENTRY main {{
  {" ".join(f"p{k} = {s} parameter({k})" for k, s in enumerate(shapes))}
  o = s32[] constant(0)
  i = {whole} tuple(o, {", ".join(f"p{k}" for k in range(len(shapes)))})
  w = {whole} while(i), condition=while_condition, body=body
  {" ".join(results)}
  ROOT out = ({", ".join(shapes)}) tuple({", ".join(f"r{k}" for k in range(1, len(shapes) + 1))})
}}
"""


ENGINES = [FunctionalEngine, ExactEngine]
CASES = [
    *((name, "f32", False) for name in BODIES),
    *((name, "f16", False) for name in ("scan", "sums", "softmax", "products", "transcendental")),
    *((name, "bf16", True) for name in ("scalars", "sums", "products", "put")),
    *(("picked by batches", kind, False) for kind in ("bf16", "s32")),
    *((name, "f64", False) for name in ("short sums", "products", "transcendental")),
    *((name, "f32", True) for name in ("scan", "picked by one number")),
]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Compile what can be at once; the list has an item for each call of what was compiled."""
    calls: list[bool] = []
    run = loop_turns.Compiled.run

    def counted(self: Any, *arguments: Any) -> None:
        calls.append(True)
        run(self, *arguments)

    for user in (loop_turns, small_steps):
        monkeypatch.setattr(user, "FEWEST_SECONDS", 0.0)
    monkeypatch.setattr(loop_turns, "SECONDS_PER_NODE", 0.0)
    monkeypatch.setattr(loop_turns.Compiled, "run", counted)
    return calls


def both_ways(program: Program, given: dict[str, Array], runs: int = 1) -> list[list[bytes]]:
    """Return the outputs of the last of some runs, those of Python's turns first."""
    outputs = []
    for settings in (Settings(is_on=False), Settings(keeps=False)):
        with computing(), native_kernels(settings):
            engine = FunctionalEngine(program)
            for _ in range(runs):
                host = Arrays(dict(given))
                engine.run(host, Counts())
        outputs.append([value.tobytes() for value in host.outputs.values()])
    return outputs


@lru_cache(1)
def of_xla(
    name: str, element_type: str, by_data: bool, oracle: Oracle
) -> tuple[Program, dict[str, Array], list[Array]]:
    """Return a program, what it is given, and its results on XLA:CPU, once for both engines."""
    text = module(name, element_type, by_data=by_data)
    program = hloipu.compile(text, target="gc200").program
    arguments = random_arguments(parse(text), 3)
    return program, given_arrays(program.parameters, arguments), oracle.run(text, arguments)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize(("name", "element_type", "by_data"), CASES)
def test_turns_have_the_bits_and_the_counts_of_pythons(
    name: str, element_type: str, by_data: bool, kind: Any, at_once: list[bool], oracle: Oracle
) -> None:
    program, given, wanted = of_xla(name, element_type, by_data, oracle)
    runs = []
    for settings in (Settings(is_on=False), Settings(keeps=False)):
        with computing(), native_kernels(settings):
            engine = kind(program)
            for _ in range(4):
                host, counts = Arrays(dict(given)), Counts()
                engine.run(host, counts)
        runs.append((host.outputs, counts.runs))
    assert at_once
    (plain, plain_counts), (fast, fast_counts) = runs
    assert plain_counts == fast_counts
    for stream, value in plain.items():
        assert value.tobytes() == fast[stream].tobytes(), stream
    for value, expected in zip(plain.values(), wanted, strict=True):
        tolerance = {"f16": 2e-2, "bf16": 5e-2}.get(element_type, 2e-4)
        np.testing.assert_allclose(value, np.asarray(expected, value.dtype), tolerance, tolerance)


@pytest.mark.parametrize("name", ["scalars", "best handed on", "scan", "products"])
def test_compiled_turns_go_on_from_pythons(
    name: str, at_once: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    for threshold in ("FEWEST_SECONDS", "SECONDS_PER_NODE"):  # reached by the first turn
        monkeypatch.setattr(loop_turns, threshold, 1e-15)
    program = hloipu.compile(module(name, "f32"), target="gc200").program
    given = given_arrays(program.parameters, random_arguments(parse(module(name, "f32")), 3))
    plain, fast = both_ways(program, given)
    assert at_once
    assert plain == fast


STRAIGHT = """HloModule m
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
ENTRY main {
  x = f32[4,6] parameter(0) y = f32[6] parameter(1)
  b = f32[4,6] broadcast(y), dimensions={1} s = f32[4,6] sine(x) m = f32[4,6] multiply(s, b)
  o = f32[] constant(0) t = f32[4] reduce(m, o), dimensions={1}, to_apply=add
  d = f32[6] dot(t, m), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  e = f32[6] exponential(d) f = f32[6] tanh(e) c = f32[12] concatenate(f, e), dimensions={0}
  h = f32[5] slice(c), slice={[3:8]} i = f32[2,6] reshape(c)
  ROOT r = (f32[2,6], f32[5], f32[4]) tuple(i, h, t)
}
"""


APART = """HloModule m
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
ENTRY main {
  x = f32[64,160] parameter(0) y = f32[64,2] parameter(1) z = f32[160,160] parameter(2)
  s = f32[64,2] sine(y) e = f32[64,2] exponential(s) t = f32[64,2] tanh(e)
  a = f32[64,1] slice(t), slice={[0:64], [1:2]}
  l = f32[64,160] dot(x, z), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  h = f32[64,2] exponential(t) o = f32[] constant(0) i = f32[64,160] cosine(l)
  u = f32[64] reduce(i, o), dimensions={1}, to_apply=add
  w = f32[64,2] broadcast(u), dimensions={0} v = f32[64,2] multiply(w, h)
  g = f32[160,160] multiply(z, z) c = f32[160] reduce(g, o), dimensions={0}, to_apply=add
  k = f32[64,2] cosine(v) n = f32[64,2] add(k, t) p = f32[64,2] abs(n)
  q = f32[64,2] sqrt(p) j = f32[64,2] logistic(q)
  ROOT r = (f32[64,1], f32[160], f32[64,2]) tuple(a, c, j)
}
"""


@pytest.mark.parametrize(
    ("text", "kind", "calls"),
    [(STRAIGHT, FunctionalEngine, 3), (APART, FunctionalEngine, 6), (STRAIGHT, ExactEngine, 1),
     (APART, ExactEngine, 1)],
)  # fmt: skip
def test_small_nodes_are_compiled_together(
    text: str, kind: Any, calls: int, at_once: list[bool]
) -> None:
    program = hloipu.compile(text, target="gc200").program
    outputs: list[list[dict[str, Any]]] = []
    for settings in (Settings(is_on=False), Settings(keeps=False)):
        outputs.append([])
        with computing(), native_kernels(settings):
            engine = kind(program)
            for seed in range(3):
                arguments = random_arguments(parse(text), seed)
                host, counts = Arrays(given_arrays(program.parameters, arguments)), Counts()
                engine.run(host, counts)
                outputs[-1].append({**host.outputs, "done": np.asarray(counts.done)})
    assert len(at_once) == calls
    for plain, fast in zip(*outputs, strict=True):  # what a run gave away stays what it was
        for name, value in plain.items():
            assert value.tobytes() == fast[name].tobytes(), name


VIEWS = """HloModule m
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
ENTRY main {
  x = f32[8,20] parameter(0) s = f32[8,20] sine(x) n = f32[20,8] transpose(s), dimensions={1,0}
  f = f32[4,20] slice(s), slice={[0:8:2], [0:20]} g = f32[4,20] slice(s), slice={[1:8:2], [0:20]}
  a = f32[4,20] add(f, g) h = f32[2,20] slice(a), slice={[0:4:2], [0:20]}
  i = f32[2,20] slice(a), slice={[1:4:2], [0:20]} b = f32[2,20] multiply(h, i)
  o = f32[] constant(0) t = f32[20] reduce(b, o), dimensions={0}, to_apply=add
  w = f32[4,20] broadcast(t), dimensions={1} c = f32[4,20] divide(g, w)
  m = f32[20,8] broadcast(t), dimensions={0} d = f32[20,8] power(n, m)
  j = f32[4] reduce(c, o), dimensions={1}, to_apply=add
  k = f32[20] reduce(d, o), dimensions={1}, to_apply=add
  ROOT r = (f32[4], f32[20]) tuple(j, k)
}
"""


@pytest.mark.parametrize("most", [5, 6, 7, 8])
def test_what_compiled_nodes_leave_lies_as_the_plain_path_has_it(
    most: int, at_once: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_turns, "MOST_TOGETHER", most)
    left: list[Array] = []
    run = loop_turns.Compiled.run

    def seen(self: Any, outside: list[Array], made: list[Array]) -> None:
        left.extend(made)
        run(self, outside, made)

    monkeypatch.setattr(loop_turns.Compiled, "run", seen)
    program = hloipu.compile(VIEWS, target="gc200").program
    given = given_arrays(program.parameters, random_arguments(parse(VIEWS), 3))
    plain, fast = both_ways(program, given)
    assert at_once
    assert ((4, 20), (160, 4)) in [(x.shape, x.strides) for x in left]
    assert plain == fast


REFUSED = """HloModule m
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
ENTRY main {
  x = f32[6,4,4] parameter(0) y = f32[6] parameter(1) o = f32[] constant(0)
  s = f32[6,4,4] sine(x) e = f32[6,4,4] exponential(s) t = f32[6,4,4] tanh(e)
  q = f32[6,4,4] sqrt(e) m = f32[6,4,4] multiply(t, q)
  i = s32[4,2] constant({{0,0},{1,2},{2,1},{3,3}})
  d = f32[6,4] gather(m, i), offset_dims={0}, collapsed_slice_dims={1,2}, start_index_map={1,2},
    index_vector_dim=1, slice_sizes={6,1,1}
  k = f32[6] reduce(d, o), dimensions={1}, to_apply=add
  h = f32[6] multiply(k, y) c = f32[6] cosine(h) l = f32[6] logistic(c) p = f32[6] power(l, y)
  w = f32[6] divide(p, h) ROOT r = f32[6] subtract(w, l)
}
"""


def test_halves_are_compiled_where_the_whole_cannot_be(at_once: list[bool]) -> None:
    program = hloipu.compile(REFUSED, target="gc200").program
    given = given_arrays(program.parameters, random_arguments(parse(REFUSED), 3))
    plain, fast = both_ways(program, given, runs=3)
    assert at_once
    assert plain == fast


ENTERED = """HloModule m
body {
  state = (s32[], f32[8]) parameter(0) k = s32[] get-tuple-element(state), index=0
  x = f32[8] get-tuple-element(state), index=1 unit = s32[] constant(1) nk = s32[] add(k, unit)
  {lines}
  ROOT following = (s32[], f32[8]) tuple(nk, {last})
}
goes_on {
  state = (s32[], f32[8]) parameter(0) k = s32[] get-tuple-element(state), index=0
  limit = s32[] constant(5) ROOT c = pred[] compare(k, limit), direction=LT
}
ENTRY main {
  k = s32[] parameter(0) x = f32[8] parameter(1) i = (s32[], f32[8]) tuple(k, x)
  ROOT w = (s32[], f32[8]) while(i), condition=goes_on, body=body
}
"""
ONE_OP = "a0 = f32[8] tanh(x)"
MANY_OPS = ONE_OP + "".join(
    f" b{k} = f32[8] multiply(a{k - 1}, x) a{k} = f32[8] tanh(b{k})" for k in range(1, 250)
)


@pytest.mark.parametrize(
    ("lines", "last", "begin", "is_compiled"),
    [(ONE_OP, "a0", 5, True), (ONE_OP, "a0", 0, True), (MANY_OPS, "a249", 0, False)],
    ids=["no turn", "few ops", "so many that LLVM takes ten seconds"],
)
def test_blocks_are_counted_where_a_loop_of_data_is_entered(
    lines: str, last: str, begin: int, is_compiled: bool, at_once: list[bool]
) -> None:
    text = ENTERED.replace("{lines}", lines).replace("{last}", last)
    program = hloipu.compile(text, target="gc200").program
    given = given_arrays(program.parameters, [np.int32(begin), np.linspace(-1, 1, 8, dtype="f4")])
    runs = []
    for settings in (Settings(is_on=False), Settings(keeps=False)):
        with computing(), native_kernels(settings):
            host, counts = Arrays(dict(given)), Counts()
            FunctionalEngine(program).run(host, counts)
        runs.append((dict(counts.runs), [x.tobytes() for x in host.outputs.values()]))
    assert runs[0] == runs[1]
    assert bool(at_once) == is_compiled


def test_negated_nan_of_eight_bits_have_their_signs_turned(at_once: list[bool]) -> None:
    shape = "f8e4m3fn[12]"
    text = f"""HloModule m
ENTRY main {{
  x = {shape} parameter(0) y = {shape} parameter(1) n = {shape} negate(x)
  m = {shape} maximum(n, y) s = {shape} add(x, y) p = {shape} multiply(x, y)
  ROOT r = ({shape}, {shape}, {shape}, {shape}) tuple(n, m, s, p)
}}
"""
    bits = np.array([0x7F, 0xFF, 0x00, 0x80, 0x38, 0xB8] * 2, np.uint8)
    x = bits.view(ml_dtypes.float8_e4m3fn)
    program = hloipu.compile(text, target="gc200").program
    with computing(), native_kernels(Settings(keeps=False)):
        host = Arrays(given_arrays(program.parameters, [x, x[::-1].copy()]))
        FunctionalEngine(program).run(host, Counts())
    assert at_once
    negated = next(iter(host.outputs.values())).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(negated.view(np.uint8), bits ^ 0x80)
