"""`hloipu check` and `eval` of modules that several participants run."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import hloipu
from hloipu.check.ops import first_divergence
from hloipu.cli.application import application
from hloipu.inputs import flat
from hloipu.xla_cpu.runner import XlaCpu
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import Evaluator
from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.interpret.planning.plan import Action, Array
from hloipu_compiler.interpret.planning.site import LOWERINGS, Site
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.source import Source
from tests.support.collectives import ADD
from tests.support.xla_oracle import available

pytestmark = pytest.mark.usefixtures("checks_share_xla")
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


def assert_equal_on_xla(module: Module, xla_cpu: XlaCpu, tolerance: float) -> None:
    """Compare values with XLA's directly, not by the command's own judgement of them."""
    arguments = random_arguments(module, 0)
    (theirs,) = xla_cpu([(module, flat(arguments))])
    assert not isinstance(theirs, str), theirs
    for a, b in zip(evaluate_everywhere(module, *arguments), theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@needs_xla
def test_a_sharded_sample(xla_cpu: XlaCpu) -> None:
    """A program with a manually sharded region has XLA:CPU's values on eight devices."""
    assert_equal_on_xla(parse(Source(SAMPLE.read_text())), xla_cpu, 1e-5)
    assert "agrees with xla-cpu" in said("check", str(SAMPLE), "--isolate")


@needs_xla
def test_a_program_per_device(tmp_path: Path, xla_cpu: XlaCpu) -> None:
    """A program already written per device, with ids of both kinds, has them too."""
    assert_equal_on_xla(parse(Source(PER_DEVICE)), xla_cpu, 1e-6)
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


def test_isolation_reaches_into_regions() -> None:
    """Ops inside of calls in which participants meet are checked; those that meet are not."""
    module = parse(Source(SAMPLE.read_text()))
    asked: list[str] = []

    def reference(work: Sequence[tuple[Module, Sequence[Array]]]) -> list[list[Array] | str]:
        asked.extend(x.opcode for single, _ in work for x in single.entry.instructions)
        return [list(Evaluator(single)(*leaves)) for single, leaves in work]

    assert first_divergence(module, flat(random_arguments(module, 0)), reference) is None
    assert set(asked) <= {"parameter", "tuple", "get-tuple-element", "call", "dot"}
    assert asked.count("dot") == 2


@pytest.mark.parametrize("opcode", ["dot", "maximum"])
def test_a_planted_wrong_kernel_is_found_and_named(
    opcode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference here is the true kernel: f32 for the comparison, f64 as its own truth."""
    text = (
        "HloModule m\nENTRY e {\n  a = f32[8,16] parameter(0)\n  b = f32[16,4] parameter(1)\n"
        "  d = f32[8,4] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "  t = f32[8,4] tanh(d)\n  ROOT m = f32[8,4] maximum(t, d)\n}\n"
    )
    module = parse(Source(text))
    true_lowering = LOWERINGS[opcode]
    planted = [True]

    def off_by_a_thousandth(site: Site) -> Action:
        true_action = true_lowering(site)
        if not planted[0]:
            return true_action
        return lambda x: [leaf + leaf.dtype.type(1e-3) for leaf in true_action(x)]

    def reference(work: Sequence[tuple[Module, Sequence[Array]]]) -> list[list[Array] | str]:
        planted[0] = False
        answers: list[list[Array] | str] = [list(Evaluator(m)(*leaves)) for m, leaves in work]
        planted[0] = True
        return answers

    monkeypatch.setitem(LOWERINGS.loaded, opcode, off_by_a_thousandth)
    found = first_divergence(module, flat(random_arguments(module, 0)), reference)
    assert found is not None
    assert found.instruction.opcode == opcode
    assert not found.reference_is_off
