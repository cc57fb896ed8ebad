"""The verifier: one pass over all instructions, then one small check per subject.

The pass costs one dictionary look-up for an instruction like one already found right: the same
opcode, attributes, operand shapes and result shape. The parser shares equal shapes and attributes,
so the first look-up is by identity, and only a miss compares values.
"""

from collections.abc import Callable
from contextlib import suppress
from itertools import chain

from hloipu_compiler.errors import Fault, VerifyError
from hloipu_compiler.inference.faults import DECLARED_STRUCTURE, ShapeFault
from hloipu_compiler.inference.rules import infer_shape
from hloipu_compiler.inference.site import Participants
from hloipu_compiler.ir.attribute_kinds import INSTRUCTION_KINDS
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.ops import COLLECTIVES, OPS
from hloipu_compiler.ir.shapes import Shape, compatible, holds_buffer, without_layouts
from hloipu_compiler.source import Span
from hloipu_compiler.verify.calls import check_calls, check_names
from hloipu_compiler.verify.interface import (
    check_aliases,
    check_interface_layouts,
    check_parameters,
)
from hloipu_compiler.verify.places import attribute_span, opcode_span, operand_span, shape_span
from hloipu_compiler.verify.survey import (
    MOST_FAULTS,
    WATCHED,
    Place,
    Report,
    ReportFullError,
    Survey,
)
from hloipu_runtime.nearest import Suggestions

PlaceCheck = Callable[[Module, Place, Report], None]
Key = tuple[object, ...]


def verify(module: Module) -> None:
    """Raise VerifyError with every fault, in text order, if a module is not valid."""
    faults = faults_of(module)
    if faults:
        raise VerifyError(faults)


def faults_of(module: Module, *, most: int = MOST_FAULTS) -> list[Fault]:
    """Return every fault of a module, in text order, at most `most` of them."""
    report = Report(most)
    with suppress(ReportFullError):
        _check(module, report)
    return report.in_text_order()


def _check(module: Module, report: Report) -> None:
    check_operands(module, report)
    if len(report):
        return
    check_names(module, report)
    survey = _Pass(module, report).run()
    check_parameters(survey, report)
    check_interface_layouts(module, report)
    check_calls(survey, report)
    _check_rare(survey, report)
    check_aliases(module, report)


def _check_rare(survey: Survey, report: Report) -> None:
    """Check subjects that many modules do not have; what checks one is imported for it."""
    opcodes = survey.by_opcode.keys()
    if "fusion" in opcodes:
        from hloipu_compiler.verify.calls import check_fusions

        check_fusions(survey, report)
    if survey.controlled:
        from hloipu_compiler.verify.asynchronous import check_control

        check_control(survey, report)
    if opcodes - _IN_ONE_PIECE:
        from hloipu_compiler.verify.asynchronous import check_asynchronous
        from hloipu_compiler.verify.collectives import check_channels, check_constrained_layouts

        check_asynchronous(survey, report)
        check_channels(survey, report)
        check_constrained_layouts(survey, report)
    if "while" in opcodes or "conditional" in opcodes:
        from hloipu_compiler.verify.sharding import check_consistent_sharding

        check_consistent_sharding(survey, report)
    if survey.buffered:
        from hloipu_compiler.verify.buffers import check_buffers

        check_buffers(survey, report)


_IN_ONE_PIECE = frozenset("parameter fusion while conditional call custom-call".split())
"""Opcodes of the survey that neither start nor end anything, and meet nobody."""


def check_operands(module: Module, report: Report) -> None:
    """Report operands that do not stand before their user; every other check relies on it."""
    for computation in module.computations:
        lists = [user.operands for user in computation.instructions]
        lowest = min(chain.from_iterable(lists), default=0)
        if lowest >= 0 and all(not numbers or max(numbers) < i for i, numbers in enumerate(lists)):
            continue
        for position, operands in enumerate(lists):
            wrong = [i for i in operands if not 0 <= i < position]
            if wrong:
                instruction = computation.instructions[position]
                report.add(
                    "E0337",
                    f"instruction {position} of {computation.name}, {instruction.name}, has the "
                    f"operand {wrong[0]}",
                    opcode_span(module, instruction),
                    expected="operands that stand earlier in the computation",
                )


