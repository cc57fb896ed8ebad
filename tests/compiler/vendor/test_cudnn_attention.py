"""cuDNN's attention as JAX writes it for GPUs, against JAX's own attention."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from ml_dtypes import bfloat16
from numpy.typing import NDArray

from hloipu_compiler.formulas.call import FormulaError
from tests.support.popops_call import evaluated, text_of_call

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """Sizes and options of an attention."""

    queries: int = 8
    keys: int = 8
    heads: int = 2
    groups: int = 2
    layout: str = "BTNH"
    mask: str = "NO_MASK"
    window: int | None = None
    bias: tuple[int, int] | None = None
    lengths: tuple[tuple[int, int], tuple[int, int]] | None = None
    dropout: float = 0.0

    def drawn(self) -> list[Array]:
        """Random q, k, v, and a bias."""
        rng = np.random.default_rng(3)
        dims = [(2, self.queries, self.heads, 8), (2, self.keys, self.groups, 8)]
        dims = [dims[0], dims[1], dims[1]]
        if self.bias:
            dims.append((*self.bias, self.queries, self.keys))
        return [rng.standard_normal(d).astype(bfloat16) for d in dims]


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX asks for the GPU that is there before it writes a call."""
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91200)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda _: True)
    monkeypatch.setattr(cudnn, "is_cuda_compute_capability_equal", lambda _: False)


def _ours(case: Case, *given: jax.Array) -> jax.Array:
    q, k, v, *bias = given
    if case.layout == "BNTH":
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    lengths = case.lengths or (None, None)
    made = cudnn.dot_product_attention(
        q, k, v, bias=bias[0] if bias else None, scale=0.5, mask_type=cudnn.MaskType[case.mask],
        q_seqlen=None if lengths[0] is None else jnp.array(lengths[0], jnp.int32),
        kv_seqlen=None if lengths[1] is None else jnp.array(lengths[1], jnp.int32),
        sliding_window_length=case.window, qkv_layout=case.layout, dropout_rate=case.dropout,
    )  # fmt: skip
    return made.transpose(0, 2, 1, 3) if case.layout == "BNTH" else made


def _plain(case: Case, *given: jax.Array) -> jax.Array:
    q, k, v, *bias = (x.astype(jnp.float32) for x in given)
    lengths = case.lengths or (None, None)
    made = jax.nn.dot_product_attention(
        q, k, v, bias[0] if bias else None, scale=0.5, is_causal=case.mask.endswith("CAUSAL"),
        query_seq_lengths=None if lengths[0] is None else jnp.array(lengths[0]),
        key_value_seq_lengths=None if lengths[1] is None else jnp.array(lengths[1]),
        local_window_size=None if case.window is None else (case.window - 1, 0),
        implementation="xla",
    )  # fmt: skip
    if lengths[0] is not None:
        rows = jnp.arange(case.queries)[None, :] < jnp.array(lengths[0])[:, None]
        made = jnp.where(rows[:, :, None, None], made, 0)
    return made


def _text(function: Callable[..., Any], given: list[Array]) -> str:
    traced = jax.jit(function).trace(*given)
    return str(traced.lower(lowering_platforms=("cuda",)).as_text("hlo"))


