"""Small modules for what compiles and runs: one for each thing that can happen."""

DOT = """HloModule dot

ENTRY e {
  a = f32[4,8]{1,0} parameter(0)
  b = f32[8,2]{1,0} parameter(1)
  ROOT d = f32[4,2]{1,0} dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""

LOOP = """HloModule loop

c {
  x = (f32[], f32[3]{0}) parameter(0)
  s = f32[] get-tuple-element(x), index=0
  one = f32[] constant(1)
  ROOT more = pred[] compare(s, one), direction=GT
}

b {
  x = (f32[], f32[3]{0}) parameter(0)
  s = f32[] get-tuple-element(x), index=0
  v = f32[3]{0} get-tuple-element(x), index=1
  half = f32[] constant(0.5)
  next = f32[] multiply(s, half)
  two = f32[3]{0} add(v, v)
  ROOT r = (f32[], f32[3]{0}) tuple(next, two)
}

ENTRY e {
  s = f32[] parameter(0)
  v = f32[3]{0} parameter(1)
  t = (f32[], f32[3]{0}) tuple(s, v)
  w = (f32[], f32[3]{0}) while(t), condition=c, body=b
  ROOT r = f32[3]{0} get-tuple-element(w), index=1
}
"""
"""Halves a number until it is 1 or less, and doubles a vector as often."""


TOO_LARGE = """HloModule large

ENTRY e {
  a = f32[1024,1024]{1,0} parameter(0), metadata={source_file="model.py" source_line=7}
  ROOT r = f32[1024,1024]{1,0} add(a, a)
}
"""
"""Needs 4 MiB on the four tiles of `tiny`, which have 64 KiB each."""

DRAWING = """HloModule drawing

ENTRY e {
  low = f32[] constant(-1)
  high = f32[] constant(1)
  u = f32[40]{0} rng(low, high), distribution=rng_uniform
  v = f32[5,3]{1,0} rng(low, high), distribution=rng_normal
  ROOT r = (f32[40]{0}, f32[5,3]{1,0}) tuple(u, v)
}
"""
