"""What each pass makes of small modules: `pytest --update-goldens` writes it anew.

`tests/support/pass_golden.py` tells how `passes/PASS.expect` is written; a new case is its title
and its module alone. What comes out must compute what went in, whatever the golden says.
"""

from pathlib import Path

import numpy as np
import pytest

from hloipu_compiler.interpret.participants import evaluate_participants, participants_of
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes import PIPELINES, passes, run_passes
from hloipu_runtime.kernels.core.blocks import Array
from tests.support.goldens import fail_with_moved
from tests.support.pass_golden import Case, cases_of, passed_of, verdict_of, with_verdict
from tests.support.passes import same_bits

GOLDENS = sorted((Path(__file__).parent / "passes").glob("*.expect"))
CASES = [
    pytest.param(golden, case, id=f"{golden.stem}-{number}")
    for golden in GOLDENS
    for number, case in enumerate(cases_of(golden.read_text()))
]
OTHER_VALUES = ("narrow-floats", "scaled-batch", "smaller-batch")
"""Passes that change what is computed; `tests/compiler/passes` has tests of the values."""
ROUNDED = {
    "cheapen-divisions": 3, "default": 3, "factor-sums": 16, "lean": 3, "merge-depth": 64,
    "sum-after-loops": 8,
}  # fmt: skip
"""Pipelines that round some quotients twice, off by up to 1.5 units in the last place, or add up in
another order: most units."""
NOT_SETTLED = ("fuse-", "default", "lean", "narrow-floats", "smaller-batch")
"""Pipelines that do more in a second run: inlining undoes fusions, conversions come anew, batches
are halved again."""


@pytest.mark.parametrize(("golden", "case"), CASES)
def test_a_pass_makes_what_its_golden_says(
    golden: Path, case: Case, pytestconfig: pytest.Config
) -> None:
    passed = passed_of(case)
    now = verdict_of(passed)
    if pytestconfig.getoption("--update-goldens"):
        golden.write_text(with_verdict(golden.read_text(), case, now))
    else:
        fail_with_moved(f"{golden.name}: {case.title}", case.verdict.split("\n"), now.split("\n"))
    if not any(x in case.pipeline for x in NOT_SETTLED) and "opt-barrier" not in case.text:
        assert run_passes(passed.after, None, case.pipeline)[0] is passed.after
    if not case.pipeline.startswith(OTHER_VALUES) and not _is_unknown(case.text):
        for wanted, found in zip(_values(passed.before), _values(passed.after), strict=True):
            most = [n for name, n in ROUNDED.items() if case.pipeline.startswith(name)]
            if most and wanted.dtype == np.float32:
                np.testing.assert_array_max_ulp(wanted, found, most[0])
            else:
                assert same_bits(wanted, found), (wanted, found)


def test_every_pass_and_pipeline_has_a_golden() -> None:
    wanted = {one.name for one in passes()} | (PIPELINES.keys() - {"simplify"})
    commands = "\n".join(golden.read_text() for golden in GOLDENS)
    assert {name for name in wanted if name not in commands} == set()


def _is_unknown(text: str) -> bool:
    """Whether a module has constants that were left out, or a call that nobody knows."""
    return "{...}" in text or 'custom_call_target="x"' in text


def _values(module: Module) -> list[Array]:
    """Return the results of all participants, each replica on random arguments of its own."""
    replicas, partitions = participants_of(module)
    arguments = [random_arguments(module, seed) for seed in range(replicas)]
    everyone = evaluate_participants(module, arguments, replicas=replicas, partitions=partitions)
    return [np.asarray(value) for values in everyone for value in values]
