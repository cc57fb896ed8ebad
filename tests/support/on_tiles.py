"""Running HLO text on modelled tiles, in both modes, after the program was proved."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.lowering.core.lowering import lower
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.kernels.core.storage import to_storage
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.proof.verify import verify
from hloipu_runtime.simulate.exact.exact import ExactEngine
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from hloipu_runtime.simulate.run.host import Arrays

Array = np.ndarray[Any, Any]
Given = tuple[str, dict[str, str]]

MACHINES: tuple[Given, ...] = (("tiny", {}), ("tiny", {"tiles_per_ipu": "7"}), ("gc200", {}))


def programs_of(text: str, machines: Sequence[Given] = MACHINES) -> list[Program]:
    """Compile for each machine, without passes, and prove each program."""
    module = parse(text)
    made = []
    for name, overrides in machines:
        machine = load_machine(name, overrides)
        program = lower(module, Plan(), machine)
        verify(program, machine.chip.tiles_per_ipu)
        made.append(program)
    return made


def results_of(program: Program, *inputs: Array) -> list[list[Array]]:
    """Run in the functional mode, and in the exact one with poisoned memories."""
    kinds = [port.element_type for port in program.parameters]
    streams = {
        f"parameter.{n}": to_storage(np.asarray(x), kind)
        for n, (x, kind) in enumerate(zip(inputs, kinds, strict=True))
    }
    both = []
    for engine in (FunctionalEngine(program), ExactEngine(program, poison=True)):
        host = Arrays(dict(streams))
        engine.run(host)
        both.append([host.outputs[port.stream] for port in program.results])
    return both


def check_on_tiles(
    text: str,
    inputs: Sequence[Array],
    expected: Sequence[Array],
    *,
    relative: float = 0.0,
    absolute: float = 0.0,
    machines: Sequence[Given] = MACHINES,
) -> list[Program]:
    """Compare what both modes compute on all machines with expected values; return the programs."""
    programs = programs_of(text, machines)
    for program in programs:
        for results in results_of(program, *inputs):
            for made, wanted in zip(results, expected, strict=True):
                assert made.shape == np.shape(wanted)
                np.testing.assert_allclose(made, wanted, rtol=relative, atol=absolute)
    return programs


def groups_of(step: s.Step | Program) -> list[s.VertexGroup]:
    """Return the vertex groups of a straight program, in order."""
    if isinstance(step, Program):
        return groups_of(step.body)
    if isinstance(step, s.Sequence):
        return [group for each in step.steps for group in groups_of(each)]
    return list(step.groups) if isinstance(step, s.ComputeSet) else []