class _Pass:
    """The pass over all instructions, and what it remembers."""

    def __init__(self, module: Module, report: Report) -> None:
        self.module = module
        self.report = report
        self.survey = Survey(module)
        self.participants = Participants(
            module.attributes.integer("replica_count", 1),
            module.attributes.integer("num_partitions", 1),
        )
        self._right: set[Key] = set()

    def run(self) -> Survey:
        """Check every instruction by itself and gather what the other checks need."""
        watched: dict[Key, bool] = {}
        """For what was found right: whether the survey wants each instance."""
        for computation in self.module.computations:
            ids: list[int] = []
            for position, instruction in enumerate(computation.instructions):
                ids.append(id(instruction.shape))
                key = (
                    instruction.opcode,
                    id(instruction.attributes),
                    ids[position],
                    *[ids[i] for i in instruction.operands],
                )
                watch = watched.get(key)
                if watch is None:
                    place = Place(computation, position)
                    watch = _is_surveyed(instruction)
                    if self._is_right(place):
                        watched[key] = watch
                if watch:
                    self._note(Place(computation, position), instruction)
        return self.survey

    def _note(self, place: Place, instruction: Instruction) -> None:
        survey = self.survey
        if instruction.opcode in WATCHED:
            survey.by_opcode.setdefault(instruction.opcode, []).append(place)
        if instruction.attributes.called:
            survey.callers.append(place)
        if "control-predecessors" in instruction.attributes:
            survey.controlled.append(place)

    def _is_right(self, place: Place) -> bool:
        instruction = place.instruction
        shapes = place.operand_shapes
        key: Key = (instruction.opcode, instruction.attributes, instruction.shape, shapes)
        if key in self._right:
            return True
        self.survey.buffered |= holds_buffer(instruction.shape)
        before = len(self.report)
        for check in _place_checks(instruction):
            check(self.module, place, self.report)
        if len(self.report) == before and self._shape_is_right(instruction, shapes):
            self._right.add(key)
            return True
        return False

    def _shape_is_right(self, instruction: Instruction, shapes: tuple[Shape, ...]) -> bool:
        if any(name not in self.module.computation for name in instruction.attributes.called):
            return False  # `verify.calls` reports it
        try:
            inferred = infer_shape(
                instruction.opcode,
                shapes,
                instruction.attributes,
                instruction.shape,
                lambda name: self.module.computation[name].program_shape,
                self.participants,
            )
        except ShapeFault as fault:
            self.report.add(
                fault.code,
                f"{instruction.name}: {fault.message}",
                _fault_span(self.module, instruction, fault),
                expected=fault.expected,
                hint=fault.hint or _misspelt_attribute(instruction),
            )
            return False
        if compatible(inferred, instruction.shape):
            return True
        self.report.add(
            "E0301",
            f"{instruction.name} is declared as {without_layouts(instruction.shape)}",
            shape_span(self.module, instruction),
            expected=f"{without_layouts(inferred)}, which {instruction.opcode} gives",
        )
        return False


def _is_surveyed(instruction: Instruction) -> bool:
    return (
        instruction.opcode in WATCHED
        or bool(instruction.attributes.called)
        or "control-predecessors" in instruction.attributes
    )


def _place_checks(instruction: Instruction) -> list[PlaceCheck]:
    checks: list[PlaceCheck] = []
    if instruction.opcode in COLLECTIVES:
        from hloipu_compiler.verify.collectives import GROUPED, PAIRED, check_collective

        if instruction.opcode in GROUPED or instruction.opcode in PAIRED:
            checks.append(check_collective)
    if "sharding" in instruction.attributes:
        from hloipu_compiler.verify.sharding import check_sharding

        checks.append(check_sharding)
    if "origin" in instruction.attributes or "original_value" in instruction.attributes:
        from hloipu_compiler.verify.sharding import check_origin

        checks.append(check_origin)
    return checks


def _misspelt_attribute(instruction: Instruction) -> str:
    """Return a hint where the instruction has an unknown attribute that looks like a known one."""
    known = OPS[instruction.opcode].attributes
    for key in instruction.attributes:
        hint = "" if key in INSTRUCTION_KINDS else Suggestions().hint(key, known, "=")
        if hint:
            return f"{key}= is not read; {hint}"
    return ""


def _fault_span(module: Module, instruction: Instruction, fault: ShapeFault) -> Span | None:
    if fault.operand is not None:
        return operand_span(module, instruction, fault.operand)
    if fault.attribute is not None:
        return attribute_span(module, instruction, fault.attribute)
    if fault.code == DECLARED_STRUCTURE:
        return shape_span(module, instruction)
    return opcode_span(module, instruction)
