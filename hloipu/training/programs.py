"""Programs of a trainer: a training step and forward steps, for any number of iterations."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from hloipu.api import compile as compile_hlo
from hloipu.api import settled
from hloipu.encoded import read_encoded
from hloipu.step_elements import OF_CUTTING, elements_per_step
from hloipu.text import HloInput, read_source
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes.remove_annotations import annotations_removed
from hloipu_compiler.plan.entry_arrays import parameter_arrays, result_arrays
from hloipu_compiler.plan.roles import wrapping_of
from hloipu_compiler.plan.wrapping import EntryArray, WrappingRequest
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import UsageError
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.seen import number_of, seen_by_users
from hloipu_runtime.session.queues import spec_of_queue
from hloipu_runtime.streams.element import ElementSpec, LeafSpec

StepInput = HloInput | CompiledProgram
Feeds = Mapping[str, Sequence[int]]
Metrics = Sequence[str] | Mapping[str, int]

DATA = "data"
"""The feed of all parameters that are neither state nor constants, unless feeds are named."""

_NUMBERED = re.compile(r"(\.\d+|#\d+)+$")


class StateArray(NamedTuple):
    """An array of the training's state."""

    number: int
    """Of the parameter."""
    name: str
    kind: tuple[str, tuple[int, ...]]
    """Type and shape."""


@dataclass(frozen=True)
class StepPrograms:
    """A step in a loop: compiled for each number of iterations, or fixed."""

    feeds: Mapping[str, ElementSpec]
    metrics: tuple[str, ...]
    """The names of the outfeeds."""
    text: str | Path = ""
    """What to compile; empty: `fixed` it is."""
    options: Mapping[str, Any] = field(default_factory=dict)
    fixed: CompiledProgram | None = None
    state: tuple[StateArray, ...] = ()
    """What stays on the device, in the order of the parameters."""
    weights: Mapping[int, str] = field(default_factory=dict)
    """Of a forward step: parameter -> name of the state that it takes."""
    is_cut: bool = False
    """Whether the text itself says that a step takes several elements."""
    _made: dict[int, CompiledProgram] = field(default_factory=dict)
    _settled: dict[str, Any] = field(default_factory=dict)
    """The options, with the best way to cut the step where that was asked for."""

    def program(self, steps: int) -> CompiledProgram:
        """Return the program with that many steps in a run, or whose steps divide it.

        Raises UsageError E3170 where a compiled program does another number.
        """
        if self.fixed is not None:
            in_a_run = self.fixed.program.steps_per_run
            if steps % in_a_run:
                raise UsageError(
                    "E3170",
                    f"{steps} steps are asked for; the program does {in_a_run} in a run",
                    hint=f"ask for a multiple of {in_a_run}, or give the trainer the HLO",
                )
            return self.fixed
        if steps not in self._made:
            if not self._settled:  # one way to cut the step, however many steps a run has
                self._settled.update(settled(self.text, {**self.options, "loop": steps}))
            options = {**self._settled, "loop": steps}
            self._made[steps] = compile_hlo(self.text, **options)
        return self._made[steps]

    def elements_per_step(self, steps: int | None) -> int:
        """Return how many elements of each feed a step takes: micro-batches times replicas.

        Where options leave that open, the program of `steps` steps tells, or of one.
        """
        is_cut = self.is_cut or not OF_CUTTING.isdisjoint(self.options)
        if self.fixed is None and not is_cut:
            return 1
        program = self.program(steps or 1) if self.fixed is None else self.fixed
        elements_by_queue = elements_per_step(program.program)
        return max((elements_by_queue.get(name, 1) for name in self.feeds), default=1)


def training_programs(
    step: StepInput, feeds: Feeds | None, metrics: Metrics | None, options: Mapping[str, Any]
) -> StepPrograms:
    """Return the programs of a training step.

    Raises what `hloipu.parse` raises, UsageError E3150 to E3152 where roles are not clear or feeds
    and metrics not those of the step, E3172 for a compiled program that has no loop and queues.
    """
    if isinstance(step, CompiledProgram):
        return _fixed(step)
    text, module = _read(step)
    roles = dict(options.get("role", {}))
    asked = {name: tuple(numbers) for name, numbers in (feeds or {}).items()}
    request = WrappingRequest(1, roles, asked)
    module, encoded = read_encoded(module, options)
    if encoded is not None:
        module, stated = encoded.module, encoded.stated
        if not stated.is_encoded:  # the loop of the text is the trainer's now
            from hloipu_compiler.hlo.printing.printer import print_module

            text = print_module(module)
        module = annotations_removed(module)
        request = replace(stated.wrapping(request), loop=1)
    wrapping = wrapping_of(module, request)
    if wrapping is None or not (asked or wrapping.feeds):
        asked = {DATA: wrapping.constants if wrapping else ()}
    asked |= {queue.name: queue.places for queue in (wrapping.feeds if wrapping else ())}
    outfeeds = wrapping.outfeeds if wrapping else ()
    unkept_results = [place for queue in outfeeds for place in queue.places]
    unkept_results += wrapping.results if wrapping else ()
    if encoded is not None and metrics is None:
        named = {queue.name: queue.places for queue in outfeeds}
    else:
        named = {name: (n,) for name, n in named_metrics(metrics, unkept_results).items()}
    programs = _looped(text, module, asked, named, options)
    kinds = {x.number: x.kind for x in parameter_arrays(module)}
    state = tuple(
        StateArray(x.parameter, x.name, kinds[x.parameter])
        for x in (wrapping.state if wrapping else ())
    )
    is_cut = encoded is not None and encoded.stated.micro_batches > 1
    return replace(programs, state=state, is_cut=is_cut)


