"""Counted loops in Python: what the turn decides is computed once, and windows are in place."""

import numpy as np
import pytest

import hloipu
from hloipu_runtime.kernels.native.settings import Settings, native_kernels
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from hloipu_runtime.simulate.functional.known_turns import KnownTurns
from hloipu_runtime.simulate.run.host import Arrays
from hloipu_runtime.simulate.run.ports import given_arrays

TURNS = 5
SCAN = """HloModule m
body {
  s = (s32[], f32[5,3], f32[5,3], f32[1,3]) parameter(0)
  k = s32[] get-tuple-element(s), index=0 x = f32[5,3] get-tuple-element(s), index=1
  y = f32[5,3] get-tuple-element(s), index=2 z = f32[1,3] get-tuple-element(s), index=3
  one = s32[] constant(1) four = s32[] constant(4) nk = s32[] add(k, one)
  back = s32[] subtract(four, k) o = s32[] constant(0)
  r = f32[1,3] dynamic-slice(x, back, o), dynamic_slice_sizes={1,3} t = f32[1,3] add(z, r)
  c = f32[] convert(k) d = f32[1,3] broadcast(c), dimensions={} nz = f32[1,3] add(t, d)
  ny = f32[5,3] dynamic-update-slice(y, nz, k, o)
  ROOT n = (s32[], f32[5,3], f32[5,3], f32[1,3]) tuple(nk, x, ny, nz)
}
goes_on {
  s = (s32[], f32[5,3], f32[5,3], f32[1,3]) parameter(0)
  k = s32[] get-tuple-element(s), index=0
  five = s32[] constant(5) ROOT c = pred[] compare(k, five), direction=LT
}
ENTRY main {
  o = s32[] constant(0) x = f32[5,3] parameter(0) y = f32[5,3] parameter(1)
  z = f32[1,3] parameter(2) i = (s32[], f32[5,3], f32[5,3], f32[1,3]) tuple(o, x, y, z)
  w = (s32[], f32[5,3], f32[5,3], f32[1,3]) while(i), condition=goes_on, body=body
  ny = f32[5,3] get-tuple-element(w), index=2 k = s32[] get-tuple-element(w), index=0
  ROOT r = (s32[], f32[5,3]) tuple(k, ny)
}
"""


def test_turns_are_decided_once_and_windows_written_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decided: list[int] = []
    following = KnownTurns._next

    def counted(self: KnownTurns) -> object:
        decided.append(len(self._kept))
        return following(self)

    monkeypatch.setattr(KnownTurns, "_next", counted)
    program = hloipu.compile(SCAN, target="tiny").program
    engine = FunctionalEngine(program)
    for run in range(3):
        x = np.arange(15, dtype=np.float32).reshape(5, 3) + run
        y, z = np.full((5, 3), -1, np.float32), np.full((1, 3), run, np.float32)
        host = Arrays(given_arrays(program.parameters, [x, y, z]))
        with native_kernels(Settings(is_on=False)):
            engine.run(host)
        k, made = host.outputs.values()
        expected = z + np.cumsum(x[::-1] + np.arange(TURNS, dtype=np.float32)[:, None], axis=0)
        assert k == TURNS
        np.testing.assert_array_equal(made, expected)
        assert (y == -1).all()  # a caller's array is never written to
    assert decided == [*range(TURNS)]


def test_an_interrupt_while_a_turn_is_decided_spoils_no_later_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    following = KnownTurns._next
    breaks_off = [False, True, False]

    def broken(self: KnownTurns) -> object:
        made = following(self)
        if breaks_off and breaks_off.pop(0):
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(KnownTurns, "_next", broken)
    program = hloipu.compile(SCAN, target="tiny").program
    engine = FunctionalEngine(program)
    x, y, z = np.ones((5, 3), np.float32), np.zeros((5, 3), np.float32), np.ones((1, 3), np.float32)
    with native_kernels(Settings(is_on=False)):
        with pytest.raises(KeyboardInterrupt):
            engine.run(Arrays(given_arrays(program.parameters, [x, y, z])))
        host = Arrays(given_arrays(program.parameters, [x, y, z]))
        engine.run(host)
    k, made = host.outputs.values()
    assert k == TURNS
    expected = z + np.cumsum(x + np.arange(TURNS, dtype=np.float32)[:, None], axis=0)
    np.testing.assert_array_equal(made, expected)
