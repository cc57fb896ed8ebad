import pytest

from hloipu_compiler.analysis.op_cost import MOST_COUNTED
from hloipu_compiler.analysis.tally import tally
from hloipu_compiler.hlo.parse import parse

DOT = "ROOT d = f32[8,32] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def entry(*lines: str) -> str:
    return "HloModule m\nENTRY e {\n" + "\n".join(lines) + "\n}\n"


def test_a_dot_is_two_flops_a_multiply_add() -> None:
    text = entry("a = f32[8,16] parameter(0)", "b = f32[16,32] parameter(1)", DOT)
    counted = tally(parse(text))
    assert counted.total.flops == 2 * 8 * 16 * 32
    assert counted.total.bytes_read == 4 * (8 * 16 + 16 * 32)
    assert counted.total.bytes_written == 4 * 8 * 32
    assert counted.exact


@pytest.mark.parametrize(
    ("size", "stride", "low", "high", "base", "dilation", "width"),
    [
        (3, 1, 0, 0, 1, 1, 10), (3, 1, 1, 1, 1, 1, 10), (5, 2, 2, 2, 1, 1, 11),
        (3, 1, 2, 2, 2, 1, 7), (3, 2, 2, 1, 3, 1, 7), (4, 1, 3, 3, 1, 3, 9),
        (3, 1, -1, -1, 1, 1, 9), (2, 3, 5, 0, 4, 2, 6),
    ],
)  # fmt: skip
def test_convolution_counts_only_taps_that_meet_the_input(
    size: int, stride: int, low: int, high: int, base: int, dilation: int, width: int
) -> None:
    padded = (width - 1) * base + 1 + low + high
    out = (padded - ((size - 1) * dilation + 1)) // stride + 1
    taps = 0
    for place in range(out):
        for tap in range(size):
            x = place * stride + tap * dilation - low
            taps += 0 <= x <= (width - 1) * base and x % base == 0
    text = entry(
        f"x = f32[2,{width},3] parameter(0)",
        f"w = f32[{size},3,5] parameter(1)",
        f"ROOT c = f32[2,{out},5] convolution(x, w), window={{size={size} stride={stride} "
        f"pad={low}_{high} lhs_dilate={base} rhs_dilate={dilation}}}, dim_labels=b0f_0io->b0f",
    )
    assert tally(parse(text)).total.flops == 2 * 2 * 5 * 3 * taps


SCAN = """HloModule m
body {{
  s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[4] multiply(x, x)
  ROOT t = (s32[], f32[4]) tuple(j, y)
}}
cond {{
  s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] {limit}
  ROOT p = pred[] compare(i, n), direction=LT
}}
ENTRY e {{
  z = s32[] constant(0)
  x = f32[4] parameter(0)
  t = (s32[], f32[4]) tuple(z, x)
  ROOT w = (s32[], f32[4]) while(t), condition=cond, body=body
}}
"""


def test_trip_counts_multiply_through() -> None:
    counted = tally(parse(SCAN.format(limit="constant(100)")))
    # 100 trips of one add and four multiplies, 101 compares.
    assert counted.total.flops == 100 * 5 + 101
    assert counted.exact


def test_a_loop_that_data_decides_is_a_lower_bound_and_never_one_trip() -> None:
    text = SCAN.format(limit="call(), to_apply=unknown").replace(
        "body {", 'unknown { ROOT u = s32[] custom-call(), custom_call_target="n" }\nbody {'
    )
    counted = tally(parse(text))
    assert not counted.exact
    assert counted.total.flops == 1  # the condition runs once, whatever data says
    assert [x.instruction.name for x in counted.unknown_loops] == ["w"]
    assert counted.unknown_loops[0].cost_per_trip.flops == 6
    assert tally(parse(text), assume_trips=10).total.flops == 10 * 5 + 11


def test_fusions_count_work_inside_and_bytes_at_the_border() -> None:
    text = """HloModule m
f { a = f32[100] parameter(0)
  b = f32[100] add(a, a)
  ROOT c = f32[100] exponential(b) }
ENTRY e { p = f32[100] parameter(0)
  ROOT r = f32[100] fusion(p), kind=kLoop, calls=f }
"""
    total = tally(parse(text)).total
    assert (total.flops, total.transcendentals) == (100, 100)
    assert (total.bytes_read, total.bytes_written) == (400, 400)


def test_a_reducer_counts_each_application() -> None:
    text = """HloModule m
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
ENTRY e { x = f32[8,16] parameter(0)
  z = f32[] constant(0)
  ROOT r = f32[8] reduce(x, z), dimensions={1}, to_apply=add }
"""
    assert tally(parse(text)).total.flops == 8 * 16 - 8


