"""The programs that are tampered with, compiled.

Samples, conformance cases, random programs, some of them divided between IPUs, and training steps
cut over IPUs and replicas.
"""

from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from hloipu.api import compile_verified
from hloipu.inputs import flat
from hloipu.options.resolve import resolve
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printing.printer import print_module
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.program.program import Array
from hloipu_runtime.program.seen import seen_by_users
from hloipu_runtime.simulate.run.ports import given_arrays
from tools.conformance.values import inputs_of
from tools.conformance.workers import chosen_cases
from tools.fuzz_programs.program import generate
from tools.fuzz_spmd.judging import drawn as sharded
from tools.prove_exchanges.cut_steps import cut_steps
from tools.prove_exchanges.inputs import Given
from tools.prove_exchanges.places import Subject

SAMPLES = Path(__file__).resolve().parents[2] / "hlo_samples"

MACHINES: dict[str, dict[str, Any]] = {
    "tiny": {"target": "tiny"},
    "tiny-7": {"target": "tiny", "set": {"tiles_per_ipu": 7}},
    "gc200": {"target": "gc200"},
}

EVERY_LARGE = 8
"""One in so many cases and random programs goes to the machine of 1,472 tiles."""


EVERY_DIVIDED = 3
"""One in so many random programs is followed by one that is divided between IPUs."""
_MOST_DRAWN = 100_000
"""More random programs than are drawn of one seed."""
EVERY_CUT = 4
"""One in so many programs is a training step that is cut."""


class Text(NamedTuple):
    """A module to be compiled."""

    name: str
    text: str
    machines: tuple[str, ...]
    arguments: tuple[Array, ...] | None = None
    """Arrays that suit it, in the user's types."""


def subjects(
    count: int,
    seed: int,
    *,
    large: bool = True,
    cut: bool = True,
    samples: Collection[str] | None = None,
) -> list[Subject]:
    """Return `count` compiled programs, the same ones for a seed: whatever has transfers.

    `large`: some of them for the machine of 1,472 tiles, all samples among these; `cut`: one in
    `EVERY_CUT` is a training step that is cut; `samples`: the names of those that are taken.
    """
    steps = count // EVERY_CUT if cut else 0
    compiled: list[Subject] = []
    for text in _texts(count, seed, samples):
        for machine in text.machines:
            if len(compiled) < count - steps and (large or machine != "gc200"):
                compiled += _compiled(text, machine)
    return [*compiled, *islice(cut_steps(steps, seed), steps)]


def _compiled(text: Text, machine: str) -> list[Subject]:
    module = parse(text.text)
    verify(module)
    options = resolve("compile", {**MACHINES[machine], "over_memory": "allow"}).options
    try:
        program = compile_verified(module, options)
    except UnsupportedError:
        return []
    participants = program.program.participants
    inputs: tuple[Given, ...] = ()
    if text.arguments is not None:
        seen = seen_by_users(program.program)
        arrays = given_arrays(seen.parameters, text.arguments)
        each = [seen.into_pieces(seen.block_of(arrays, n)) for n in range(participants)]
        inputs = (Given(tuple({k: (x,) for k, x in own.items()} for own in each)),)
    if participants > 1 and not inputs:
        return []  # one engine by itself would wait for the others
    tiles = program.machine.chip.tiles_per_ipu
    subject = Subject(f"{text.name} on {machine}", program.program, tiles, inputs)
    return [subject] if subject.transfers else []


def _texts(count: int, seed: int, samples: Collection[str] | None) -> Iterator[Text]:
    """Yield samples first, then cases and random programs in turn, more than enough."""
    small = ("tiny", "tiny-7")
    for path in sorted(SAMPLES.glob("*.hlo")):
        if samples is not None and path.stem not in samples:
            continue
        text = path.read_text(encoding="utf-8")
        yield Text(
            path.stem, text, tuple(MACHINES), tuple(flat(random_arguments(parse(text), seed)))
        )
    cases = [case for case in chosen_cases(4 * count + 100) if case.participants == 1]
    for number, case in enumerate(cases):
        large = number % EVERY_LARGE == EVERY_LARGE - 1
        machines = ("gc200",) if large else (small[number % 2],)
        yield Text(case.name, case.text, machines, tuple(inputs_of(case)))
        drawn = generate(seed, number)
        yield Text(f"random {seed}:{number}", drawn.text, machines, tuple(drawn.arguments()))
        if number % EVERY_DIVIDED == EVERY_DIVIDED - 1:
            module, arguments = sharded(2 * (seed * _MOST_DRAWN + number) + 1)
            yield Text(
                f"divided {seed}:{number}", print_module(module), small[:1], tuple(arguments)
            )
