"""What is a gradient where no op ends it, and what only looks like one."""

import pytest

import hloipu
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_compiler.partition.training.phases import phases_of
from hloipu_compiler.partition.training.step_phases import Pair, Phases, Roles
from hloipu_compiler.passes.runner import run_passes
from hloipu_compiler.plan.plan import Plan

HEAD = """HloModule m
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
"""


def phases(text: str, state: int, data: tuple[int, ...]) -> tuple[Phases, list[str]]:
    """Return the phases of a step, and the names of its gradients."""
    module, _ = run_passes(hloipu.verify(HEAD + text), Plan(), "front")
    found = phases_of(module.entry, Roles(tuple(Pair(n, n) for n in range(state)), data))
    instructions = module.entry.instructions
    return found, [instructions[gradient.position].name for gradient in found.gradients]


def refusal(text: str, state: int, data: tuple[int, ...]) -> StagingError:
    with pytest.raises(StagingError) as caught:
        phases(text, state, data)
    return caught.value


ROW = """ENTRY e {
  w = f32[3,2] parameter(0)
  b = f32[2] parameter(1)
  x = f32[1,3] parameter(2)
  zero = f32[] constant(0)
  two = f32[] constant(2)
  y = f32[1,2] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  row = f32[1,2] reshape(b)
  z = f32[1,2] add(y, row)
  t = f32[1,2] tanh(z)
  squares = f32[1,2] multiply(t, t)
  loss = f32[] reduce(squares, zero), dimensions={0,1}, to_apply=add
  twos = f32[1,2] broadcast(two), dimensions={}
  ct = f32[1,2] multiply(t, twos)
  one = f32[] constant(1)
  ones = f32[1,2] broadcast(one), dimensions={}
  flat = f32[1,2] subtract(ones, squares)
  back = f32[1,2] multiply(ct, flat)
  GRADIENT
  gb = f32[2] reshape(back)
  new = f32[3,2] subtract(w, g)
  new.b = f32[2] subtract(b, gb)
  ROOT r = (f32[3,2], f32[2], f32[]) tuple(new, new.b, loss)
}"""
BY_PRODUCT = "g = f32[3,2] dot(x, back), lhs_contracting_dims={0}, rhs_contracting_dims={0}"
BY_BROADCASTS = """column = f32[3] reshape(x)
  columns = f32[3,2] broadcast(column), dimensions={0}
  flat.back = f32[2] reshape(back)
  rows = f32[3,2] broadcast(flat.back), dimensions={1}
  g = f32[3,2] multiply(columns, rows)"""


@pytest.mark.parametrize("gradient", [BY_PRODUCT, BY_BROADCASTS])
def test_cotangents_of_one_row_are_gradients_of_biases(gradient: str) -> None:
    found, names = phases(ROW.replace("GRADIENT", gradient), 2, (2,))
    assert "g" in names
    assert len(names) == 2
    assert sorted(n for x in found.gradients for n in x.parameters) == [0, 1]


SCALED = """ENTRY e {
  s = f32[] parameter(0)
  w = f32[3,2] parameter(1)
  x = f32[4,3] parameter(2)
  zero = f32[] constant(0)
  y = f32[4,2] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ss = f32[4,2] broadcast(s), dimensions={}
  z = f32[4,2] multiply(y, ss)
  squares = f32[4,2] multiply(z, z)
  loss = f32[] reduce(squares, zero), dimensions={0,1}, to_apply=add
  zy = f32[4,2] multiply(z, y)
  gs = f32[] reduce(zy, zero), dimensions={0,1}, to_apply=add
  zs = f32[4,2] multiply(z, ss)
  g = f32[3,2] dot(x, zs), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  sizes = f32[4,2] abs(y)
  size = f32[] reduce(sizes, zero), dimensions={0,1}, to_apply=add
  low = f32[] negate(size)
  change = f32[] CHANGE
  new.s = f32[] subtract(s, change)
  new = f32[3,2] subtract(w, g)
  ROOT r = (f32[], f32[3,2], f32[]) tuple(new.s, new, loss)
}"""


@pytest.mark.parametrize(
    "change",
    ["divide(gs, size)", "multiply(size, gs)", "clamp(low, gs, size)", "minimum(gs, size)"],
)
def test_what_scales_the_gradient_of_a_number_is_none(change: str) -> None:
    error = refusal(SCALED.replace("CHANGE", change), 2, (2,))
    assert error.code == "E0502"
    assert "'size'" in str(error) or "'gs'" in str(error)


def test_the_gradient_of_a_number_may_be_scaled_by_what_is_made_of_it() -> None:
    _, names = phases(SCALED.replace("CHANGE", "multiply(gs, gs)"), 2, (2,))
    assert sorted(names) == ["g", "gs"]


LAYER = """ENTRY e {
  w = f32[3,2] parameter(0)
  c = f32[2] parameter(1)
  m = f32[3,3] parameter(2)
  x = f32[4,3] parameter(3)
  zero = f32[] constant(0)
  y = f32[4,2] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  cs = f32[4,2] broadcast(c), dimensions={1}
  z = f32[4,2] subtract(y, cs)
  squares = f32[4,2] multiply(z, z)
  loss = f32[] reduce(squares, zero), dimensions={0,1}, to_apply=add
  g = f32[3,2] dot(x, z), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  total = f32[2] reduce(y, zero), dimensions={0}, to_apply=add
  most = f32[] constant(0.9)
  mosts = f32[2] broadcast(most), dimensions={}
  old.c = f32[2] multiply(c, mosts)
  some = f32[] constant(SHARE)
  somes = f32[2] broadcast(some), dimensions={}
  add.c = f32[2] multiply(total, somes)
  new.c = f32[2] add(old.c, add.c)
  gg = f32[3,3] dot(g, g), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  new.m = f32[3,3] add(m, gg)
  u = f32[3,2] dot(new.m, g), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  new = f32[3,2] subtract(w, u)
  ROOT r = (f32[3,2], f32[2], f32[3,3], f32[]) tuple(new, new.c, new.m, loss)
}"""


