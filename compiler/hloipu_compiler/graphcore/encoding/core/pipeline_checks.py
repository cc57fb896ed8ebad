"""Checks of Graphcore's pipelines before they are read.

The rules are those of its verifier and of the passes before it (graphcore/tensorflow:
tensorflow/compiler/plugin/poplar/driver/passes/pipeline_verifier.cc, pipeline_fixer.cc and
driver/tools/pipeline_util.cc). Backward stages may be missing at both ends: gradients that stand
loose between calls are found by what they read.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hloipu_compiler.analysis.feed_config import feed_config
from hloipu_compiler.graphcore.encoding.core import errors
from hloipu_compiler.graphcore.encoding.core.call_config import BACKWARD, RECOMPUTATION, STAGE
from hloipu_compiler.graphcore.encoding.core.custom_ops import MOVES, target_of
from hloipu_compiler.graphcore.encoding.core.devices import EVERY, devices_of
from hloipu_compiler.graphcore.encoding.core.errors import PoplarError
from hloipu_compiler.graphcore.encoding.core.survey import ConfiguredCall, Survey
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_runtime.reached import reached

_EFFECTS = frozenset({"send", "recv", "send-done", "recv-done"})
_PASSING = frozenset({"get-tuple-element", "copy", "tuple"})


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a pipeline, checked."""

    computation: Computation
    """In which their calls stand."""
    forward: tuple[ConfiguredCall, ...]
    backward: Mapping[int, ConfiguredCall]
    again: Mapping[int, ConfiguredCall]
    """Those that make a forward stage's values again."""
    devices: tuple[tuple[int, ...], ...]
    """Of each forward stage, as the text numbers them; several run its branches at once."""
    parts: int = 1
    """Parts in which a stage takes each micro-batch, one after the other."""
    returns: Mapping[int, int] = field(default_factory=dict)
    """Where nothing is updated: numbers of backward stages -> of the stages that they are then."""

    @property
    def count(self) -> int:
        """Forward stages, and others where nothing is updated."""
        return len(self.forward) + len(self.returns)


def checked_stages(module: Module, survey: Survey) -> Stages:
    """Return a pipeline's stages in their order.

    Raises PoplarError: E0543 for stages that are not numbered from 0 on or do not go together,
    E0544 for values, parameters, queues or effects where none may be, E0548 for micro-batches
    taken in parts on another schedule than the sequential one, and for stages within stages that
    are no branches.
    """
    pipeline = survey.pipeline
    if pipeline is None:
        first = (survey.stages[0] if survey.stages else survey.update) or survey.loops[0]
        raise _wrong(f"{first.call.name!r} is part of a pipeline, and no call is one", first.call)
    if not survey.stages:
        raise _wrong(f"pipeline {pipeline.call.name!r} has no stages", pipeline.call)
    parts = pipeline.config.count("PIPELINE_BATCH_SERIALIZATION_ITERATIONS", 1) or 1
    if parts > 1 and pipeline.config.choices.get("PIPELINE_SCHEDULE") != "Sequential":
        raise errors.SCHEDULE(
            f"pipeline {pipeline.call.name!r} takes each batch in {parts} parts, and its schedule "
            "is not sequential",
            hint='set PIPELINE_SCHEDULE to "2", or PIPELINE_BATCH_SERIALIZATION_ITERATIONS to 1',
            op=pipeline.call,
        )
    outermost, branches = _branches(survey.stages)
    by_kind: dict[str, dict[int, ConfiguredCall]] = {STAGE: {}, BACKWARD: {}, RECOMPUTATION: {}}
    for stage in outermost:
        _check_place(outermost[0], stage)
        number = stage.config.count("PIPELINE_STAGE_ID")
        known = by_kind[stage.config.type].setdefault(number, stage)
        if known is not stage:
            message = f"{known.call.name!r} and {stage.call.name!r} are both stage {number}"
            raise _wrong(message, stage.call)
    forward, backward = by_kind[STAGE], by_kind[BACKWARD]
    _check_numbers(forward, backward, by_kind[RECOMPUTATION])
    ordered = tuple(forward[number] for number in range(len(forward)))
    returns = {} if survey.updates else _returning(len(ordered), backward)
    unordered = [] if returns else [*backward.values(), *by_kind[RECOMPUTATION].values()]
    devices = _devices(ordered, unordered, branches)
    again = by_kind[RECOMPUTATION]
    devices += tuple(
        _stated_devices(backward[number], branches) or devices[number] for number in returns
    )
    stages = Stages(ordered[0].computation, ordered, backward, again, devices, parts, returns)
    _check_values(stages)
    _check_parameters(stages)
    _check_effects(module, stages)
    return stages


def _returning(count: int, backward: Mapping[int, ConfiguredCall]) -> dict[int, int]:
    """Return backward stages as the stages that follow so many, in the order in which they run."""
    return {number: count + n for n, number in enumerate(sorted(backward, reverse=True))}


