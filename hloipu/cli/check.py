"""`hloipu check FILE`: compares our values with a reference."""

from collections.abc import Sequence
from dataclasses import dataclass

import click

from hloipu.check_ops import Divergence, first_divergence
from hloipu.check_outputs import OutputReport, Reference, compare_outputs, nested, truth_of
from hloipu.check_tiles import OffOnTiles, Tiles
from hloipu.cli.compiling import stop_unless_fits
from hloipu.cli.inputs import HLO_FILE, read_input
from hloipu.cli.options import Asked, config_text, option_group
from hloipu.cli.saying import say
from hloipu.cli.values import ValueLimits, given_arguments, input_options
from hloipu.encoded import with_plain_loops
from hloipu.inputs import as_user_dtype, stored_arrays
from hloipu.options.table import Options
from hloipu.session import compile_verified, module_attributes, passed
from hloipu.xla_cpu.runner import Array, job_of, run_on_xla_cpu
from hloipu_compiler.analysis.source_lines import SourceLines
from hloipu_compiler.evaluate.evaluator import EvaluationLimits
from hloipu_compiler.evaluate.participants import evaluate_everywhere
from hloipu_compiler.evaluate.site import array_leaves
from hloipu_compiler.evaluate.widen import widened, widened_arguments
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import MismatchError, UnsupportedError, UsageError
from hloipu_runtime.kernels.storage import user_dtype
from hloipu_runtime.plain_text import printable


@click.command("check")
@click.argument("file", type=HLO_FILE)
@input_options
@click.option(
    "--against", default="xla-cpu", show_default=True,
    help="xla-cpu, evaluator-f64, or an .npz file of out_0, out_1, …",
)  # fmt: skip
@click.option(
    "--iterations", type=click.IntRange(1), default=1, show_default=True,
    help="Draws of random arguments.",
)  # fmt: skip
@click.option("--isolate", is_flag=True, help="Check every op alone, even where results agree.")
@option_group("check")
def command(
    file: str,
    inputs: str | None,
    random: int | None,
    fill: int | None,
    limits: ValueLimits,
    against: str,
    iterations: int,
    isolate: bool,
    asked: Asked,
) -> None:
    """Compare the values of FILE with a reference; name the first op that diverges.

    Values are those of `hloipu eval`. With --target or another option of compiling they are those
    of the compiled program on its tiles. Exits 6 where they differ by more than the published
    budgets (docs/numerics.md).

    \b
      hloipu check step.hlo
      hloipu check step.hlo --target gc200 --mode exact --poison
    """
    if asked.print_config:
        say(config_text(asked.resolved(), as_json=False))
        return
    module = parse(read_input(file, limits.text), limits=limits.text)
    verify(module)
    module = with_plain_loops(module, asked.given, asked.config)
    refuse_infeeds(module)
    options = asked.resolved(module_attributes(module)).options if asked.given else None
    seed = 0 if random is None and inputs is None else random
    for iteration in range(iterations if inputs is None else 1):
        draw = None if seed is None else seed + iteration
        filled, leaves = given_arguments(module, inputs, draw, fill, limits.values)
        job = Job(filled, leaves, against, limits.values)
        tiles = None if options is None else on_tiles(filled, options)
        reports = job.compared(tiles)
        for report in reports:
            say(line(report))
        bad = sum(not report.agrees for report in reports)
        if bad or isolate:
            job.name_first(tiles, options)
        if bad:
            raise MismatchError(
                "E6003",
                f"{bad} of {len(reports)} results differ from {against}",
                hint="no single op breaks its budget: rounding adds up differently",
            )
    where = "" if options is None else f" on {options.target}, {options.mode}"
    say(f"agrees with {against}{where}", err=True)


def refuse_infeeds(module: Module) -> None:
    """Raise UsageError E2041 for a module that takes data from queues: no reference can."""
    for computation in module.computations:
        for x in computation.instructions:
            if x.opcode == "infeed":
                raise UsageError(
                    "E2041",
                    f"infeed {printable(x.name)!r} takes values from a queue, which XLA:CPU and "
                    "f64 have none for: there is nothing to compare with",
                    hint="make its arrays parameters of the entry to check them, and feed those on "
                    "the device: hloipu run --loop N --feed data=N,…",
                )


def on_tiles(module: Module, options: Options) -> Tiles:
    """Return a module's program, ready to run; it must fit unless options allow otherwise."""
    program = compile_verified(module, options)
    stop_unless_fits(program)
    return Tiles(program, options.mode, options.poison)


