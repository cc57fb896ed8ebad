"""Phases that a dump states: by attributes, or by names that tracers leave."""

from hloipu_compiler.hlo.attributes.frontend_attributes import read_frontend_attributes
from hloipu_compiler.hlo.attributes.metadata import read_metadata
from hloipu_compiler.ir.annotations import PER_MICRO_BATCH
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.partition.training.errors import StagingError

PHASES = ("fwd", "bwd", "wu")
_BACKWARD_NAMES = ("transpose(", "gradient_tape/", "/gradients/")
"""JAX writes transpose(jvp(...)) into names of what it differentiates, TensorFlow the others."""


def marked_phases(computation: Computation) -> dict[int, str]:
    """Return the phase of each position that an attribute or a name gives one.

    Raises StagingError E0519 for an attribute that names no phase.
    """
    phase_of: dict[int, str] = {}
    for position, op in enumerate(computation.instructions):
        phase = _attribute(op) or _from_name(op)
        if phase:
            phase_of[position] = phase
    return phase_of


def names_backward_ops(computation: Computation) -> bool:
    """Whether the names that tracers leave tell which ops are backward."""
    return any(_from_name(op) for op in computation.instructions)


def marked_stages(computation: Computation) -> dict[int, int]:
    """Return the stage of every op whose attribute `ipu_stage` says so; as `stated_number`."""
    stage_of: dict[int, int] = {}
    for position, op in enumerate(computation.instructions):
        stage = stated_number(op, "ipu_stage")
        if stage is not None:
            stage_of[position] = stage
    return stage_of


def stated_number(op: Instruction, key: str) -> int | None:
    """Return the number that an op's frontend attribute says; None where it has no such one.

    Raises StagingError E0519 where what it says is no number of a stage or an IPU.
    """
    text = op.attributes.text("frontend_attributes")
    value = read_frontend_attributes(text).get(key) if key in text else None
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal() and len(value) < 6):
        raise StagingError(
            "E0519",
            f"{op.name!r} is annotated with {key}={value[:40]!r}, which is not a number from 0 on",
            hint=f'number stages and IPUs from 0: frontend_attributes={{{key}="0"}}',
        )
    return int(value)


def made_by_each(computation: Computation) -> list[int]:
    """Return the positions of what each micro-batch makes anew, whatever it depends on."""
    return [
        position
        for position, op in enumerate(computation.instructions)
        if op.opcode == "custom-call"
        and op.attributes.text("custom_call_target") == PER_MICRO_BATCH
    ]


def _attribute(op: Instruction) -> str:
    text = op.attributes.text("frontend_attributes")
    if "ipu_phase" not in text:
        return ""
    value = read_frontend_attributes(text).get("ipu_phase", "")
    if value not in (*PHASES, ""):
        raise StagingError(
            "E0519",
            f"{op.name!r} is annotated with ipu_phase={value[:40]!r}, which is not a phase",
            hint=f"phases are {', '.join(PHASES)}",
        )
    return value


def _from_name(op: Instruction) -> str:
    if not op.metadata or not any(word in op.metadata for word in _BACKWARD_NAMES):
        return ""
    name = read_metadata(op.metadata).op_name
    return "bwd" if any(word in name for word in _BACKWARD_NAMES) else ""