def _wrong(message: str, call: Instruction) -> PoplarError:
    return errors.PIPELINE(
        message,
        hint="number forward stages from 0 without gaps in the order of the data, give backward "
        "stages the numbers of theirs, and a pipeline that trains one ResourceUpdate call",
        op=call,
    )


def _branches(
    stages: Sequence[ConfiguredCall],
) -> tuple[list[ConfiguredCall], dict[str, list[ConfiguredCall]]]:
    """Return the stages of a pipeline, and those that stand within each, by its call's name."""
    callers = {name: stage.call.name for stage in stages for name in stage.call.attributes.called}
    outermost: list[ConfiguredCall] = []
    within: dict[str, list[ConfiguredCall]] = {}
    for stage in stages:
        outer = callers.get(stage.computation.name)
        if outer is None:
            outermost.append(stage)
        else:
            within.setdefault(outer, []).append(stage)
    for outer, inner in within.items():
        numbers = sorted(stage.config.count("PIPELINE_STAGE_ID") for stage in inner)
        if numbers != list(range(len(inner))) or any(
            branch.call.name in within for branch in inner
        ):
            raise errors.SCHEDULE(
                f"{inner[0].call.name!r} is a stage within the stage {outer!r}, and not one of its "
                "branches, numbered from 0",
                hint="number the stages within a stage from 0 without gaps, on a device each",
                op=inner[0].call,
            )
    return outermost, within


def _check_place(first: ConfiguredCall, stage: ConfiguredCall) -> None:
    """Raise where a stage stands elsewhere than the first."""
    if stage.computation.name != first.computation.name:
        raise _wrong(
            f"{stage.call.name!r} and {first.call.name!r} are stages of one pipeline, and stand in "
            "different computations",
            stage.call,
        )


def _check_numbers(
    forward: Mapping[int, ConfiguredCall],
    backward: Mapping[int, ConfiguredCall],
    again: Mapping[int, ConfiguredCall],
) -> None:
    if not forward:
        call = next(iter({**backward, **again}.values())).call
        raise _wrong(f"{call.name!r} goes backward, and no stage goes forward", call)
    count = len(forward)
    if max(forward) != count - 1:
        missing = min(set(range(max(forward))) - set(forward))
        last = forward[max(forward)].call
        message = f"{last.name!r} is stage {max(forward)}, and no stage is number {missing}"
        raise _wrong(message, last)
    for number in range(1, count):
        computation = forward[number].computation
        at = [computation.position[forward[n].call.name] for n in (number - 1, number)]
        if at[0] > at[1]:
            raise _wrong(
                f"{forward[number].call.name!r} is stage {number}, and stands before stage "
                f"{number - 1}, {forward[number - 1].call.name!r}",
                forward[number].call,
            )
    for number, stage in sorted({**again, **backward}.items()):
        if number >= count:
            message = f"{stage.call.name!r} goes backward for stage {number}, of {count} stages"
            raise _wrong(message, stage.call)
    gaps = set(range(min(backward, default=0), max(backward, default=0))) - set(backward)
    if gaps:
        message = f"no call goes backward for stage {min(gaps)}, and calls for others do"
        raise _wrong(message, backward[max(backward)].call)


def _devices(
    forward: Sequence[ConfiguredCall],
    unordered: Sequence[ConfiguredCall],
    branches: Mapping[str, list[ConfiguredCall]],
) -> tuple[tuple[int, ...], ...]:
    """Return the devices of each stage: as the calls say, or one after the other."""
    stated_devices = [_stated_devices(stage, branches) for stage in forward]
    for stage in (*forward, *unordered):
        own_devices = _stated_devices(stage, branches)
        number = stage.config.count("PIPELINE_STAGE_ID")
        is_whole = len(own_devices) <= 1 or stage.call.name in branches
        if not is_whole or (
            own_devices
            and stated_devices[number]
            and set(own_devices) != set(stated_devices[number])
        ):
            raise errors.STAGE(
                f"stage {number}, {stage.call.name!r}, is on devices "
                f"{', '.join(map(str, sorted({*own_devices, *stated_devices[number]})))}",
                hint="give the calls of a stage one sharding={maximal device=N}",
                op=stage.call,
            )
    if not any(stated_devices):
        return tuple((n,) for n in range(len(forward)))
    unsaid = [
        stage.call
        for stage, own_devices in zip(forward, stated_devices, strict=True)
        if not own_devices
    ]
    if unsaid:
        raise errors.STAGE(
            f"stage {unsaid[0].name!r} has no device, and others have",
            hint="give every stage sharding={maximal device=N}, or none",
            op=unsaid[0],
        )
    return tuple(stated_devices)


def _stated_devices(
    stage: ConfiguredCall, branches: Mapping[str, list[ConfiguredCall]]
) -> tuple[int, ...]:
    """Return the devices of a stage, or of its branches in their order."""
    inner = branches.get(stage.call.name)
    if inner is None:
        return devices_of(stage.call)
    ordered = sorted(inner, key=lambda branch: branch.config.count("PIPELINE_STAGE_ID"))
    devices_by_branch = [devices_of(branch.call) for branch in ordered]
    if any(len(devices) != 1 or devices[0] == EVERY for devices in devices_by_branch):
        raise errors.STAGE(
            f"the branches of stage {stage.call.name!r} are on no device each",
            hint="give every stage within it sharding={maximal device=N}",
            op=stage.call,
        )
    return tuple(devices[0] for devices in devices_by_branch)


