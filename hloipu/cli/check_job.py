"""One `hloipu check`: a module on arguments, then its ops one by one."""

from collections.abc import Sequence
from dataclasses import dataclass

from hloipu.api import compile_verified
from hloipu.check.ops import Divergence, Tally, first_divergence
from hloipu.check.outputs import OutputReport, compare_outputs, nested, truth_of
from hloipu.check.references import EVALUATOR_F64, Against, load_outputs
from hloipu.check.tiles import OffOnTiles, Tiles
from hloipu.check.time_limit import TimeUpError
from hloipu.cli.compiling import stop_unless_fits
from hloipu.cli.saying import Working, say
from hloipu.compile_request import passed
from hloipu.options.table import Options
from hloipu_compiler.analysis.source_lines import SourceLines
from hloipu_compiler.interpret.evaluator import EvaluationLimits
from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_runtime.errors import HloipuError, LimitError, MismatchError, UnsupportedError
from hloipu_runtime.plain_text import printable
from hloipu_runtime.watching import telling

_LISTED = 3
"""Reasons for which ops were not judged, listed at most."""


def on_tiles(module: Module, options: Options) -> Tiles:
    """Return a module's program, ready to run; it must fit unless options allow otherwise."""
    program = compile_verified(module, options)
    stop_unless_fits(program)
    return Tiles(program, options.mode, options.poison, options.max_iterations)


@dataclass(frozen=True, slots=True)
class Job:
    """A comparison: a module on leaves of arguments, with a reference."""

    module: Module
    leaves: list[Array]
    reference: Against
    options: Options | None
    """How to compile it; None: its values are the evaluator's."""
    limits: EvaluationLimits
    divided: Module | None = None
    """What is compiled: the module with annotations that divide its arrays, where it has some."""

    def check(self, *, isolate: bool, working: Working) -> list[OutputReport]:
        """Compare and print each result; then name the op at fault. Return the results' reports.

        Raises MismatchError E6002 for an op that is off, E6003 for results where none is.
        """
        tiles = None
        if self.options is not None:
            with working("compiling"):
                tiles = on_tiles(self.divided or self.module, self.options)
        reports = self.compared(tiles, working)
        for report in reports:
            say(line(report))
        bad = sum(not report.agrees for report in reports)
        if bad:
            say(f"{bad} of {len(reports)} results differ from {self.reference.name}", err=True)
        if bad or isolate:
            self.name_first(
                tiles, f"{bad} of {len(reports)} results differ" if bad else "", working
            )
        return reports

    def compared(self, tiles: Tiles | None, working: Working) -> list[OutputReport]:
        """Return a report for each leaf of the result, of the program where there is one."""
        module, leaves, reference = self.module, self.leaves, self.reference
        with working("running the program" if tiles else "evaluating the module"):
            if tiles is None:
                ours = evaluate_everywhere(module, *nested(module, leaves), limits=self.limits)
            else:
                ours = tiles.outputs(module, leaves)
        if reference.is_file:
            return compare_outputs(module, ours, load_outputs(reference.name, module), None)
        with working(f"{reference.name} computes the module"):
            theirs = reference.needed(module, leaves)
        with working(f"{reference.name} computes the module in f64"):
            truth = truth_of(reference, module, leaves)
        return compare_outputs(module, ours, theirs, truth)

    def name_first(self, tiles: Tiles | None, differs: str, working: Working) -> None:
        """Find the first op that is off, alone and on equal operands, and print it.

        `differs` says what differs, empty if nothing does. Raises MismatchError E6002 for an op
        that is off, E6003 where values differ and none is found, TimeUpError where nothing differs
        and time was up.
        """
        tally = Tally(told=lambda judged, begun: telling("ops", judged, begun))
        divergence: Divergence | None = None
        try:
            with working("looking for the first instruction that is off on tiles"):
                off = self._off_on_tiles(tiles)
            if off is None:
                with working("judging ops alone"):
                    divergence = first_divergence(self.module, self.leaves, self.reference, tally)
        except KeyboardInterrupt:
            say(tally_text(tally, self.reference.name), err=True)
            raise
        except HloipuError as error:
            say(f"the search ended early: {error.message}", err=True)
            say(tally_text(tally, self.reference.name), err=True)
            if differs:
                raise MismatchError(
                    "E6003",
                    f"{differs} from {self.reference.name}; which op is at fault is not known",
                    hint=error.hint,
                ) from error
            if isinstance(error, TimeUpError):
                raise LimitError(
                    error.code,
                    f"{error.message}: the results agree, and not every op was judged",
                    limit=error.limit,
                    allowed=error.allowed,
                    found=error.found,
                    hint=error.hint,
                ) from None
            raise
        if off is not None:
            say(off_text(off, self.module), err=True)
            raise MismatchError("E6002", f"{printable(off.instruction.name)!r} diverges on tiles")
        if divergence is not None:
            say(divergence_text(self.module, divergence), err=True)
            raise MismatchError("E6002", f"{printable(divergence.instruction.name)!r} diverges")
        if differs:
            say(tally_text(tally, self.reference.name), err=True)
            raise MismatchError(
                "E6003",
                f"{differs} from {self.reference.name}; no single op breaks its budget",
                hint=next_steps(self.reference.name),
            )

    def _off_on_tiles(self, tiles: Tiles | None) -> OffOnTiles | None:
        if tiles is None or self.options is None:
            return None
        return tiles.first_off(passed(self.module, self.options), self.leaves, self.limits)


