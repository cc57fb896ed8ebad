"""Public names for writing a pass; see `docs/writing-a-pass.md`.

from hloipu.passes import NO_ATTRIBUTES, Pass, register, rewritten, with_each
"""

from hloipu_compiler.ir.attributes import NO_ATTRIBUTES
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.passes import Pass, PassError, passes, register, run_passes
from hloipu_compiler.passes.framework.plugins import load_plugin
from hloipu_compiler.passes.framework.rewriting import Draft, rewritten, with_each
from hloipu_compiler.plan.plan import Plan

__all__ = [
    "NO_ATTRIBUTES",
    "Computation",
    "Draft",
    "Instruction",
    "Module",
    "Pass",
    "PassError",
    "Plan",
    "load_plugin",
    "passes",
    "register",
    "rewritten",
    "run_passes",
    "with_each",
]
