"""Where values are to lie: demands go backwards, loops keep one place, all users weigh."""

import numpy as np

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.layout.layout import Layout, chosen_initial_layout, heaviest
from hloipu_compiler.layout.reasons import mapping_words, placed_values
from hloipu_compiler.layout.walk import layout_of
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.planners.layout_propagation import reshaped
from hloipu_compiler.planners.op_grids import Demand
from hloipu_compiler.planners.placing import mapping_of, row_major
from hloipu_compiler.planners.tuning import DEFAULT_TUNING
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.mapping import Mapping, Span, whole
from tests.support.on_tiles import check_on_tiles, programs_of

MACHINE = load_machine("gc200", {})
ROWS = Mapping(row_major((64,), 0), (Span(0, 4, 0, 4), whole(256)))
COLUMNS = Mapping(row_major((64,), 0), (whole(256), Span(0, 4, 0, 4)))
SQUARE = Tensor("f32", (256, 256))


def layout(text: str, kept: dict[int, int] | None = None) -> Layout:
    return layout_of(parse(text), Plan(), MACHINE, DEFAULT_TUNING, kept)


def test_the_place_that_most_uses_want_is_chosen() -> None:
    few, many = Demand(ROWS, ROWS, 1, "few"), Demand(COLUMNS, COLUMNS, 5, "many")
    initial_layout = chosen_initial_layout(MACHINE, SQUARE, [few, many])
    assert initial_layout is not None
    assert (initial_layout.mapping, initial_layout.user) == (COLUMNS, "many")


def test_where_a_turn_makes_a_value_weighs_as_well() -> None:
    initial_layout = chosen_initial_layout(
        MACHINE, SQUARE, [Demand(ROWS, ROWS, 1, "once")], COLUMNS, iterations=9
    )
    assert initial_layout is not None
    assert initial_layout.mapping == COLUMNS


def test_without_demands_there_is_no_home() -> None:
    assert chosen_initial_layout(MACHINE, SQUARE, []) is None


def test_users_of_one_place_count_together() -> None:
    demands = [Demand(ROWS, ROWS, 2, "a"), Demand(COLUMNS, COLUMNS, 3, "b")]
    found = heaviest([*demands, Demand(ROWS, ROWS, 2, "c")])
    assert [(x.born, x.times) for x in found] == [(ROWS, 4), (COLUMNS, 3)]


MIXED = """HloModule mixed
f {
  x = f16[1024,768] parameter(0)
  w = f32[1024,768] parameter(1)
  c = f32[1024,768] convert(x)
  ROOT y = f32[1024,768] add(c, w)
}
ENTRY e {
  x = f16[1024,768] parameter(0)
  w = f32[1024,768] parameter(1)
  ROOT y = f32[1024,768] fusion(x, w), kind=kLoop, calls=f
}"""


def test_operands_of_several_widths_lie_alike_where_nothing_else_says_where() -> None:
    narrow, wide = (mapping_of((1024, 768), bits, 1472) for bits in (16, 32))
    assert narrow != wide
    assert {n: x.mapping for n, x in layout(MIXED).parameters.items()} == {1: narrow}


CHAIN = """HloModule chain
ENTRY e {
  w = f32[256,1,256] parameter(0)
  x = bf16[64,256] parameter(1)
  n = f32[256,1,256] negate(w)
  r = f32[256,256] reshape(n)
  h = bf16[256,256] convert(r)
  ROOT d = bf16[64,256] dot(x, h), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}"""


def test_a_demand_goes_back_through_all_that_keeps_elements_together() -> None:
    found = layout(CHAIN)
    assert {n: initial_layout.user for n, initial_layout in found.parameters.items()} == {
        0: "d",
        1: "d",
    }
    wanted = found.demands[("e", "h", 0)][0].born
    assert found.parameters[0].mapping == reshaped(wanted, (256, 256), (256, 1, 256))


