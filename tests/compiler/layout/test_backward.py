"""What fusions that reduce wish: rows whole where there are enough of them."""

from math import prod

import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.layout.demands import region_demands, tensor_of
from hloipu_compiler.layout.layout import chosen_initial_layout
from hloipu_compiler.layout.walk import layout_of
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.planners.op_grids import Demand
from hloipu_compiler.planners.placing import mapping_of
from hloipu_compiler.planners.tuning import DEFAULT_TUNING
from hloipu_runtime.machine.load import load_machine

GC200 = load_machine("gc200")
TEXT = """\
HloModule m

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

rows {
  x = f32[R,C] parameter(0)
  g = f32[C] parameter(1)
  zero = f32[] constant(0)
  s = f32[R] reduce(x, zero), dimensions={1}, to_apply=sum
  b = f32[R,C] broadcast(s), dimensions={0}
  h = f32[R,C] broadcast(g), dimensions={1}
  d = f32[R,C] divide(x, b)
  ROOT y = f32[R,C] multiply(d, h)
}

ENTRY e {
  x = f32[R,C] parameter(0)
  g = f32[C] parameter(1)
  ROOT f = f32[R,C] fusion(x, g), kind=kInput, calls=rows
}
"""


def _unusual(module: Module, bits: int) -> list[tuple[int, Demand]]:
    """Return the root's demands for other places than where arrays usually lie."""
    entry = module.entry
    demands = region_demands(GC200, module, entry, entry.instructions[entry.root])
    return [
        (at, demand)
        for at, demand in demands
        if demand.need
        != mapping_of(tensor_of(entry.instructions[at]).shape, bits, GC200.chip.tiles_per_ipu)
    ]


@pytest.mark.parametrize(("rows", "columns", "count"), [(4096, 512, 1), (16, 131072, 0)])
def test_rows_are_wished_whole_where_they_are_many(rows: int, columns: int, count: int) -> None:
    text = TEXT.replace("R,C", f"{rows},{columns}").replace("[R]", f"[{rows}]")
    module = parse(text.replace("[C]", f"[{columns}]"))
    preferences = _unusual(module, 32)
    assert len(preferences) == count
    for position, preference in preferences:
        assert position == 0
        assert preference.born.spans[0].axis >= 0
        assert preference.born.spans[1].axis < 0
        assert preference.user == "f"


CHANNELS = """HloModule m

s {
  a = f16[] parameter(0)
  b = f16[] parameter(1)
  ROOT c = f16[] add(a, b)
}

norm {
  x = f16[SIZES] parameter(0)
  zero = f16[] constant(0)
  sum = f16[CHANNELS] reduce(x, zero), dimensions={0,1,2}, to_apply=s
  second = f16[SIZES] multiply(x, x)
  squares = f16[CHANNELS] reduce(second, zero), dimensions={0,1,2}, to_apply=s
  means = f16[SIZES] broadcast(sum), dimensions={3}
  wide = f16[SIZES] broadcast(squares), dimensions={3}
  apart = f16[SIZES] subtract(x, means)
  third = f16[SIZES] multiply(apart, second)
  fourth = f16[SIZES] multiply(third, wide)
  fifth = f16[SIZES] add(fourth, means)
  sixth = f16[SIZES] multiply(fifth, wide)
  ROOT y = f16[SIZES] add(sixth, x)
}

ENTRY e {
  before = f16[SIZES] parameter(0)
  x = f16[SIZES] negate(before)
  ROOT f = f16[SIZES] fusion(x), kind=kInput, calls=norm
}
"""


@pytest.mark.parametrize(
    ("operand", "shape", "count"),
    [
        ("before", (16, 56, 56, 64), 1),
        ("x", (16, 56, 56, 64), 0),
        ("before", (8, 256, 512, 32), 0),  # to move it takes longer than the even grid saves
    ],
)
def test_parameters_of_few_rows_are_wished_on_even_grids(
    operand: str, shape: tuple[int, ...], count: int
) -> None:
    """Sixty-four sums of arrays that the usual grid leaves 1.5 times the mean of on a tile."""
    text = CHANNELS.replace("SIZES", ",".join(map(str, shape)))
    text = text.replace("CHANNELS", str(shape[-1])).replace("fusion(x)", f"fusion({operand})")
    module = parse(text)
    preferences = _unusual(module, 16)
    assert len(preferences) == count
    for _, preference in preferences:
        spans = preference.born.spans
        largest = prod(min(span.size, n) for span, n in zip(spans, shape, strict=True))
        assert 1.15 * prod(shape) / GC200.chip.tiles_per_ipu > largest


