"""Dimension rules against the interpreter: parts computed apart are the whole, and no less is cut.

`--all-cases` cuts the ops of the conformance cases as well.
"""

from collections.abc import Iterator
from functools import cache

import pytest

from hloipu_compiler.errors import InvalidHloError
from hloipu_compiler.ir import dimension_rules
from hloipu_compiler.ir.factors import DimensionRule, Factor, FactorKind, stated_rule
from hloipu_compiler.ir.ops import OPS, Trait, with_trait
from hloipu_runtime.errors import UnsupportedError
from tests.support.cutting import Cutting
from tests.support.texts_ops import all_rows
from tests.support.texts_rows import rows
from tools.fuzz_ops.form import case_of, sizes_of
from tools.fuzz_ops.forms import computing_forms
from tools.fuzz_ops.moving_forms import moving_forms

PASS_THROUGH, REDUCTION, PERMUTATION, INDEXED, WHOLE = FactorKind

WITHOUT = {
    "parameter constant": "no operands; its value is cut, not the op",
    "tuple get-tuple-element": "leaves are named, not changed: readers look through them",
    "call while conditional fusion scan async-start async-update async-done": "their computations'",
    "rng rng-bit-generator rng-get-and-update-state": "parts would draw the same numbers",
    "dynamic-reshape get-dimension-size set-dimension-size": "sizes are known only while running",
    "bitcast": "depends on layouts; it is expanded to reshape and transpose",
    "after-all infeed outfeed send send-done recv recv-done": "tokens, queues and channels",
    "partition-id replica-id": "a number each",
    "all-gather-start all-gather-done all-reduce-start all-reduce-done collective-permute-start "
    "collective-permute-done copy-start copy-done": "pairs are made one op before",
}
RULED = sorted(dimension_rules._RULES)
EXTRA = """
f32[4,6] reshape(f32[6,4])
f32[2,32] reshape(f32[64])
f32[4,3,8] reshape(f32[12,8])
f32[12,2] reshape(f32[2,3,4])
f32[6,1,35] reshape(f32[2,3,5,7])
f32[3,2,1,4,5] reshape(f32[6,20])
f32[2,12] reshape(f32[3,8])
f32[3,8,5] ragged-dot(f32[3,8,4], f32[3,2,4,5], s32[3,2]), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={2}, lhs_ragged_dims={1}, rhs_group_dims={1}
f32[2,4,5] ragged-dot(f32[4,7], f32[7,5], s32[2]), lhs_contracting_dims={1}, rhs_contracting_dims={0}, lhs_ragged_dims={1}
f32[2,3,4,5] ragged-dot(f32[3,4,7], f32[3,7,5], s32[3,2]), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}, lhs_ragged_dims={2}
f32[6,4,5] ragged-dot(f32[6,4,7], f32[6,7,5], s32[2]), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}, lhs_ragged_dims={0}
f32[3,5] scaled-dot(f8e4m3fn[3,64], f8e4m3fn[64,5], f8e8m0fnu[3,2], f8e8m0fnu[2,1]), lhs_contracting_dims={1}, rhs_contracting_dims={0}
f32[3,4] scaled-dot(f8e4m3fn[3,64], f8e4m3fn[64,4], f8e8m0fnu[1,4], f8e8m0fnu[2,2]), lhs_contracting_dims={1}, rhs_contracting_dims={0}
f32[2,3,4] triangular-solve(f32[2,4,4], f32[2,3,4]), left_side=false, lower=true, transpose_a=TRANSPOSE
f32[2,1,7] convolution(f32[2,5,3], f32[5,3,7]), window={size=5}, dim_labels=b0f_0io->b0f
f32[2,1,7] convolution(f32[2,5,3], f32[5,3,7]), window={size=5 rhs_reversal=1}, dim_labels=b0f_0io->b0f
f32[2,5,7] convolution(f32[2,5,3], f32[1,3,7]), window={size=1}, dim_labels=b0f_0io->b0f
f32[2,5,6] convolution(f32[2,5,3], f32[3,1,6]), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f, feature_group_count=3
f32[2,5,8] convolution(f32[2,5,6], f32[3,3,8]), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f, feature_group_count=2
f32[2,5,8] convolution(f32[6,5,4], f32[3,4,6]), window={size=3 pad=1_1}, dim_labels=f0b_0oi->b0f
f32[3,5,8] convolution(f32[6,5,4], f32[3,4,8]), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f, batch_group_count=2
f32[5,2,4] gather(f32[3,4,6], s32[5,1]), offset_dims={1,2}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,2,4}
f32[4] pad(f32[4], f32[]), padding=0_-3_1
f32[3,4] custom-call(f32[3,4]), custom_call_target="Sharding", sharding={replicated}, frontend_attributes={xla.sdy.sharding_rule="#sdy.op_sharding_rule<([i, j])->([i, j]) {i=3, j=4}, custom>"}
f32[3,4] custom-call(f32[3,4]), custom_call_target="Sharding", sharding={replicated}, frontend_attributes={num_batch_dims="1"}
f32[4,5] all-to-all(f32[4,5]), replica_groups={{0,1}}, dimensions={0} @replica_count=2
f32[4,5] collective-permute(f32[4,5]), source_target_pairs={{0,1},{1,0}} @replica_count=2
f32[4,5] collective-broadcast(f32[4,5]), replica_groups={{1,0}} @replica_count=2
"""  # noqa: E501
"""Where factors of several kinds meet."""