CACHE = """HloModule cache
body {
  p = (s32[], f32[8,64,128], f32[8,128]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  c = f32[8,64,128] get-tuple-element(p), index=1
  x = f32[8,128] get-tuple-element(p), index=2
  one = s32[] constant(1)
  z = s32[] constant(0)
  j = s32[] add(i, one)
  u = f32[8,1,128] reshape(x)
  n = f32[8,64,128] dynamic-update-slice(c, u, z, i, z)
  s = f32[8,64] dot(x, n), lhs_batch_dims={0}, rhs_batch_dims={0},
    lhs_contracting_dims={1}, rhs_contracting_dims={2}
  m = f32[8,128] dot(s, n), lhs_batch_dims={0}, rhs_batch_dims={0},
    lhs_contracting_dims={1}, rhs_contracting_dims={1}
  y = f32[8,128] tanh(m)
  ROOT r = (s32[], f32[8,64,128], f32[8,128]) tuple(j, n, y)
}
cond {
  p = (s32[], f32[8,64,128], f32[8,128]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(5)
  ROOT c = pred[] compare(i, n), direction=LT
}
ENTRY e {
  x = f32[8,128] parameter(0)
  z = s32[] constant(0)
  f = f32[] constant(0)
  c = f32[8,64,128] broadcast(f), dimensions={}
  t = (s32[], f32[8,64,128], f32[8,128]) tuple(z, c, x)
  ROOT l = (s32[], f32[8,64,128], f32[8,128]) while(t), condition=cond, body=body
}"""


def test_a_cache_lies_where_one_of_its_products_reads_it() -> None:
    initial_layout = layout(CACHE).initial_layouts[("e", "l", 1)]
    assert initial_layout.user in ("s", "m")
    needs = {x.need for x in initial_layout.demands}
    assert initial_layout.mapping in needs


def test_a_cache_is_never_moved_within_a_turn() -> None:
    """Of two products at most one receives it, and its update is written where it lies."""
    (program,) = programs_of(CACHE, [("gc200", {})])
    (loop,) = (x for x in program.body.steps if isinstance(x, s.RepeatWhile))
    cache = loop.carried[1].variable
    exchanges = [x for x in loop.body.steps if isinstance(x, s.Exchange)]
    read = [t for x in exchanges for t in x.transfers if t.source == cache]
    assert len(read) <= 1
    assert all(t.destination != cache for x in exchanges for t in x.transfers)


def test_values_of_a_cache() -> None:
    random_ = np.random.default_rng(0)
    x = random_.normal(size=(8, 128)).astype(np.float32) / 4
    cache, now = np.zeros((8, 64, 128), np.float64), x.astype(np.float64)
    for i in range(5):
        cache[:, i] = now
        now = np.tanh(np.einsum("bt,btd->bd", np.einsum("bd,btd->bt", now, cache), cache))
    expected = [np.array(5, np.int32), cache.astype(np.float32), now.astype(np.float32)]
    check_on_tiles(CACHE, [x], expected, relative=1e-4, absolute=1e-5)


UPDATE = """HloModule update
ENTRY e {
  w = f32[128,256] parameter(0)
  m = f32[128,256] parameter(1)
  x = f32[64,128] parameter(2)
  g = f32[64,256] parameter(3)
  y = f32[64,256] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  d = f32[128,256] dot(x, g), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  n = f32[128,256] add(m, d)
  v = f32[128,256] subtract(w, n)
  ROOT r = (f32[128,256], f32[128,256], f32[64,256]) tuple(v, n, y)
}"""


def test_the_optimizers_state_lies_where_gradients_are_made() -> None:
    found = layout(UPDATE, {0: 0, 1: 1})
    made = found.parameters[1].next_mapping
    assert made is not None
    assert found.parameters[1].mapping == made


def test_records_name_who_decided() -> None:
    module = parse(UPDATE)
    found = layout(UPDATE, {0: 0, 1: 1})
    records = {x.value: x for x in placed_values(module, found, MACHINE)}
    assert set(records) >= {"w", "m", "x", "g"}
    assert records["x"].decided_by in ("y", "d")
    assert records["x"].shape == "f32[64,128]"
    assert all(x.saved_cycles >= 0 for x in records.values())


def test_mappings_in_words() -> None:
    assert mapping_words(ROWS) == "dimension 0 in 64 on tiles 0 to 63"
    assert mapping_words(Mapping(row_major((), 7), (whole(3),))) == "whole on tile 7"


def test_a_product_without_elements_wishes_nothing() -> None:
    text = """HloModule none
ENTRY e {
  a = f32[0,4] parameter(0)
  b = f32[4,3] parameter(1)
  ROOT d = f32[0,3] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}"""
    assert not layout(text).parameters
