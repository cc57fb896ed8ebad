"""Edits one by one: sizes, types, loops and branches, on modules that need each of them."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.reduce import inputs, shrinking
from hloipu_compiler.reduce.reducer import reduce_module, verifies
from hloipu_compiler.reduce.rewriting import Key, NotReducibleError, cleaned
from hloipu_runtime.element_types import ELEMENT_TYPES

JOINED = """HloModule m

ENTRY e {
  a = f32[6,40] parameter(0)
  b = f32[6,2] parameter(1)
  c = f32[6,42] concatenate(a, b), dimensions={1}
  s = f32[6,40] slice(c), slice={[0:6], [2:42]}
  t = f32[240] reshape(s)
  ROOT n = f32[240] negate(t)
}
"""

NESTED = """HloModule m

inner {
  s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[8] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  t = f32[8] tanh(x)
  u = f32[8] sine(t)
  v = f32[8] cosine(u)
  ROOT r = (s32[], f32[8]) tuple(j, v)
}

few {
  s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT r = pred[] compare(i, n), direction=LT
}

outer {
  s = (s32[], f32[8]) parameter(0)
  w = (s32[], f32[8]) while(s), condition=few, body=inner
  x = f32[8] get-tuple-element(w), index=1
  z = s32[] constant(4)
  ROOT r = (s32[], f32[8]) tuple(z, x)
}

fewer {
  s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(2)
  ROOT r = pred[] compare(i, n), direction=LT
}

ENTRY e {
  p = f32[8] parameter(0)
  z = s32[] constant(0)
  b = (s32[], f32[8]) tuple(z, p)
  ROOT w = (s32[], f32[8]) while(b), condition=fewer, body=outer
}
"""

CHOICE = """HloModule m

yes {
  x = bf16[5] parameter(0)
  a = bf16[5] abs(x)
  ROOT n = bf16[5] negate(a)
}

no {
  x = bf16[5] parameter(0)
  ROOT n = bf16[5] cosine(x)
}

ENTRY e {
  c = pred[] parameter(0)
  x = bf16[5] parameter(1)
  ROOT r = bf16[5] conditional(c, x, x), true_computation=yes, false_computation=no
}
"""


def shapes(module: Module) -> list[str]:
    return [str(x.shape) for x in module.entry.instructions]


def test_a_size_changes_what_follows_from_it() -> None:
    """The sum of sizes that a concatenation has, and the ranges of a slice, are found anew."""
    found = shrinking.resized(parse(JOINED), shrinking.only(6, 3))
    assert not verifies(found)  # the reshape has the product still

    both = shrinking.resized(found, shrinking.only(240, 120))
    assert verifies(both)

    other = shrinking.resized(parse(JOINED), shrinking.multiples(40, 4))
    assert verifies(other)
    assert shapes(other)[2:] == ["f32[6,6]", "f32[6,4]", "f32[24]", "f32[24]"]


def test_a_type_changes_everywhere() -> None:
    found = shrinking.retyped(parse(CHOICE), ELEMENT_TYPES["bf16"], ELEMENT_TYPES["f32"])

    assert verifies(found)
    assert not any("bf16" in str(x.shape) for c in found.computations for x in c.instructions)


def test_a_callee_takes_values_from_outside_through_two_loops() -> None:
    found = cleaned(inputs.to_inputs(parse(NESTED), [Key("inner", "t")]))

    assert verifies(found)
    assert len(found.entry.parameters) == 2
    assert "tanh" not in {x.opcode for c in found.computations for x in c.instructions}
    for c in found.computations:
        for x in c.instructions:
            if x.opcode == "while":
                assert str(x.shape).endswith("f32[8], f32[8])")


@pytest.mark.parametrize("length", range(1, 9))
def test_every_cut_of_a_body_is_valid(length: int) -> None:
    """Cuts at any place keep the module valid, with what was cut away gone from the body."""
    for cut in (inputs.cut_body_after, inputs.cut_body_before):
        try:
            found = cleaned(cut(parse(NESTED), "inner", length))
        except NotReducibleError:
            assert cut is inputs.cut_body_after
            assert length <= 4  # the state and its reads, a constant: nothing is computed yet
        else:
            assert verifies(found), length


def test_a_computation_that_branches_call_takes_nothing_from_outside() -> None:
    with pytest.raises(NotReducibleError):
        inputs.to_inputs(parse(CHOICE), [Key("yes", "a")])


def keeps(*wanted: tuple[str, str]) -> Callable[[str], bool]:
    def interesting(text: str) -> bool:
        module = parse(text)
        return all(
            any(
                x.opcode == opcode and c.instructions[o].opcode == below
                for c in module.computations
                for x in c.instructions
                for o in x.operands
            )
            for opcode, below in wanted
        )

    return interesting


@pytest.mark.parametrize(
    ("text", "wanted", "left"),
    [
        (JOINED, ("slice", "concatenate"), ["parameter", "parameter", "concatenate", "slice"]),
        (NESTED, ("cosine", "sine"), ["parameter", "sine", "cosine"]),
        (CHOICE, ("negate", "abs"), ["parameter", "abs", "negate"]),
    ],
)
def test_what_is_left(text: str, wanted: tuple[str, str], left: list[str]) -> None:
    found = reduce_module(parse(text), keeps(wanted))

    assert found.ending == "smallest"
    assert [x.opcode for x in found.module.entry.instructions] == left
    assert {str(x.shape).split("[")[0] for x in found.module.entry.instructions} == {"f32"}
    assert verifies(found.module)


SAMPLES = sorted((Path(__file__).parents[3] / "hlo_samples").glob("*.hlo"))


def rare_pairs(module: Module) -> list[tuple[str, str]]:
    """Return the two rarest pairs of an opcode and one that it reads, tuples aside."""
    found = Counter(
        (x.opcode, c.instructions[o].opcode)
        for c in module.computations
        for x in c.instructions
        for o in x.operands
    )
    handing = {"tuple", "get-tuple-element", "parameter"}
    return sorted((k for k in found if handing.isdisjoint(k)), key=lambda k: (found[k], k))[:2]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
@pytest.mark.thinned(3)
def test_rare_pairs_of_real_modules_are_isolated(path: Path) -> None:
    """No edit ends in an error on the way, and what is left is about the pair alone."""
    module = parse(path.read_text(encoding="utf-8"))
    for pair in rare_pairs(module):
        found = reduce_module(module, keeps(pair))

        assert found.ending == "smallest"
        assert found.module.instruction_count <= 16, pair
        assert found.tests <= 100, pair
        assert verifies(found.module)
        assert parse(found.text).without_places() == found.module
