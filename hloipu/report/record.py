"""The report's record: a profile, and facts of the compiled program."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.costs.costs import Choice, Costs, DataLoop, blocks_inside
from hloipu_runtime.costs.counting import BlockCounts, count_blocks
from hloipu_runtime.errors import UsageError
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.by_tile import liveness_record, tiles_record
from hloipu_runtime.report.links import links_record
from hloipu_runtime.report.pipeline_chart import chart
from hloipu_runtime.report.profile import Profile
from hloipu_runtime.report.step_tiles import step_tiles_record
from hloipu_runtime.report.timeline import full_timeline
from hloipu_runtime.report.verdict import verdict

SCHEMA = "hloipu.report"
VERSION = 1
_COLUMNAR = ("steps", "origins")
"""Tables of the profile with a row a step or an instruction: in columns they take half as much."""


def report_record(program: CompiledProgram, profile: Profile | None = None) -> dict[str, Any]:
    """Return the record of a program's report: of a run's `profile`, or of an estimate."""
    if profile is None:
        counts, profile = program.estimate().counts, program.profile()
    else:
        counts = counts_of(profile, program.costs)
    if not profile.findings:
        profile = replace(profile, findings=program.findings(profile))
    costs, machine = program.costs, program.machine
    record = of_profile(profile.record(), verdict(profile), chart(profile))
    record["links"] = links_record(costs, counts, program.forms)
    record["step_tiles"] = step_tiles_record(costs, counts, program.forms)
    record["timeline"] = full_timeline(costs, counts)
    record["origin_kinds"] = _cycles_by_kind(program, counts)
    record["tiles"] = tiles_record(program.memory_plan)
    record["liveness"] = liveness_record(program.memory_plan, sources=program.sources)
    record["module"] = program.describe() if program.describe else None
    record["roofs"] = _roofs(machine)
    record["outer_runs"] = _outer_runs(record)
    return record


def counts_of(profile: Profile, costs: Costs) -> BlockCounts:
    """Return how often each block of a program ran, from the profile of its runs.

    What data decided is read off the steps. A branch without steps of its own ran as often as those
    beside it leave; of several such branches the first one did. Raises UsageError E3221 where the
    profile is of another program.
    """
    if [row.path for row in profile.steps] != [step.path for step in costs.steps]:
        raise UsageError(
            "E3221",
            f"the profile of {profile.program!r} is not of this program",
            hint="give the profile of a run of the program itself",
        )

    def seen(block: int) -> int | None:
        steps = costs.blocks[block].steps
        return profile.steps[steps[0]].executions if steps else None

    def decide(inner: DataLoop | Choice, around: int) -> list[int]:
        executions = [seen(block) for block in blocks_inside(inner)]
        if isinstance(inner, DataLoop):
            turns = executions[0] - around if executions[0] is not None else 0
            return [around + turns, turns]
        left = around - sum(n for n in executions if n is not None)
        for place, count in enumerate(executions):
            if count is None:
                executions[place], left = left, 0
        return [n or 0 for n in executions]

    return count_blocks(costs, decide, profile.runs)


def of_profile(profile: Mapping[str, Any], verdict_text: str, chart_text: str) -> dict[str, Any]:
    """Return what a profile alone tells, as `--profile` writes it."""
    tables = {key: columns(profile[key]) for key in _COLUMNAR}
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "profile": {**profile, **tables},
        "verdict": verdict_text.splitlines(),
        "chart": chart_text,
    }


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return rows with the same keys as lists by key."""
    return {key: [row[key] for row in rows] for key in (rows[0] if rows else ())}


def _roofs(machine: Machine) -> dict[str, float]:
    """Return what one IPU does in a second at most: its products, and bytes that it loads or sends.

    A multiply-add is two FLOPs; `tools/bench/codegen` prices kernels against the same limits.
    """
    amp, per_second = machine.amp, machine.chip.clock_hz * machine.chip.tiles_per_ipu
    f16 = amp.f16_channels_per_group * amp.f16_to_f16_conv_units / amp.f16_position_slots
    f32 = amp.f32_channels_per_group * amp.f32_conv_units / amp.f32_position_slots
    return {
        "f16_flops": 2 * f16 * per_second,
        "f32_flops": 2 * f32 * per_second,
        "load_bytes": machine.tile.interleaved_load_bytes_per_cycle * per_second,
        "exchange_bytes": machine.exchange.receive_bytes_per_cycle * per_second,
    }


def _outer_runs(record: Mapping[str, Any]) -> dict[str, float]:
    """Return how often instructions run by what is around the module: micro-batches, its loop.

    The counts of `module` have the loops and calls of the module itself.
    """
    timeline = record["timeline"]
    known = frozenset((record["module"] or {}).get("name", ()))
    blocks, factors = timeline["blocks"], [0.0] * len(timeline["blocks"])
    factors[timeline["root"]] = timeline["runs"]
    runs_by_name: dict[str, float] = {}
    for number in range(timeline["root"], -1, -1):
        factor = factors[number]
        for entry in blocks[number]["entries"]:
            if entry >= 0:
                name = timeline["step_names"][entry]
                runs_by_name[name] = max(runs_by_name.get(name, 0), factor)
                continue
            inner = timeline["inner"][~entry]
            is_outer = inner["kind"] in ("repeat", "pipeline") and inner["name"] not in known
            for block, times in zip(inner["blocks"], inner["times"], strict=True):
                factors[block] = max(factors[block], factor * (times if is_outer else 1))
    return {name: factor for name, factor in runs_by_name.items() if factor != 1}


def _cycles_by_kind(program: CompiledProgram, counts: BlockCounts) -> dict[str, dict[str, int]]:
    """Return the cycles of each instruction by the kind of step that they are spent in."""
    cycles_by_name: dict[str, dict[str, int]] = {}
    costs = program.costs
    for number, block in enumerate(costs.blocks):
        shown = counts.shown(number)
        for place in block.steps if shown else ():
            step = costs.steps[place]
            for name, charge in step.shares:
                if charge.cycles:
                    kinds = cycles_by_name.setdefault(name, {})
                    kinds[step.kind] = kinds.get(step.kind, 0) + charge.cycles * shown
    return cycles_by_name
