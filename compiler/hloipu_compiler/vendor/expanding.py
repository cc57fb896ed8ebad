"""Replace custom calls of vendors' libraries by HLO ops that compute the same."""

from hloipu_compiler.interpret.ops.custom_calls import LOWERED, REGISTRY
from hloipu_compiler.ir.graph import Instruction, Module


def expanded(module: Module) -> Module:
    """Return a verified module without custom calls that have a formula.

    The same module, where it has none; a target that somebody registered an implementation for is
    left alone. Raises FormulaError: E0530 for those that have no meaning here, E0531 for those
    whose operands, results or attributes do not fit.
    """
    everything = (instruction for c in module.computations for instruction in c.instructions)
    if "opaque[" not in module.source.text and not any(map(_may_have_formula, everything)):
        return module
    # Most modules have no such call: the formulas are many modules to import.
    from hloipu_compiler.vendor.known_calls import without_known_calls

    return without_known_calls(module)


def _may_have_formula(instruction: Instruction) -> bool:
    if instruction.opcode != "custom-call":
        return False
    target = instruction.attributes.text("custom_call_target")
    return target not in REGISTRY and target not in LOWERED
