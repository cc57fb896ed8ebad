"""Modules from texts, and what the evaluator makes of them before and after a pass."""

from typing import Any

import numpy as np

from hloipu_compiler.hlo.parse import parse as parse_source
from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.source import Source
from hloipu_compiler.verify.verifier import verify

SUM = """sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
"""


def parsed(text: str) -> Module:
    """Read and verify a text; one without a header gets one."""
    if not text.lstrip().startswith("HloModule"):
        text = f"HloModule m\n\n{text}"
    module = parse_source(Source(text))
    verify(module)
    return module


def entry(body: str, before: str = "") -> str:
    """Return a module's text from the lines of its entry, after other computations."""
    return f"HloModule m\n\n{before}\nENTRY e {{\n{body}\n}}\n"


def assert_same_values(before: Module, after: Module, seed: int = 0) -> None:
    """Evaluate two modules on the same random arguments; nans count as equal."""
    arguments = random_arguments(before, seed)
    expected = evaluate_everywhere(before, *arguments)
    found = evaluate_everywhere(after, *arguments)
    for want, got in zip(expected, found, strict=True):
        assert same_bits(np.asarray(want), np.asarray(got)), (want, got)


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays are equal to the bit, nans of any payload included."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.tobytes() == b.tobytes():
        return True
    if a.dtype.kind in "biu":
        return False
    rows = [np.ascontiguousarray(x).reshape(-1) for x in (a, b)]
    both_nan = np.isnan(rows[0]) & np.isnan(rows[1])
    words = [x.view(np.uint8).reshape(x.size, x.itemsize) for x in rows]
    return bool(((words[0] == words[1]).all(axis=1) | both_nan).all())


def opcodes(module: Module, computation: str = "") -> list[str]:
    """Return the opcodes of the entry, or of a computation, in order, parameters left out."""
    which = module.computation[computation] if computation else module.entry
    return [x.opcode for x in which.instructions if x.parameter_number < 0]
