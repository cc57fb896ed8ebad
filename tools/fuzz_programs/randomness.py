"""A family of random bits."""

from hloipu_compiler.ir.shapes import TupleShape
from hloipu_runtime.element_types import Kind
from tools.fuzz_programs.adjusting import kind_of
from tools.fuzz_programs.builder import Body, Families
from tools.fuzz_programs.facts import full_range
from tools.fuzz_programs.values import Value, array_shape


def random_bits(body: Body) -> Value:
    """Append an rng-bit-generator; states and bits are exact."""
    rng = body.rng
    algorithm, words = rng.choice((("rng_three_fry", 2), ("rng_philox", 3), ("rng_philox", 2)))
    states = [v for v in body.arrays() if v.type == "u64" and v.sizes == (words,)]
    whole = full_range("u64")
    state = rng.choice(states) if states else body.fresh("u64", (words,), whole)
    sizes = body.pick(lambda v: kind_of(v) is not Kind.COMPLEX).sizes
    name = rng.choice("u32 u32 u64 u8 u16".split())
    shape = TupleShape((array_shape("u64", (words,)), array_shape(name, sizes)))
    facts = (whole, full_range(name))
    results = body.add(
        "rng-bit-generator", shape, [state], lambda _: facts, f"algorithm={algorithm}"
    )
    return body.elements(results)[1]


FAMILIES: Families = {random_bits: 2}
"""Family -> weight."""
