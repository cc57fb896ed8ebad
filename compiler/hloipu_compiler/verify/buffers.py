"""Buffers, `b(f32[4])`: made by Pin or CreateBuffer, passed on with one writer, ended by Unpin.

Source: openxla/xla `xla/service/hlo_verifier.cc` (VerifyBuffers). Modules without buffers, which
is nearly all of them, cost nothing here.
"""

from collections import Counter

from hloipu_compiler.ir.attributes import Alias
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import (
    ArrayShape,
    BufferShape,
    Shape,
    leaves,
    subshape,
    without_layouts,
)
from hloipu_compiler.verify.asynchronous import async_computations
from hloipu_compiler.verify.places import name_span
from hloipu_compiler.verify.survey import Place, Report, Survey, frontend_value

Path = tuple[int, ...]
_FLIGHT = Trait.ASYNC_START | Trait.ASYNC_UPDATE | Trait.ASYNC_DONE
_WRITERS = frozenset(
    "call custom-call fusion while conditional dynamic-update-slice async-start async-update "
    "async-done".split()
)
"""What is taken to write a buffer that it is given, without looking inside."""

MOST_STEPS = 200_000
"""Uses of buffers that are followed in one computation; a text can make them grow as a square."""


def check_buffers(survey: Survey, report: Report) -> None:
    """Report buffers where only values may be, and buffers with two writers."""
    if not survey.buffered:
        return
    module = survey.module
    wrapped = async_computations(survey)
    loop_bodies = frozenset(
        place.instruction.attributes.text("body") for place in survey.places("while")
    )
    for computation in module.computations:
        checker = _Checker(module, computation, computation.name in loop_bodies, report)
        if computation.name in wrapped:
            root = Place(computation, computation.root)
            if root.instruction.opcode == "custom-call":
                checker.custom_call(root)
            continue
        for position in range(len(computation.instructions)):
            checker.instruction(Place(computation, position))


def _buffers(shape: Shape) -> list[Path]:
    return [path for path, leaf in leaves(shape) if isinstance(leaf, BufferShape)]


