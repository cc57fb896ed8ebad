"""Whole programs: from a seed and a number to a module's text, its inputs, and what must agree."""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.storage import from_storage
from tools.fuzz_programs import (
    algebra,
    calls,
    complexes,
    contractions,
    conversions,
    floats,
    integers,
    loops,
    movement,
    randomness,
    reductions,
    scattering,
    sorting,
    windows,
)
from tools.fuzz_programs.builder import Body, Draft, Families
from tools.fuzz_programs.facts import Facts
from tools.fuzz_programs.values import Input, Value

ELEMENTWISE: Families = {
    **floats.FAMILIES, **integers.FAMILIES, **complexes.FAMILIES, **conversions.FAMILIES,
}  # fmt: skip
PLAIN: Families = {
    **ELEMENTWISE, **movement.FAMILIES, **scattering.FAMILIES, **reductions.FAMILIES,
    **windows.FAMILIES, **sorting.FAMILIES,
}  # fmt: skip
ALL: Families = {
    **PLAIN, **contractions.FAMILIES, **algebra.FAMILIES, **randomness.FAMILIES, **calls.FAMILIES,
    **loops.FAMILIES,
}  # fmt: skip
MOST_OUTPUTS = 12
WORD = re.compile(r"[\w.]+")
FUSION = re.compile(r" fusion\(([^()]*)\), kind=\w+, calls=")


@dataclass(frozen=True, slots=True)
class Output:
    """What is known of one output."""

    element_type: str
    facts: Facts


@dataclass(frozen=True, slots=True)
class Program:
    """One program with everything needed to run it and to judge what comes out."""

    seed: int
    number: int
    text: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    families: Mapping[str, int]

    @property
    def text_for_xla(self) -> str:
        """The text with calls for fusions, which XLA takes only as its own passes make them."""
        return FUSION.sub(r" call(\1), to_apply=", self.text)

    def arguments(self) -> list[Array]:
        """Draw the entry's arguments, the same on every machine."""
        source = np.random.PCG64([self.seed, self.number])
        return [draw(x, source) for x in self.inputs]


def generate(
    seed: int,
    number: int,
    families: Families = ALL,
    start: Sequence[tuple[str, tuple[int, ...]]] = (),
) -> Program:
    """Return a program; equal seeds and numbers give equal programs.

    `start` gives the element types and sizes of the values to begin with, if they are not drawn.
    """
    rng = random.Random(f"{seed}:{number}")
    draft = Draft(rng, families, PLAIN, ELEMENTWISE)
    body = Body(draft, "main", is_entry=True)
    for element_type, sizes in start or drawn_start(rng):
        body.fresh(element_type, sizes)
    body.grow(rng.choice((6, 12, 20, 30)))
    outputs = chosen_outputs(body)
    body.root(outputs[0] if len(outputs) == 1 else body.tuple(outputs))
    text = f"HloModule fuzz_{number}\n\n" + "\n\n".join(reachable(draft.computations)) + "\n"
    known = tuple(Output(v.type, v.known) for v in outputs)
    return Program(seed, number, text, tuple(draft.inputs), known, draft.counts)


def reachable(computations: Sequence[str]) -> list[str]:
    """Return the computations that the last one needs: those of abandoned operations go."""
    needed: set[str] = set()
    kept: list[str] = []
    for text in reversed(computations):
        name = text.partition(" {")[0].removeprefix("ENTRY ")
        if name in needed or not kept:
            needed.update(WORD.findall(text))
            kept.append(text)
    return kept[::-1]


def drawn_start(rng: random.Random) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield two of three element types for each of a few shapes."""
    for sizes in drawn_shapes(rng):
        kinds = ["f32", rng.choice(conversions.FLOATS), rng.choice(conversions.INTEGERS)]
        yield from ((name, sizes) for name in rng.sample(kinds, 2))


def drawn_shapes(rng: random.Random) -> list[tuple[int, ...]]:
    """Draw the shapes that a program starts from: ranks 0 to 4, at times without elements."""
    palette = rng.sample((1, 2, 3, 4, 5, 7, 8, 16), 3)
    if rng.random() < 0.1:
        palette.append(0)
    shapes = []
    for _ in range(rng.choice((1, 2, 3))):
        sizes = tuple(rng.choice(palette) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4))))
        shapes.append(sizes if np.prod(sizes) <= 512 else sizes[:2])
    return shapes


def chosen_outputs(body: Body) -> list[Value]:
    """Choose what the entry returns: first what nothing else uses, poor values not."""
    arrays = [v for v in body.values if isinstance(v.shape, ArrayShape)]
    good = [v for v in arrays if not v.known.poor]
    unused = [v for v in good if v.position not in body.used]
    chosen = unused[-MOST_OUTPUTS:] or good[-1:]
    if len(chosen) < MOST_OUTPUTS:
        others = [v for v in good if v.position in body.used]
        chosen += body.rng.sample(others, min(len(others), 2))
    return chosen


def draw(wanted: Input, source: np.random.PCG64) -> Array:
    """Draw an array within its facts, by exact arithmetic on the raw stream."""
    element, facts = ELEMENT_TYPES[wanted.element_type], wanted.facts
    count = int(np.prod(wanted.sizes, dtype=np.int64))

    def steps() -> Array:
        raw = np.asarray(source.random_raw(count), np.uint64).reshape(wanted.sizes)
        if facts.high - facts.low >= 2.0**62:
            return raw
        span = int((facts.high - facts.low) / facts.grain) + 1
        return raw % np.uint64(span)

    if element.kind is Kind.PREDICATE:
        return steps().astype(bool)
    if element.is_integer:
        if facts.high - facts.low >= 2.0**62:
            return steps().view(element.storage).copy()
        values = steps().astype(np.int64) + np.int64(facts.low)
        return from_storage(values.astype(element.storage), wanted.element_type)
    real = steps().astype(np.float64) * facts.grain + facts.low
    if element.is_complex:
        return (real + 1j * (steps().astype(np.float64) * facts.grain + facts.low)).astype(
            element.storage
        )
    return from_storage(real.astype(element.storage), wanted.element_type)
