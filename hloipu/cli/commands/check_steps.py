"""`hloipu check` of steps in loops, cut or on replicas: their program against plain steps."""

from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NoReturn

from hloipu.api import compile_verified
from hloipu.check.formed_step import reference_step
from hloipu.check.reference_run import (
    GivenStep,
    result_shapes,
    values_of_parts,
    values_of_plain_step,
    values_of_reference,
)
from hloipu.check.references import Against
from hloipu.check.sampled_steps import Compared, compared_arrays, judged, leaf_truth, sampled
from hloipu.check.step_values import Elements, Running, values_of_program
from hloipu.cli.check_job import Job, line, refuse_unjudged
from hloipu.cli.commands.run import Inputs, session_arrays
from hloipu.cli.compiling import settled_for, stop_unless_fits
from hloipu.cli.options import Asked
from hloipu.cli.run_session import check_queue_names, source_of_file
from hloipu.cli.saying import Working, say
from hloipu.cli.session_options import SessionOptions
from hloipu.cli.values import ValueLimits
from hloipu.encoded import plain_step
from hloipu.inputs import flat
from hloipu.options.table import OPTIONS, Options
from hloipu.pipelining import pipeline_request
from hloipu.wrapping import wrapping_request
from hloipu_compiler.hlo.printing.printer import FULL, print_module
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.interpret.random_inputs import fill_elided, random_arguments
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import MismatchError, UnsupportedError
from hloipu_runtime.kernels.core.storage import from_storage
from hloipu_runtime.program.program import Queue
from hloipu_runtime.program.seen import seen_by_users
from hloipu_runtime.session.queues import spec_of_queue
from hloipu_runtime.streams.element import Intake
from hloipu_runtime.streams.faults import ended
from hloipu_runtime.watching import telling

_DRAWN = 16
"""Elements that are drawn for a feed without a file; they come again and again after that."""
_KEPT = frozenset(
    "target set available_memory_proportion partials_type random_bits define plugin passes "
    "code_memory mode poison".split()
)
"""Options by which the plain step is compiled as well, to find the op at fault."""


@dataclass(frozen=True, slots=True)
class StepsAsked:
    """Command-line options besides the module and the reference."""

    inputs: str | None
    random: int | None
    fill: int | None
    limits: ValueLimits
    session: SessionOptions
    asked: Asked


def wants_steps(options: Options) -> bool:
    """Whether a step's state is to stay on the device: in a loop, cut, or with queues."""
    cut = pipeline_request(options)
    return wrapping_request(options).asks or cut.asks or cut.shard_optimizer


def check_steps(
    module: Module,
    request: StepsAsked,
    iterations: int,
    isolate: bool,
    reference: Against,
    working: Working,
) -> None:
    """Compare a step's program with plain steps on the same elements, and say how.

    Raises MismatchError E6002 and E6003 for values that differ, UnsupportedError E0467 for arrays
    of which nothing is finite, E0461 and E0466 where there is no reference, and what compiling and
    running raise.
    """
    if reference.is_file:
        raise UnsupportedError(
            "E0466",
            "a file has the results of one plain step, and no state of the loop around it",
            hint="compare with --against xla-cpu or evaluator-f64",
        )
    asked = request.asked
    with working("compiling"):
        step, lines = plain_step(module, asked.given, asked.config)
        step = step if request.fill is None else fill_elided(step, request.fill)
        settled = settled_for(asked, step, print_module(step, FULL))
        options = settled.options
        program = settled.program or compile_verified(settled.module, options)
    for text in lines:
        say(text, err=True)
    for text in program.options.get("cut", ()):
        say(text, err=True)
    stop_unless_fits(program)
    check_queue_names(program.program, request.session)
    checked = _Checked(step, program, options, request, reference, working)
    seed = 0 if request.random is None else request.random
    for iteration in range(iterations if request.inputs is None else 1):
        checked.check(seed + iteration, isolate)
    say(f"agrees with {reference.name} on {options.target}, {options.mode}", err=True)