def refuse_unjudged(reports: Sequence[OutputReport], against: str) -> None:
    """Raise UnsupportedError E0467 where a result has nothing finite: that is no agreement."""
    count = sum(not report.is_judged for report in reports)
    if count:
        raise UnsupportedError(
            "E0467",
            f"{count} of {len(reports)} results have no finite element, as on {against}: nothing "
            "of them was judged",
            hint="give values that keep them finite: --inputs FILE.npz, or --random with another "
            "SEED",
        )


def tally_text(tally: Tally, against: str) -> str:
    """Return how many ops were judged and how, how many were not and why, and the nearest."""
    left = tally.begun - tally.judged - tally.passed_over["the reference refuses"]
    reasons = [f"{count} {why}" for why, count in tally.passed_over.most_common(_LISTED) if count]
    reasons += [f"{left} were not reached"] if left > 0 else []
    not_judged = f"; not judged: {', '.join(reasons)}" if reasons else ""
    text = f"{tally.judged} ops judged alone against {against}, on equal operands{not_judged}"
    for share, name in tally.nearest:
        text += f"\n  uses {share:.0%} of its budget: {printable(name)}"
    return text


def next_steps(against: str) -> str:
    """Return what to do where results differ and no op does."""
    by_f64 = "" if against == EVALUATOR_F64 else "--against evaluator-f64 compares with f64 alone; "
    return (
        "rounding may add up, or these arguments be ill-conditioned: "
        f"{by_f64}--random SEED draws others, --inputs takes real ones; hloipu reduce FILE --test "
        "'sh -c \"hloipu check {} OPTIONS; test $? = 6\"' cuts the module down, with the OPTIONS "
        "of this command"
    )


def line(report: OutputReport, name: str = "") -> str:
    """Return one result's report in a line."""
    shown = printable(name) if name else f"out_{report.number}"
    return f"{report.mark:4} {shown} {report.shape.without_layout()}: {report.said}"


def off_text(off: OffOnTiles, module: Module) -> str:
    """Return which instruction is off on tiles, its source line, and by how much."""
    return (
        f"first instruction that differs on tiles: {_placed(module, off.instruction)}\n"
        f"  {off.said} (the evaluator's value)"
    )


def _placed(module: Module, instruction: Instruction, inside: str = "") -> str:
    """Return an instruction as text, what it is `inside` of, and the line that it comes from."""
    source = SourceLines(module).line(instruction)
    place = f" ({printable(source)})" if source else ""
    name = printable(instruction.name)
    return f"{name} = {instruction.shape} {instruction.opcode}{inside}{place}"


def divergence_text(module: Module, divergence: Divergence) -> str:
    """Return which op diverges, its source line, both values and the budget."""
    inside = f" in {printable(divergence.computation)}"
    return (
        f"first op that diverges: {_placed(module, divergence.instruction, inside)}\n"
        f"  {divergence.verdict}\n  budget: {divergence.budget}"
        + (
            "\n  f64 agrees with ours: the reference is off here"
            if divergence.reference_is_off
            else ""
        )
    )
