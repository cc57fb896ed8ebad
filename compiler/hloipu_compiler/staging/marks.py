"""What a dump itself says of an op's phase: attributes first, then the names that tracers leave."""

from hloipu_compiler.evaluate.custom_calls import PER_MICRO_BATCH
from hloipu_compiler.hlo.frontend_attributes import read_frontend_attributes
from hloipu_compiler.hlo.metadata import read_metadata
from hloipu_compiler.ir.graph import Computation, Instruction

PHASES = ("fwd", "bwd", "wu")
_BACKWARD_NAMES = ("transpose(", "gradient_tape/", "/gradients/")
"""JAX writes transpose(jvp(...)) into names of what it differentiates, TensorFlow the others."""


def marked_phases(computation: Computation) -> dict[int, str]:
    """Return the phase of each position that an attribute or a name gives one."""
    found: dict[int, str] = {}
    for position, x in enumerate(computation.instructions):
        phase = _attribute(x) or _from_name(x)
        if phase:
            found[position] = phase
    return found


def marked_stages(computation: Computation) -> dict[int, int]:
    """Return the stage of every op whose attribute `ipu_stage` says so."""
    found: dict[int, int] = {}
    for position, x in enumerate(computation.instructions):
        text = x.attributes.text("frontend_attributes")
        if "ipu_stage" not in text:
            continue
        value = read_frontend_attributes(text).get("ipu_stage", "")
        if value.isdecimal() and len(value) < 6:
            found[position] = int(value)
    return found


def made_by_each(computation: Computation) -> list[int]:
    """Return the positions of what each micro-batch makes anew, whatever it depends on."""
    return [
        position
        for position, x in enumerate(computation.instructions)
        if x.opcode == "custom-call" and x.attributes.text("custom_call_target") == PER_MICRO_BATCH
    ]


def _attribute(x: Instruction) -> str:
    text = x.attributes.text("frontend_attributes")
    if "ipu_phase" not in text:
        return ""
    value = read_frontend_attributes(text).get("ipu_phase", "")
    return value if value in PHASES else ""


def _from_name(x: Instruction) -> str:
    if not x.metadata or not any(word in x.metadata for word in _BACKWARD_NAMES):
        return ""
    name = read_metadata(x.metadata).op_name
    return "bwd" if any(word in name for word in _BACKWARD_NAMES) else ""
