"""Steps and modules for `hloipu check`."""

TWO_LAYERS = """HloModule two_layers, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }

add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }

ENTRY e {
  v = f32[6,5] parameter(0)
  w = f32[5,3] parameter(1)
  x = f32[8,6] parameter(2)
  y = f32[8,3] parameter(3)
  h = f32[8,5] dot(x, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[8,5] tanh(h)
  p = f32[8,3] dot(t, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  d = f32[8,3] subtract(p, y)
  s = f32[8,3] multiply(d, d)
  zero = f32[] constant(0)
  loss = f32[] reduce(s, zero), dimensions={0,1}, to_apply=add
  two = f32[] constant(2)
  twos = f32[8,3] broadcast(two), dimensions={}
  dp = f32[8,3] multiply(d, twos)
  dw = f32[5,3] dot(t, dp), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  dt = f32[8,5] dot(dp, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  tt = f32[8,5] multiply(t, t)
  one = f32[] constant(1)
  ones = f32[8,5] broadcast(one), dimensions={}
  slope = f32[8,5] subtract(ones, tt)
  dh = f32[8,5] multiply(dt, slope)
  dv = f32[6,5] dot(x, dh), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  rate = f32[] constant(0.01)
  rates.v = f32[6,5] broadcast(rate), dimensions={}
  rates.w = f32[5,3] broadcast(rate), dimensions={}
  move.v = f32[6,5] multiply(dv, rates.v)
  move.w = f32[5,3] multiply(dw, rates.w)
  new.v = f32[6,5] subtract(v, move.v)
  new.w = f32[5,3] subtract(w, move.w)
  ROOT r = (f32[6,5], f32[5,3], f32[]) tuple(new.v, new.w, loss)
}
"""  # noqa: E501
"""Gradient descent on the squares of a network with one hidden layer; result 2 is the loss."""

BROADCAST_AMONG_TWO = """HloModule m, replica_count=2
ENTRY e {
  p = f32[4] parameter(0)
  ROOT r = f32[4] collective-broadcast(p), replica_groups={{0,1}}
}
"""
"""XLA:CPU has no such op; the evaluator has."""