@dataclass(frozen=True)
class _Checked:
    """A step, its program, and what it is compared with."""

    module: Module
    program: CompiledProgram
    options: Options
    given: StepsAsked
    reference: Against
    working: Working

    def check(self, seed: int, isolate: bool) -> None:
        """Run the program on arrays of a seed and compare all that it gives."""
        program, request, name = self.program, self.given, self.reference.name
        step = reference_step(self.module, self.options, program.program.replicas)
        drawn = None if request.inputs is not None else seed
        inputs = Inputs(request.inputs, drawn, None, request.limits)
        arrays = session_arrays(program, self.module, inputs)
        steps = program.program.steps_per_run
        steps = steps if request.session.steps is None else request.session.steps
        count = steps * step.micro_batches * program.program.replicas
        elements = self._elements(count, seed)
        running = Running(self.options.mode, self.options.poison, request.session.timeout)
        with self.working("running the program"):
            begun, ours = values_of_program(program, arrays, elements, steps, running)
        given = GivenStep(step, begun, elements)
        with self.working(f"{name} computes the plain steps"):
            theirs = values_of_reference(
                given, steps, self.reference, report_progress=partial(telling, "steps")
            )
        if isinstance(theirs, str):
            raise self._refused(given, theirs)
        with self.working(f"{name} computes them in f64"):
            truth = sampled(self.reference, lambda moved: values_of_reference(given, steps, moved))
        compared = judged(list(compared_arrays(program.program, ours, theirs, truth)))
        for array in compared:
            say(line(array.report, array.name))
        bad = sum(not array.report.agrees for array in compared)
        is_plain_step = not steps or self._parts_are_whole(given)
        if bad or not is_plain_step:
            message = f"{bad} of {len(compared)} arrays differ from {name}"
            say(message, err=True)
            self._blame(given, message, is_plain_step=is_plain_step)
        if isolate and steps:
            self._job(given).check(isolate=True, working=self.working)
        refuse_unjudged([array.report for array in compared], name)

    def _parts_are_whole(self, given: GivenStep) -> bool:
        """Whether gradients and update together are the plain step on the reference.

        The program and its reference share what is accumulated, which is told so.
        """
        if given.step.parts is None:
            return True
        name = self.reference.name
        with self.working(f"{name} computes the cut step and the plain one"):
            values = values_of_parts(given, self.reference)
        if isinstance(values, str):
            raise self._refused(given, values)
        plain, cut = values
        shapes = result_shapes(self.module)
        truth = sampled(self.reference, lambda moved: values_of_plain_step(given, moved))
        reports = judged(
            [
                Compared(
                    f"out_{n}",
                    shapes[n][0],
                    cut[n],
                    plain[n],
                    None if truth is None else leaf_truth(truth, lambda results, n=n: results[n]),  # type: ignore[misc]
                )
                for n in sorted(plain)
            ]
        )
        bad = [report for report in reports if not report.report.agrees]
        for report in bad:
            say(line(report.report, f"cut step, {report.name}"))
        mark = "DIFF" if bad else "ok  "
        say(f"{mark} gradients and update together are the plain step on {name}: {len(bad)} of "
            f"{len(reports)} results differ")  # fmt: skip
        return not bad

    def _blame(self, given: GivenStep, message: str, *, is_plain_step: bool) -> NoReturn:
        """Find the op at fault in the plain step; raise MismatchError E6002 or E6003."""
        if not is_plain_step:
            raise MismatchError(
                "E6003",
                f"{message}: gradients and update of the step taken apart are not the plain step",
                hint="report it with the module; --micro-batches 1 leaves the step whole",
            )
        say("the plain step alone, on its first element:", err=True)
        self._job(given).check(isolate=False, working=self.working)
        raise MismatchError(
            "E6003",
            f"{message}, and the plain step alone agrees",
            hint="what differs is how the step is looped, cut or copied: leave out one of these "
            "options after the other to see which, and report it",
        )

    def _refused(self, given: GivenStep, words: str) -> UnsupportedError:
        return self.reference.refused(self.module, given.first_arguments, words)

    def _job(self, given: GivenStep) -> Job:
        """Return the check of the plain step on what the first replica begins with."""
        return Job(
            self.module,
            given.first_arguments,
            self.reference,
            plain_options(self.options),
            self.given.limits.values,
        )

    def _elements(self, count: int, seed: int) -> Elements:
        """Return `count` elements of every feed: of its file, or drawn."""
        elements = {}
        for queue in seen_by_users(self.program.program).queues:
            if not queue.to_device:
                continue
            path = self.given.session.infeeds.get(queue.name)
            elements[queue.name] = (
                self._drawn(queue, count, seed) if path is None
                else self._of_file(queue, path, count, seed)
            )  # fmt: skip
        return elements

    def _drawn(self, queue: Queue, count: int, seed: int) -> list[tuple[Array, ...]]:
        rows = []
        for number in range(min(count, _DRAWN)):
            leaves = flat(random_arguments(self.module, (seed + 1) * _DRAWN + number))
            rows.append(tuple(leaves[place] for place in queue.places))
        return [rows[n % len(rows)] for n in range(count)]

    def _of_file(self, queue: Queue, path: str, count: int, seed: int) -> list[tuple[Array, ...]]:
        """Return elements of a file; StreamError E2020 where it has fewer."""
        spec = spec_of_queue(queue)
        source = source_of_file(queue, path, self.given.session.repeats, seed)
        intake, types = Intake(spec, queue.name), [leaf.element_type for leaf in spec.leaves]
        rows = []
        for number, element in enumerate(islice(source.elements(), count)):
            stored = intake.to_storage(element, number)
            rows.append(tuple(map(from_storage, stored, types)))
        if len(rows) < count:
            raise ended(queue.name, len(rows), count)
        return rows


def plain_options(options: Options) -> Options:
    """Return options under which the plain step is compiled for the same machine."""
    fixed = {name: getattr(options, name) for name in OPTIONS if name in _KEPT}
    return Options(**fixed, over_memory="allow")
