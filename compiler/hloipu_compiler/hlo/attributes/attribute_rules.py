"""Rules of XLA's parser for attribute values: known words, counts, pairs.

Source: openxla/xla `xla/hlo/parser/hlo_parser.cc` (CreateInstruction and the enum readers).
"""

from collections.abc import Iterator, Mapping

from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.attributes import Value
from hloipu_runtime.nearest import Suggestions

_DOT_ALGORITHMS = (
    "unset", "dot_any_f8_any_f8_f32", "dot_any_f8_any_f8_f32_fast_accum", "dot_any_f8_any_f8_any",
    "dot_any_f8_any_f8_any_fast_accum", "dot_f16_f16_f16", "dot_f16_f16_f32",
    "dot_bf16_bf16_bf16", "dot_bf16_bf16_f32", "dot_bf16_bf16_f32_x3", "dot_bf16_bf16_f32_x6",
    "dot_bf16_bf16_f32_x9", "dot_tf32_tf32_f32", "dot_tf32_tf32_f32_x3", "dot_f32_f32_f32",
    "dot_f64_f64_f64",
)  # fmt: skip
_RNG_ALGORITHMS = ("rng_default", "rng_three_fry", "rng_philox")
_PRECISIONS = ("default", "high", "highest", "packed_nibble")

_WORDS: dict[str, tuple[str, ...]] = {
    "direction": ("EQ", "NE", "GE", "GT", "LE", "LT"),
    "type": ("FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"),
    "fft_type": ("FFT", "IFFT", "RFFT", "IRFFT"),
    "kind": ("kLoop", "kInput", "kOutput", "kCustom"),
    "padding_type": ("PADDING_INVALID", "PADDING_VALID", "PADDING_SAME"),
    "distribution": ("rng_uniform", "rng_normal"),
    "transpose_a": ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"),
    "schedule": ("SCHEDULE_NONE", "SCHEDULE_LATEST", "SCHEDULE_EARLIEST"),
    "api_version": (
        "API_VERSION_ORIGINAL", "API_VERSION_STATUS_RETURNING",
        "API_VERSION_STATUS_RETURNING_UNIFIED", "API_VERSION_TYPED_FFI",
        "API_VERSION_UNSPECIFIED",  # printed by PyTorch/XLA in 2023, refused by XLA today
    ),
    "convolution_kind": ("fprop", "wgrad", "dgrad", "unset"),
}  # fmt: skip

_LOWER = frozenset({"distribution", "algorithm", "operand_precision"})
_UPPER = frozenset({"schedule", "api_version"})
_ONE_DIMENSION = frozenset({"sort", "concatenate", "scan", "all-to-all"})
_FIRST_DIMENSION = frozenset({
    "all-gather", "all-gather-start", "reduce-scatter", "get-dimension-size", "set-dimension-size",
})  # fmt: skip
"""XLA's parser reads the first dimension and does not mind more."""
_GROUPED = frozenset({"all-reduce", "all-reduce-start", "reduce-scatter"})


def normalised(key: str, value: Value) -> Value:
    """Return the usual case of the words that XLA reads in any case."""
    change = str.lower if key in _LOWER else str.upper if key in _UPPER else None
    if change is None:
        return value
    if isinstance(value, tuple):
        return tuple(change(word) for word in value)  # type: ignore[arg-type]
    return change(value) if isinstance(value, str) else value


def check_attribute_rules(
    opcode: str, values: Mapping[str, Value], suggestions: Suggestions
) -> Iterator[tuple[str, TextFault]]:
    """Yield (key, fault) for each value that `opcode` cannot take."""
    for key, value in values.items():
        known = _WORDS.get(key)
        if key == "algorithm":
            known = _RNG_ALGORITHMS if opcode == "rng-bit-generator" else _DOT_ALGORITHMS
        if known is not None and value not in known:
            yield key, _unknown_word(key, str(value), known, suggestions)
        elif key == "operand_precision" and isinstance(value, tuple):
            for word in value:
                if word not in _PRECISIONS:
                    yield key, _unknown_word(key, str(word), _PRECISIONS, suggestions)
    dimensions = values.get("dimensions")
    if isinstance(dimensions, tuple):
        if opcode in _ONE_DIMENSION and len(dimensions) != 1:
            message = f"{opcode} takes one dimension, not {len(dimensions)}"
            yield "dimensions", TextFault("E0136", message, expected="one dimension like {0}")
        elif opcode in _FIRST_DIMENSION and not dimensions:
            message = f"{opcode} needs a dimension"
            yield "dimensions", TextFault("E0136", message, expected="one dimension like {0}")
    if opcode in _GROUPED and values.get("use_global_device_ids") and "channel_id" not in values:
        message = "use_global_device_ids=true needs a channel_id="
        yield "use_global_device_ids", TextFault("E0137", message, expected="channel_id=")
    pairs = values.get("source_target_pairs")
    if isinstance(pairs, tuple) and any(len(p) != 2 for p in pairs):  # type: ignore[arg-type]
        yield (
            "source_target_pairs",
            TextFault(
                "E0138", "a source and a target make a pair", expected="pairs like {{0,1},{1,0}}"
            ),
        )


def _unknown_word(
    key: str, word: str, known: tuple[str, ...], suggestions: Suggestions
) -> TextFault:
    shown = word if len(word) <= 40 else f"{word[:37]}…"
    hint = suggestions.hint(word, known)
    return TextFault("E0139", f"{key}= cannot be {shown}", expected=" or ".join(known), hint=hint)
