"""Small modules, and the programs that they become: `pytest --update-goldens` writes them anew.

Beside each `programs/NAME.hlo` stands `NAME.expect`: how its ops were planned and which plans lost,
the program, cycles of each step, bytes of the fullest tile, and what `hloipu estimate` says of it.
"""

from difflib import unified_diff
from pathlib import Path

import pytest

from tests.support.program_golden import golden_text

MODULES = sorted((Path(__file__).parent / "programs").glob("*.hlo"))


@pytest.mark.parametrize("hlo", MODULES, ids=lambda path: path.stem)
def test_compiles_to_the_golden(hlo: Path, pytestconfig: pytest.Config) -> None:
    expect = hlo.with_suffix(".expect")
    text = golden_text(hlo)
    if pytestconfig.getoption("--update-goldens"):
        expect.write_text(text)
    stored = expect.read_text().splitlines(keepends=True)
    moved = unified_diff(stored, text.splitlines(keepends=True), expect.name, "now")
    if diff := "".join(moved):
        pytest.fail(f"{diff}\nif this is right: pytest --update-goldens", pytrace=False)


def test_every_golden_has_its_module() -> None:
    stored = {path.stem for path in MODULES[0].parent.glob("*.expect")}
    assert stored == {path.stem for path in MODULES}
