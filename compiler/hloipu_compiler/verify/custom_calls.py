"""Custom calls that XLA knows by name and holds to a signature of their own.

Source: openxla/xla `xla/service/hlo_verifier.cc` (InstructionVerifier::HandleCustomCall).
"""

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.verify.places import opcode_span, operand_span, shape_span
from hloipu_compiler.verify.report import Report
from hloipu_compiler.verify.survey import Place
from hloipu_runtime.element_types import U64

_SEED = ArrayShape(U64)


def target_of(place: Place) -> str:
    """Return the target of a custom call, without quotes."""
    return place.instruction.attributes.text("custom_call_target").strip("\"'")


def check_custom_call(module: Module, place: Place, report: Report) -> None:
    """Report a GetRngSeed that takes operands or does not give u64[]."""
    instruction = place.instruction
    if target_of(place) != "GetRngSeed":
        return
    if instruction.operands:
        report.add(
            "E0336",
            f"{instruction.name}: GetRngSeed has {len(instruction.operands)} operands",
            operand_span(module, instruction, 0),
            expected="no operands",
        )
    elif instruction.shape != _SEED:
        report.add(
            "E0336",
            f"{instruction.name}: GetRngSeed gives {instruction.shape}",
            shape_span(module, instruction) or opcode_span(module, instruction),
            expected=str(_SEED),
        )
