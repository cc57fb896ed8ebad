"""Shorter ways through the evaluator, each against the plain meaning of the text."""

import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import Evaluator, evaluate
from hloipu_compiler.interpret.planning.comparators import comparator_keys
from hloipu_compiler.ir.graph import Instruction


def draws(*sizes: int) -> np.ndarray:
    return np.random.default_rng(3).uniform(-1, 1, sizes).astype(np.float32)


def test_a_dot_that_is_only_transposed() -> None:
    text = """HloModule m
ENTRY main {
  a = f32[5,3] parameter(0)
  b = f32[5,4] parameter(1)
  d = f32[3,4] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  ROOT t = f32[4,3] transpose(d), dimensions={1,0}
}"""
    a, b = draws(5, 3), draws(5, 4)
    (result,) = evaluate(parse(text), a, b)
    np.testing.assert_allclose(result, b.astype(float).T @ a, rtol=1e-6)
    evaluator = Evaluator(parse(text))
    assert evaluator.run_stored([a, b])[0].flags.c_contiguous


def test_a_transposed_dot_whose_dimensions_are_both_of_one_operand() -> None:
    text = """HloModule m
ENTRY main {
  a = f32[5] parameter(0)
  b = f32[2,5,3] parameter(1)
  d = f32[2,3] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={1}
  ROOT t = f32[3,2] transpose(d), dimensions={1,0}
}"""
    a, b = draws(5), draws(2, 5, 3)
    (result,) = evaluate(parse(text), a, b)
    np.testing.assert_allclose(result, np.einsum("k,mkn->nm", a.astype(float), b), rtol=1e-6)


def test_a_transposed_operand_of_a_large_binary_op() -> None:
    text = """HloModule m
ENTRY main {
  a = f32[160,170] parameter(0)
  b = f32[170,160] parameter(1)
  t = f32[160,170] transpose(b), dimensions={1,0}
  s = f32[160,170] subtract(a, t)
  ROOT r = f32[160,170] subtract(t, s)
}"""
    a, b = draws(160, 170), draws(170, 160)
    kept = a.copy(), b.copy()
    (result,) = evaluate(parse(text), a, b)
    np.testing.assert_array_equal(result, b.T - (a - b.T))
    np.testing.assert_array_equal(a, kept[0])
    np.testing.assert_array_equal(b, kept[1])


@pytest.mark.parametrize(
    ("source", "sizes", "dimensions"),
    [((), (2, 3), "{}"), ((3,), (2, 3, 4), "{1}"), ((2, 4), (2, 3, 4), "{0,2}"),
     ((1, 4), (4, 2, 1), "{2,0}"), ((0,), (2, 0), "{1}")],
)  # fmt: skip
def test_broadcast(source: tuple[int, ...], sizes: tuple[int, ...], dimensions: str) -> None:
    def shape(s: tuple[int, ...]) -> str:
        return f"f32[{','.join(map(str, s))}]"

    text = f"""HloModule m
ENTRY main {{
  x = {shape(source)} parameter(0)
  ROOT r = {shape(sizes)} broadcast(x), dimensions={dimensions}
}}"""
    x = np.arange(np.prod(source), dtype=np.float32).reshape(source)
    (result,) = evaluate(parse(text), x)
    mapped = [int(d) for d in dimensions.strip("{}").split(",") if d]
    for index in np.ndindex(sizes):
        assert result[index] == x[tuple(index[d] for d in mapped)]
    assert result.shape == sizes


def test_views_of_constants_are_made_once_and_still_watched() -> None:
    text = """HloModule m
ENTRY main {
  x = f32[2,2] parameter(0)
  c = f32[] constant(3)
  b = f32[2,2] broadcast(c), dimensions={}
  i = f32[2,2] iota(), iota_dimension=1
  s = f32[2,2] add(b, i)
  ROOT r = f32[2,2] multiply(s, x)
}"""
    evaluator = Evaluator(parse(text))
    assert [step.instruction.opcode for step in evaluator.plan.steps] == ["add", "multiply"]
    seen: list[str] = []

    def watch(instruction: Instruction, values: object) -> None:
        seen.append(instruction.name)

    (result,) = evaluator(np.ones((2, 2), np.float32), watch=watch)
    assert result.tolist() == [[3, 4], [3, 4]]
    assert seen == ["b", "i", "s", "r"]


@pytest.mark.parametrize(("order", "known"), [("", True), (", type=TOTALORDER", False)])
def test_a_lexicographic_comparator_written_as_a_select(order: str, known: bool) -> None:
    text = f"""HloModule m
by_size {{
  a = f32[] parameter(0) b = f32[] parameter(1)
  s = f32[] abs(a) t = f32[] abs(b)
  nearer = pred[] compare(s, t), direction=LT{order}
  equal = pred[] compare(s, t), direction=EQ
  below = pred[] compare(a, b), direction=LT
  ROOT r = pred[] select(equal, below, nearer)
}}
ENTRY main {{
  x = f32[6] parameter(0)
  ROOT r = f32[6] sort(x), dimensions={{0}}, to_apply=by_size
}}"""
    module = parse(text)
    assert (comparator_keys(module, "by_size") is not None) == known
    (result,) = evaluate(module, np.array([2, -1, 1, -2, 3, -3], np.float32))
    assert result.tolist() == [-1, 1, -2, 2, -3, 3]


@pytest.mark.parametrize("axis", [0, 1])
def test_short_sums_start_from_the_init_value(axis: int) -> None:
    kept = (4, 3)[axis]
    text = f"""HloModule m
add {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }}
ENTRY main {{
  x = f32[3,4] parameter(0)
  z = f32[] constant(10)
  ROOT r = f32[{kept}] reduce(x, z), dimensions={{{axis}}}, to_apply=add
}}"""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    (result,) = evaluate(parse(text), x)
    assert result.tolist() == (x.sum(axis) + 10).tolist()