@cache
def texts() -> dict[str, list[str]]:
    """Return modules of one op on parameters, by opcode."""
    found: dict[str, list[str]] = {}
    for row in (*all_rows(), *rows(EXTRA)):
        found.setdefault(row.opcode, []).append(row.text())
    for form in (*computing_forms(), *moving_forms()):
        for element_type in ("f32", "s32", "pred"):
            case = case_of(form, element_type, sizes_of(form))
            if case.judged == "values":
                found.setdefault(case.opcode, []).append(case.text)
                break
    return found


@cache
def conformance_texts() -> dict[str, list[str]]:
    from tools.conformance.cases import all_cases

    found: dict[str, list[str]] = {}
    for case in all_cases():
        if case.element_type in ("f32", "s32", "pred"):
            found.setdefault(case.opcode, []).append(case.text)
    return found


def cuttings(texts_of_op: list[str]) -> Iterator[Cutting]:
    """Yield what is an op on arrays with elements, once for each set of sizes and attributes."""
    known = set()
    for text in texts_of_op:
        try:
            cutting = Cutting(text)
            key = cutting.module.entry.program_shape, cutting.x.attributes
            if key in known or any(n < 1 for sizes in cutting.sizes for n in sizes):
                continue
            known.add(key)
            assert cutting.whole
        except (InvalidHloError, UnsupportedError, ValueError):
            continue  # of this type, or with these indices, there is no such op
        yield cutting


@pytest.mark.parametrize("opcode", RULED)
def test_parts_computed_apart_are_the_whole(opcode: str, request: pytest.FixtureRequest) -> None:
    given = [*texts().get(opcode, ())]
    if request.config.getoption("--all-cases"):
        given += conformance_texts().get(opcode, ())
    factors = 0
    for cutting in cuttings(given):
        for number, factor in enumerate(cutting.rule.factors):
            if factor.kind in (PASS_THROUGH, REDUCTION) and factor.size > 1:
                fault = cutting.factor_fault(number)
                assert not fault, f"{factor} of {cutting.rule}: {fault}\n{cutting.text}"
                factors += 1
        for dimensions in cutting.dimensions:
            for numbers in dimensions:
                sizes = [cutting.rule.factors[n].size for n in numbers]
                assert len(sizes) == 1 or min(sizes, default=0) > 1
        if opcode == "sort" and "direction=EQ" in cutting.text:
            continue  # Nothing is less than anything: rows stay as they are, cut or not.
        if opcode == "custom-call" and "sharding_rule" not in cutting.text:
            continue  # Nothing is known of what states no rule.
        alone = Trait.COLLECTIVE in OPS[opcode].traits and cutting.participants == (1, 1)
        if not alone and len(cutting.sizes) > 2 - (opcode != "concatenate"):
            weak = list(cutting.weaker_than_need_be())
            assert not weak, f"{weak} can be cut, {cutting.rule} does not say so\n{cutting.text}"
    assert factors, "no factor was cut"


def test_every_opcode_has_a_rule_or_a_reason() -> None:
    reasons = {opcode for opcodes in WITHOUT for opcode in opcodes.split()}
    assert {*RULED} | reasons == {*OPS} - with_trait(Trait.LEGACY)
    assert reasons.isdisjoint(RULED)


