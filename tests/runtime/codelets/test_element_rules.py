"""Each rule of element types takes what fits its codelet, and refuses what does not."""

import pytest

from hloipu_runtime.codelets.element_rules import RULES, element_fault
from hloipu_runtime.program.proof.verify import faults_of
from tests.support.program_reader.parser import parse_program
from tests.support.program_reader.tokens import Cursor
from tests.support.program_reader.values import read_codelet
from tests.support.program_texts import DOUBLE

_DOT = "dot(lhs_batch=[], rhs_batch=[], lhs_contracting=[1], rhs_contracting=[0], "
_END = "associative=null, of_convolution=false)"
_SUM = 'reduce(dimensions=[0], monoid="add", body=null, '
_LARGEST = 'reduce(dimensions=[0], monoid="maximum", body=null, '
_ADD = "{(f16, f16); 2 = f16 add(0, 1); return (2)}"
_FUSED = (
    f"fused_reduce(expression={_ADD}, labels=[[0],[0]], rank=1, dimensions=[0], "
    'monoid="add", element_types=["KIND"], parts=[1])'
)
_DIVIDED = (
    'row_region(labels=[[0,1]], rank=2, dimensions=[1], operand_types=["f32"], '
    "expressions=[{(f32); 1 = f32 multiply(0, 0); return (1)}, "
    "{(f32, f32); 2 = f32 divide(0, 1); return (2)}], sources=[[0],[0,2]], "
    'reductions=[[0,1,"add",""]], results=[3])'
)
_SCATTER = (
    'scatter(dims=[[],[0],[0],1,[],[]], monoid="add", body=null, element_types=["f16"], '
    "unique_indices=false, whole=[8])"
)
_SORT = (
    'sort(dimension=0, keys=[[0,true,"total"]], comparator=null, alternating=-1, places=-1, '
    "count=0, rises_and_falls=false)"
)


_PLUS = (
    "elementwise(expression={(f32, KIND); 2 = f32 add(0, 1); return (2)}, labels=[[],[]], rank=0)"
)
_CHOICE = (
    "elementwise(expression={(f32, KIND); 2 = f32 select(1, 0, 0); return (2)}, "
    "labels=[[],[]], rank=0)"
)


