"""Counted loops on small arrays as prepared calls: values, bits, counts, and what is refused."""

from collections.abc import Callable, Iterator
from types import ModuleType

import numpy as np
import pytest

import hloipu
from hloipu_runtime.kernels.native.settings import Settings, native_kernels
from hloipu_runtime.simulate.functional import turn_calls, turns_on_arrays
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from hloipu_runtime.simulate.run.host import Arrays, Counts
from hloipu_runtime.simulate.run.ports import given_arrays

TURNS, RUNS_BEFORE = 6, 2
CARRIED = "s32[], f32[6,4], f32[4], f32[4], f32[6,4]"
LOOP = """HloModule m
last {{ a = f32[] parameter(0) ROOT b = f32[] parameter(1) }}
body {{
  s = ({carried}) parameter(0)
  k = s32[] get-tuple-element(s), index=0 xs = f32[6,4] get-tuple-element(s), index=1
  a = f32[4] get-tuple-element(s), index=2 b = f32[4] get-tuple-element(s), index=3
  ys = f32[6,4] get-tuple-element(s), index=4
  one = s32[] constant(1) o = s32[] constant(0) nk = s32[] add(k, one)
  row = f32[1,4] dynamic-slice(xs, k, o), dynamic_slice_sizes={{1,4}} x = f32[4] reshape(row)
  {turn}
  ROOT n = ({carried}) tuple(nk, xs, na, nb, nys)
}}
goes_on {{
  s = ({carried}) parameter(0)
  k = s32[] get-tuple-element(s), index=0 six = s32[] constant(6)
  ROOT c = pred[] compare(k, six), direction=LT
}}
ENTRY main {{
  o = s32[] constant(0) xs = f32[6,4] parameter(0) a = f32[4] parameter(1)
  b = f32[4] parameter(2) ys = f32[6,4] parameter(3)
  i = ({carried}) tuple(o, xs, a, b, ys)
  w = ({carried}) while(i), condition=goes_on, body=body
  ra = f32[4] get-tuple-element(w), index=2 rb = f32[4] get-tuple-element(w), index=3
  rys = f32[6,4] get-tuple-element(w), index=4
  ROOT r = (f32[4], f32[4], f32[6,4]) tuple(ra, rb, rys)
}}
"""
PUT = "up = f32[1,4] reshape({0}) nys = f32[6,4] dynamic-update-slice(ys, up, k, o)"
Rows = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Turn = Callable[[int, Rows, Rows, Rows, Rows], tuple[Rows, Rows, Rows]]
"""From the turn's number, its row of `xs`, and a, b and ys to the next ones."""


def put(ys: Rows, k: int, x: Rows) -> Rows:
    """Return rows with one replaced."""
    return np.concatenate([ys[:k], x[None], ys[k + 1 :]])


def placed(k: int, x: Rows, a: Rows, b: Rows) -> Rows:
    """Return x with an element of b where data says; beyond the ends it stays as it is."""
    at = min(int(a[0] * np.float32(10)), k)
    taken = b[min(max(at, 0), 3)]
    return np.array([taken if n == at else one for n, one in enumerate(x)], np.float32)


def logistic(x: Rows) -> Rows:
    """Return it in f32, op by op."""
    return np.reciprocal(np.exp(-x) + np.float32(1))


