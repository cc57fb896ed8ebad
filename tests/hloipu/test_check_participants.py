"""`hloipu check` and `eval` of modules that several participants run."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import hloipu
from hloipu.check_ops import first_divergence
from hloipu.cli.application import application
from hloipu.inputs import flat
from hloipu_compiler.evaluate.evaluator import Evaluator
from hloipu_compiler.evaluate.plan import Array
from hloipu_compiler.evaluate.random_inputs import random_arguments
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.source import Source
from tests.support.collectives import ADD
from tests.support.xla_oracle import available

needs_xla = pytest.mark.skipif(not available(), reason="jaxlib is not installed")

SAMPLE = Path(__file__).resolve().parents[2] / "hlo_samples" / "sharded_mlp.hlo"

PER_DEVICE = f"""
HloModule per_device, replica_count=2, num_partitions=3

{ADD}

ENTRY e {{
  p = f32[6] parameter(0), sharding={{devices=[3]<=[3]}}
  i = u32[] partition-id()
  n = f32[] convert(i)
  j = u32[] replica-id()
  m = f32[] convert(j)
  k = f32[] subtract(n, m)
  b = f32[6] broadcast(k), dimensions={{}}
  s = f32[6] multiply(p, b)
  t = f32[6] all-reduce(s), channel_id=1, replica_groups=[2,3]<=[3,2]T(1,0), use_global_device_ids=true, to_apply=add
  c = f32[6] collective-permute(s), channel_id=2, source_target_pairs={{{{2,0}},{{0,1}}}}
  ROOT r = (f32[6], f32[6]) tuple(t, c)
}}
"""  # noqa: E501


def said(*arguments: str) -> str:
    """Run the command line and return what it printed; it must end well."""
    result = CliRunner().invoke(application, arguments)
    assert result.exit_code == 0, result.output
    return result.output


@needs_xla
def test_check_of_a_sharded_sample() -> None:
    """A program with a manually sharded region agrees with XLA:CPU on eight devices."""
    assert "agrees with xla-cpu" in said("check", str(SAMPLE), "--isolate")


@needs_xla
def test_check_of_a_program_per_device(tmp_path: Path) -> None:
    """A program already written per device, with ids of both kinds, agrees too."""
    path = tmp_path / "per_device.hlo"
    path.write_text(PER_DEVICE)
    assert "agrees with xla-cpu" in said("check", str(path), "--iterations", "2")


def test_eval_of_a_sharded_sample() -> None:
    """Two dense layers, as numpy computes them."""
    module = parse(Source(SAMPLE.read_text()))
    x, first, second = flat(random_arguments(module, 0))
    (result,) = hloipu.evaluate(SAMPLE, x, first, second)
    wanted = np.maximum(x @ first, 0) @ second
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)
    assert "first of 8 participants" in said("eval", str(SAMPLE), "--random", "0")


def test_watch_reaches_into_calls() -> None:
    """An instruction inside of the region is printed, as the first participant has it."""
    assert "max.3 = [[" in said("eval", str(SAMPLE), "--random", "0", "--watch", "max.3")


def test_isolation_finds_an_op_in_a_region() -> None:
    """A diverging op is named inside of calls in which participants meet."""
    module = parse(Source(SAMPLE.read_text()))
    asked: list[str] = []

    def reference(work: Sequence[tuple[Module, Sequence[Array]]]) -> list[list[Array] | str]:
        answers: list[list[Array] | str] = []
        for single, leaves in work:
            asked.append(single.name)
            wrong = 1 if single.name == "only_dot" else 0
            answers.append([x + wrong for x in Evaluator(single)(*leaves)])
        return answers

    found = first_divergence(module, flat(random_arguments(module, 0)), reference)
    assert found is not None
    assert (found.instruction.name, found.computation) == (
        "dot_general.2",
        "xla.sdy.manual_computation_body.3",
    )
    assert not any("all_reduce" in name or "custom_call" in name for name in asked)
