"""A spread of one-op modules on small machines, under the referees of programs and of memory."""

from random import Random

import pytest

from hloipu.api import compile_verified
from hloipu.options.resolve import resolve
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import UnsupportedError
from tests.support.memory_checker import overlaps
from tests.support.program_checker import violations
from tools.conformance.case import Case
from tools.conformance.workers import chosen_cases

CASES = [case for case in chosen_cases(80) if case.participants == 1]


def program_of(case: Case, tiles: int) -> CompiledProgram | None:
    """Return the compiled case, or None where the machine cannot run it."""
    module = parse(case.text)
    verify(module)
    given = {"target": "tiny", "set": {"tiles_per_ipu": tiles}, "over_memory": "allow"}
    try:
        return compile_verified(module, resolve("compile", given).options)
    except UnsupportedError:
        return None


@pytest.mark.parametrize("tiles", [4, 7])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.thinned(3)
def test_the_referees_find_nothing(case: Case, tiles: int) -> None:
    program = program_of(case, tiles)
    if program is None:
        return
    assert violations(program.program, tiles) == []
    assert overlaps(program.program, program.memory_plan.addresses, Random(0), 2) == []
