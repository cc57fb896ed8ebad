"""`front` on whole programs: values stay, and what comes after it finds what it relies on."""

import random
from pathlib import Path

import numpy as np
import pytest

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printing.printer import print_module
from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.passes import PIPELINES, PassRun, run_passes
from hloipu_compiler.source import Source
from tests.support.passes import assert_same_values, entry, parsed
from tools.conformance.cases import all_cases
from tools.fuzz_programs.program import generate

SAMPLES = sorted((Path(__file__).resolve().parents[3] / "hlo_samples").glob("*.hlo"))
TUPLE_TAKERS = frozenset({"while", "conditional", "get-tuple-element", "outfeed", "send"})


def assert_flat(module: Module) -> None:
    """Nothing calls but loops and branches; tuples are at their borders only."""
    applied: set[str] = set()
    run: list[str] = []
    for c in callees_first(module):
        for x in c.instructions:
            assert x.opcode not in ("call", "fusion", "bitcast", "opt-barrier", "domain")
            if Trait.APPLIER in OPS[x.opcode].traits:
                applied.update(x.attributes.called)
            else:
                run += x.attributes.called
    assert len(run) == len(set(run))
    assert not applied & set(run)
    for c in module.computations:
        for i, x in enumerate(c.instructions):
            users = [c.instructions[user] for user in c.users[i]]
            if x.opcode == "tuple" and i != c.root:
                assert {y.opcode for y in users} <= TUPLE_TAKERS - {"get-tuple-element"} | {"tuple"}
            if x.opcode == "get-tuple-element":
                assert c.instructions[x.operands[0]].opcode != "tuple"


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_samples_keep_their_values(path: Path) -> None:
    module = parse(Source(path.read_text(), path.name))
    after, plan = run_passes(module)
    assert_same_values(module, after)
    assert_flat(after)
    loops = {(c.name, x.name) for c in after.computations for x in c.instructions}
    assert plan.trip_counts.keys() <= loops
    assert parse(Source(print_module(after))).instruction_count == after.instruction_count


def test_loops_of_samples_are_counted() -> None:
    found = {}
    for path in SAMPLES:
        _, plan = run_passes(parse(Source(path.read_text(), path.name)))
        if plan.trip_counts:
            found[path.stem] = list(plan.trip_counts.values())
    assert found["scan_rnn"] == [20]
    assert "random_sampling" not in found  # rounds of ThreeFry, which are written out
    assert "newton_while" not in found


@pytest.mark.parametrize("one", sorted({x.name for x in PIPELINES["front"].passes()}))
@pytest.mark.thinned(2)
def test_each_pass_alone_keeps_values(one: str) -> None:
    for path in SAMPLES:
        module = parse(Source(path.read_text(), path.name))
        after, _ = run_passes(module, None, one)
        assert_same_values(module, after)


def test_conformance_modules_keep_their_values() -> None:
    cases = list(all_cases())
    for case in random.Random(0).sample(cases, 300):
        module = parse(Source(case.text, case.name))
        after, _ = run_passes(module)
        assert_same_values(module, after)
        assert_flat(after)


def test_random_programs_keep_their_values() -> None:
    """Sums of floats may round otherwise: kernels add in the order of memory."""
    for number in range(60):
        program = generate(4, number)
        module = parse(Source(program.text, str(number)))
        after, _ = run_passes(module)
        assert_flat(after)
        for want, got in zip(
            evaluate_everywhere(module, *program.arguments()),
            evaluate_everywhere(after, *program.arguments()),
            strict=True,
        ):
            if np.asarray(want).dtype.kind in "biu":
                np.testing.assert_array_equal(want, got)
            else:
                wide = [np.asarray(x).astype(np.complex128) for x in (want, got)]
                np.testing.assert_allclose(wide[0], wide[1], rtol=1e-2, atol=1e-4)


def test_a_long_program_settles_in_two_rounds() -> None:
    rows = ["  p = f32[4] parameter(0)", "  v0 = f32[4] negate(p)"]
    rows += [f"  v{i} = f32[4] add(v{i - 1}, p)" for i in range(1, 5000)]
    rows[-1] = rows[-1].replace("  v", "  ROOT v")
    runs: list[PassRun] = []
    after, _ = run_passes(parsed(entry("\n".join(rows))), watch=runs.append)
    assert after.instruction_count == 5001
    assert max(run.round for run in runs) == 1