CASES: dict[str, tuple[str, Turn]] = {
    "places change": (
        "na = f32[4] add(b, x) nb = f32[4] multiply(a, x) " + PUT.format("a"),
        lambda k, x, a, b, ys: (b + x, a * x, put(ys, k, a)),
    ),
    "values are handed on as they are": (
        "na = f32[4] copy(b) nb = f32[4] copy(a) " + PUT.format("x"),
        lambda k, x, a, b, ys: (b, a, put(ys, k, x)),
    ),
    "what is replaced is read after": (
        "old = f32[1,4] dynamic-slice(ys, k, o), dynamic_slice_sizes={1,4} "
        + PUT.format("a")
        + " na = f32[4] reshape(old) nb = f32[4] multiply(a, x)",
        lambda k, x, a, b, ys: (ys[k], a * x, put(ys, k, a)),
    ),
    "what is replaced is handed on": (
        PUT.format("a") + " last = f32[1,4] slice(nys), slice={[5:6],[0:4]} "
        "na = f32[4] reshape(last) nb = f32[4] subtract(b, x)",
        lambda k, x, a, b, ys: (put(ys, k, a)[5], b - x, put(ys, k, a)),
    ),
    "single elements": (
        "c = f32[1] slice(a), slice={[1:2]} d = f32[] reshape(c) e = f32[] sine(d) "
        "f = f32[1] reshape(e) g = f32[3] slice(a), slice={[0:3]} "
        "na = f32[4] concatenate(f, g), dimensions={0} nb = f32[4] add(b, x) " + PUT.format("na"),
        lambda k, x, a, b, ys: (
            np.concatenate([np.sin(a[1:2]), a[:3]]),
            b + x,
            put(ys, k, np.concatenate([np.sin(a[1:2]), a[:3]])),
        ),
    ),
    "places that data decides": (
        "e = f32[1] slice(a), slice={[0:1]} f = f32[] reshape(e) ten = f32[] constant(10) "
        "g = f32[] multiply(f, ten) i = s32[] convert(g) p = pred[] compare(i, k), direction=LT "
        "j = s32[] select(p, i, k) t = f32[1] dynamic-slice(b, j), dynamic_slice_sizes={1} "
        "u = f32[] reshape(t) v = s32[1] reshape(j) "
        "na = f32[4] scatter(x, v, u), update_window_dims={}, inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=0, to_apply=last "
        "nb = f32[4] add(a, b) " + PUT.format("x"),
        lambda k, x, a, b, ys: (placed(k, x, a, b), a + b, put(ys, k, x)),
    ),
    "kernels of several calls": (
        "na = f32[4] logistic(x) l = f32[4] maximum(a, b) p = pred[4] compare(a, x), direction=GT "
        "nb = f32[4] select(p, l, x) " + PUT.format("nb"),
        lambda k, x, a, b, ys: (
            logistic(x),
            np.where(a > x, np.maximum(a, b), x),
            put(ys, k, np.where(a > x, np.maximum(a, b), x)),
        ),
    ),
}


@pytest.fixture(autouse=True)
def plain() -> Iterator[None]:
    with native_kernels(Settings(is_on=False)):
        yield


def engine_of(turn: str) -> FunctionalEngine:
    """Return the engine of the loop with a turn."""
    text = LOOP.format(carried=CARRIED, turn=turn)
    return FunctionalEngine(hloipu.compile(text, target="tiny").program)


def given(seed: int) -> list[Rows]:
    """Return what the loop begins with."""
    random = np.random.default_rng(seed)
    return [random.standard_normal(s).astype(np.float32) for s in ((6, 4), (4,), (4,), (6, 4))]


def run(engine: FunctionalEngine, values: list[Rows]) -> tuple[list[Rows], Counts]:
    """Return what a run leaves, and its counts."""
    host, counts = Arrays(given_arrays(engine.program.parameters, values)), Counts()
    engine.run(host, counts)
    return list(host.outputs.values()), counts


def prepared_after(engine: FunctionalEngine, seed: int) -> None:
    """Let turns be prepared after some runs by text."""
    (turns,) = engine._on_arrays
    turns.seconds = 0.0 if seed < RUNS_BEFORE else np.inf


def by_turns(turn: Turn, values: list[Rows]) -> list[Rows]:
    """Return what the loop leaves, turn by turn."""
    xs, a, b, ys = values
    for k in range(TURNS):
        a, b, ys = turn(k, xs[k], a, b, ys)
    return [a, b, ys]


