"""Rows that cover every opcode with all its attributes; see `texts_rows`."""

from tests.support.texts_rows import TEXTS, Row, rows

FLOAT_UNARY = (
    "acos acosh asin asinh atanh cbrt cosine cosh erf exponential exponential-minus-one log "
    "log-plus-one logistic rsqrt sine sinh sqrt tan tanh ceil floor round-nearest-afz "
    "round-nearest-even abs negate sign"
).split()
INTEGER_UNARY = "abs negate not popcnt count-leading-zeros sign".split()
BINARY = "add subtract multiply divide remainder power maximum minimum".split()
BITWISE = "and or xor shift-left shift-right-arithmetic shift-right-logical".split()


def elementwise() -> list[Row]:
    """Return the elementwise opcodes over element types and ranks."""
    made = []
    for number, name in enumerate(FLOAT_UNARY):
        for place, element in enumerate(("f32", "bf16", "f64", "f16")):
            size = ("4", "2,3", "", "0,2")[(number + place) % 4]
            made.append(f"{element}[{size}] {name}({element}[{size}])")
    made += [f"{e}[3] {name}({e}[3])" for name in INTEGER_UNARY for e in ("s32", "s8", "s64")]
    made += [f"{e}[3] not({e}[3])" for e in ("pred", "u8", "u64")]
    made += [f"{e}[] is-finite({f}[])" for e, f in (("pred", "f32"), ("pred", "bf16"))]
    for name in BINARY:
        made += [f"{e}[2,2] {name}({e}[2,2], {e}[2,2])" for e in ("f32", "s32", "bf16", "u8")]
    made += [f"{e}[5] {name}({e}[5], {e}[5])" for name in BITWISE for e in ("s32", "u16")]
    made += [f"pred[5] {name}(pred[5], pred[5])" for name in BITWISE[:3]]
    made += [
        "pred[2] add(pred[2], pred[2])",
        "c64[2] multiply(c64[2], c64[2])",
        "c128[2] power(c128[2], c128[2])",
    ]
    for direction in ("EQ", "NE", "LT", "LE", "GT", "GE"):
        made += [f"pred[4] compare({e}[4], {e}[4]), direction={direction}" for e in ("f32", "u32")]
    return rows("\n".join(made)) + table("elementwise")


TABLES = ("movement", "reductions", "linear_algebra", "calls", "collectives", "common")


def table(name: str) -> list[Row]:
    """Read a file of rows."""
    return rows((TEXTS / f"{name}.rows").read_text(encoding="utf-8"))


def all_rows() -> list[Row]:
    """Return every row."""
    return elementwise() + [row for name in TABLES for row in table(name)]
