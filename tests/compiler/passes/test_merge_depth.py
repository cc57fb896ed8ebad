"""`merge-depth`: a product over many short dimensions, next to the one over their product."""

import hloipu

SHORT = ",".join(["2"] * 13)
TEXT = """HloModule gate
ENTRY e {{
  x = f32[{depth},2] parameter(0)
  y = f32[{depth},2] parameter(1)
  ROOT g = f32[2,2] dot(x, y), lhs_contracting_dims={{{dims}}}, rhs_contracting_dims={{{dims}}}
}}"""


def test_many_short_dimensions_cost_what_a_long_one_does() -> None:
    """Of 13 dimensions of 2 no one gives more than two tiles work for each result."""
    short = TEXT.format(depth=SHORT, dims=",".join(map(str, range(13))))
    long = TEXT.format(depth=2**13, dims=0)
    cycles = [hloipu.compile(x).estimate().device_cycles for x in (short, long)]
    assert cycles[0] < 1.5 * cycles[1]