def test_an_average_that_the_loss_is_made_of_goes_on_by_micro_batch() -> None:
    """0.025 times a sum of four rows is a tenth of their mean: 0.9 and 0.1 make up one."""
    found, names = phases(LAYER.replace("SHARE", "0.025"), 3, (3,))
    assert found.per_micro_batch == (Pair(1, 1),)
    assert names == ["g"]  # and not their product, of which the preconditioner is made


def test_what_decays_and_is_added_to_at_another_rate_is_a_weight() -> None:
    found, names = phases(LAYER.replace("SHARE", "-0.05"), 3, (3,))
    assert not found.per_micro_batch
    assert names == ["g", "total"]


def test_a_product_of_a_gradient_with_itself_is_of_the_update() -> None:
    text = LAYER.replace("SHARE", "0.025").replace("add(m, gg)", "copy(m)")
    text = text.replace("dot(new.m, g)", "dot(gg, g)")
    assert phases(text, 3, (3,))[1] == ["g"]


CHOSEN = """ENTRY e {
  w = f32[3,2] parameter(0)
  bias = f32[2] parameter(1)
  x = f32[4,3] parameter(2)
  zero = f32[] constant(0)
  y = f32[4,2] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  biases = f32[4,2] broadcast(bias), dimensions={1}
  scores = f32[4,2] add(y, biases)
  zeros = f32[4,2] broadcast(zero), dimensions={}
  is.on = pred[4,2] compare(scores, zeros), direction=GT
  on = f32[4,2] convert(is.on)
  z = f32[4,2] multiply(y, on)
  squares = f32[4,2] multiply(z, z)
  loss = f32[] reduce(squares, zero), dimensions={0,1}, to_apply=add
  ct = f32[4,2] multiply(z, on)
  g = f32[3,2] dot(x, ct), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  load = f32[2] reduce(LOAD, zero), dimensions={0}, to_apply=add
  signs = f32[2] sign(load)
  new.bias = f32[2] subtract(bias, signs)
  new = f32[3,2] subtract(w, g)
  ROOT r = (f32[3,2], f32[2], f32[]) tuple(new, new.bias, loss)
}"""


def test_state_that_only_decides_is_made_by_each_micro_batch() -> None:
    assert phases(CHOSEN.replace("LOAD", "on"), 2, (2,))[0].per_micro_batch == (Pair(1, 1),)


def test_state_that_only_decides_is_in_doubt_if_weights_go_into_it() -> None:
    error = refusal(CHOSEN.replace("LOAD", "scores"), 2, (2,))
    assert error.code == "E0504"
    assert "carry" in str(error)


def test_rows_written_into_a_weight_are_no_gradient() -> None:
    text = """assign { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e {
  w = f32[5,2] parameter(0)
  i = s32[4,1] parameter(1)
  zero = f32[] constant(0)
  half = f32[] constant(0.5)
  rows = f32[4,2] gather(w, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0},
    index_vector_dim=1, slice_sizes={1,2}
  squares = f32[4,2] multiply(rows, rows)
  loss = f32[] reduce(squares, zero), dimensions={0,1}, to_apply=add
  change = f32[4,2] negate(rows)
  written = f32[5,2] scatter(w, i, change), update_window_dims={1}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=assign
  halves = f32[5,2] broadcast(half), dimensions={}
  new = f32[5,2] multiply(written, halves)
  ROOT r = (f32[5,2], f32[]) tuple(new, loss)
}"""
    error = refusal(text, 1, (1,))
    assert error.code == "E0504"
    assert "'written' (scatter) writes into state" in str(error)


NOISE = """ENTRY e {
  w = f32[3,2] parameter(0)
  key = u32[3,2] parameter(1)
  x = f32[4,3] parameter(2)
  zero = f32[] constant(0)
  nine = u32[] constant(9)
  nines = u32[3,2] broadcast(nine), dimensions={}
  next = u32[3,2] multiply(key, nines)
  first = u32[1,2] slice(key), slice={[0:1], [0:2]}
  flat = u32[2] reshape(first)
  drawn = f32[2] convert(flat)
  masks = f32[4,2] broadcast(drawn), dimensions={1}
  y = f32[4,2] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  z = f32[4,2] multiply(y, masks)
  squares = f32[4,2] multiply(z, z)
  loss = f32[] reduce(squares, zero), dimensions={0,1}, to_apply=add
  ct = f32[4,2] multiply(z, masks)
  g = f32[3,2] dot(x, ct), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  sorted = u32[3,2] sort(key), dimensions={0}, to_apply=less
  noise = f32[3,2] convert(sorted)
  noisy = f32[3,2] add(g, noise)MARK
  new = f32[3,2] subtract(w, noisy)
  ROOT r = (f32[3,2], u32[3,2], f32[]) tuple(new, next, loss)
}"""
LESS = "less { a = u32[] parameter(0)  b = u32[] parameter(1)  ROOT r = pred[] compare(a, b), direction=LT }\n"  # noqa: E501


def test_noise_from_the_key_of_dropout_is_refused_unless_its_phase_is_said() -> None:
    error = refusal(LESS + NOISE.replace("MARK", ""), 2, (2,))
    assert error.code == "E0505"
    assert "'noisy' mixes" in str(error)
    said = NOISE.replace("MARK", ', frontend_attributes={ipu_phase="bwd"}')
    assert phases(LESS + said, 2, (2,))[1] == ["noisy"]
