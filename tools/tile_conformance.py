"""Compare what compiled programs compute with XLA:CPU, on several machines and in both modes.

    python -m tools.tile_conformance [--sample N] [--only TEXT] [--odd N] [--seed N]
                                     [--show N] [--workers N] [--scheduler ADDRESS]

Each module of the conformance cases, or with `--odd` of `tools.conformance.odd_shapes`, is compiled
for `tiny`, for `tiny` with seven tiles and for `gc200`, and run whole-tensor and tile by tile with
poisoned memories. Values are judged as `tools.conformance` judges; cycles of both modes must be
equal. Ends with 1 where a module fails.
"""

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hloipu.api import compile_verified
from hloipu.options.resolve import resolve
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import HloipuError, UnsupportedError
from hloipu_runtime.kernels.core.blocks import Array
from tests.support.xla_oracle import Oracle, OracleError, available
from tools.conformance.case import Case
from tools.conformance.deviations import Deviation, read
from tools.conformance.odd_shapes import odd_cases
from tools.conformance.outcome import FAILED, compared, xla_results
from tools.conformance.values import inputs_of
from tools.conformance.workers import ORACLE_SECONDS, chosen_cases
from tools.mapping import add_where, kept_oracle, mapped, where_of

MACHINES: dict[str, dict[str, Any]] = {
    "tiny": {"target": "tiny"},
    "tiny-7": {"target": "tiny", "set": {"tiles_per_ipu": 7}},
    "gc200": {"target": "gc200"},
}
MODES = ("functional", "exact")
AGREES, UNSUPPORTED, UNJUDGED = "agrees", "unsupported", "not judged"


@dataclass(frozen=True, slots=True)
class TileOutcome:
    """What became of one module on all machines."""

    name: str
    opcode: str
    status: str
    said: str = ""


def judged(
    case: Case,
    oracle: Oracle,
    table: Sequence[Deviation],
    machines: Sequence[str] = tuple(MACHINES),
) -> TileOutcome:
    """Compile and run one case on each machine; the first failure counts."""
    try:
        theirs = xla_results(case, oracle)
    except OracleError as error:
        return TileOutcome(case.name, case.opcode, UNJUDGED, str(error)[:200])
    module = parse(case.text)
    verify(module)
    status = AGREES
    for machine in machines:
        try:
            fault = _on_machine(case, module, machine, theirs, table)
        except UnsupportedError as error:
            return TileOutcome(case.name, case.opcode, UNSUPPORTED, error.message)
        except HloipuError as error:
            said = f"{machine}: [{error.code}] {error.message}"
            return TileOutcome(case.name, case.opcode, FAILED, said)
        except Exception as error:  # the point of the tool: our failures are counted, not raised
            last = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{machine}: {type(error).__name__}: {error} ({last.filename}:{last.lineno})"
            return TileOutcome(case.name, case.opcode, FAILED, said)
        if fault:
            return TileOutcome(case.name, case.opcode, FAILED, f"{machine}: {fault}")
    return TileOutcome(case.name, case.opcode, status)


def _on_machine(
    case: Case,
    module: Module,
    machine: str,
    theirs: list[list[Array]],
    table: Sequence[Deviation],
) -> str:
    """Return what is wrong on one machine, or nothing."""
    options = resolve("compile", {**MACHINES[machine], "over_memory": "allow"}).options
    program = compile_verified(module, options)
    cycles = []
    for mode in MODES:
        result = program.run(*inputs_of(case), mode=mode, poison=True)
        cycles.append(result.cycles)
        outcome = compared(case, module, [result.outputs], theirs, table)
        if outcome.status == FAILED:
            return f"{mode}: {outcome.said}"
    program.memory  # noqa: B018  planned for its own checks
    estimate = program.estimate().total_cycles
    if cycles[0] != cycles[1] or (estimate is not None and estimate != cycles[0]):
        return f"cycles differ: functional {cycles[0]}, exact {cycles[1]}, estimate {estimate}"
    return ""


def _judged(case: Case) -> TileOutcome:
    return judged(case, kept_oracle(ORACLE_SECONDS), read())


def _lost(case: Case, said: str) -> TileOutcome:
    return TileOutcome(case.name, case.opcode, FAILED, said)


def main(arguments: list[str] | None = None) -> int:
    """Run the tool; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tools.tile_conformance", description=__doc__)
    parser.add_argument("--sample", type=int, default=2000, help="about this many modules")
    parser.add_argument("--only", default="", help="the cases whose name contains this text")
    parser.add_argument("--odd", type=int, default=0, help="this many modules of odd sizes instead")
    parser.add_argument("--seed", type=int, default=0, help="of modules of odd sizes")
    add_where(parser)
    parser.add_argument("--show", type=int, default=60, help="most failures to print")
    options = parser.parse_args(arguments)
    if not available():
        print("jaxlib is not installed: install the dependency group `oracle`", file=sys.stderr)
        return 2
    start = time.monotonic()
    rows: dict[str, Counter[str]] = {}
    bad = []
    if options.odd:
        cases = [x for x in odd_cases(options.odd, options.seed) if options.only in x.name]
    else:
        cases = [x for x in chosen_cases(options.sample, options.only) if x.participants == 1]
    for outcome in mapped(_judged, cases, _lost, where_of(options)):
        rows.setdefault(outcome.opcode, Counter())[outcome.status] += 1
        if outcome.status != AGREES:
            bad.append(outcome)
    columns = (AGREES, UNSUPPORTED, UNJUDGED, FAILED)
    print(f"{'opcode':28}" + "".join(f"{c:>14}" for c in columns))
    for opcode, counts in sorted(rows.items()):
        print(f"{opcode:28}" + "".join(f"{counts[c] or '':>14}" for c in columns))
    total: Counter[str] = sum(rows.values(), Counter())
    print(f"{'all':28}" + "".join(f"{total[c]:>14}" for c in columns))
    failed = sorted((o for o in bad if o.status == FAILED), key=lambda o: o.name)
    for outcome in failed[: options.show]:
        print(f"FAIL {outcome.name}: {outcome.said}")
    print(f"{total.total()} modules, {time.monotonic() - start:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
