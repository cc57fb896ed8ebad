"""`hloipu check FILE`: compares our values with a reference."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import click

from hloipu.api import module_attributes
from hloipu.check.finite_draws import finite_draw
from hloipu.check.references import Against
from hloipu.check.time_limit import TimeUpError, time_limit
from hloipu.cli.check_job import Job, refuse_unjudged
from hloipu.cli.commands.check_steps import StepsAsked, check_steps, wants_steps
from hloipu.cli.inputs import HLO_FILE, read_input
from hloipu.cli.options import Asked, GroupedCommand, native_kernels_of, option_group
from hloipu.cli.saying import Working, say
from hloipu.cli.session_options import SessionOptions, feeding_options
from hloipu.cli.values import ValueLimits, given_arguments, input_options
from hloipu.encoded import plain_step, with_plain_loops
from hloipu.options.table import Options
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import EvaluationLimits
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.interpret.random_inputs import fill_elided
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.on_demand import is_divided
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import LimitError, UsageError
from hloipu_runtime.plain_text import printable


@click.command("check", cls=GroupedCommand)
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
@click.option(
    "--time-limit", "seconds", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
    help="Stop after this time, with exit code 8 if there is no verdict yet.",
)  # fmt: skip
@feeding_options
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
    seconds: float | None,
    session: SessionOptions,
    asked: Asked,
) -> None:
    """Compare the values of FILE with a reference; name the first op that diverges.

    Values are those of `hloipu eval`. With --target or another option of compiling they are those
    of the compiled program on its tiles. Steps in loops, cut or on replicas (--loop, --stages,
    --micro-batches, --replicas, …) are run as `hloipu run` runs them; their state at the end,
    results and outfeeds are compared with those of plain steps, one at a time. Feeds without a file
    are drawn.

    The verdict comes first, then the search for the op at fault. Exits 6 where values differ by
    more than the published budgets (docs/numerics.md).

    \b
      hloipu check step.hlo
      hloipu check step.hlo --target gc200 --mode exact --poison
      hloipu check step.hlo --loop 3 --feed data=4,5 --stages 2 --micro-batches 4
    """
    with bounded(seconds) as working, Against(against) as reference:
        module = parse(read_input(file, limits.text), limits=limits.text)
        verify(module)
        plain = with_plain_loops(module, asked.given, asked.config)
        resolved = asked.resolved(module_attributes(plain)).options
        options = resolved if asked.given.keys() - {"max_iterations", "fast"} else None
        values = replace(limits.values, max_iterations=resolved.max_iterations)
        if options is not None and wants_steps(options):
            steps = StepsAsked(inputs, random, fill, limits, session, asked)
            with native_kernels_of(resolved):
                check_steps(module, steps, iterations, isolate, reference, working)
            return
        session.require_none()
        refuse_infeeds(plain)
        divided = _divided(module, asked, options, fill)
        seed = 0 if random is None and inputs is None else random
        with native_kernels_of(resolved):
            for iteration in range(iterations if inputs is None else 1):
                draw = None if seed is None else seed + iteration
                filled, leaves = given_arguments(plain, inputs, draw, fill, limits.values)
                if draw is not None:
                    with working("drawing arguments"):
                        leaves = drawn_leaves(filled, draw, values)
                job = Job(filled, leaves, reference, options, values, divided)
                refuse_unjudged(job.check(isolate=isolate, working=working), against)
        where = "" if options is None else f" on {options.target}, {options.mode}"
        say(f"agrees with {against}{where}", err=True)


def _divided(
    module: Module, asked: Asked, options: Options | None, fill: int | None
) -> Module | None:
    """Return the module with annotations that divide its arrays, where it or options have some."""
    if options is None or options.partition != "auto":
        return None
    compiled, lines = plain_step(module, asked.given, asked.config)
    if not is_divided(compiled):
        return None
    for text in lines:
        say(text, err=True)
    return compiled if fill is None else fill_elided(compiled, fill)


def drawn_leaves(module: Module, seed: int, limits: EvaluationLimits) -> list[Array]:
    """Return a seed's arguments, changed where results would not be finite; says so."""
    draw = finite_draw(module, seed, limits)
    if draw.change:
        say(
            f"seed {seed}: {draw.not_finite_before} elements of the results are not finite; "
            f"with {draw.change}, as checked here, {draw.not_finite} are not",
            err=True,
        )
    return draw.leaves


@contextmanager
def bounded(seconds: float | None) -> Iterator[Working]:
    """Give a check what tells its progress, and so many seconds.

    Raises LimitError E5017 where they are up before there is a verdict.
    """
    working = Working()
    try:
        with time_limit(seconds):
            yield working
    except TimeUpError as error:
        raise LimitError(
            error.code,
            f"{error.message} while {working.what or 'the module is read'}: no verdict",
            limit=error.limit,
            allowed=error.allowed,
            found=error.found,
            hint="give more: --time-limit SECONDS; or less to do, by hloipu reduce",
        ) from None
    except KeyboardInterrupt:
        say(f"interrupted while {working.what or 'the module is read'}", err=True)
        raise


def refuse_infeeds(module: Module) -> None:
    """Raise UsageError E2041 for a module that takes data from queues: no reference can."""
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode == "infeed":
                raise UsageError(
                    "E2041",
                    f"infeed {printable(instruction.name)!r} takes values from a queue, which "
                    "XLA:CPU and "
                    "f64 have none for: there is nothing to compare with",
                    hint="make its arrays parameters of the entry to check them, and feed those on "
                    "the device: hloipu run --loop N --feed data=N,…",
                )
