"""Bytes of the code of vertices, as counted in the assembly sources of poplibs.

Counted with macros written out and conditions set for the IPU21: 4 bytes an instruction, each of a
bundle's two included, over the sections that an entry reaches by its labels. Where a kind of work
has a vertex for each of several shapes, the one that most parts take is counted; a reduction those
along and across what lies side by side.

Sources: graphcore/poplibs 7eac0f26, the file of each row below lib/. Vertices of poplibs that are
written in C++, and code made of whole expressions, can be counted nowhere: they are assumed.
"""

from functools import lru_cache
from typing import NamedTuple


class CodeSize(NamedTuple):
    """Bytes of the code of one kind of vertex."""

    size_bytes: int
    source: str = ""
    """File of poplibs in which it was counted; empty: assumed."""

    @property
    def is_assumed(self) -> bool:
        """Whether it rests on no source."""
        return not self.source


_PRODUCT = "poplin/codelets/asm/conv_partial_1x1_half_float_8_and_half_half_h16.S"
_WINDOWS = "poplin/codelets/asm/conv_partial_nx1_half_float_8_and_half_half_16.S"
_ALONG = "popops/codelets/asm/ContinuousReductionAcc.S, ReductionSpecial3.S"
_MOST = "popops/codelets/asm/ContinuousReductionNoAcc.S, ReductionSpecial3.S"
_TABLE: dict[tuple[str, str, str], CodeSize] = {
    ("product", "f16", "f16"): CodeSize(1176, _PRODUCT),
    ("product", "f16", "f32"): CodeSize(1048, _PRODUCT),
    ("product", "f32", "f32"): CodeSize(
        1212, "poplin/codelets/asm/conv_partial_1x1_float_float_16.S"
    ),
    ("windows", "f16", "f16"): CodeSize(2036, _WINDOWS),
    ("windows", "f16", "f32"): CodeSize(1652, _WINDOWS),
    ("windows", "f32", "f32"): CodeSize(
        2352, "poplin/codelets/asm/conv_partial_nx1_float_float_16.S"
    ),
    ("reduce-add", "f16", "f16"): CodeSize(260 + 156, _ALONG),
    ("reduce-add", "f16", "f32"): CodeSize(216 + 156, _ALONG),
    ("reduce-add", "f32", "f16"): CodeSize(188 + 140, _ALONG),
    ("reduce-add", "f32", "f32"): CodeSize(144 + 140, _ALONG),
    ("reduce-max", "f16", "f16"): CodeSize(224 + 156, _MOST),
    ("reduce-max", "f32", "f32"): CodeSize(128 + 140, _MOST),
    ("reduce-min", "f16", "f16"): CodeSize(224 + 156, _MOST),
    ("reduce-min", "f32", "f32"): CodeSize(128 + 140, _MOST),
    ("reduce_window-max", "f16", "f16"): CodeSize(436, "popnn/codelets/asm/Pooling.S"),
    ("reduce_window-max", "f32", "f32"): CodeSize(436, "popnn/codelets/asm/Pooling.S"),
    ("reduce_window-add", "f16", "f16"): CodeSize(448, "popnn/codelets/asm/Pooling.S"),
    ("reduce_window-add", "f32", "f32"): CodeSize(448, "popnn/codelets/asm/Pooling.S"),
    ("gather", "f16", "f16"): CodeSize(456, "popops/codelets/asm/MultiSlice.S"),
    ("gather", "f32", "f32"): CodeSize(456, "popops/codelets/asm/MultiSlice.S"),
    ("scatter-assign", "f16", "f16"): CodeSize(456, "popops/codelets/asm/MultiSlice.S"),
    ("scatter-assign", "f32", "f32"): CodeSize(456, "popops/codelets/asm/MultiSlice.S"),
    ("scatter-add", "f16", "f16"): CodeSize(832, "popops/codelets/asm/MultiUpdateOp.S"),
    ("scatter-add", "f32", "f32"): CodeSize(464, "popops/codelets/asm/MultiUpdateOp.S"),
    ("scatter-max", "f16", "f16"): CodeSize(280, "popops/codelets/asm/MultiUpdateOp.S"),
    ("scatter-max", "f32", "f32"): CodeSize(256, "popops/codelets/asm/MultiUpdateOp.S"),
    ("dynamic-slice", "f16", "f16"): CodeSize(768, "popops/codelets/asm/dynamicSlice1D.S"),
    ("dynamic-slice", "f32", "f32"): CodeSize(792, "popops/codelets/asm/dynamicSlice1D.S"),
    ("dynamic-slice", "s32", "s32"): CodeSize(792, "popops/codelets/asm/dynamicSlice1D.S"),
    ("dynamic-update-slice", "f16", "f16"): CodeSize(784, "popops/codelets/asm/dynamicSlice1D.S"),
    ("dynamic-update-slice", "f32", "f32"): CodeSize(808, "popops/codelets/asm/dynamicSlice1D.S"),
    ("dynamic-update-slice", "s32", "s32"): CodeSize(808, "popops/codelets/asm/dynamicSlice1D.S"),
    **{
        (f"elementwise-{op}", kind, kind): CodeSize(size, f"popops/codelets/asm/{file}")
        for op, file, sizes in (
            ("add", "binaryOps1D.S", (332, 288)),
            ("subtract", "binaryOps1D.S", (332, 288)),
            ("multiply", "binaryOps1D.S", (332, 288)),
            ("tanh", "unaryOps1DNonLinearity.S", (268, 204)),
            ("logistic", "unaryOps1DNonLinearity.S", (268, 204)),
            ("clamp", "Clamp.S", (212, 116)),
        )
        for kind, size in zip(("f16", "f32"), sizes, strict=True)
    },
}
"""By kind of work, type of the first operand and of the last result."""

SHARED_FRAME_BYTES = 332 - 6 * 4
"""Of a vertex of two operands that all workers share, without its op, which is there six times:
popops/codelets/asm/binaryOps1D.S, f16."""


@lru_cache(256)
def counted_code(kind: str, first: str, last: str) -> CodeSize | None:
    """Return the bytes counted for a kind of work on element types, or None where none were."""
    return _TABLE.get((kind, first, last))
