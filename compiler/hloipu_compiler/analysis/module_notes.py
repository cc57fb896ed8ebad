"""Notes on a module for people: annotations without effect, optimised text, elided constants."""

from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.ops import COLLECTIVES

_MEETING = COLLECTIVES | {"partition-id", "replica-id"}
_HOST = ("MoveToHost", "annotate_device_placement")


def module_notes(module: Module, *, is_divided: bool = False) -> list[str]:
    """Return a line for each kind of annotation without effect on a verified module, for people.

    More tell of text that XLA has optimised for another device, and of constants left out of it.

    Shardings over devices have none unless arrays are divided by them (`is_divided`). Those of
    parameters of a module that meets others say what was done already: it is written for one of the
    devices.
    """
    everything = [instruction for c in module.computations for instruction in c.instructions]
    divided = [instruction for instruction in everything if _is_divided(instruction)]
    on_host = sum(_is_put_on_host(instruction) for instruction in everything)
    notes = []
    is_written_per_device = any(instruction.opcode in _MEETING for instruction in everything)
    is_asked = not is_written_per_device or any(op.parameter_number < 0 for op in divided)
    if is_asked and not is_divided:
        notes += [
            f"{_counted(len(divided), 'sharding')} over devices: without effect, as the module is "
            "compiled as it is written"
        ] * bool(divided)
    if on_host:
        notes.append(
            f"{_counted(on_host, 'value')} annotated to lie on the host: without effect; "
            "--offload-activations and the like keep what waits in remote memory"
        )
    fusions = sum(instruction.opcode == "fusion" for instruction in everything)
    if module.attributes.get("is_scheduled") is True and fusions:
        notes.append(
            f"text after XLA's optimisation for another device ({_counted(fusions, 'fusion')}): "
            "taken as it stands; the text before it (before_optimizations in dumps, or hloipu "
            "capture) compiles faster and keeps source lines"
        )
    elided = sum(op.literal is not None and op.literal.is_elided for op in everything)
    if elided:
        notes.append(
            f"{_counted(elided, 'constant')} left out of the text ({{...}}): what is in them is "
            "not known; hloipu capture, and --xla_dump_large_constants, keep them"
        )
    return notes


def _is_divided(instruction: Instruction) -> bool:
    marks = instruction.attributes.text("frontend_attributes")
    if "xla.sdy.sharding" in marks and '{\\"' in marks:
        return True
    text = instruction.attributes.text("sharding")
    return "devices=[" in text or ("mesh" in text and "{'" in text)


def _is_put_on_host(instruction: Instruction) -> bool:
    if (
        instruction.opcode != "custom-call"
        or instruction.attributes.text("custom_call_target") not in _HOST
    ):
        return False
    marks = instruction.attributes.text("frontend_attributes")
    return (
        "annotate_device" not in instruction.attributes.text("custom_call_target")
        or "host" in marks
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
