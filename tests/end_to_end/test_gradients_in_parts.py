"""Large gradients that are added to their sums part by part, and are never whole beside them."""

from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_compiler.lowering.core.values import Apart
from hloipu_compiler.lowering.ops import movement
from hloipu_compiler.lowering.pipelines import positions
from hloipu_compiler.lowering.pipelines.gradient_sums import accumulated_in_parts

HEAD = """HloModule head, input_output_alias={{ {{0}}: (0, {{}}, may-alias) }}
add {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }}
ENTRY e {{
  w = f32[16,{n}] parameter(0)
  x = f32[8,16] parameter(1)
  y = f32[8,{n}] parameter(2)
  zero = f32[] constant(0)
  z = f32[8,{n}] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  c = f32[8,{n}] multiply(z, y)
  loss = f32[] reduce(c, zero), dimensions={{0,1}}, to_apply=add
  {gradient}
  new.w = f32[16,{n}] subtract(w, g)
  ROOT t = (f32[16,{n}], f32[]) tuple(new.w, loss)
}}
"""
N = 192
WHOLE = f"""g = f32[16,{N}] dot(x, y), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}"""
SLICES = (
    "\n  ".join(
        f"""y{k} = f32[8,{N // 4}] slice(y), slice={{[0:8], [{k * N // 4}:{(k + 1) * N // 4}]}}
  d{k} = f32[16,{N // 4}] dot(x, y{k}), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  p{k} = f32[16,{N}] pad(d{k}, zero), padding=0_0x{k * N // 4}_{N - (k + 1) * N // 4}"""
        for k in range(4)
    )
    + f"""
  s1 = f32[16,{N}] add(p3, p2)
  s2 = f32[16,{N}] add(s1, p1)
  g = f32[16,{N}] add(s2, p0)"""
)

READ = f"""{SLICES}
  sum = f32[] reduce(d3, zero), dimensions={{0,1}}, to_apply=add
  sums = f32[16,{N // 4}] broadcast(sum), dimensions={{}}
  scaled = f32[16,{N // 4}] multiply(d0, sums)
  read = f32[16,8] dot(scaled, y0), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  reads = f32[] reduce(read, zero), dimensions={{0,1}}, to_apply=add
  late = f32[] add(reads, loss)"""
"""A part is read by others, after its gradient is there: what they make does not take its place."""


@pytest.mark.parametrize("engine", ["functional", "exact"])
@pytest.mark.parametrize("reduction", ["sum", "mean", "running_mean"])
@pytest.mark.parametrize("gradient", [WHOLE, SLICES, READ], ids=["product", "slices", "read"])
def test_parts_add_up_to_the_gradient(
    gradient: str, reduction: Any, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whole numbers and four micro-batches, so that sums and means are exact."""
    taken: list[Apart] = []

    def parts(builder: Any, total: Any, gradient: Apart, *how: Any) -> Any:
        taken.append(gradient)
        return accumulated_in_parts(builder, total, gradient, *how)

    monkeypatch.setattr(positions, "accumulated_in_parts", parts)
    for constant in ("_LARGE_PARTS", "_ROOMS"):
        monkeypatch.setattr(movement, constant, 1 << 20)
    text = HEAD.format(n=N, gradient=gradient)
    if gradient == READ:
        text = text.replace("loss)\n}", "late)\n}")
    program = hloipu.compile(
        text, target="tiny", cache=False, micro_batches=4,
        reduction=reduction, feed={"data": (1, 2)}, available_memory_proportion=0.02,
    )  # fmt: skip
    assert bool(taken) == (reduction != "running_mean")
    assert all(len(gradient.parts) > 1 for gradient in taken)
    rng = np.random.default_rng(7)
    fed = [
        tuple(rng.integers(-3, 4, shape).astype(np.float32) for shape in ((8, 16), (8, N)))
        for _ in range(4)
    ]
    start = rng.integers(-3, 4, (16, N)).astype(np.float32)
    with program.session(state=[start], infeeds={"data": iter(fed)}, mode=engine) as session:
        session.run(1)
        (found,) = session.state().values()
    total = sum(x.T @ y for x, y in fed)
    wanted = start - (total if reduction == "sum" else total / 4)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=0 if reduction == "sum" else 1e-5)


def test_where_there_is_room_parts_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part would take two exchanges, next to one of the whole."""
    monkeypatch.setattr(movement, "_LARGE_PARTS", 1 << 20)
    monkeypatch.delattr(positions, "accumulated_in_parts")
    hloipu.compile(
        HEAD.format(n=N, gradient=SLICES), target="tiny", cache=False, micro_batches=4,
        feed={"data": (1, 2)},
    )  # fmt: skip
