"""Texts whose ops are annotated with IPUs drawn at random, in every computation that runs."""

import re
from collections.abc import Iterator
from random import Random

from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import ComputeSet, Exchange, Pipeline, Step, inner_steps

_OP = re.compile(r"^(  (?:ROOT )?%?[\w.-]+ = .*? )([a-z-]+)(\(.*)$")
_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.-]+)[^=]*\{$")
_APPLIED = re.compile(r"to_apply=%?([\w.-]+)")
_STATED = re.compile(r"^  (?:ROOT )?%?([\w.-]+) = .*? ([a-z-]+)\(.*(?:device=|ipu_shard=\")(\d+)")
_VIEWS = ("transpose", "reshape", "broadcast", "slice")
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


def ipus_stated(text: str) -> dict[str, int]:
    """Return the IPU that each op states, of a text that `annotated` made.

    Views are left out: what reads them takes them in.
    """
    found = (_STATED.match(line) for line in text.splitlines())
    return {op[1]: int(op[3]) for op in found if op and op[2] not in _VIEWS}


def pipelines(program: Program) -> list[Pipeline]:
    """Return the pipelines of a program."""
    return [step for step in _steps(program.body) if isinstance(step, Pipeline)]


def ipus_of_micro_batches(program: Program) -> dict[str, set[int]]:
    """Return the IPUs on which each op of a pipeline's positions computes, by its name."""
    found: dict[str, set[int]] = {}
    for stage in (stage for each in pipelines(program) for stage in each.stages):
        for step in _steps(stage.body):
            for group in step.groups if isinstance(step, ComputeSet) else ():
                ipus = found.setdefault(group.name, set())
                ipus.update(program.variables[x.variable].ipu for x in group.outputs)
    return found


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
    for each in inner_steps(step):
        yield from _steps(each)
