"""`fold-constants`: ops on constants are computed, with the evaluator's bits."""

import numpy as np
import pytest

from hloipu_compiler.passes import run_passes
from tests.support.passes import SUM, entry, opcodes, parsed, passed, root

FOLD = "fold-constants,eliminate-dead-code"


def folded(body: str, before: str = "") -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    after = passed(entry(body, before), FOLD)
    assert opcodes(after) == ["constant"]
    array = root(after).literal.array
    assert isinstance(array, np.ndarray)
    return array


def test_arithmetic_of_scalars() -> None:
    value = folded("  a = s8[] constant(100)\n  b = s8[] constant(50)\n  ROOT r = s8[] add(a, b)")
    assert value.tolist() == -106


def test_small_arrays_and_iotas() -> None:
    value = folded(
        "  i = s32[4] iota(), iota_dimension=0\n  c = s32[] constant(3)\n"
        "  b = s32[4] broadcast(c), dimensions={}\n  ROOT r = s32[4] multiply(i, b)"
    )
    assert value.tolist() == [0, 3, 6, 9]


def test_reductions_and_moves() -> None:
    value = folded(
        "  a = f32[2,3] constant({{1, 2, 3}, {4, 5, 6}})\n  z = f32[] constant(0)\n"
        "  t = f32[3,2] transpose(a), dimensions={1,0}\n"
        "  ROOT r = f32[3] reduce(t, z), dimensions={1}, to_apply=sum",
        SUM,
    )
    assert value.tolist() == [5, 7, 9]


def test_one_scalar_in_all_elements_stays_a_broadcast_of_any_size() -> None:
    after = passed(
        entry(
            "  p = f32[1000,1000] parameter(0)\n  two = f32[] constant(2)\n"
            "  b = f32[1000,1000] broadcast(two), dimensions={}\n  s = f32[1000,1000] sqrt(b)\n"
            "  ROOT r = f32[1000,1000] multiply(p, s)"
        ),
        FOLD,
        evaluated=False,
    )
    assert opcodes(after) == ["constant", "broadcast", "multiply"]
    scalar = after.entry.instructions[1].literal
    assert scalar is not None
    assert scalar.array == np.sqrt(np.float32(2))


def test_trees_alone_stay_trees() -> None:
    text = entry(
        "  i = s32[8] iota(), iota_dimension=0\n  ROOT r = s32[4,8] broadcast(i), dimensions={1}"
    )
    module = parsed(text)
    assert run_passes(module, None, "fold-constants")[0] is module


def test_results_much_larger_than_what_they_come_from_are_not_kept() -> None:
    text = entry(
        "  i = s32[1000] iota(), iota_dimension=0\n  c = s32[] constant(3)\n"
        "  b = s32[1000] broadcast(c), dimensions={}\n  ROOT r = s32[1000] multiply(i, b)"
    )
    assert opcodes(passed(text, FOLD)) == ["iota", "constant", "broadcast", "multiply"]


def test_but_are_known_to_what_comes_after_them() -> None:
    value = folded(
        "  i = f32[1000] iota(), iota_dimension=0\n  c = f32[] constant(2)\n"
        "  b = f32[1000] broadcast(c), dimensions={}\n  m = f32[1000] multiply(i, b)\n"
        "  z = f32[] constant(0)\n  ROOT r = f32[] reduce(m, z), dimensions={0}, to_apply=sum",
        SUM,
    )
    assert value.tolist() == 999000


def test_the_option_bounds_the_elements() -> None:
    body = "  a = s32[3] constant({1, 2, 3})\n  ROOT r = s32[3] negate(a)"
    module = parsed(entry(body))
    assert run_passes(module, None, "fold-constants{max-elements=2}")[0] is module
    assert opcodes(run_passes(module, None, "fold-constants{max-elements=3}")[0])[-1] == "constant"


@pytest.mark.parametrize(
    "body",
    [
        "  a = f32[200] constant({...})\n  ROOT r = f32[200] negate(a)",
        "  z = f32[] constant(0)\n  o = f32[] constant(1)\n"
        "  ROOT r = f32[4] rng(z, o), distribution=rng_uniform",
        "  ROOT r = u32[] partition-id()",
        '  a = f32[] constant(0)\n  ROOT r = f32[] custom-call(a), custom_call_target="x"',
    ],
)
def test_what_is_not_known_stays(body: str) -> None:
    module = parsed(entry(body))
    assert run_passes(module, None, "fold-constants")[0] is module


def test_regions_with_loops_are_not_run() -> None:
    region = """always {
  x = f32[] parameter(0)
  ROOT t = pred[] constant(true)
}

same {
  x = f32[] parameter(0)
  ROOT y = f32[] copy(x)
}

endless {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT w = f32[] while(a), condition=always, body=same
}
"""
    text = entry(
        "  a = f32[2] constant({1, 2})\n  z = f32[] constant(0)\n"
        "  ROOT r = f32[] reduce(a, z), dimensions={0}, to_apply=endless",
        region,
    )
    module = parsed(text)
    assert run_passes(module, None, "fold-constants")[0] is module
