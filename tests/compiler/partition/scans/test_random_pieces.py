"""Random modules in pieces compute what the whole ones do, state kept or not."""

import hloipu
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_compiler.plan.wrapping import FeedBinding, StatePair, Wrapping
from tests.support.cases import each
from tests.support.pieces import in_pieces_alike
from tests.support.random_stacks import random_step


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


@each("seed", range(80))
def test_random_modules_in_pieces_compute_the_same(seed: int) -> None:
    text, _, _, cuts = random_step(seed)
    in_pieces_alike(text, wrapped(text, seed), None if seed % 3 == 0 else cuts)
