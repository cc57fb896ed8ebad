"""Source lines of instructions, from metadata and stack tables."""

import re
from functools import cached_property
from pathlib import PurePosixPath

from hloipu_compiler.hlo.attributes.metadata import OpMetadata, read_metadata
from hloipu_compiler.hlo.attributes.stack_tables import (
    DEEPEST_STACK,
    SourceLine,
    StackTables,
    read_stack_tables,
)
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_runtime.plain_text import printable

NO_METADATA = OpMetadata()
_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python3\.\d+[/\\]|^<")
"""Files that hardly are the user's own."""


class SourceLines:
    """Answers questions about one module; unreadable metadata answers nothing.

    What it returns is fit to be shown: text of the module's with control characters as `?`.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self._metadata: dict[str, OpMetadata] = {}
        self._lines: dict[str, str] = {}

    @cached_property
    def tables(self) -> StackTables:
        """The module's stack tables, empty where it has none."""
        try:
            return read_stack_tables(self.module.stack_tables)
        except TextFault:
            return StackTables()

    def metadata(self, instruction: Instruction) -> OpMetadata:
        """Return an instruction's metadata."""
        text = instruction.metadata
        if not text:
            return NO_METADATA
        metadata = self._metadata.get(text)
        if metadata is None:
            try:
                metadata = read_metadata(text)
            except TextFault:
                metadata = NO_METADATA
            self._metadata[text] = metadata
        return metadata

    def op_name(self, instruction: Instruction) -> str:
        """Return the op's path in the user's program, such as `jit(step)/dot_general`."""
        return printable(self.metadata(instruction).op_name)

    def frames(self, instruction: Instruction, most: int = DEEPEST_STACK) -> list[SourceLine]:
        """Return the call stack that made an instruction, innermost frame first."""
        metadata = self.metadata(instruction)
        if metadata.stack_frame_id:
            return self.tables.frames(metadata.stack_frame_id, most)
        if metadata.source_file:
            return [SourceLine(metadata.source_file, metadata.source_line, "")]
        return []

    def line(self, instruction: Instruction) -> str:
        """Return `file:line` of the user's innermost frame, the file without its folders.

        Where all are a library's, of the innermost; nothing where there is none.
        """
        text = instruction.metadata
        if not text:
            return ""
        line = self._lines.get(text)
        if line is None:
            frames = self.frames(instruction)
            shown = next((frame for frame in frames if not _LIBRARY.search(frame.file)), None)
            shown = shown or (frames[0] if frames else None)
            file = PurePosixPath(shown.file).name if shown else ""
            line = f"{printable(file)}:{shown.line}" if shown else ""
            self._lines[text] = line
        return line


def source_lines(module: Module) -> dict[str, str]:
    """Return `file:line` of every instruction for which the dump says so.

    Of a loop for which it does not, the line of the dump.
    """
    lines = SourceLines(module)
    line_by_name = {
        op.name: lines.line(op)
        for computation in module.computations
        for op in computation.instructions
        if op.metadata
    }
    for computation in module.computations:
        for instruction in computation.instructions:
            span = module.span(instruction) if instruction.opcode == "while" else None
            if span is not None and not line_by_name.get(instruction.name):
                line_by_name[instruction.name] = (
                    f"HLO line {span.source.line_and_column(span.start)[0]}"
                )
    return {name: line for name, line in line_by_name.items() if line}
