"""Kinds of mutants of barriers, of element types, and of what variables are for."""

import random
from dataclasses import fields, replace

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.program.program import Program, Role, Variable
from hloipu_runtime.program.steps import (
    ComputeSet,
    Step,
    Sync,
    VertexGroup,
)
from tools.prove_exchanges.editing import with_steps
from tools.prove_exchanges.places import Subject, Tamper, drawn, put, step_replaced

NARROWER = {
    "f64": "f32", "f32": "bf16", "f16": "f8e5m2", "bf16": "f8e4m3fn", "c128": "c64",
    "s64": "s32", "s32": "s16", "s16": "s8", "u64": "u32", "u32": "u16", "u16": "u8",
}  # fmt: skip


def sync_moved(subject: Subject, rng: random.Random) -> Program | None:
    """Have a sync come one step later, or before the step in front of it."""
    place = drawn(subject.steps(Sync), rng)
    if place is None:
        return None
    steps: list[Step] = list(place.block.steps)
    target = place.step + rng.choice((1, -1))
    if not 0 <= target < len(steps):
        return None
    steps.insert(target, steps.pop(place.step))
    return with_steps(subject.program, place.block.path, tuple(steps))


def sync_lowered(subject: Subject, rng: random.Random) -> Program | None:
    """Have fewer IPUs meet."""
    places = [x for x in subject.steps(Sync) if isinstance(x.there, Sync) and x.there.ipus > 1]
    place = drawn(places, rng)
    if place is None:
        return None
    assert isinstance(place.there, Sync)
    fewer = Sync(rng.randrange(1, place.there.ipus))
    return step_replaced(subject, place.block.path, place.step, fewer)


def type_narrowed(subject: Subject, rng: random.Random) -> Program | None:
    """Have a variable, and maybe the values that it holds, elements of fewer bits."""
    number = rng.randrange(len(subject.program.variables))
    variable = subject.variable(number)
    if variable.element_type not in NARROWER or number in subject.program.constants:
        return None
    changed = _with_variable(
        subject.program, number, replace(variable, element_type=NARROWER[variable.element_type])
    )
    return _values_narrowed(changed, {number}) if rng.random() < 0.5 else changed


def partials_narrowed(subject: Subject, rng: random.Random) -> Program | None:
    """Have a codelet make elements of fewer bits, and its results be of these."""
    groups = []
    for place in subject.groups:
        step = place.block.steps[place.step]
        if isinstance(step, ComputeSet) and _narrowed(step.groups[place.group].codelet):
            groups.append((place, step, step.groups[place.group]))
    chosen = drawn(groups, rng)
    if chosen is None:
        return None
    place, step, group = chosen
    program = _with_codelet(subject, place.block.path, place.step, place.group, step, group)
    if rng.random() < 0.3:
        return program
    targets = {x.variable for x in group.outputs}
    for number in targets:
        x = program.variables[number]
        kind = NARROWER.get(x.element_type, x.element_type)
        program = _with_variable(program, number, replace(x, element_type=kind))
    return _values_narrowed(program, targets)


def role_changed(*roles: Role) -> Tamper:
    """Return the kind that gives variables of some roles another one."""

    def tamper(subject: Subject, rng: random.Random) -> Program | None:
        places = [
            number
            for number, variable in enumerate(subject.program.variables)
            if variable.role in roles and _is_told(subject, variable)
        ]
        number = drawn(places, rng)
        if number is None:
            return None
        variable = subject.variable(number)
        other = rng.choice([role for role in Role if role is not variable.role])
        return _with_variable(subject.program, number, replace(variable, role=other))

    return tamper


def _is_told(subject: Subject, x: Variable) -> bool:
    """Whether anything but its own role tells what a variable is for.

    Tiles are set apart by there being buffers on them: the only one may as well be none.
    """
    buffers = [v for v in subject.program.variables if v.role is Role.BUFFER and v.ipu == x.ipu]
    return x.role is not Role.BUFFER or len(buffers) > 1


def _with_variable(program: Program, number: int, x: Variable) -> Program:
    return replace(program, variables=put(program.variables, number, x))


def _values_narrowed(program: Program, variables: set[int]) -> Program:
    """Return the program with the values that vertices leave in some variables as these are."""
    values = list(program.values)
    subject = Subject("", program, 0)
    for place in subject.groups:
        step = place.block.steps[place.step]
        assert isinstance(step, ComputeSet)
        group = step.groups[place.group]
        for operand, value in zip(group.outputs, group.writes, strict=True):
            if operand.variable in variables:
                kind = program.variables[operand.variable].element_type
                values[value] = replace(values[value], element_type=kind)
    return replace(program, values=tuple(values))


def _with_codelet(
    subject: Subject,
    path: tuple[int, ...],
    number: int,
    which: int,
    step: ComputeSet,
    group: VertexGroup,
) -> Program:
    codelet = _narrowed(group.codelet)
    assert codelet is not None
    groups = put(step.groups, which, replace(group, codelet=codelet))
    return step_replaced(subject, path, number, ComputeSet(groups))


def _narrowed(codelet: Codelet) -> Codelet | None:
    """Return a codelet whose own types are narrower, where it has any."""
    for field in fields(codelet):
        kinds = getattr(codelet, field.name)
        if field.name == "element_type" and kinds in NARROWER:
            return replace(codelet, **{field.name: NARROWER[kinds]})
        if field.name == "element_types" and any(x in NARROWER for x in kinds):
            narrow = tuple(NARROWER.get(x, x) for x in kinds)
            return replace(codelet, **{field.name: narrow})
    return None
