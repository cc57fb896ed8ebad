"""Updates in parts: which state can be split, and that every replica comes to the same."""

from functools import cache

import numpy as np
import pytest

import hloipu
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.partition.training.sharded_update import clusters
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.program.collective import Collective
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.uses import steps_within
from tests.support.pipeline_trials import ROOMY
from tests.support.replica_trials import Copies, assert_equal_to_jax, compiled

SHARDED = [
    Copies("transformer_adam", 2),
    Copies("transformer_adamw_clipped", 2, 2),
    Copies("cnn_momentum", 2, 2, 2),
    Copies("lstm_adam", 3),
]


@cache
def sharded(copies: Copies, offload: str) -> CompiledProgram:
    """Compile a step with updates in parts, once for the tests of this file."""
    return compiled(copies, shard_optimizer=True, offload=offload, **ROOMY)


def kinds(program: Program) -> list[str]:
    """Return the collectives of a program, in order."""
    steps = steps_within(program.body, program)
    return [step.form.kind for step in steps if isinstance(step, Collective)]


@pytest.mark.thinned(8)
@pytest.mark.parametrize("copies", SHARDED, ids=str)
@pytest.mark.parametrize("offload", ["on", "off"])
def test_state_is_that_of_gradients_averaged(copies: Copies, offload: str) -> None:
    program = sharded(copies, offload)
    assert any(port.whole for port in program.program.state)
    assert_equal_to_jax(copies, program)


def test_tiles_by_themselves_come_to_the_same() -> None:
    copies = Copies("lstm_momentum", 3)
    assert_equal_to_jax(copies, compiled(copies, shard_optimizer=True), mode="exact")


def test_gradients_of_elementwise_updates_are_scattered_and_weights_gathered() -> None:
    program = sharded(Copies("transformer_adam", 2), "on").program
    found = kinds(program)
    assert found.index("reduce-scatter") < found.index("all-gather")
    # gradients of small arrays are combined as they were
    assert found.count("all-reduce") == 1
    whole = {port.whole for port in program.state if port.whole}
    assert (11, 8) in whole
    for port in program.state:
        if port.whole:
            (size,) = program.variables[port.variable].shape
            assert size == -(-int(np.prod(port.whole)) // 2)


def test_a_clipped_gradient_is_needed_whole() -> None:
    """Its norm is taken before it is scaled: no reduce-scatter, parts of it are cut out."""
    program = sharded(Copies("transformer_adamw_clipped", 2), "on").program
    assert "reduce-scatter" not in kinds(program)
    assert any(port.whole for port in program.state)


UPDATE = """HloModule m

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY update {
  g = f32[8] parameter(0)
  m = f32[8] parameter(1)
  v = f32[8] parameter(2)
  rate = f32[] constant(0.5)
  r = f32[8] broadcast(rate), dimensions={}
  scaled = f32[8] multiply(g, r)
  new_m = f32[8] add(m, scaled)
  square = f32[8] multiply(g, g)
  new_v = f32[8] add(v, square)
  zero = f32[] constant(0)
  norm = f32[] reduce(new_v, zero), dimensions={0}, to_apply=add
  ROOT t = (f32[8], f32[8], f32[]) tuple(new_m, new_v, norm)
}
"""


def test_what_goes_with_state() -> None:
    """What a norm looks at stays whole; a gradient's product that only parts read does not."""
    computation = parse(UPDATE).entry
    at = computation.position
    cluster, kept = clusters(computation, {at["m"]: 0, at["v"]: 1})
    assert kept == {at["m"]: 0}
    assert {name for name, i in at.items() if i in cluster} == {"m", "scaled", "new_m"}


def test_it_is_an_option_of_compile() -> None:
    module = "HloModule m\n\nENTRY e {\n  p = f32[4] parameter(0)\n  ROOT r = f32[4] negate(p)\n}\n"
    assert hloipu.compile(module, shard_optimizer=True, cache=False).fits
