"""Vendors' custom calls compiled to tiles, tile by tile, against values in f64."""

import numpy as np
import pytest

import hloipu
from hloipu_compiler.vendor import attention_blocks
from tests.support.popops_call import drawn, text_of_call
from tests.support.te_attention import Case, text_of


@pytest.mark.parametrize("blocks", [False, True])
def test_attention_on_tiles(blocks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if blocks:
        monkeypatch.setattr(attention_blocks, "MOST_SCORES", 100)
    case = Case(heads=4, groups=2, mask="padding causal", lengths=((6, 3), (5, 4)), bias=(1, 4))
    given = case.drawn()
    text = text_of(
        "te_fused_attn_forward_ffi", case.forward_operands(given),
        "(f32[2,6,4,4], f32[2,4,6,1], u32[2,4], u8[16])", case.attributes(),
    )  # fmt: skip
    program = hloipu.compile(text, target="tiny", over_memory="allow", cache=False)
    found = program.run(*case.forward_operands(given), mode="exact", poison=True).outputs
    made, statistics = case.plain([x.astype(np.float64) for x in given], case.seen())
    np.testing.assert_allclose(found[0], made, 1e-5, 1e-5)
    np.testing.assert_allclose(found[1][..., 0], statistics, 1e-5, 1e-5)


def test_a_product_with_an_epilogue_on_tiles() -> None:
    numbers = {"lhs_contracting_dimensions": ["1"], "rhs_contracting_dimensions": ["0"]}
    said = {"gemm_backend_config": {"alpha_real": 2, "beta": 0, "epilogue": "BIAS_RELU",
                                    "dot_dimension_numbers": numbers}}  # fmt: skip
    given = [drawn(9, 7), drawn(7, 5), drawn(5)]
    text = text_of_call("__cublas$lt$matmul", given, "(f32[9,5], s8[64])", said)
    program = hloipu.compile(text, target="tiny", cache=False)
    found = program.run(*given, mode="exact", poison=True).outputs
    wanted = np.maximum(2 * given[0].astype(np.float64) @ given[1] + given[2], 0)
    np.testing.assert_allclose(found[0], wanted, 1e-5, 1e-5)
    assert not found[1].any()
