"""Families that address by index arrays: gather, scatter."""

from collections.abc import Sequence
from math import prod

from hloipu_compiler.ir.ops import ELEMENTWISE
from tools.fuzz_programs.adjusting import is_integer, small_integer
from tools.fuzz_programs.builder import Body, Families
from tools.fuzz_programs.facts import Facts, UntameError, hull
from tools.fuzz_programs.regions import combiner_region, combining, reducible
from tools.fuzz_programs.values import Value, array_shape, braces


def scatter(body: Body) -> Value:
    """Append a scatter in general form; repeated indices meet commutative regions only."""
    rng = body.rng
    value, opcode = reducible(body, most=300)
    rank = len(value.sizes)
    if not 1 <= rank <= 3 or 0 in value.sizes:
        raise UntameError
    starts = rng.sample(range(rank), rng.randrange(1, rank + 1))
    inserted = [d for d in range(rank) if rng.random() < 0.5]
    window = [rng.randrange(1, value.sizes[d] + 1) for d in range(rank) if d not in inserted]
    batch = [rng.choice((1, 2, 3)) for _ in range(rng.randrange(0, 3))]
    if prod(batch) == 1 and value.opcode not in ELEMENTWISE:
        # XLA slices the operand at the one index; of a slice it adds both starts, then clamps.
        raise UntameError
    vector = rng.randrange(len(batch) + 1)
    index_sizes = [*batch[:vector], len(starts), *batch[vector:]]
    where = index_array(body, index_sizes)
    places = sorted(rng.sample(range(len(window) + len(batch)), len(window)))
    sizes = list(batch)
    for place, size in zip(places, window, strict=True):
        sizes.insert(place, size)
    updates = body.fresh(value.type, sizes)
    if prod(batch) == 1 and rng.random() < 0.5:
        opcode = "overwrite"
        region = overwriting_region(body, value.type)
    else:
        region = combiner_region(body, opcode, value.type)
    total = (
        hull if opcode == "overwrite" else combining(opcode, value.type, prod(batch), padded=True)
    )
    attributes = (
        f"update_window_dims={braces(places)}, inserted_window_dims={braces(inserted)}, "
        f"scatter_dims_to_operand_dims={braces(starts)}, index_vector_dim={vector}, "
        f"to_apply={region}"
    )
    return body.add(
        "scatter", value.shape, [value, where, updates], lambda f, _, u: total(u, f), attributes
    )


def overwriting_region(body: Body, element_type: str) -> str:
    """Write the region that takes the update."""
    region = Body(body.draft, "overwrite")
    known, shape = Facts(0, 0, 0, 1), array_shape(element_type, ())
    _, update = (region.parameter(shape, known) for _ in range(2))
    region.root(update)
    return region.name


def index_array(body: Body, sizes: Sequence[int]) -> Value:
    """Choose or make an integer array of given sizes, some elements out of range."""
    candidates = [v for v in body.arrays(is_integer) if v.sizes == tuple(sizes)]
    if candidates and body.rng.random() < 0.5:
        index = body.rng.choice(candidates)
        # As in slices, a constant with its highest bit set may be taken for a negative index.
        return small_integer(body, index, 0, 100) if index.type[0] == "u" else index
    name = body.rng.choice("s32 s32 s64 u32 s8".split())
    return body.fresh(name, sizes, Facts(0 if name[0] == "u" else -2, 6, 0, 1))


def gather(body: Body) -> Value:
    """Append a gather in general form: any start map, any collapsed and offset dimensions."""
    rng = body.rng
    value = body.pick(lambda v: 1 <= len(v.sizes) <= 3)
    rank = len(value.sizes)
    starts = rng.sample(range(rank), rng.randrange(1, rank + 1))
    sizes = [rng.randrange(min(1, n), n + 1) for n in value.sizes]
    collapsed = [d for d in range(rank) if rng.random() < 0.5]
    for d in collapsed:
        sizes[d] = 1
    if any(w > n for w, n in zip(sizes, value.sizes, strict=True)):
        raise UntameError
    batch = [rng.choice((1, 2, 3)) for _ in range(rng.randrange(0, 3))]
    if prod(batch) == 1 and value.opcode not in ELEMENTWISE:
        raise UntameError  # XLA makes a slice of it; see `scatter`
    vector = rng.randrange(len(batch) + 1)
    index_sizes = [*batch[:vector], len(starts), *batch[vector:]]
    if len(starts) == 1 and rng.random() < 0.5:
        vector, index_sizes = len(batch), batch
    where = index_array(body, index_sizes)
    window = [n for d, n in enumerate(sizes) if d not in collapsed]
    offsets = sorted(rng.sample(range(len(window) + len(batch)), len(window)))
    result = list(batch)
    for place, size in zip(offsets, window, strict=True):
        result.insert(place, size)
    attributes = (
        f"offset_dims={braces(offsets)}, collapsed_slice_dims={braces(collapsed)}, "
        f"start_index_map={braces(starts)}, index_vector_dim={vector}, slice_sizes={braces(sizes)}"
    )
    shape = array_shape(value.type, result)
    return body.add("gather", shape, [value, where], lambda f, _: f, attributes)


FAMILIES: Families = {scatter: 4, gather: 4}
"""Family -> weight."""
