"""Starts and dones: one chain for each start; what an async computation may hold."""

import pytest

from tests.support.verifier_cases import check_accepted, check_refused, faults_in

_WRAPPED = """w {
  x = f32[4] parameter(0)
  ROOT n = f32[4] sine(x)
}
"""


def _module(lines: str, before: str = "") -> str:
    return f"HloModule m\n{before}ENTRY e {{\n  p = f32[4] parameter(0)\n{lines}}}\n"


_START = "  s = ((f32[4]), f32[4], u32[]) async-start(p), calls=w\n"


@pytest.mark.parametrize(
    ("lines", "before"),
    [
        ("  s = (f32[4], f32[4], u32[]) copy-start(p)\n  ROOT d = f32[4] copy-done(s)\n", ""),
        (_START + "  ROOT d = f32[4] async-done(s)\n", _WRAPPED),
        (
            _START + "  u = ((f32[4]), f32[4], u32[]) async-update(s)\n"
            "  ROOT d = f32[4] async-done(u)\n",
            _WRAPPED,
        ),
        (
            "  s = (f32[4], f32[8]) all-gather-start(p), replica_groups={{0,1}}, dimensions={0}\n"
            "  ROOT d = f32[8] all-gather-done(s)\n",
            "",
        ),
        (
            "  s = (f32[4], f32[4]) collective-permute-start(p), source_target_pairs={{0,1}}\n"
            "  ROOT d = f32[4] collective-permute-done(s)\n",
            "",
        ),
        (
            '  s = ((f32[4]), f32[4], u32[]) custom-call-start(p), custom_call_target="x"\n'
            "  ROOT d = f32[4] custom-call-done(s)\n",
            "",
        ),
    ],
)
def test_a_start_with_its_done_is_accepted(lines: str, before: str) -> None:
    """Native pairs, wrapped computations and sugar."""
    check_accepted(_module(lines, before))


@pytest.mark.parametrize(
    ("lines", "before", "code"),
    [
        ("  «s» = (f32[4], f32[4], u32[]) copy-start(p)\n  ROOT n = f32[4] sine(p)\n", "", "E0320"),
        (
            "  «s» = (f32[4], f32[4], u32[]) copy-start(p)\n  d = f32[4] copy-done(s)\n"
            "  ROOT d2 = f32[4] copy-done(s)\n",
            "",
            "E0320",
        ),
        (
            "  s = (f32[4], f32[4], u32[]) copy-start(p)\n"
            "  ROOT g = f32[4] «get-tuple-element»(s), index=0\n",
            "",
            "E0320",
        ),
        (
            "  t = (f32[4], f32[4], u32[]) parameter(1)\n  ROOT d = f32[4] copy-done(«t»)\n",
            "",
            "E0320",
        ),
        ("  «s» = ((f32[4]), f32[4], u32[]) async-start(p), calls=w\n  ROOT n = f32[4] sine(p)\n",
         _WRAPPED, "E0320"),
    ],
)  # fmt: skip
def test_a_broken_chain_is_refused(lines: str, before: str, code: str) -> None:
    """No user, two users, a wrong user, a done of something else."""
    check_refused(_module(lines, before), code)


def test_an_async_computation_of_two_operations_is_refused() -> None:
    """Parameters and one operation."""
    two = "w {\n  x = f32[4] parameter(0)\n  y = f32[4] sine(x)\n  ROOT n = f32[4] sine(y)\n}\n"
    check_refused(
        _module(
            "  s = ((f32[4]), f32[4], u32[]) async-start(p), «calls=w»\n"
            "  ROOT d = f32[4] async-done(s)\n",
            two,
        ),
        "E0323",
    )


def test_another_thread_may_run_anything() -> None:
    """The rule of one operation is the main thread's."""
    two = (
        "w {\n  x = f32[4] parameter(0)\n  y = f32[4] sine(x)\n  ROOT n = f32[4] sine(y)\n"
        '}, execution_thread="side"\n'
    )
    check_accepted(
        _module(
            "  s = ((f32[4]), f32[4], u32[]) async-start(p), "
            'async_execution_thread="side", calls=w\n'
            "  ROOT d = f32[4] async-done(s)\n",
            two,
        )
    )


@pytest.mark.parametrize(
    "lines",
    [
        "  s = ((f32[4]), f32[5], u32[]) async-start(p), calls=w\n"
        "  ROOT d = f32[4] async-done(s)\n",
        "  s = ((f32[5]), f32[4], u32[]) async-start(p), calls=w\n"
        "  ROOT d = f32[4] async-done(s)\n",
        "  s = ((f32[4]), f32[4], u32[]) async-start(p), calls=w\n"
        "  ROOT d = f32[5] async-done(s)\n",
        "  s = ((f32[4], f32[4]), f32[4], u32[]) async-start(p, p), calls=w\n"
        "  ROOT d = f32[4] async-done(s)\n",
    ],
)
def test_wrong_shapes_in_flight_are_refused(lines: str) -> None:
    """((operands…), result, state…) with the wrapped computation's shapes."""
    assert faults_in(_module(lines, _WRAPPED))
