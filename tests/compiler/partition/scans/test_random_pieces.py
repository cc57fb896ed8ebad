"""Random modules in pieces compute what the whole ones do, state kept or not."""

from random import Random

import hloipu
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_compiler.plan.wrapping import FeedBinding, StatePair, Wrapping
from tests.support.cases import each
from tests.support.pieces import in_pieces_alike
from tools.fuzz_programs import integers, movement, reductions
from tools.fuzz_programs.builder import Families
from tools.fuzz_programs.program import generate

START = [("s32", sizes) for sizes in ((6, 2), (6,), (2, 6), (6, 2), (3, 2))]
"""Rows and columns of one size; of whole numbers, so that any order of additions is right."""
FAMILIES: Families = {
    integers.integer_operation: 4, movement.slices: 2, movement.concatenate: 2,
    movement.reshape: 1, movement.transpose: 1, movement.broadcast: 1, movement.reverse: 1,
    movement.copies: 1, reductions.reduce: 1,
}  # fmt: skip


def wrapped(text: str, seed: int) -> Wrapping:
    """Return a wrapping in which parameters are the state that results of their shape replace."""
    shape = hloipu.verify(text).entry.program_shape
    assert isinstance(shape.result, TupleShape)
    left = dict(enumerate(shape.result.elements))
    state = []
    for number, given in enumerate(shape.parameters):
        found = [n for n, made in left.items() if str(made) == str(given)]
        if found and seed % 2:
            del left[found[0]]
            state.append(StatePair(f"s{number}", number, found[0]))
    kept = {pair.parameter for pair in state}
    constants = tuple(n for n in range(len(shape.parameters)) if n not in kept)
    feeds = (FeedBinding("data", constants[:1]),) if constants else ()
    outfeeds = tuple(FeedBinding(f"o{n}", (n,)) for n in sorted(left))
    return Wrapping(1, tuple(state), feeds, constants[1:], outfeeds, ())


@each("seed", range(60))
def test_random_modules_in_pieces_compute_the_same(seed: int) -> None:
    text = generate(1, seed, FAMILIES, START[: 2 + seed % 4]).text
    cut = [x.name for x in parse(text).entry.instructions if x.opcode in ("slice", "concatenate")]
    some = frozenset(Random(seed).sample(cut, (2 * len(cut) + 2) // 3))
    in_pieces_alike(text, wrapped(text, seed), None if seed % 3 == 0 else some)
