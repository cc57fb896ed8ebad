import pytest

from hloipu_compiler.interpret.budgets import FACTORS, REDUCING, ULPS_F32, budget_of
from hloipu_compiler.ir.ops import ELEMENTWISE, OPS
from hloipu_runtime.element_types import ELEMENT_TYPES
from tests.support.cases import each
from tools.conformance.document import DOCUMENTS, TABLES, with_tables

ARRAY_TYPES = [t for t in ELEMENT_TYPES.values() if t.is_array]


@each("opcode", sorted(OPS))
def test_integers_and_predicates_are_exact(opcode: str) -> None:
    for element in ARRAY_TYPES:
        if not (element.is_float or element.is_complex):
            assert budget_of(opcode, element.name, terms=1000).exact


@each(
    "opcode",
    "add subtract multiply divide remainder sqrt maximum minimum negate abs floor convert select "
    "clamp compare copy reshape pad gather sort reduce-precision".split(),
)
@each("element_type", ["f32", "f64", "bf16", "f16", "f8e4m3fn"])
def test_ops_that_ieee_754_rounds_are_exact(opcode: str, element_type: str) -> None:
    assert budget_of(opcode, element_type).exact


def test_no_elementwise_op_gets_more_than_four_ulp() -> None:
    for opcode in ELEMENTWISE:
        for element_type in ("f32", "f64"):
            assert budget_of(opcode, element_type).ulps <= 4
        assert budget_of(opcode, "bf16").ulps <= 1
    assert set(ULPS_F32) <= ELEMENTWISE


def test_sums_grow_with_the_logarithm_of_their_length() -> None:
    few, many = (budget_of("dot", "f32", terms=n).relative for n in (2**5, 2**20))
    assert many == pytest.approx(4 * few)
    assert few == FACTORS["dot"] * 5 * 2.0**-23


@pytest.mark.parametrize("opcode", sorted(REDUCING))
def test_only_sums_and_products_depend_on_order(opcode: str) -> None:
    assert budget_of(opcode, "f32", terms=9, combiner="maximum").exact
    assert not budget_of(opcode, "f32", terms=9, combiner="multiply").exact
    assert not budget_of(opcode, "f32", terms=9, combiner=None).exact


def test_the_documents_show_these_tables() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in DOCUMENTS)
    assert with_tables(text) == text, "run: python -m tools.conformance.document"
    assert all(text.count(f"<!-- {name} -->") == 1 for name in TABLES)
