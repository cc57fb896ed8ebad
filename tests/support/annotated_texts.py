"""Texts whose ops are annotated with IPUs drawn at random, in every computation that runs."""

import re
from collections.abc import Iterator
from random import Random

from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import (
    Exchange,
    If,
    Repeat,
    RepeatWhile,
    Sequence,
    Step,
    Switch,
)

_OP = re.compile(r"^(  (?:ROOT )?%?[\w.-]+ = .*? )([a-z-]+)(\(.*)$")
_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.-]+)[^=]*\{$")
_APPLIED = re.compile(r"to_apply=%?([\w.-]+)")
_SILENT = ("parameter", "constant", "tuple", "get-tuple-element")


def annotated(text: str, draw: Random, ipus: int, share: float) -> str:
    """Return HLO text in which about a share of the ops states one of some IPUs."""
    calls = [line for line in text.splitlines() if " call(" not in line]
    applied = {name for line in calls for name in _APPLIED.findall(line)}
    found, inside = [], ""
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            inside = head[1]
        op = _OP.match(line)
        if op and inside not in applied and op[2] not in _SILENT and draw.random() < share:
            ipu = draw.randrange(ipus)
            form = draw.choice(
                (f"sharding={{maximal device={ipu}}}", f'frontend_attributes={{ipu_shard="{ipu}"}}')
            )
            if op[2] not in ("while", "conditional", "call", "fusion") or "=(" not in line:
                line = f"{line}, {form}"
        found.append(line)
    return "\n".join(found)


def crossings(program: Program, step: Step | None = None) -> list[tuple[int, int]]:
    """Return (value, IPU that it goes to) of all transfers between IPUs, each as often as it is."""
    variables = program.variables
    return [
        (transfer.value, variables[transfer.destination].ipu)
        for each in _steps(program.body if step is None else step)
        if isinstance(each, Exchange)
        for transfer in each.transfers
        if variables[transfer.source].ipu != variables[transfer.destination].ipu
    ]


def _steps(step: Step) -> Iterator[Step]:
    yield step
    match step:
        case Sequence():
            inner = step.steps
        case Repeat():
            inner = (step.body,)
        case RepeatWhile():
            inner = (step.condition, step.body)
        case If() | Switch():
            inner = step.branches
        case _:
            inner = ()
    for each in inner:
        yield from _steps(each)
