"""Texts of what the perceptron's layers compute, forward and backward, and of its update."""

from tests.support.poplar_spelling import (
    BATCH,
    BETA1,
    BETA2,
    EPSILON,
    INFEED,
    RATE,
    ROWS,
    SHAPE,
    WIDTH,
    Written,
)


def forward(n: int, last: int) -> str:
    """Return the computation of a layer forward; the last layer makes the loss."""
    lines = []
    if n == 0:
        lines += [
            "  ready = token[] after-all()",
            f"  feed = (({ROWS}, {ROWS}), token[]) infeed(ready), infeed_config={INFEED}",
            f"  both = ({ROWS}, {ROWS}) get-tuple-element(feed), index=0",
            f"  x = {ROWS} get-tuple-element(both), index=0",
            f"  y = {ROWS} get-tuple-element(both), index=1",
            f"  w = {SHAPE} parameter(0)",
        ]
    else:
        lines += [f"  x = {ROWS} parameter(0)", f"  y = {ROWS} parameter(1)",
                  f"  w = {SHAPE} parameter(2)"]  # fmt: skip
    lines += [
        f"  z = {ROWS} dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
        f"  h = {ROWS} tanh(z)",
    ]
    if n == last:
        lines += [
            f"  d = {ROWS} subtract(h, y)",
            f"  dd = {ROWS} multiply(d, d)",
            "  zero = f32[] constant(0)",
            "  total = f32[] reduce(dd, zero), dimensions={0,1}, to_apply=sum",
            f"  size = f32[] constant({BATCH * WIDTH})",
            "  loss = f32[] divide(total, size)",
            f"  ROOT out = ({ROWS}, {ROWS}, {ROWS}, f32[]) tuple(h, y, x, loss)",
        ]
    else:
        lines.append(f"  ROOT out = ({ROWS}, {ROWS}, {ROWS}) tuple(h, y, x)")
    return f"forward_{n} {{\n" + "\n".join(lines) + "\n}"


def backward(n: int, last: int) -> str:
    """Return the computation of a layer backward, from its cotangent or the labels."""
    lines = [f"  g = {ROWS} parameter(0)", f"  h = {ROWS} parameter(1)",
             f"  x = {ROWS} parameter(2)", f"  w = {SHAPE} parameter(3)"]  # fmt: skip
    cotangent = "g"
    if n == last:
        cotangent = "dh"
        lines += [
            f"  d = {ROWS} subtract(h, g)",
            f"  scale = f32[] constant({2 / (BATCH * WIDTH)!r})",
            f"  scales = {ROWS} broadcast(scale), dimensions={{}}",
            f"  dh = {ROWS} multiply(d, scales)",
        ]
    lines += [
        "  one = f32[] constant(1)",
        f"  ones = {ROWS} broadcast(one), dimensions={{}}",
        f"  hh = {ROWS} multiply(h, h)",
        f"  slope = {ROWS} subtract(ones, hh)",
        f"  dz = {ROWS} multiply({cotangent}, slope)",
        f"  dw = {SHAPE} dot(x, dz), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}",
        f"  dx = {ROWS} dot(dz, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}",
        f"  ROOT out = ({ROWS}, {SHAPE}) tuple(dx, dw)",
    ]
    return f"backward_{n} {{\n" + "\n".join(lines) + "\n}"


def update(written: Written) -> str:
    """Return the computation of the update: Adam for all layers."""
    n = written.stages
    lines = []
    for k in range(n):
        lines += [
            f"  g{k} = {SHAPE} parameter({k})", f"  w{k} = {SHAPE} parameter({n + k})",
            f"  m{k} = {SHAPE} parameter({2 * n + k})",
            f"  v{k} = {SHAPE} parameter({3 * n + k})",
        ]  # fmt: skip
    lines += [
        f"  t = f32[] parameter({4 * n})", "  one = f32[] constant(1)",
        "  t1 = f32[] add(t, one)",
        f"  k = s32[] constant({written.micro_batches})",
        '  count = () custom-call(k), custom_call_target="GradientAccumulationCount"',
    ]  # fmt: skip
    for name, value in (("b1", BETA1), ("b2", BETA2), ("c1", 1 - BETA1), ("c2", 1 - BETA2),
                        ("eps", EPSILON), ("lr", RATE)):  # fmt: skip
        lines += [f"  {name}.c = f32[] constant({value!r})",
                  f"  {name} = {SHAPE} broadcast({name}.c), dimensions={{}}"]  # fmt: skip
    for b in ("b1", "b2"):
        lines += [f"  {b}.t = f32[] power({b}.c, t1)", f"  {b}.r = f32[] subtract(one, {b}.t)",
                  f"  {b}.f = {SHAPE} broadcast({b}.r), dimensions={{}}"]  # fmt: skip
    for k in range(n):
        lines += [
            f"  m{k}.a = {SHAPE} multiply(m{k}, b1)",
            f"  m{k}.b = {SHAPE} multiply(g{k}, c1)",
            f"  m{k}.n = {SHAPE} add(m{k}.a, m{k}.b)",
            f"  g{k}.s = {SHAPE} multiply(g{k}, g{k})",
            f"  v{k}.a = {SHAPE} multiply(v{k}, b2)",
            f"  v{k}.b = {SHAPE} multiply(g{k}.s, c2)",
            f"  v{k}.n = {SHAPE} add(v{k}.a, v{k}.b)",
            f"  m{k}.h = {SHAPE} divide(m{k}.n, b1.f)",
            f"  v{k}.h = {SHAPE} divide(v{k}.n, b2.f)",
            f"  v{k}.q = {SHAPE} sqrt(v{k}.h)",
            f"  v{k}.e = {SHAPE} add(v{k}.q, eps)",
            f"  u{k} = {SHAPE} divide(m{k}.h, v{k}.e)",
            f"  u{k}.l = {SHAPE} multiply(u{k}, lr)",
            f"  w{k}.n = {SHAPE} subtract(w{k}, u{k}.l)",
        ]  # fmt: skip
    names = [f"{a}{k}.n" for a in "wmv" for k in range(n)]
    shapes = ", ".join([SHAPE] * (3 * n))
    lines.append(f"  ROOT out = ({shapes}, f32[]) tuple({', '.join(names)}, t1)")
    return "update {\n" + "\n".join(lines) + "\n}"
