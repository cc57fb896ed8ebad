"""The referee of two commits sees a change of a kernel, of a machine's number and of a refusal."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from tools.referee.__main__ import ROOT, Side, compared, comparisons
from tools.referee.cases import Case

TEXT = """HloModule m
ENTRY main {
  a = f32[64,8] parameter(0)
  t = f32[64,8] tanh(a)
  b = f32[8,4] parameter(1)
  ROOT r = f32[64,4] dot(t, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
CHANGES = [
    (
        "runtime/hloipu_runtime/kernels/elementwise/unary.py",
        '"tanh": np.tanh',
        '"tanh": np.sin',
        {"values"},
    ),
    (
        "runtime/hloipu_runtime/machine/data/tiny.toml",
        "sync_cycles = { value = 100,",
        "sync_cycles = { value = 101,",
        {"cycles", "verdict"},
    ),
]


@pytest.fixture
def module(tmp_path: Path) -> str:
    path = tmp_path / "m.hlo"
    path.write_text(TEXT)
    return str(path)


def changed_tree(folder: Path, path: str, old: str, new: str) -> Path:
    """Return a copy of the sources in which one text is another."""
    for part in ("hloipu", "compiler", "runtime"):
        # With the bytecode, which makes starts short, but for what is just being written.
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("*.pyc.*"))
    file = folder / path
    before = file.read_text()
    assert before.count(old) >= 1
    file.write_text(before.replace(old, new))
    return folder


@pytest.mark.parametrize(("path", "old", "new", "differing"), CHANGES)
def test_a_change_is_seen_where_it_shows(
    path: str, old: str, new: str, differing: set[str], module: str, tmp_path: Path
) -> None:
    plain = Case("plain", module, ("--target", "tiny"), ("--random", "0"))
    refused = Case("refused", module, ("--target", "nowhere"))
    tree = changed_tree(tmp_path, path, old, new)
    with closing(Side(ROOT)) as here, closing(Side(tree)) as there:
        results = list(comparisons([plain, refused], here, there))
    assert [set(result.differences) for result in results] == [differing, set()]


def test_an_answer_that_lacks_something_differs() -> None:
    answer = {"exit_code": 0, "verdict": "fits", "program": "00", "compile_seconds": 0.1}
    lacking = {"exit_code": 0, "verdict": "fits", "compile_seconds": 0.2}
    assert set(compared("case", answer, lacking).differences) == {"program"}
    assert compared("case", answer, lacking).ratios == {"compile_seconds": 2.0}