WRONG = {
    "sort": (1, PASS_THROUGH), "reverse": (1, PASS_THROUGH), "concatenate": (1, PASS_THROUGH),
    "dot": (1, WHOLE), "reduce": (0, WHOLE), "transpose": (1, WHOLE), "iota": (0, WHOLE),
    "cholesky": (0, WHOLE), "gather": (0, PASS_THROUGH), "reduce-window": (1, PASS_THROUGH),
}  # fmt: skip
"""A factor's number in modules with two dimensions, and a kind that it is not."""


@pytest.mark.parametrize("opcode", WRONG)
def test_a_wrong_rule_is_seen(opcode: str) -> None:
    number, kind = WRONG[opcode]
    for cutting in cuttings(texts()[opcode]):
        factors = list(cutting.rule.factors)
        if len(cutting.sizes[-1]) < 2 or factors[number].size < 2 or factors[number].kind is kind:
            continue
        factors[number] = Factor(factors[number].size, kind)
        cutting.rule = cutting.rule._replace(factors=tuple(factors))
        if (
            cutting.factor_fault(number)
            if kind is PASS_THROUGH
            else [*cutting.weaker_than_need_be()]
        ):
            return
    raise AssertionError("nobody sees it")


def rule(text: str) -> DimensionRule:
    return Cutting(rows(text)[0].text()).rule


RANGES = {
    "f32[4,16] dot(f32[4,8], f32[8,16]), lhs_contracting_dims={1}, rhs_contracting_dims={0}": [
        (0, -1), (-1, 1)],
    "f32[4,6] transpose(f32[6,4]), dimensions={1,0}": [(1,), (0,)],
    "f32[12] reshape(f32[3,4])": [(0,)],
    "f32[3,4] reshape(f32[12])": [(0,), None],  # a range of 4 is many of 12
    "f32[4,6] reshape(f32[6,4])": [None, None],  # 2 of 4 are 3 of 6, but 1 of 4 are none
    "f32[4,6] slice(f32[4,8]), slice={[0:4], [2:8]}": [(0,), None],
    "f32[5,6] select(pred[], f32[5,6], f32[5,6])": [(-1, 0, 0), (-1, 1, 1)],
    "f32[5] reduce(f32[5,6], f32[]), dimensions={1}, to_apply=add_f32": [(0, -1)],
    "f32[2,5,6] convolution(f32[2,5,3], f32[3,1,6]), window={size=3 pad=1_1}, "
    "dim_labels=b0f_0io->b0f, feature_group_count=3": [(0, -1), None, (2, 2)],
}  # fmt: skip
"""What a range of each dimension of the result follows from."""


@pytest.mark.parametrize("text", RANGES)
def test_ranges_of_operands_follow_from_a_range_of_the_result(text: str) -> None:
    known = rule(text)
    assert [known.ranges(d) for d in range(len(known.results[0]))] == RANGES[text]


SUMMED = {
    "f32[4,16] dot(f32[4,8], f32[8,16]), lhs_contracting_dims={1}, rhs_contracting_dims={0}": 8,
    "f32[2,4,4,6] convolution(f32[2,4,4,3], f32[5,5,1,6]), window={size=5x5 pad=2_2x2_2}, "
    "dim_labels=b01f_01io->b01f, feature_group_count=3": 25,
    "f32[5] reduce(f32[5,6], f32[]), dimensions={1}, to_apply=add_f32": 6,
}


@pytest.mark.parametrize("text", SUMMED)
def test_a_sum_has_as_many_terms_as_no_result_keeps(text: str) -> None:
    assert rule(text).summed() == SUMMED[text]


def test_only_ops_that_reorder_dimensions_have_an_order() -> None:
    assert rule("f32[4,2,3] transpose(f32[2,3,4]), dimensions={2,0,1}").order() == (2, 0, 1)
    assert rule("f32[2,3] copy(f32[2,3])").order() == (0, 1)
    for text in ("f32[3,2] reshape(f32[2,3])", "f32[2,3] reverse(f32[2,3]), dimensions={0}",
                 "f32[2,3] broadcast(f32[3]), dimensions={1}"):  # fmt: skip
        assert rule(text).order() is None


def test_what_a_text_says_of_factors() -> None:
    rule = stated_rule(
        "#sdy.op_sharding_rule<([i, j, k, l])->([i, j, k]) {i=8, j=8, k=8, l=2} reduction={l} "
        "need_replication={j} permutation={k} blocked_propagation={i, k}, custom>"
    )
    assert rule is not None
    kinds = (rule.passed_through, rule.replicated, rule.reductions, rule.blocked)
    assert list(map(sorted, kinds)) == [["i"], ["j", "k"], ["l"], ["i", "k"]]
