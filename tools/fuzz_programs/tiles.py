"""Random programs on tiles: compiled, run in both modes on three machines, against the evaluator.

Memories are poisoned; cycles of both modes must be equal.
"""

import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from hloipu.api import compile_verified
from hloipu.options.resolve import resolve
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import evaluate
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.core.blocks import Array
from tools.fuzz_programs.judge import AGREED, DIFFERED, Outcome, compared, judged
from tools.fuzz_programs.program import Program, generate
from tools.mapping import kept_oracle
from tools.tile_conformance import MACHINES, MODES

SECONDS = 60
"""Of one program; then its worker is ended."""


def judged_on_tiles(program: Program) -> Outcome:
    """Return what is wrong with a program, on any machine."""
    faults = list(_faults(program))
    return Outcome(program.number, DIFFERED if faults else AGREED, "\n  ".join(faults))


def _faults(program: Program) -> Iterator[str]:
    """Yield what is wrong with one program, on each machine."""
    arguments = program.arguments()
    module = parse(program.text)
    verify(module)
    expected = evaluate(module, *arguments)
    for machine, options in MACHINES.items():
        try:
            yield from _on_machine(program, module, arguments, expected, options)
        except UnsupportedError as error:
            yield f"{machine}: unsupported: {error.message}"
        except Exception as error:  # what the fuzzer looks for
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
            yield f"{machine}: {type(error).__name__} at {place}: {error}"[:400]


def _on_machine(
    program: Program,
    module: Module,
    arguments: Sequence[Array],
    expected: Sequence[Array],
    options: dict[str, Any],
) -> Iterator[str]:
    asked = resolve("compile", {**options, "over_memory": "allow"}).options
    compiled = compile_verified(module, asked)
    cycles = []
    for mode in MODES:
        result = compiled.run(*arguments, mode=mode, poison=True)
        cycles.append(result.cycles)
        outcome = compared(program, result.outputs, expected)
        if outcome.kind != AGREED:
            yield f"{options}, {mode}: {outcome.detail}"
    if cycles[0] != cycles[1]:
        yield f"{options}: functional {cycles[0]} cycles, exact {cycles[1]}"
    compiled.memory  # noqa: B018  planned for its own checks


def judged_number(number: int, seed: int, *, tiles: bool) -> Outcome:
    """Make and judge one program, on tiles or by XLA."""
    program = generate(seed, number)
    return judged_on_tiles(program) if tiles else judged(program, kept_oracle(SECONDS))
