"""Transformer Engine's fused attention against attention in f64, and its differences."""

from dataclasses import replace

import numpy as np
import pytest
from ml_dtypes import bfloat16

from hloipu_compiler.formulas.call import FormulaError
from hloipu_compiler.vendor import attention_blocks
from tests.support.te_attention import Case, Full

RAGGED = Case(
    batch=2, queries=8, keys=8, segments=2, mask="padding causal",
    lengths=((3, 4, 8, 0), (3, 4, 8, 0)), starts=((0, 4, 8, 16), (0, 4, 8, 16)),
)  # fmt: skip
PADDED = ((6, 3), (5, 4))
CASES = {
    "plain": Case(),
    "cross": Case(keys=9, value_size=3),
    "packed": Case(layout="packed", mask="causal"),
    "kv packed": Case(layout="kv packed", heads=4, mask="causal"),
    "grouped queries": Case(heads=6, groups=2, mask="causal"),
    "padding": Case(mask="padding", lengths=PADDED),
    "padding causal": Case(mask="padding causal", lengths=PADDED, heads=4),
    "causal end": Case(queries=4, keys=7, mask="causal end"),
    "more queries than keys": Case(queries=7, keys=4, mask="causal end"),
    "padding causal end": Case(mask="padding causal end", lengths=((4, 3), (6, 4))),
    "window": Case(mask="causal", window=(2, 0), queries=7, keys=7),
    "window of both sides": Case(window=(2, 1)),
    "window beyond the keys": Case(window=(1, 1), queries=8, keys=4),
    "window of padding": Case(mask="padding", window=(1, 2), lengths=PADDED),
    "bias of all": Case(bias=(1, 1), mask="causal"),
    "bias of heads": Case(bias=(1, 4), heads=4),
    "bias of samples": Case(bias=(2, 1), bias_type=1),
    "off by one": Case(softmax=1, mask="causal"),
    "learnt offset": Case(softmax=2, heads=4, mask="padding", lengths=PADDED),
    "segments": RAGGED,
    "segments of another order": Case(
        batch=1, queries=8, keys=10, segments=3, mask="padding causal end", heads=4, window=(2, 0),
        lengths=((2, 3, 1), (4, 3, 3)), starts=((0, 3, 6), (0, 4, 7)), layout="kv packed",
    ),
    "segments packed": Case(
        batch=2, queries=5, keys=5, segments=2, mask="padding", layout="packed",
        lengths=((2, 2, 5, 0), (2, 2, 5, 0)), starts=((0, 3, 5, 10), (0, 3, 5, 10)),
    ),
}  # fmt: skip