def _check_values(stages: Stages) -> None:
    """Raise where a stage's value skips the stages between."""
    computation = stages.computation
    origin: dict[int, frozenset[str]] = {}
    owners = _owners(stages)
    for position, instruction in enumerate(computation.instructions):
        stage_names = frozenset().union(*(origin.get(i, frozenset()) for i in instruction.operands))
        if instruction.name in owners:
            for name in sorted(stage_names):
                if not _may_pass(owners[name], owners[instruction.name]):
                    raise errors.STAGE(
                        f"stage {instruction.name!r} reads what stage {name!r} makes, and does not "
                        "follow it",
                        hint="hand the value on through the stages between, as an output of each",
                        op=instruction,
                    )
            origin[position] = frozenset((instruction.name,))
        elif instruction.opcode in _PASSING or target_of(instruction) in MOVES:
            origin[position] = stage_names


Owner = tuple[str, int]
"""Kind and number of a stage."""


def _owners(stages: Stages) -> dict[str, Owner]:
    owner_by_call = {stage.call.name: (STAGE, n) for n, stage in enumerate(stages.forward)}
    owner_by_call |= {stage.call.name: (BACKWARD, n) for n, stage in stages.backward.items()}
    return owner_by_call | {
        stage.call.name: (RECOMPUTATION, n) for n, stage in stages.again.items()
    }


def _may_pass(maker: Owner, reader: Owner) -> bool:
    kind, number = maker
    reader_kind, place = reader
    if kind == BACKWARD:
        return reader_kind == BACKWARD and place in (number, number - 1)
    if kind == RECOMPUTATION:
        return reader_kind == BACKWARD and place == number
    return place in ((number, number + 1) if reader_kind != BACKWARD else (number,))


def _check_parameters(stages: Stages) -> None:
    """Raise where stages on different devices read one parameter."""
    computation = stages.computation
    numbers = {stage.call.name: n for n, stage in enumerate(stages.forward)}
    for position in computation.parameters:
        readers = [
            numbers[computation.instructions[user].name]
            for user in computation.users[position]
            if computation.instructions[user].name in numbers
        ]
        if len({frozenset(stages.devices[n]) for n in readers}) > 1:
            name = computation.instructions[position].name
            raise errors.STAGE(
                f"stages {', '.join(map(str, readers))} read the pipeline's parameter {name!r}, "
                "and are on different devices",
                hint="put them on one device, or hand the value on from stage to stage",
                op=computation.instructions[position],
            )


def _check_effects(module: Module, stages: Stages) -> None:
    """Raise for a queue that two stages read, and for effects between the stages."""
    for instruction in stages.computation.instructions:
        if instruction.opcode in _EFFECTS or (
            instruction.attributes.flag("custom_call_has_side_effect")
            and not target_of(instruction)
        ):
            raise errors.STAGE(
                f"{instruction.name!r} ({instruction.opcode}) stands between the stages of a "
                "pipeline",
                hint="put it into the stage that needs it",
                op=instruction,
            )
    _check_hoisted(stages)
    readers: dict[str, ConfiguredCall] = {}
    for stage in stages.forward:
        for instruction in _within(module, stage.call):
            if instruction.opcode == "infeed":
                name = feed_config(instruction.attributes.text("infeed_config")).name
                known = readers.setdefault(name, stage)
                if known is not stage:
                    raise errors.STAGE(
                        f"stages {known.call.name!r} and {stage.call.name!r} both read the queue "
                        f"{name!r}",
                        hint="read it in one stage, and hand its values on",
                        op=instruction,
                    )


def _check_hoisted(stages: Stages) -> None:
    """Raise for a queue between the stages that several of them read."""
    computation = stages.computation
    numbers = {stage.call.name: n for n, stage in enumerate(stages.forward)}
    source: dict[int, int] = {}
    readers: dict[int, int] = {}
    for position, instruction in enumerate(computation.instructions):
        if instruction.opcode == "infeed":
            source[position] = position
        elif (
            instruction.opcode in _PASSING
            and instruction.operands
            and instruction.operands[0] in source
        ):
            source[position] = source[instruction.operands[0]]
        elif instruction.name in numbers:
            for queue in {source[i] for i in instruction.operands if i in source}:
                known = readers.setdefault(queue, numbers[instruction.name])
                if known != numbers[instruction.name]:
                    raise errors.STAGE(
                        f"stages {known} and {numbers[instruction.name]} both read the queue of "
                        f"{computation.instructions[queue].name!r}",
                        hint="read it in one stage, and hand its values on",
                        op=instruction,
                    )


def _within(module: Module, call: Instruction) -> Iterator[Instruction]:
    for name in reached(call.attributes.called, lambda name: module.computation[name].called):
        yield from module.computation[name].instructions
