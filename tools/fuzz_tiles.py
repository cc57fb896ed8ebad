"""Compile random programs, run them in both modes on three machines, compare with the evaluator.

    python -m tools.fuzz_tiles [--count N] [--seed N] [--start N]

Programs are those of `tools.fuzz_programs`, with its knowledge of how far each output may be off.
Memories are poisoned; cycles of both modes must be equal. Prints what differs and ends with 1 then.
"""

import argparse
import sys
import time
import traceback
from collections import Counter
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
from tools.fuzz_programs.judge import AGREED, compared
from tools.fuzz_programs.program import Program, generate
from tools.tile_conformance import MACHINES, MODES


def faults(program: Program) -> Iterator[str]:
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
    made = compile_verified(module, asked)
    cycles = []
    for mode in MODES:
        result = made.run(*arguments, mode=mode, poison=True)
        cycles.append(result.cycles)
        outcome = compared(program, result.outputs, expected)
        if outcome.kind != AGREED:
            yield f"{options}, {mode}: {outcome.detail}"
    if cycles[0] != cycles[1]:
        yield f"{options}: functional {cycles[0]} cycles, exact {cycles[1]}"
    made.memory  # noqa: B018  planned for its own checks


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tools.fuzz_tiles", description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first program")
    options = parser.parse_args(arguments)
    start = time.monotonic()
    counts: Counter[str] = Counter()
    for number in range(options.start, options.start + options.count):
        found = list(faults(generate(options.seed, number)))
        counts["differ" if found else "agree"] += 1
        for fault in found:
            print(f"{number}: {fault}", flush=True)
    print(f"{dict(counts)}, {time.monotonic() - start:.0f} s")
    return 1 if counts["differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
