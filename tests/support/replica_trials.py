"""A training step on several replicas, against gradients and updates as JAX computes them apart."""

from typing import Any, NamedTuple

from hloipu_runtime.compiled import CompiledProgram, Mode
from tests.support import pipeline_trials


class Copies(NamedTuple):
    """A configuration."""

    step: str
    replicas: int
    micro_batches: int = 1
    stages: int = 1

    def __str__(self) -> str:
        return f"{self.step}-{self.replicas}r{self.micro_batches}k{self.stages}s"

    @property
    def cut(self) -> pipeline_trials.Cut:
        """The configuration among all others."""
        return pipeline_trials.Cut(
            self.step, self.stages, "grouped", self.micro_batches, replicas=self.replicas
        )


def compiled(copies: Copies, **options: Any) -> CompiledProgram:
    """Compile a step as a configuration says, two updates a run."""
    stages = copies.stages if copies.stages > 1 else None
    return pipeline_trials.compiled(copies.cut, **{"stages": stages, **options})


def assert_equal_to_jax(
    copies: Copies, program: CompiledProgram, mode: Mode = "functional"
) -> None:
    """Train for two updates and compare every replica's state and losses."""
    pipeline_trials.assert_equal_to_jax(copies.cut, program, mode)
