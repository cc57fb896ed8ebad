"""Small modules, and the programs that they become: `pytest --update-goldens` writes them anew.

The first line of each `programs/NAME.expect` names a module beside it and the options to compile it
with. How its ops were planned and which plans lost, the program, cycles of each step, bytes of the
fullest tile, and what `hloipu estimate` says of it follow. A new golden is its first line alone.
"""

from pathlib import Path

import pytest

from tests.support.goldens import fail_with_moved
from tests.support.program_golden import command_of, golden_text

GOLDENS = sorted((Path(__file__).parent / "programs").glob("*.expect"))


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.stem)
def test_compiles_to_the_golden(golden: Path, pytestconfig: pytest.Config) -> None:
    now = golden_text(golden)
    if pytestconfig.getoption("--update-goldens"):
        golden.write_text(now)
        return
    fail_with_moved(golden.name, golden.read_text().splitlines(), now.splitlines())


def test_every_module_has_a_golden() -> None:
    modules = {path.name for path in GOLDENS[0].parent.glob("*.hlo")}
    assert modules == {command_of(golden)[1] for golden in GOLDENS}
