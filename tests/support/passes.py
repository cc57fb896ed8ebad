"""Run passes on texts, and compare what the evaluator makes of a module before and after."""

from typing import Any

import numpy as np

from hloipu_compiler.hlo.parse import parse as parse_source
from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes import run_passes
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


def passed(text: str, pipeline: str, *, evaluated: bool = True, settled: bool = True) -> Module:
    """Run a pipeline on a text and verify after each pass; the values must stay, to the bit.

    With `settled`, a second run must find nothing to do: what a pass leaves to itself is lost.
    """
    module = parsed(text)
    after, _ = run_passes(module, None, pipeline)
    if evaluated:
        assert_same_values(module, after)
    if settled:
        again, _ = run_passes(after, None, pipeline)
        assert again is after
    return after


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


def root(module: Module) -> Any:
    """Return the entry's root."""
    return module.entry.instructions[module.entry.root]
