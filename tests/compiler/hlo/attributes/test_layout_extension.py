import pytest

from hloipu_compiler.hlo.attributes.layout_extension import (
    COMBINED,
    SplitConfig,
    read_layout_extension,
)
from hloipu_compiler.hlo.syntax.text_fault import TextFault


def test_all_parts_in_order() -> None:
    text = "D(D,C+~)T(8,128)(2,*)L(3)#(u32)*(u8)E(4)S(5)SC(0:4)(1:64,96)M(16)"
    found = read_layout_extension(text)
    assert found.tiles == ((8, 128), (2, COMBINED))
    assert found.dimension_levels == ("D", "C+~")
    assert (found.tail_padding_elements, found.element_bits, found.memory_space) == (3, 4, 5)
    assert (found.index_type, found.pointer_type) == ("u32", "u8")
    assert found.splits == (SplitConfig(0, (4,)), SplitConfig(1, (64, 96)))
    assert found.dynamic_metadata_bytes == 16
    assert str(found) == text


def test_blanks_are_free() -> None:
    assert read_layout_extension("T ( 8 , 128 ) S(5)").memory_space == 5


@pytest.mark.parametrize(
    "text", ["S(5)T(8)", "T", "T(8", "E(x)", "#(s32)", "Q(1)", "S(5)S(5)", "SC(0)", "D(Q)"]
)
def test_refused(text: str) -> None:
    with pytest.raises(TextFault):
        read_layout_extension(text)
