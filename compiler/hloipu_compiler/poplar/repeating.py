"""Loops of Graphcore's encoding as loops of HLO's, with the meaning that its lowering gives them.

A RepeatLoop call becomes a `while`. Where micro-batches are accumulated, a loop of N turns becomes
one of N / K updates around one of K micro-batches (graphcore/tensorflow:
tensorflow/compiler/plugin/poplar/driver/visitors/repeat_loop_visitor.cc); a pipeline is such a loop,
whatever its schedule.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hloipu_compiler.analysis.trip_count import trip_count
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_compiler.passes.call_forms import INLINED
from hloipu_compiler.passes.names import Names
from hloipu_compiler.poplar.call_config import LOOP, PIPELINE, UPDATE, CallConfig, config_of
from hloipu_compiler.poplar.custom_ops import (
    ADD,
    COUNT,
    COUNTER,
    CREATE,
    NOTHING,
    SINK,
    WINDOWED,
    integer_of,
    target_of,
)
from hloipu_compiler.poplar.errors import PoplarError
from hloipu_compiler.poplar.writing import (
    OUTSIDE,
    Context,
    Counter,
    Made,
    Token,
    Value,
    Writer,
)
from hloipu_runtime.element_types import PRED, S32, TOKEN

COUNTS = ArrayShape(S32)


class Loops:
    """The loops of one module that are written anew, and what they run."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.names = Names(c.name for c in module.computations)
        self.computations: list[Computation] = []
        """New ones, callees first."""

    def repeated(
        self, writer: Writer, x: Instruction, config: CallConfig, operands: Sequence[int],
        here: Context,
    ) -> Value:  # fmt: skip
        """Write a RepeatLoop call, none of whose turns updates anything, as a `while`."""
        raise NotImplementedError