@pytest.fixture(params=["whole", "in blocks"])
def _cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few queries, the last of which is smaller."""
    if request.param == "in blocks":
        monkeypatch.setattr(attention_blocks, "MOST_SCORES", 100)


def _differences(
    case: Case, given: list[Full], number: int, weight: Full, kept: Full | None = None
) -> Full:
    found, seen = np.zeros_like(given[number]), case.seen()
    for at in np.ndindex(found.shape):
        sides = []
        for step in (1e-5, -1e-5):
            moved = [x.copy() for x in given]
            moved[number][at] += step
            sides.append((case.plain(moved, seen, kept)[0] * weight).sum())
        found[at] = (sides[0] - sides[1]) / 2e-5
    return found


@pytest.mark.usefixtures("_cut")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.thinned(3)
def test_attention_and_its_gradients(name: str) -> None:
    case = CASES[name]
    given = case.drawn()
    full = [x.astype(np.float64) for x in given]
    made, statistics = case.plain(full, case.seen())
    mine = case.forward(given)
    np.testing.assert_allclose(mine[0], made, 1e-5, 1e-5)
    kept = mine[1][..., 0].swapaxes(1, 2) if case.is_ragged else mine[1][..., 0]
    np.testing.assert_allclose(kept, statistics, 1e-5, 1e-5)
    np.testing.assert_array_equal(mine[2].ravel(), [3, 5, 0, 0, 0, 0, 0, 0])
    assert not mine[3].any()
    weight = np.random.default_rng(1).standard_normal(made.shape).astype(np.float32)
    back = case.backward(given, mine, weight)
    for number, gradient in enumerate(back):
        if given[number].size:
            wanted = _differences(case, full, number, weight.astype(np.float64))
            np.testing.assert_allclose(gradient, wanted, 1e-4, 2e-5)


def test_sequences_across_rows_of_a_batch_give_no_numbers() -> None:
    case = replace(RAGGED, starts=((0, 6, 8, 16), (0, 6, 8, 16)))
    assert np.isnan(case.forward(case.drawn())[0]).all()


@pytest.mark.usefixtures("_cut")
def test_dropout_leaves_a_share_and_its_gradient_the_same() -> None:
    case = Case(batch=1, queries=24, keys=16, size=2, value_size=16, dropout=0.25)
    given = case.drawn()
    given[2] = np.tile(np.eye(16, dtype=np.float32)[None, :, None], (1, 1, 2, 1))  # shows softmax
    made = case.forward(given)
    full = [x.astype(np.float64) for x in given]
    softmax = case.plain(full, case.seen())[0]
    factors = made[0] / softmax
    is_kept = np.isclose(factors, 1 / 0.75, 1e-4)
    assert (is_kept | (factors == 0)).all()
    assert abs(is_kept.mean() - 0.75) < 6 * np.sqrt(0.75 * 0.25 / is_kept.size)
    assert not (factors[0, 0] == factors[0, 12]).all()
    weight = np.random.default_rng(1).standard_normal(softmax.shape).astype(np.float32)
    back = case.backward(given, made, weight)
    kept = np.where(is_kept, 1 / 0.75, 0).transpose(0, 2, 1, 3)
    for number in range(2):
        wanted = _differences(case, full, number, weight.astype(np.float64), kept)
        np.testing.assert_allclose(back[number], wanted, 1e-4, 2e-5)


def test_no_dropout_beside_training() -> None:
    case = Case(dropout=0.5)
    given = case.drawn()
    still = replace(case, others={"is_training": False})
    np.testing.assert_array_equal(
        still.forward(given)[0], replace(case, dropout=0.0).forward(given)[0]
    )


NARROW = {"bf16": np.dtype(bfloat16), "f16": np.dtype(np.float16)}


@pytest.mark.parametrize("kind", NARROW)
def test_a_kept_softmax(kind: str) -> None:
    case = Case(mask="causal", heads=4)
    kept = f"{kind}[2,4,6,6]"
    given = [x.astype(NARROW[kind]) for x in case.drawn()]
    full = [x.astype(np.float64) for x in given]
    wanted = case.plain(full, case.seen())[0]
    made = case.forward(given, kept)
    np.testing.assert_allclose(np.asarray(made[0], np.float64), wanted, 0.02, 0.02)
    np.testing.assert_allclose(np.asarray(made[1], np.float64).sum(-1), np.ones((2, 4, 6)), 0.02)
    weight = np.random.default_rng(1).standard_normal(wanted.shape).astype(NARROW[kind])
    back = case.backward(given, made, weight)
    for number in range(3):
        gradient = _differences(case, full, number, weight.astype(np.float64))
        np.testing.assert_allclose(np.asarray(back[number], np.float64), gradient, 0.03, 0.05)


REFUSED = {
    "layout": (Case(others={"qkv_layout": 4}), "E0530", "qkv_layout 4"),
    "bias": (Case(bias=(1, 1), bias_type=3), "E0530", "bias_type is 3"),
    "bias size": (Case(bias=(3, 1)), "E0531", "its bias"),
    "mask": (Case(others={"mask_type": 7}), "E0531", "mask_type is 7"),
    "window": (Case(mask="causal", window=(-1, 2)), "E0531", "window"),
    "groups": (Case(heads=3), "E0531", "multiple of its groups"),
    "segments": (replace(RAGGED, mask="causal"), "E0531", "padding"),
    "sequences": (replace(RAGGED, segments=3), "E0531", "sequences"),
    "size": (Case(others={"qk_head_dim": 8}), "E0531", "operand"),
    "diagonal": (Case(mask="causal", others={"bottom_right_diagonal": True}), "E0531", "diagonal"),
    "dropout": (Case(dropout=1.0), "E0531", "dropout_probability"),
    "missing": (Case(others={"scaling_factor": "no"}), "E0531", "scaling_factor"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused(what: str) -> None:
    case, code, words = REFUSED[what]
    with pytest.raises(FormulaError, match=words) as caught:
        case.forward(case.drawn())
    assert caught.value.code == code


def test_a_kept_softmax_with_dropout_is_refused() -> None:
    case = Case(dropout=0.5)
    with pytest.raises(FormulaError, match="dropout") as caught:
        case.forward([x.astype(bfloat16) for x in case.drawn()], "bf16[2,2,6,6]")
    assert caught.value.code == "E0530"