@pytest.mark.parametrize(("filter_of", "count"), [("f", 0), ("x", 1)])
def test_parameters_lie_as_usual_where_a_convolution_reads_their_norm(
    filter_of: str, count: int
) -> None:
    text = CHANNELS.replace("SIZES", "16,56,56,64").replace("CHANNELS", "64")
    module = parse(
        text.replace("fusion(x)", "fusion(before)").replace(
            "  ROOT f = f16[16,56,56,64]",
            "  f = f16[16,56,56,64]",
        )[: -len("}\n")]
        + f"""  turned = f16[64,56,56,16] transpose({filter_of}), dimensions={{3,1,2,0}}
  image = f16[4,56,56,16] parameter(1)
  c = f16[4,1,1,64] convolution(image, turned), window={{size=56x56}}, dim_labels=b01f_o01i->b01f
  ROOT both = (f16[4,1,1,64], f16[16,56,56,64]) tuple(c, f)
}}
"""
    )
    fusion = next(x for x in module.entry.instructions if x.opcode == "fusion")
    assert len(list(region_demands(GC200, module, module.entry, fusion))) == count


BOTH = """HloModule m

s {
  a = f16[] parameter(0)
  b = f16[] parameter(1)
  ROOT c = f16[] add(a, b)
}

bias {
  x = f16[8,128,768] parameter(0)
  zero = f16[] constant(0)
  ROOT sum = f16[768] reduce(x, zero), dimensions={0,1}, to_apply=s
}

norm {
  x = f16[8,128,768] parameter(0)
  zero = f16[] constant(0)
  sum = f16[8,128] reduce(x, zero), dimensions={2}, to_apply=s
  wide = f16[8,128,768] broadcast(sum), dimensions={0,1}
  apart0 = f16[8,128,768] subtract(x, wide)
OPS  ROOT y = f16[8,128,768] add(apart24, x)
}

ENTRY e {
  x = f16[8,128,768] parameter(0)
  rows = f16[8,128,768] fusion(x), kind=kInput, calls=norm
  columns = f16[768] fusion(x), kind=kInput, calls=bias
  ROOT both = (f16[8,128,768], f16[768]) tuple(rows, columns)
}
"""

OPS = [f"  apart{n + 1} = f16[8,128,768] add(apart{n}, x)\n" for n in range(24)]


def test_what_sums_of_columns_save_is_weighed_against_what_sums_of_rows_lose() -> None:
    """A column on a tile is best for one and takes all of each row from 768 tiles for the other."""
    module = parse(BOTH.replace("OPS", "".join(OPS)))
    norm, bias = (
        next(demand for _, demand in region_demands(GC200, module, module.entry, x))
        for x in module.entry.instructions
        if x.opcode == "fusion"
    )
    tensor = tensor_of(module.entry.instructions[module.entry.parameters[0]])
    assert norm.need == mapping_of(tensor.shape, 16, GC200.chip.tiles_per_ipu)
    columns = bias.need.spans
    assert columns[-1].size == 1
    assert norm.loss(norm.need) == bias.loss(bias.need) == 0
    assert norm.loss(bias.need) > bias.loss(norm.need) > 0
    chosen = chosen_initial_layout(GC200, tensor, [bias, norm])
    assert chosen is not None
    assert chosen.mapping == norm.need


def test_a_price_stays_with_arrays_of_the_sizes_it_is_for() -> None:
    """Where the caller reshapes what a region reduces, no place of the other shape is priced."""
    text = BOTH.replace("OPS", "".join(OPS)).replace("ENTRY e {", "both {")
    module = parse(
        text
        + """
ENTRY e {
  x = f16[1024,768] parameter(0)
  seen = f16[8,128,768] reshape(x)
  ROOT r = (f16[8,128,768], f16[768]) call(seen), to_apply=both
}
"""
    )
    home = layout_of(module, Plan(), GC200, DEFAULT_TUNING).parameters[0]
    assert len(home.mapping.spans) == 2
    assert {demand.price for demand in home.demands} == {None}
