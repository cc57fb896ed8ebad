"""Outlining of drawn layers: they share a block, and values stay; small modules are goldens."""

import pytest

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes import run_passes
from hloipu_compiler.passes.outline_blocks import outlining_weight
from tests.support.layered_texts import layered_text
from tests.support.passes import assert_same_values, parsed

ALL = "outline-blocks{least-code=0,least-block=100,least-saved=1}"


def calls(module: Module) -> list[str]:
    return [x.attributes.called[0] for x in module.entry.instructions if x.opcode == "call"]


def code(module: Module) -> int:
    return sum(max(0, outlining_weight(x)) for c in module.computations for x in c.instructions)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_values_stay_and_layers_share_a_block(seed: int, backward: bool) -> None:
    text = layered_text(seed, 4, backward=backward, shared=seed % 2 == 0, between=seed % 3 == 0)
    before = parsed(text)
    after, _ = run_passes(before, None, ALL)
    assert_same_values(before, after)
    assert len(calls(after)) >= 2 + backward
    assert len(set(calls(after))) < len(calls(after))
    assert code(after) < code(before)


def test_a_block_hands_back_what_others_read_and_no_more() -> None:
    after, _ = run_passes(parsed(layered_text(1, 4)), None, ALL)
    block = after.computation[calls(after)[0]]
    # The running value goes to the next layer, the second op of two layers into the result.
    assert len(block.instructions[block.root].operands) == 2


def test_many_layers_take_linear_work() -> None:
    after, _ = run_passes(parsed(layered_text(3, 60)), None, ALL)
    assert len(calls(after)) >= 58
    assert len(set(calls(after))) == 1