@pytest.mark.parametrize("name", CASES)
def test_prepared_turns_leave_what_the_turns_do(name: str) -> None:
    text, turn = CASES[name]
    engine = engine_of(text)
    counted = []
    for seed in range(RUNS_BEFORE + 3):
        values = given(seed)
        prepared_after(engine, seed)
        before = [x.copy() for x in values]
        made, counts = run(engine, values)
        for x, wanted in zip(made, by_turns(turn, before), strict=True):
            np.testing.assert_array_equal(x, wanted)
        np.testing.assert_array_equal(values[3], before[3])  # a caller's array is never written to
        counted.append(counts.runs)
    (prepared,) = engine._on_arrays
    assert prepared.bytes
    assert engine.kept_bytes >= prepared.bytes
    assert all(x == counted[0] for x in counted)


def test_results_are_not_overwritten_by_the_next_run() -> None:
    engine = engine_of(CASES["places change"][0])
    seen: list[tuple[Rows, Rows]] = []
    for seed in range(RUNS_BEFORE + 3):
        host = Arrays(given_arrays(engine.program.parameters, given(seed)))
        prepared_after(engine, seed)
        engine.run(host, watch=lambda value, x: seen.append((x, x.copy())) if x.ndim else None)
    assert len(seen) > 3 * RUNS_BEFORE
    for x, before in seen:
        np.testing.assert_array_equal(x, before)


def test_an_interrupt_spoils_no_later_run(monkeypatch: pytest.MonkeyPatch) -> None:
    text, turn = CASES["single elements"]
    engine = engine_of(text)
    prepared_after(engine, RUNS_BEFORE)
    breaks_off = [True]
    definition = turn_calls.TurnCalls._definition

    def broken(self: turn_calls.TurnCalls, *arguments: object) -> None:
        definition(self, *arguments)  # type: ignore[arg-type]
        if self.calls and breaks_off and breaks_off.pop():
            raise KeyboardInterrupt

    monkeypatch.setattr(turn_calls.TurnCalls, "_definition", broken)
    with pytest.raises(KeyboardInterrupt):  # while calls are prepared
        run(engine, given(0))
    for seed in range(2):
        made, _ = run(engine, given(seed))
        np.testing.assert_array_equal(made[0], by_turns(turn, given(seed))[0])
    (prepared,) = engine._on_arrays
    middle = len(prepared._calls) // 2

    def breaks() -> None:
        raise KeyboardInterrupt

    prepared._calls.insert(middle, breaks)
    with pytest.raises(KeyboardInterrupt):  # while they run
        run(engine, given(0))
    del prepared._calls[middle]
    made, _ = run(engine, given(7))
    np.testing.assert_array_equal(made[0], by_turns(turn, given(7))[0])


@pytest.mark.parametrize(
    ("module", "bound"), [(turns_on_arrays, "MOST_CALLS"), (turn_calls, "MOST_BYTES")]
)
def test_what_is_refused_is_run_by_text(
    module: ModuleType, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, bound, 5)
    text, turn = CASES["places change"]
    engine = engine_of(text)
    for seed in range(RUNS_BEFORE + 2):
        prepared_after(engine, seed)
        made, _ = run(engine, given(seed))
        np.testing.assert_array_equal(made[0], by_turns(turn, given(seed))[0])
    (prepared,) = engine._on_arrays
    assert not prepared.bytes


def test_turns_are_prepared_when_text_has_taken_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """And for some layouts only: values that lie otherwise each time are left to the text."""
    text, turn = CASES["places change"]
    engine = engine_of(text)
    (prepared,) = engine._on_arrays
    run(engine, given(0))
    assert prepared.seconds > 0
    prepared.seconds = 1e-3 * prepared._preparing
    run(engine, given(0))
    assert not prepared.bytes
    prepared.seconds = prepared._preparing
    run(engine, given(0))
    assert prepared.bytes
    text_runs = prepared.seconds
    for number in range(2 * turns_on_arrays.MOST_LAYOUTS):
        values = given(number)
        values[1] = np.repeat(values[1], 1 + number)[:: 1 + number]
        made, _ = run(engine, values)
        np.testing.assert_array_equal(made[0], by_turns(turn, given(number))[0])
    assert prepared.seconds > text_runs
