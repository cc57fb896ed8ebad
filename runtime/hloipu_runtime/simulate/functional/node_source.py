"""Generates Python source of one node: output memory, and dropped values.

Calls write to buffers where their values live and die within the block. A large value that leaves
the block is written over an operand that dies here, if nobody else holds that when it runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, Protocol

import numpy as np

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.straight import NAMED_OUT, Call, Straight
from hloipu_runtime.program.program import Value
from hloipu_runtime.program.steps import ValueId
from hloipu_runtime.simulate.functional.buffers import Buffer, Buffers
from hloipu_runtime.simulate.functional.nodes import Node
from hloipu_runtime.simulate.functional.whole_tensors import REUSED_ELEMENTS, overwritten_operands
from hloipu_runtime.simulate.run.owning import first_held_alone


class Naming(Protocol):
    """Gives names to things in the text."""

    def of(self, letter: str, thing: Any) -> str:
        """Return a thing's name."""
        ...


@dataclass
class _Writer:
    node: Node
    straight: Straight
    table: Sequence[Value]
    names: Naming
    buffers: Buffers
    private: set[ValueId]
    buffer_by_value: dict[ValueId, Buffer]
    """Of values of the block."""
    within: dict[int, Buffer] = field(default_factory=dict)
    """Of values of the node, by number."""
    taken: dict[int, str] = field(default_factory=dict)
    """Names of operands that were dropped from the values already."""
    has_out: bool = False

    def lines(self) -> list[str]:
        calls, node = self.straight.calls, self.node
        lines = []
        for position, call in enumerate(calls):
            lines += self._call(position, call)
        computed = {call.number for call in calls}
        for v, number in zip(node.writes, self.straight.results, strict=True):
            if number not in computed:
                lines.append(f"v[{v}] = {self._name(number)}")
        dropped = [f"v[{v}]" for v in node.frees if v not in self.gone]
        dropped += [*self.taken.values(), *(["o"] if self.has_out else [])]
        dropped += [f"t{n}" for n in sorted(computed - set(self.straight.results))]
        if dropped:
            lines.append(" = ".join(dropped) + " = None")
        for v in node.frees:
            if v in self.buffer_by_value:
                self.buffers.give_back(self.buffer_by_value.pop(v))
        return lines

    @property
    def gone(self) -> set[ValueId]:
        """Operands that were dropped already."""
        return {self.node.reads[k] for k in self.taken}

    def _call(self, position: int, call: Call) -> list[str]:
        before, out = self._place(position, call)
        arguments = [self._name(number) for number in call.arguments]
        if not out and call.shape == () and isinstance(call.function, np.ufunc):
            out = f"{self.names.of('f', partial(np.empty, (), call.dtype))}()"
        if out:
            # A named argument takes a tenth of a small call.
            is_positional = isinstance(call.function, np.ufunc) and call.function not in NAMED_OUT
            arguments.append(out if is_positional else f"out={out}")
        targets = [
            f"v[{v}]"
            for v, number in zip(self.node.writes, self.straight.results, strict=True)
            if number == call.number
        ] or [f"t{call.number}"]
        function = self.names.of("f", call.function)
        line = f"{' = '.join(targets)} = {function}({', '.join(arguments)})"
        return [*before, line]

    def _place(self, position: int, call: Call) -> tuple[list[str], str]:
        """Return the name of the memory that a call writes to, or "", and what comes before."""
        if not call.takes_out or call.dtype is None:
            self._release(position, call)
            return [], ""
        value = self._value_of(call.number)
        if value is not None and value not in self.private:
            if call.in_place and position == len(self.straight.calls) - 1:
                return self._over_an_operand(call)
            self._release(position, call)
            return [], ""
        if value is None and self._is_viewed(call.number):
            self._release(position, call)
            return [], ""
        if call.in_place:
            self._release(position, call, same_as=call)
        buffer = self.buffers.take(call.shape, call.dtype)
        self._release(position, call)
        if buffer is None:
            return [], ""
        if value is None:
            self.within[call.number] = buffer
        else:
            self.buffer_by_value[value] = buffer
        return [], self.names.of("b", buffer.array)

    def _over_an_operand(self, call: Call) -> tuple[list[str], str]:
        """Return what takes operands that die here out of the values, and the first held alone."""
        if prod(call.shape) < REUSED_ELEMENTS or not isinstance(self.node.what, Codelet):
            return [], ""
        before = []
        for k in overwritten_operands(self.node.what, self.node, self.table):
            v = self.node.reads[k]
            if v not in self.private:
                self.taken[k] = f"x{k}"
                before.append(f"x{k} = v[{v}]")
        if not before:
            return [], ""
        gone = [f"v[{self.node.reads[k]}]" for k in self.taken]
        before.append(" = ".join(gone) + " = None")
        # Before the call that it is for: while that is made ready its arguments are held there too.
        before.append(
            f"o = {self.names.of('f', first_held_alone)}({', '.join(self.taken.values())})"
        )
        self.has_out = True
        return before, "o"

    def _release(self, position: int, call: Call, same_as: Call | None = None) -> None:
        """Give back the memory of arguments that are read for the last time.

        With `same_as` only that of arguments which a call may write over.
        """
        for x in dict.fromkeys(call.arguments):
            value = self.node.reads[x] if x < len(self.node.reads) else None
            if self._last_read(x) != position:
                continue
            buffer = self.within.get(x) if value is None else self.buffer_by_value.get(value)
            if buffer is None or (value is not None and value not in self.node.frees):
                continue
            if same_as is not None and (buffer.array.shape, buffer.array.dtype) != (
                same_as.shape,
                same_as.dtype,
            ):
                continue
            self.buffers.give_back(buffer)
            if value is None:
                del self.within[x]
            else:
                del self.buffer_by_value[value]

    def _last_read(self, number: int) -> int:
        """Return the last call that reads a value, by whatever number it goes."""
        reads = self.node.reads
        if number < len(reads):
            same = {k for k, v in enumerate(reads) if v == reads[number]}
        else:
            same = {number}
        return max(
            (n for n, call in enumerate(self.straight.calls) if same & set(call.arguments)),
            default=-1,
        )

    def _is_viewed(self, number: int) -> bool:
        return any(number in call.arguments and not call.is_fresh for call in self.straight.calls)

    def _value_of(self, number: int) -> ValueId | None:
        for v, result in zip(self.node.writes, self.straight.results, strict=True):
            if result == number:
                return v
        return None

    def _name(self, number: int) -> str:
        if number in self.taken:
            return self.taken[number]
        if number < len(self.node.reads):
            return f"v[{self.node.reads[number]}]"
        constant = self.straight.constants.get(number)
        if constant is not None:
            return self.names.of("c", constant)
        value = self._value_of(number)
        return f"t{number}" if value is None else f"v[{value}]"


def node_lines(
    node: Node,
    straight: Straight,
    table: Sequence[Value],
    names: Naming,
    buffers: Buffers,
    private: set[ValueId],
    buffer_by_value: dict[ValueId, Buffer],
) -> list[str]:
    """Return the lines of a node.

    `private` are values that only this block sees; `buffer_by_value` says in which buffers values
    lie, and is brought up to date.
    """
    return _Writer(node, straight, table, names, buffers, private, buffer_by_value).lines()