CASES = {
    "plain": Case(),
    "heads first": Case(layout="BNTH", keys=6),
    "causal": Case(mask="CAUSAL", heads=4),
    "window": Case(mask="CAUSAL", window=3),
    "bias": Case(bias=(1, 4), heads=4, groups=4),
    "bias of samples": Case(bias=(2, 2), mask="CAUSAL"),
    "padding": Case(mask="PADDING", lengths=((8, 5), (6, 8))),
    "padding causal": Case(mask="PADDING_CAUSAL", lengths=((8, 5), (6, 8))),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.thinned(3)
def test_attention_and_its_gradients(name: str) -> None:
    case = CASES[name]
    given = case.drawn()
    weight = np.random.default_rng(5).standard_normal(given[0].shape).astype(np.float32)

    def loss(function: Callable[..., jax.Array], *x: jax.Array) -> jax.Array:
        return (function(case, *x).astype(jnp.float32) * weight).sum()

    (made,) = evaluated(_text(lambda *x: _ours(case, *x), given), *given)
    wanted = jax.jit(lambda *x: _plain(case, *x))(*map(jnp.asarray, given))
    np.testing.assert_allclose(made.astype(np.float32), wanted, 0.02, 0.02)
    every = tuple(range(len(given)))
    back = evaluated(_text(jax.grad(lambda *x: loss(_ours, *x), every), given), *given)
    gradients = jax.jit(jax.grad(lambda *x: loss(_plain, *x), every))(*map(jnp.asarray, given))
    for mine, theirs in zip(back, gradients, strict=True):
        np.testing.assert_allclose(mine.astype(np.float32), theirs.astype(np.float32), 0.03, 0.05)


def test_sequences_one_behind_the_other() -> None:
    case = Case()
    given = case.drawn()
    lengths, starts = [[3, 5], [8, -1]], [[0, 3, 8], [0, 8, -1]]

    def ours(*x: jax.Array) -> jax.Array:
        found = jnp.array(lengths, jnp.int32), jnp.array(starts, jnp.int32)
        return cudnn.dot_product_attention(
            *x, scale=0.5, mask_type=cudnn.MaskType.CAUSAL, q_seqlen=found[0], kv_seqlen=found[0],
            q_offsets=found[1], kv_offsets=found[1],
        )  # fmt: skip

    def plain(*x: jax.Array) -> jax.Array:
        q, k, v = (a.astype(jnp.float32) for a in x)
        mask = np.zeros((2, 1, 8, 8), bool)
        mask[0, 0, :3, :3] = mask[0, 0, 3:, 3:] = mask[1, 0] = True
        return jax.nn.dot_product_attention(q, k, v, mask=mask & np.tri(8, dtype=bool), scale=0.5)

    (made,) = evaluated(_text(ours, given), *given)
    np.testing.assert_allclose(made.astype(np.float32), plain(*map(jnp.asarray, given)), 0.02, 0.02)
    weight = np.random.default_rng(5).standard_normal(given[0].shape).astype(np.float32)
    back = evaluated(
        _text(jax.grad(lambda *x: (ours(*x).astype(jnp.float32) * weight).sum(), (0, 1, 2)), given),
        *given,
    )
    gradient = jax.jit(jax.grad(lambda *x: (plain(*x) * weight).sum(), (0, 1, 2)))
    wanted = gradient(*map(jnp.asarray, given))
    for mine, theirs in zip(back, wanted, strict=True):
        np.testing.assert_allclose(mine.astype(np.float32), theirs.astype(np.float32), 0.03, 0.05)


def test_dropout_leaves_a_share() -> None:
    case = Case(queries=32, keys=8, dropout=0.25)
    given = case.drawn()
    given[2] = np.tile(np.eye(8)[None, :, None], (2, 1, 2, 1)).astype(bfloat16)  # shows softmax
    (made,) = evaluated(_text(lambda *x: _ours(case, *x), given), *given)
    softmax = np.asarray(_plain(case, *map(jnp.asarray, given)))
    factors = made.astype(np.float32) / softmax
    is_kept = np.isclose(factors, 1 / 0.75, 0.03)
    assert (is_kept | (factors == 0)).all()
    assert abs(is_kept.mean() - 0.75) < 6 * np.sqrt(0.75 * 0.25 / is_kept.size)


REFUSED: dict[str, tuple[dict[str, object], str, str]] = {
    "pages": ({"is_paged_attention": True}, "E0530", "pages"),
    "alibi": ({"mask_type": "ALIBI"}, "E0530", "ALIBI"),
    "whole softmax": ({"is_flash_attention": False}, "E0530", "whole"),
    "mask": ({"mask_type": "SOME"}, "E0531", "mask_type"),
    "lengths": ({"mask_type": "PADDING"}, "E0531", "takes 5"),
    "dropout": ({"dropout_rate": 2}, "E0531", "dropout_rate"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused(what: str) -> None:
    said, code, words = REFUSED[what]
    given = [x.astype(np.float32) for x in Case().drawn()]
    numbers = {"lhs_batch_dimensions": ["0", "2"], "rhs_batch_dimensions": ["0", "2"]}
    config = {"is_flash_attention": True, "fmha_scale": 1, "bmm1_dot_dimension_numbers": numbers}
    text = text_of_call(
        "__cudnn$fmhaSoftmax", given, "(f32[2,2,8,8], u8[0])",
        {"cudnn_fmha_backend_config": config | said},
    )  # fmt: skip
    with pytest.raises(FormulaError, match=words) as caught:
        evaluated(text, *given)
    assert caught.value.code == code