CASES = (
    ("copy()", "u8 -> u8", "s8 -> u8"),
    ("dynamic-slice(dropped=[])", "f16 s32 u8 -> f16", "f16 s32 -> f32"),
    ("dynamic-slice(dropped=[])", "f16 s32 -> f16", "f16 f16 -> f16"),
    ("dynamic-update-slice(dropped=[])", "f16 f16 s32 -> f16", "f16 f32 s32 -> f16"),
    ("dynamic-update-slice(dropped=[])", "f16 f16 s32 -> f16", "f16 f16 f16 -> f16"),
    ('cholesky(lower=true, element_type="f32")', "f32 -> f32", "f16 -> f32"),
    ('cholesky(lower=true, element_type="f32")', "f32 -> f32", "f32 -> f16"),
    ('iota(dimension=0, element_type="s32")', "-> s32", "-> u32"),
    (_DOT + 'element_type="f32", part=0)', "bf16 bf16 -> f32", "bf16 bf16 -> bf16"),
    (_DOT + 'element_type="f16", part=1)', "f16 f16 -> f16", "f16 f16 -> f32"),
    (
        'ragged_dot(dot=[[],[],[1],[1],"f32",0], lhs_ragged=0, rhs_group=0)',
        "f32 f32 s32 -> f32", "f32 f32 s32 -> f16",
    ),
    ("topk(k=2, largest=true)", "f16 -> f16 s32", "f16 -> f16 u32"),
    ("topk_merge(k=2, pieces=3, largest=true)", "f16 s32 -> f16 s32", "f16 u32 -> f16 s32"),
    (_SUM + 'element_types=["f32"], parts=[1], ' + _END, "f16 -> f32", "f16 -> f16"),
    (_SUM + 'element_types=["f32"], parts=[], ' + _END, "f16 f32 -> f32", "s16 f32 -> f32"),
    (_SUM + 'element_types=["f16"], parts=[], ' + _END, "f32 f16 -> f16", "s32 f16 -> f16"),
    (_SUM + 'element_types=["f16"], parts=[], ' + _END, "f16 f16 -> f16", "f16 s16 -> f16"),
    (_SUM + 'element_types=["f16"], parts=[], ' + _END, "f16 -> f16", "f16 f16 f16 -> f16"),
    (_LARGEST + 'element_types=["f16"], parts=[1], ' + _END, "f16 -> f16", "f32 -> f16"),
    (_FUSED.replace("KIND", "f32"), "f16 f16 -> f32", "f16 f32 -> f32"),
    (
        'reduce_window(window=[[2,1,0,0,1,1]], monoid="add", body=null, element_types=["u8"], '
        "associative=null)",
        "u8 u8 -> u8", "u8 u16 -> u8",
    ),
    (_SCATTER, "f16 s32 f16 -> f16", "f16 s32 f32 -> f16"),
    (_SCATTER, "f16 u8 f16 -> f16", "f16 f16 f16 -> f16"),
    (_PLUS.replace("KIND", "f32"), "f32 f32 -> f32", "f32 f16 -> f32"),
    (_DIVIDED, "f32 -> f32", "f16 -> f32"),
    (_DIVIDED, "f32 -> f32", "f32 -> f16"),
    (
        f"scan(dimension=0, body={_ADD}, inputs=1, outputs=0, length=3, is_reverse=false)",
        "f16 f16 -> f16", "f16 f16 -> f32",
    ),
    (_SORT, "f16 s32 -> f16 s32", "f16 s32 -> f16 u32"),
    ('bitcast-convert(source_type="f32", target_type="u32")', "f32 -> u32", "u32 -> f32"),
    ('fft(kind="FFT", dimension=0, length=4)', "c64 -> c64", "c64 -> c128"),
    ('fft(kind="RFFT", dimension=0, length=4)', "f32 -> c64", "f64 -> c64"),
    ('fft(kind="IRFFT", dimension=0, length=4)', "c128 -> f64", "f64 -> f64"),
    ('lapack(target="lapack_sgetrf_ffi", attributes=[])', "f32 -> f32", "f64 -> f32"),
    ('rng_bits(algorithm="rng_philox", element_type="s16")', "u64 -> u64 s16", "u64 -> u64 s32"),
)  # fmt: skip
"""A codelet, types of operands and results that fit, and types that do not."""


def said(text: str, types: str) -> str:
    operands, _, results = types.partition("->")
    return element_fault(read_codelet(Cursor(text, "t")), operands.split(), results.split())


@pytest.mark.parametrize(("text", "right", "wrong"), CASES)
def test_a_rule_takes_what_fits_alone(text: str, right: str, wrong: str) -> None:
    assert said(text, right) == ""
    assert said(text, wrong) != ""


def test_every_rule_has_a_case() -> None:
    names = {text.partition("(")[0] for text, _, _ in CASES}
    assert {RULES[name] for name in names | {"gather"}} == {*RULES.values()}


@pytest.mark.parametrize(
    ("text", "right", "wrong", "types", "message"),
    [
        (_DOT + 'element_type="KIND", part=1)', "f32", "bf16", "bf16 bf16 -> KIND", "partial"),
        (_FUSED, "f32", "f16", "f16 f16 -> KIND", "partial"),
        (_PLUS, "f32", "s32", "f32 KIND -> f32", "add of f32, s32"),
        (_CHOICE, "pred", "s32", "f32 KIND -> f32", "select by s32"),
    ],
)
def test_a_codelet_fits_itself(text: str, right: str, wrong: str, types: str, message: str) -> None:
    """Operands and results are as it says, and what it says is refused."""
    assert said(text.replace("KIND", right), types.replace("KIND", right)) == ""
    assert message in said(text.replace("KIND", wrong), types.replace("KIND", wrong))


def test_the_proof_asks_the_rules() -> None:
    narrow = DOUBLE.replace('v1 "y": f32', 'v1 "y": bf16').replace("%1: f32", "%1: bf16")
    narrow = narrow.replace('"result.0": f32', '"result.0": bf16')
    assert faults_of(parse_program(DOUBLE, name="t"), 4) == []
    assert [x.rule for x in faults_of(parse_program(narrow, name="t"), 4)] == ["law"]
