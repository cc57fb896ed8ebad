"""Whatever the operands and attributes, a rule returns a shape or raises a ShapeFault."""

from collections import defaultdict
from random import Random
from typing import Any

from hloipu_compiler.hlo.attributes.shape_text import parse_shape
from hloipu_compiler.inference.faults import ShapeFault
from hloipu_compiler.inference.rules import infer_shape
from hloipu_compiler.inference.site import RULES, Participants
from hloipu_compiler.ir.attribute_kinds import INSTRUCTION_KINDS, AttributeKind
from hloipu_compiler.ir.attributes import (
    Alias,
    Attributes,
    ConvolutionLabels,
    PaddingDimension,
    ProgramShape,
    Raw,
    ReplicaGroups,
    SliceRange,
    Window,
)
from hloipu_compiler.ir.ops import OPS
from hloipu_compiler.ir.shapes import Shape
from hloipu_runtime.kernels.windows_geometry import WindowDimension
from tests.support.cases import each

K = AttributeKind
SHAPE_TEXTS = (
    "f32[]", "f32[4]", "f32[4,4]", "f32[2,4,4]", "s32[]", "s32[2]", "s32[4,0]", "u64[2]", "c64[4]",
    "pred[]", "pred[4]", "bf16[4,4]", "s4[8]", "f32[<=4,4]", "f32[?]", "token[]", "opaque[]", "()",
    "(f32[4], s32[])", "((f32[4]), f32[4], u32[])", "(f32[], u32[], token[])", "b(f32[4])",
    "(b(f32[4]), f32[4,4]{0,1:T(8)})", "f32[1,1,1,1,1,1]", "s8[9223372036854775807]",
)  # fmt: skip
SHAPES: list[Shape] = [parse_shape(text) for text in SHAPE_TEXTS]
LABELS = (("b0f", "0io", "b0f"), ("bf", "io", "fb"), ("", "", ""))


class Pool:
    """Random values of every attribute kind."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def integer(self) -> int:
        return self.random.choice((-1, 0, 0, 1, 1, 2, 3, 4, 2**63, -(2**63)))

    def integers(self) -> tuple[int, ...]:
        if self.random.random() < 0.4:
            return tuple(range(self.random.randint(0, 3)))
        return tuple(self.integer() for _ in range(self.random.randint(0, 4)))

    def window(self) -> Window:
        make = self.integer
        return Window(
            tuple(
                WindowDimension(make(), 1, make(), make(), 1, make())
                for _ in range(self.random.randint(0, 3))
            )
        )

    def shapes(self, most: int = 4) -> tuple[Shape, ...]:
        return tuple(self.random.choices(SHAPES, k=self.random.randint(0, most)))

    def value(self, kind: AttributeKind) -> Any:
        pick = self.random.choice
        made: dict[AttributeKind, Any] = {
            K.INTEGER: self.integer(),
            K.FLOAT: 0.5,
            K.BOOLEAN: pick((True, False)),
            K.WORD: pick(("FFT", "RFFT", "IRFFT", "LT", "SIGNED", "rng_normal", "ADJOINT", "x")),
            K.STRING: pick(("GetRngSeed", "Sharding")),
            K.INTEGERS: self.integers(),
            K.INTEGER_LISTS: (self.integers(), self.integers()),
            K.SLICES: tuple(SliceRange(0, self.integer(), 1) for _ in self.integers()),
            K.PADDING: tuple(PaddingDimension(*[self.integer()] * 3) for _ in self.integers()),
            K.WINDOW: self.window(),
            K.LABELS: ConvolutionLabels(
                *pick((("b0f", "0io", "b0f"), ("bf", "io", "fb"), ("",) * 3))
            ),
            K.COMPUTATION: "f",
            K.COMPUTATIONS: ("f",) * self.random.randint(0, 3),
            K.REPLICA_GROUPS: ReplicaGroups(pick(((), ((0, 1),), ((),), ((0, 1, 2, 3),)))),
            K.SHAPE: pick(SHAPES),
            K.SHAPES: self.shapes(),
            K.ALIASES: (Alias(pick(((), (0,), (9,), (-1,))), self.integer(), pick(((), (0,)))),),
        }
        return made.get(kind, Raw("{}"))


def _outcome(opcode: str, pool: Pool) -> tuple[int, Shape | ShapeFault]:
    op, pick = OPS[opcode], pool.random.choice
    fewest, most = op.fewest_operands, op.most_operands
    count = pool.random.randint(fewest, fewest + 3 if most is None else most)
    operands = (pick(SHAPES),) * count
    if pool.random.random() < 0.6:
        operands = tuple(pool.random.choices(SHAPES, k=count))
    values = {
        name: pool.value(INSTRUCTION_KINDS[name])
        for name in sorted(op.attributes)
        if name in op.required or pool.random.random() < 0.5
    }
    program = ProgramShape(pool.shapes(), pick(SHAPES))
    devices = Participants(pick((1, 2)), pick((1, 3)))
    declared = pick([None, *SHAPES])
    signatures: dict[str, ProgramShape] = defaultdict(lambda: program)
    try:
        return count, infer_shape(
            opcode, operands, Attributes(values), declared, signatures.__getitem__, devices
        )
    except ShapeFault as fault:
        return count, fault


@each("opcode", sorted(RULES))
def test_only_shape_faults(opcode: str) -> None:
    pool = Pool(len(opcode))
    for _ in range(150):
        count, found = _outcome(opcode, pool)
        if isinstance(found, ShapeFault):
            assert found.code.startswith("E02")
            assert found.operand is None or 0 <= found.operand < count
            assert found.attribute is None or found.attribute in INSTRUCTION_KINDS
            assert str(found)
        else:
            assert hash(found) == hash(found)