def test_transcendentals_in_a_reducer_count_apart() -> None:
    text = """HloModule m
lse { a = f32[] parameter(0)
  b = f32[] parameter(1)
  s = f32[] subtract(a, b)
  e = f32[] exponential(s)
  ROOT c = f32[] add(e, b) }
ENTRY e { x = f32[8,16] parameter(0)
  z = f32[] constant(0)
  ROOT r = f32[8] reduce(x, z), dimensions={1}, to_apply=lse }
"""
    total = tally(parse(text)).total
    assert (total.flops, total.transcendentals) == (2 * 8 * 15, 8 * 15)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_batch_groups_divide_the_work(groups: int) -> None:
    text = entry(
        "x = f32[8,6,3] parameter(0)",
        "w = f32[1,3,12] parameter(1)",
        f"ROOT c = f32[{8 // groups},6,12] convolution(x, w), window={{size=1}}, "
        f"dim_labels=b0f_0io->b0f, batch_group_count={groups}",
    )
    # Each output element is one dot product over the three input features.
    assert tally(parse(text)).total.flops == 2 * (8 // groups) * 6 * 12 * 3


def test_a_window_of_a_milliard_places_is_counted_at_once() -> None:
    text = entry(
        "x = f32[1,1,2000000000] parameter(0)",
        "w = f32[1,1,1000000000] parameter(1)",
        "ROOT c = f32[1,1,1000000001] convolution(x, w), window={size=1000000000}, "
        "dim_labels=bf0_io0->bf0",
    )
    assert tally(parse(text)).total.flops == 2 * 10**9 * (10**9 + 1)


def test_foreign_code_makes_a_lower_bound() -> None:
    text = entry(
        "a = f32[8] parameter(0)",
        'b = f32[8] custom-call(a), custom_call_target="mystery"',
        'c = f32[8] custom-call(b), custom_call_target="Sharding", sharding={replicated}',
        "ROOT d = f32[8] add(c, c)",
    )
    counted = tally(parse(text))
    assert not counted.exact
    assert counted.opaque_calls == {"mystery": 1}
    assert counted.total.flops == 8
    assert {row.opcode: row.exact for row in counted.opcodes} == {
        "add": True,
        "custom-call": False,
        "parameter": True,
    }


def test_the_end_of_a_copy_is_not_a_second_copy() -> None:
    text = entry(
        "a = f32[8] parameter(0)",
        "s = (f32[8], f32[8], u32[]) copy-start(a)",
        "ROOT d = f32[8] copy-done(s)",
    )
    assert tally(parse(text)).total.bytes_read == 32


def test_runs_beyond_counting_stop_at_a_bound() -> None:
    """Calls that double 300 deep run 2^299 times."""
    levels = [
        f"c{i} {{ p = f32[] parameter(0)\n q = f32[] call(p), to_apply=c{i - 1}\n"
        f" ROOT r = f32[] call(q), to_apply=c{i - 1} }}"
        for i in range(1, 300)
    ]
    text = "HloModule m\nc0 { p = f32[] parameter(0)\n ROOT r = f32[] negate(p) }\n"
    text += "\n".join(levels) + "\nENTRY e { p = f32[] parameter(0)\n"
    text += " ROOT r = f32[] call(p), to_apply=c299 }\n"
    counted = tally(parse(text))
    assert counted.total.flops == MOST_COUNTED
    assert not counted.exact


def test_two_loops_of_one_name_keep_their_own_costs() -> None:
    loop = """{name} {{
  s = (s32[], f32[{size}]) parameter(0)
  ROOT w = (s32[], f32[{size}]) while(s), condition=cond_{name}, body=body_{name}
}}
"""
    parts = """body_{name} {{
  s = (s32[], f32[{size}]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[{size}] get-tuple-element(s), index=1
  y = f32[{size}] negate(x)
  ROOT t = (s32[], f32[{size}]) tuple(i, y)
}}
cond_{name} {{
  s = (s32[], f32[{size}]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  z = s32[] constant(0)
  ROOT p = pred[] compare(i, z), direction=GT
}}
"""
    text = "HloModule m\n"
    for name, size in (("f", 10), ("g", 1000)):
        text += parts.format(name=name, size=size) + loop.format(name=name, size=size)
    text += """ENTRY e {
  a = (s32[], f32[10]) parameter(0)
  b = (s32[], f32[1000]) parameter(1)
  c = (s32[], f32[10]) call(a), to_apply=f
  d = (s32[], f32[1000]) call(b), to_apply=g
  ROOT t = ((s32[], f32[10]), (s32[], f32[1000])) tuple(c, d)
}
"""
    costs = {
        loop.computation.name: loop.cost_per_trip.flops for loop in tally(parse(text)).unknown_loops
    }
    assert costs == {"f": 10 + 1, "g": 1000 + 1}
