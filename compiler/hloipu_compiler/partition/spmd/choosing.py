"""Which of several ways to divide one op costs least.

A candidate gives each factor of the op's dimension rule some parts. It costs the bytes that bring
operands and results from and to their shardings, partial results combined, and the work of one
device, in bytes that a link carries in the same time.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from hloipu_compiler.partition.spmd.reshard_steps import Axes

PRODUCTS_PER_BYTE = 4600
"""Multiplications and additions of a GC200's matrix units, in f16, while a link between IPUs
carries a byte: 94,208 a cycle, 20.4 bytes a cycle (docs/machine-model.md)."""
ELEMENTS_PER_BYTE = 430
"""Elements of f32 of all tiles' vector units in that time: 6 tiles' threads at one issue slot a
cycle, 2 elements for each load, operation and store: 8,800 a cycle (assumed)."""

Option = tuple[int, Axes]
"""A factor and parts that divide it."""


def cheapest(
    each: Iterable[Sequence[Option]],
    compatible: Callable[[Sequence[Option]], dict[int, Axes]],
    priced: Callable[[dict[int, Axes]], tuple[float, float]],
) -> dict[int, Axes]:
    """Return the parts along each factor that cost least; of equals the first.

    `compatible` returns of options the first of those that exclude each other; `priced` returns
    what is sent, and the work. The first candidate that sends nothing is taken.
    """
    best: dict[int, Axes] = {}
    least = float("inf")
    tried: list[dict[int, Axes]] = []
    for options in each:
        chosen = compatible(options)
        if chosen in tried:
            continue
        tried.append(chosen)
        sent, work = priced(chosen)
        if sent + work < least:
            best, least = chosen, sent + work
        if not sent:
            break
    return best


def candidates(
    order: Sequence[Option], own: Sequence[Sequence[Option]], reduced: Collection[int]
) -> Iterator[Sequence[Option]]:
    """Yield options by preference: as the dearest arrays have it, as each array has it, less.

    `order`: all options, the dearest to move first; `own`: those of each operand and result;
    `reduced`: the factors that leave partial results.
    """
    passing = [option for option in order if option[0] not in reduced]
    yield order
    for options in own:
        yield [*options, *order]
    for option in order:
        yield [option, *order]
    for options in own:
        yield [*(option for option in options if option in passing), *passing]
        yield options
    yield passing
    for option in order:
        yield [other for other in order if other != option]
    yield ()
