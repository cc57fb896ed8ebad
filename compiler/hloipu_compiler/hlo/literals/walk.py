"""Read a literal element by element, with exactly the errors of XLA's parser.

Source: openxla/xla `xla/hlo/parser/hlo_parser.cc` (ParseDenseLiteral). Three leniencies of XLA are
kept because dumps rely on the first and a judge compares the rest: commas are skipped wherever they
stand; a literal that does not start with a brace is one element, whatever the rank, and the rest is
zero; numbers at a wrong nesting level count only against the total.
"""

from hloipu_compiler.hlo.literals.rounding import PAYLOAD_BITS, integer_range, round_value
from hloipu_compiler.hlo.literals.tokens import LiteralTokens, Nan, Token
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.element_types import ElementType, Kind

Number = bool | int | float | Nan
Element = Number | tuple[Number, Number]

_LARGEST_SINGLE = (2 - 2**-23) * 2.0**127


class ArrayWalk:
    """One pass over the tokens of an array's literal; `elements` holds what was read, in order."""

    def __init__(self, tokens: LiteralTokens, shape: ArrayShape) -> None:
        self.tokens = tokens
        self.shape = shape
        self.elements: list[Element] = []
        self.is_elided = False
        self._level = 0
        self._seen = [0] * shape.rank
        """How many elements or sub-arrays the open brace of each dimension has so far."""

    def run(self) -> None:
        """Read one array literal; the tokens then stand just after it."""
        while True:
            tokens = self.tokens
            if tokens.kind is Token.PUNCTUATION:
                self._punctuation()
            elif tokens.kind is Token.DOTS:
                self._elision()
            elif tokens.kind is Token.END:
                raise TextFault("E0141", "the literal ends too early", tokens.start, expected="`}`")
            else:
                self._add(self._number())
            if self._level == 0:
                return

    def _punctuation(self) -> None:
        mark = self.tokens.text
        if mark == "{":
            self._open()
        elif mark == "}":
            self._close()
        elif mark == "(" and self.shape.element_type.is_complex:
            self._complex()
        elif mark != ",":
            raise TextFault("E0140", f"`{mark}` stands in a literal", self.tokens.start)
        else:
            self.tokens.advance()

    def _open(self) -> None:
        at, rank = self.tokens.start, self.shape.rank
        self._level += 1
        if self._level > rank:
            raise TextFault(
                "E0141", f"braces nest deeper than rank {rank}", at, expected=_nest(rank)
            )
        outer = self._level - 2
        if outer >= 0:
            self._seen[outer] += 1
            if self._seen[outer] > self.shape.dimensions[outer]:
                raise self._miscount(outer, "more")
        self.tokens.advance()

    def _close(self) -> None:
        if self._level == 0:
            raise TextFault("E0141", "unexpected `}`", self.tokens.start)
        self._level -= 1
        if self._seen[self._level] != self.shape.dimensions[self._level]:
            raise self._miscount(self._level, str(self._seen[self._level]))
        self._seen[self._level] = 0
        self.tokens.advance()

    def _miscount(self, dimension: int, parts: str) -> TextFault:
        index = ",".join(str(n - 1) for n in self._seen[:dimension])
        want = self.shape.dimensions[dimension]
        return TextFault(
            "E0141",
            f"element [{index}] of the literal has {parts} parts along dimension {dimension}",
            self.tokens.start,
            expected=f"{want} for the shape {self.shape.without_layout()}",
        )

    def _elision(self) -> None:
        if self._level != 1:
            raise TextFault(
                "E0141",
                "`...` stands at a wrong nesting level",
                self.tokens.start,
                expected="{...}",
            )
        self._seen[0] = self.shape.dimensions[0]
        self.is_elided = True
        self.tokens.advance()

    def _count_one(self) -> bool:
        """Count an element at the innermost level; whether it stands there and fits."""
        rank = self.shape.rank
        if rank == 0:
            return True
        if self._level != rank:
            return False
        self._seen[rank - 1] += 1
        return self._seen[rank - 1] <= self.shape.dimensions[rank - 1]

    def _add(self, element: Element) -> None:
        if len(self.elements) >= self.shape.element_count:
            raise TextFault(
                "E0141",
                f"the literal has more than {self.shape.element_count} elements",
                self.tokens.start,
                expected=f"{self.shape.element_count} for the shape {self.shape.without_layout()}",
            )
        self.elements.append(element)
        self.tokens.advance()

    def _number(self) -> Number:
        tokens, element_type = self.tokens, self.shape.element_type
        if tokens.kind is Token.NAN or element_type.is_float:
            self._count_one()
            return self._float(element_type)
        self._count_one()
        if tokens.kind is Token.WORD:
            if element_type.kind is Kind.PREDICATE:
                return tokens.text == "true"
        elif tokens.kind is Token.INTEGER and not element_type.is_complex:
            return self._integer(element_type)
        raise self._wrong_kind(element_type)

    def _wrong_kind(self, element_type: ElementType) -> TextFault:
        wanted = {
            Kind.PREDICATE: "true, false or an integer",
            Kind.FLOAT: "a number",
            Kind.COMPLEX: "a pair like (1, 0)",
        }.get(element_type.kind, "an integer")
        token = self.tokens.shown()
        return TextFault(
            "E0143",
            f"{token} is not a value of type {element_type.name}",
            self.tokens.start,
            expected=wanted,
        )

    def _integer(self, element_type: ElementType) -> bool | int:
        value = self.tokens.integer()
        if element_type.kind is Kind.PREDICATE:
            return value != 0
        low, high = integer_range(element_type)
        if not low <= value <= high:
            raise self._out_of_range(element_type, f"{low} to {high}")
        return value

    def _out_of_range(self, element_type: ElementType, expected: str) -> TextFault:
        return TextFault(
            "E0142",
            f"`{self.tokens.text[:40]}` is out of range for {element_type.name}",
            self.tokens.start,
            expected=expected,
        )

    def _float(self, element_type: ElementType) -> float | Nan:
        value = self._double()
        if isinstance(value, Nan):
            if element_type.kind is not Kind.FLOAT:
                raise self._wrong_kind(element_type)
            self._check_payload(value, element_type)
            return value
        finite = value - value == 0.0
        if finite:
            rounded = round_value(value, element_type)
            if rounded - rounded != 0.0:
                raise self._out_of_range(element_type, "a number that rounds to a finite value")
        return value

    def _double(self) -> float | Nan:
        tokens = self.tokens
        if tokens.kind is Token.FLOAT:
            value = float(tokens.text)
            if value - value != 0.0:
                raise TextFault(
                    "E0142", f"`{tokens.text[:40]}` overflows a double", tokens.start,
                    expected="a number below 1.8e308",
                )  # fmt: skip
            return value
        if tokens.kind is Token.INTEGER:
            return float(tokens.integer())
        if tokens.kind is Token.INFINITY:
            return float(tokens.text)
        if tokens.kind is Token.NAN:
            return tokens.nan()
        raise self._wrong_kind(self.shape.element_type)

    def _check_payload(self, nan: Nan, element_type: ElementType) -> None:
        bits = PAYLOAD_BITS.get(element_type.name, 0)
        if not nan.is_plain and nan.payload >= 2**bits:
            raise self._out_of_range(
                element_type,
                f"a nan payload below {2**bits:#x}"
                if bits
                else f"plain nan: {element_type.name} has no payloads",
            )

    def _complex(self) -> None:
        if not self._count_one():
            raise TextFault(
                "E0141", "a complex number stands at a wrong level, or is one too many",
                self.tokens.start, expected=_nest(self.shape.rank),
            )  # fmt: skip
        tokens = self.tokens
        tokens.advance()
        real = self._component("real")
        tokens.expect(",", "after the real part")
        imaginary = self._component("imaginary")
        if not tokens.is_mark(")"):
            raise TextFault("E0140", f"found {tokens.shown()}", tokens.start, expected="`)`")
        self._add((real, imaginary))

    def _component(self, part: str) -> float | Nan:
        value = self._double()
        element_type = self.shape.element_type
        if element_type.name == "c64":
            if isinstance(value, Nan):
                if not value.is_plain and value.payload >= 2**23 and part == "real":
                    raise self._out_of_range(element_type, "a nan payload below 0x800000")
            elif abs(value) > _LARGEST_SINGLE and value - value == 0.0:
                # Unlike f32 components are compared before rounding, so the printed form of the
                # largest f32, 3.40282347e+38, is refused.
                raise self._out_of_range(element_type, f"at most {_LARGEST_SINGLE!r} in size")
        self.tokens.advance()
        return value


def _nest(rank: int) -> str:
    return f"{rank} levels of braces" if rank else "no braces around a scalar"