def forward_programs(
    step: StepInput,
    state: Sequence[StateArray],
    metrics: Metrics | None,
    options: Mapping[str, Any],
) -> StepPrograms:
    """Return the programs of a step that takes weights and data, and changes no state.

    Its parameters are matched with the state by name and shape, or where no name matches, by
    order; what is left is data. Raises UsageError E3171 where nothing matches.
    """
    if isinstance(step, CompiledProgram):
        compiled = _fixed(step)
        wanted = _constants(step.program)
        return StepPrograms(
            compiled.feeds,
            compiled.metrics,
            fixed=step,
            weights=_matched(wanted, state, needs_all=True),
        )
    text, module = _read(step)
    parameters = parameter_arrays(module)
    weights = _matched(parameters, state, needs_all=False)
    data = tuple(x.number for x in parameters if x.number not in weights)
    roles = {str(number): "const" for number in weights}
    results = [x.number for x in result_arrays(module) if x.element_type != "token"]
    named = {name: (n,) for name, n in named_metrics(metrics, results).items()}
    plain = {key: value for key, value in options.items() if key not in OF_CUTTING}
    programs = _looped(text, module, {DATA: data}, named, {**plain, "role": roles})
    return StepPrograms(
        programs.feeds, programs.metrics, programs.text, programs.options, weights=weights
    )


def named_metrics(metrics: Metrics | None, results: Sequence[int]) -> dict[str, int]:
    """Return the result of each metric; names in a row are those of the results in order.

    One that is not named is the `loss` where it is the only one, else `result.N`.
    """
    if isinstance(metrics, Mapping):
        return dict(metrics)
    names = list(metrics or (("loss",) if len(results) == 1 else ()))
    if len(names) > len(results):
        raise UsageError(
            "E3151",
            f"{len(names)} metrics are named; {len(results)} results are left for them",
            hint="give one name for each of them, or {name: number of the result}",
        )
    names += [f"result.{number}" for number in results[len(names) :]]
    return dict(zip(names, results, strict=True))


def _state_of(program: Program) -> tuple[StateArray, ...]:
    """Return the parameters that a program keeps, in order."""
    state = seen_by_users(program).state
    ports = sorted((x for x in state if x.parameter >= 0), key=lambda x: x.parameter)
    return tuple(StateArray(x.parameter, x.name, (x.element_type, x.shape)) for x in ports)


def _read(step: HloInput) -> tuple[str | Path, Module]:
    source = read_source(step)
    # The name of a file is kept for errors; another input can be read but once.
    is_path = isinstance(step, Path) or (isinstance(step, str) and "\n" not in step)
    return (step if is_path else source.text), parse(source)  # type: ignore[return-value]


def _fixed(program: CompiledProgram) -> StepPrograms:
    user_view = seen_by_users(program.program)
    queues = user_view.queues
    feeds = {queue.name: spec_of_queue(queue) for queue in queues if queue.to_device}
    if not program.program.is_resident or not queues:
        raise UsageError(
            "E3172",
            f"{program.program.name!r} has no queues: a trainer cannot feed it",
            hint="compile the step with loop=, feed= and outfeed=, or give the trainer the HLO",
        )
    if user_view.results:
        raise UsageError(
            "E3172",
            f"{program.program.name!r} gives {len(user_view.results)} results of its last step "
            "alone, which a trainer does not see",
            hint="compile the step with outfeed=, or give the trainer the HLO",
        )
    metrics = tuple(queue.name for queue in queues if not queue.to_device)
    return StepPrograms(feeds, metrics, fixed=program, state=_state_of(program.program))


def _looped(
    text: str | Path,
    module: Module,
    feeds: Feeds,
    metrics: Mapping[str, tuple[int, ...]],
    options: Mapping[str, Any],
) -> StepPrograms:
    """Return the programs of HLO whose queues are settled."""
    parameters = parameter_arrays(module)
    feeds = {name: tuple(numbers) for name, numbers in feeds.items() if numbers}
    wrapped = {
        **options,
        "feed": feeds,
        "outfeed": tuple(
            f"{name}={','.join(map(str, numbers))}" for name, numbers in metrics.items()
        ),
    }
    specs = {
        name: ElementSpec(
            tuple(LeafSpec(*parameters[n].kind) for n in numbers if n < len(parameters)),
            names=tuple(parameters[n].name for n in numbers if n < len(parameters)),
        )
        for name, numbers in feeds.items()
    }
    return StepPrograms(specs, tuple(metrics), text, wrapped)


def _constants(program: Program) -> list[EntryArray]:
    return [
        EntryArray(number_of(p), p.element_type, p.shape, p.stream)
        for p in seen_by_users(program).parameters
    ]


def _matched(
    wanted: Sequence[EntryArray], state: Sequence[StateArray], *, needs_all: bool
) -> dict[int, str]:
    """Return the state of each parameter that is a weight; `needs_all`: all are."""
    by_name = {(_plain(kept_state.name), kept_state.kind): kept_state.name for kept_state in state}
    names = {
        parameter.number: by_name[key]
        for parameter in wanted
        if (key := (_plain(parameter.name), parameter.kind)) in by_name
    }
    if not names:
        for parameter, kept_state in zip(wanted, state, strict=False):
            if parameter.kind != kept_state.kind:
                break
            names[parameter.number] = kept_state.name
    if (needs_all and len(names) < len(wanted)) or (not names and state):
        odd = next((parameter for parameter in wanted if parameter.number not in names), None)
        raise UsageError(
            "E3171",
            f"parameter {odd} is like no array of the training's state, neither by name nor "
            "by order",
            hint="name its arguments as those of the training step, or put the weights first",
        )
    return names


def _plain(name: str) -> str:
    """Return a parameter's name without the numbers that printers append."""
    return _NUMBERED.sub("", name)
