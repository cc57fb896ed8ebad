"""The phases of a step that is a function in JAX."""

from collections.abc import Callable
from typing import Any

import jax

import hloipu
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.training.phases import phases_of
from hloipu_compiler.partition.training.step_phases import Pair, Phases, Roles
from hloipu_compiler.passes.runner import run_passes
from hloipu_compiler.plan.plan import Plan


def phases(step: Callable[..., Any], state: Any, *data: Any) -> tuple[Module, Phases]:
    """Return the phases of a step that returns new state and results, from a text without names."""
    lowered = jax.jit(step, keep_unused=True).lower(state, *data).compiler_ir("hlo")
    module, _ = run_passes(hloipu.verify(lowered.as_hlo_text()), Plan(), "front")
    count = len(jax.tree.leaves(state))
    pairs = tuple(Pair(n, n) for n in range(count))
    return module, phases_of(module.entry, Roles(pairs, tuple(range(count, count + len(data)))))