@dataclass(frozen=True, slots=True)
class Job:
    """What is compared: a module on leaves of arguments, with a reference."""

    module: Module
    leaves: Sequence[Array]
    against: str
    limits: EvaluationLimits

    def compared(self, tiles: Tiles | None) -> list[OutputReport]:
        """Return a report for each leaf of the result, of the program where there is one."""
        module, leaves, against = self.module, self.leaves, self.against
        if tiles is None:
            ours = evaluate_everywhere(module, *nested(module, leaves), limits=self.limits)
        else:
            ours = tiles.outputs(module, leaves)
        if against.endswith(".npz"):
            return compare_outputs(module, ours, load_outputs(against, module), None)
        reference = reference_of(against)
        (answer,) = reference([(module, leaves)])
        if isinstance(answer, str):
            raise UnsupportedError(
                "E0461",
                f"{against} could not compute {module.name!r}: {answer.strip()[:300]}",
                hint="compare with evaluator-f64, or with a file of known results",
            )
        return compare_outputs(module, ours, answer, truth_of(reference, module, leaves))

    def name_first(self, tiles: Tiles | None, options: Options | None) -> None:
        """Raise MismatchError E6002 for the first op that is off, if there is one."""
        if tiles is not None and options is not None:
            off = tiles.first_off(passed(self.module, options), self.leaves, self.limits)
            if off is not None:
                say(off_text(off, self.module), err=True)
                name = printable(off.instruction.name)
                raise MismatchError("E6002", f"{name!r} diverges on tiles")
        found = first_divergence(self.module, self.leaves, reference_of(self.against))
        if found is not None:
            say(divergence_text(self.module, found), err=True)
            raise MismatchError("E6002", f"{found.instruction.name!r} diverges")


def reference_of(against: str) -> Reference:
    """Return the reference that a name stands for."""
    if against == "xla-cpu" or against.endswith(".npz"):
        return lambda work: run_on_xla_cpu([job_of(module, leaves) for module, leaves in work])
    if against == "evaluator-f64":
        return lambda work: [in_f64(module, leaves) for module, leaves in work]
    raise UsageError(
        "E3111",
        f"there is no reference {against!r}",
        hint="give xla-cpu, evaluator-f64, or an .npz file",
    )


def in_f64(module: Module, leaves: Sequence[Array]) -> list[Array] | str:
    """Compute a module in f64 and round its result to the module's own types."""
    wide = widened(module)
    if wide is None:
        return "it looks at the bits of its floats, and has no f64 form"
    made = evaluate_everywhere(wide, *nested(wide, widened_arguments(leaves)))
    types = [leaf.element_type for leaf in array_leaves(module.entry.program_shape.result)]
    return [
        x if t.is_float or t.is_complex else as_user_dtype(x, t.name)
        for x, t in zip(made, types, strict=True)
    ]


def load_outputs(path: str, module: Module) -> list[Array]:
    """Read a reference result from an .npz file; UsageError where it is not one of this module."""
    leaves = array_leaves(module.entry.program_shape.result)
    found = []
    with stored_arrays(path) as given:
        for number, leaf in enumerate(leaves):
            if f"out_{number}" not in given.names:
                raise UsageError(
                    "E3107",
                    f"{path}: no array out_{number}, the module makes {len(leaves)}",
                    hint="hloipu eval -o writes such a file",
                )
            array = given.leaf(f"out_{number}", leaf, f"{path}: out_{number}", "E3109")
            if array.shape != leaf.dimensions or array.dtype != user_dtype(leaf.element_type.name):
                raise UsageError(
                    "E3109",
                    f"{path}: out_{number} is {array.dtype}{list(array.shape)}, the module makes "
                    f"{leaf.without_layout()}",
                    hint="compare with results of this module",
                )
            found.append(array)
    return found


def line(report: OutputReport) -> str:
    """Return one result's report in a line."""
    mark = "ok  " if report.agrees else "DIFF"
    return f"{mark} out_{report.number} {report.shape.without_layout()}: {report.said}"


def off_text(found: OffOnTiles, module: Module) -> str:
    """Say which instruction is off on tiles, where it comes from, and by how much."""
    x = found.instruction
    source = SourceLines(module).line(x)
    place = f" ({printable(source)})" if source else ""
    return (
        f"first instruction that differs on tiles: {printable(x.name)} = {x.shape} "
        f"{x.opcode}{place}\n  {found.said} (the evaluator's value)"
    )


def divergence_text(module: Module, found: Divergence) -> str:
    """Say which op diverges, where it comes from, both values and the budget."""
    x = found.instruction
    source = SourceLines(module).line(x)
    place = f" ({printable(source)})" if source else ""
    return (
        f"first op that diverges: {printable(x.name)} = {x.shape} {x.opcode} "
        f"in {printable(found.computation)}{place}\n"
        f"  {found.verdict}\n  budget: {found.budget}"
        + ("\n  f64 agrees with ours: the reference is off here" if found.reference_is_off else "")
    )