class _Checker:
    def __init__(
        self, module: Module, computation: Computation, is_loop_body: bool, report: Report
    ) -> None:
        self.module = module
        self.computation = computation
        self.is_loop_body = is_loop_body
        self.report = report
        self.steps_left = MOST_STEPS
        self._users: dict[int, tuple[list[int], dict[int, list[int]]]] = {}

    def instruction(self, place: Place) -> None:
        instruction = place.instruction
        opcode = instruction.opcode
        if opcode in OPS and OPS[opcode].traits & _FLIGHT and opcode.startswith("async"):
            return
        if opcode == "call" and frontend_value(instruction, "_xla_stream_annotation"):
            return
        if opcode == "custom-call":
            self.custom_call(place)
        elif opcode == "while":
            self.single_writers(place)
        elif opcode == "parameter":
            if self.computation is self.module.entry:
                self.none(place, (instruction.shape,))
            self.single_writers(place)
        elif opcode == "dynamic-update-slice" and any(
            isinstance(shape, BufferShape) for shape in place.operand_shapes[:1]
        ):
            self.single_writers(place)
            self.none(place, place.operand_shapes[1:])
            if not isinstance(instruction.shape, BufferShape):
                self.fault(instruction, "updates a buffer but does not give one", "a buffer result")
        elif opcode not in ("get-tuple-element", "tuple"):
            self.none(place, (instruction.shape, *place.operand_shapes))

    def fault(self, instruction: Instruction, problem: str, expected: str) -> None:
        self.report.add(
            "E0335",
            f"{instruction.name} {problem}",
            name_span(self.module, instruction),
            expected=expected,
        )

    def none(self, place: Place, shapes: tuple[Shape, ...]) -> None:
        if any(_buffers(shape) for shape in shapes):
            instruction = place.instruction
            self.fault(instruction, f"uses a buffer in {instruction.opcode}", "arrays only")

    def single_writers(self, place: Place) -> None:
        """Check that each buffer of a result is written at most once."""
        for path in _buffers(place.instruction.shape):
            if self.writers(place.position, path) > 1:
                self.fault(place.instruction, "is written more than once", "one writer a buffer")

    def writers(self, start: int, start_path: Path) -> int:
        """Count what may write the buffer at a path of a result, followed through tuples."""
        instructions, count = self.computation.instructions, 0
        stack = [(start, start_path)]
        while stack and count < 2 and self.steps_left > 0:
            at, path = stack.pop()
            plain, elements = self.users(at)
            self.steps_left -= 1 + len(plain)
            if path:
                stack += [(user, path[1:]) for user in elements.get(path[0], ())]
            for position in plain:
                user = instructions[position]
                if user.opcode in _WRITERS:
                    count += 1
                elif user.opcode == "tuple":
                    if position == self.computation.root:
                        count += self.is_loop_body
                    else:
                        stack.append((position, (user.operands.index(at), *path)))
        return count

    def users(self, at: int) -> tuple[list[int], dict[int, list[int]]]:
        """Return the users of an instruction: plain ones, and get-tuple-elements by index."""
        if at not in self._users:
            plain: list[int] = []
            elements: dict[int, list[int]] = {}
            for position in self.computation.users[at]:
                user = self.computation.instructions[position]
                if user.opcode == "get-tuple-element":
                    elements.setdefault(user.attributes.integer("index"), []).append(position)
                else:
                    plain.append(position)
            self._users[at] = plain, elements
        return self._users[at]

    def custom_call(self, place: Place) -> None:
        """Check Pin, Unpin, CreateBuffer, or a custom call that passes buffers on."""
        instruction, shapes = place.instruction, place.operand_shapes
        target = instruction.attributes.text("custom_call_target")
        result_shape = instruction.shape
        aliases = instruction.attributes.get("output_to_operand_aliasing", ())
        count = len(aliases) if isinstance(aliases, tuple) else 0
        if target == "CreateBuffer":
            if shapes or not isinstance(result_shape, BufferShape):
                self.fault(instruction, "is not a CreateBuffer", "no operand and one buffer result")
            self.single_writers(place)
        elif target in ("Pin", "Unpin"):
            operand_shape = shapes[0] if len(shapes) == 1 else None
            value, buffer = (
                (operand_shape, result_shape) if target == "Pin" else (result_shape, operand_shape)
            )
            if not (
                isinstance(value, ArrayShape)
                and isinstance(buffer, BufferShape)
                and without_layouts(value) == without_layouts(buffer.contents)
                and count == 1
            ):
                wanted = "one array and a buffer of its shape, aliased with each other"
                self.fault(instruction, f"is no {target}", wanted)
            if target == "Pin":
                self.single_writers(place)
        else:
            self.passed_on(place, aliases)

    def passed_on(self, place: Place, aliases: object) -> None:
        """Check that each buffer operand is aliased with one buffer result."""
        instruction = place.instruction
        entries = (
            [pair for pair in aliases if isinstance(pair, Alias)]
            if isinstance(aliases, tuple)
            else []
        )
        buffer_operands = [
            (number, path)
            for number, shape in enumerate(place.operand_shapes)
            for path in _buffers(shape)
        ]
        operands = Counter((entry.parameter, entry.parameter_index) for entry in entries)
        results = Counter(entry.output_index for entry in entries)
        wanted = "output_to_operand_aliasing for each buffer"
        for alias in entries:
            if not 0 <= alias.parameter < len(place.operand_shapes):
                return  # a shape rule's fault
            source = subshape(place.operand_shapes[alias.parameter], alias.parameter_index)
            target = subshape(instruction.shape, alias.output_index)
            if isinstance(source, BufferShape) != isinstance(target, BufferShape):
                self.fault(instruction, "aliases a buffer with a value", "Pin or Unpin for that")
                return
        if any(operands[buffer] != 1 for buffer in buffer_operands):
            self.fault(instruction, "takes a buffer and does not give it back once", wanted)
        elif any(results[place_of_buffer] != 1 for place_of_buffer in _buffers(instruction.shape)):
            self.fault(instruction, "gives a buffer that it did not take", wanted)
        else:
            self.single_writers(place)
