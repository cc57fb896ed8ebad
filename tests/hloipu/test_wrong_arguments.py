"""Wrong arguments of public functions end in typed errors that name them, and never otherwise."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_runtime.arguments import ArgumentError
from hloipu_runtime.errors import UsageError
from tests.support.wrong_arguments import (
    ADD,
    CALLS,
    Case,
    faults_of,
    faults_of_options,
    missing,
    program,
)

ONE_IN = 12
"""Thins the default suite; `--all-cases` gives every parameter every value."""


@pytest.fixture(scope="module")
def one_in(pytestconfig: pytest.Config) -> int:
    """Of how many wrong values each parameter is given one."""
    return 1 if pytestconfig.getoption("--all-cases") else ONE_IN


def fail_of(faults: dict[Case, str]) -> None:
    """Fail with the first of these, also where Python drops assertions."""
    if faults:
        shown = "\n".join(f"{case}: {fault}" for case, fault in list(faults.items())[:10])
        pytest.fail(f"{len(faults)} cases:\n{shown}")


def test_every_public_function_is_called() -> None:
    if missing():
        pytest.fail(f"no base call and no reason for none: {missing()}")


@pytest.mark.filterwarnings("ignore:Python iterable type:DeprecationWarning")  # of JAX
@pytest.mark.parametrize("name", CALLS)
def test_each_wrong_value_is_refused_by_name(
    name: str, one_in: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fail_of({case: fault for case, fault in faults_of(name, one_in) if fault})


def test_options_of_compiling(one_in: int) -> None:
    fail_of({case: fault for case, fault in faults_of_options(one_in) if fault})


def test_lists_that_hold_themselves_are_refused() -> None:
    itself: list[Any] = [1.0]
    itself.append(itself)
    with pytest.raises(ArgumentError, match="a list that holds itself"):
        program().run(itself, np.ones(2, np.float32))


def test_numbers_of_numpy_are_numbers() -> None:
    given = (np.float32(1), np.ones(2, np.float32))
    plain = program().run(*given, seed=3)
    seeds: list[Any] = [np.int64(3), np.uint8(3)]
    for seed in seeds:
        assert program().run(*given, seed=seed).cycles == plain.cycles
    with pytest.raises(ArgumentError) as caught:
        program().run(*given, seed=True)
    assert (caught.value.argument, caught.value.found) == ("seed", "True")


@pytest.mark.parametrize(
    ("kind", "fits", "beyond"),
    [
        ("s8", -128, 300),
        ("s16", 32767, 32768),
        ("s4", 7, 8),
        ("f16", 65504.0, 1e6),
        ("f32", 1e38, 1e39),
    ],
)
def test_numbers_that_a_type_cannot_hold_are_refused(kind: str, fits: float, beyond: float) -> None:
    text = f"HloModule one\nENTRY e {{\n  ROOT a = {kind}[] parameter(0)\n}}\n"
    exe = hloipu.compile(text, cache=False)
    assert float(exe.run(fits).outputs[0]) == pytest.approx(fits, rel=1e-3)
    assert float(hloipu.evaluate(text, fits)[0]) == pytest.approx(fits, rel=1e-3)
    for way in (exe.run, lambda x: hloipu.evaluate(text, x)):
        with pytest.raises(UsageError):
            way(beyond)


def test_a_signature_is_still_to_be_seen() -> None:
    with pytest.raises(ArgumentError, match="takes no argument 'limit'"):
        hloipu.verify(ADD, limit=3)  # type: ignore[call-arg]
