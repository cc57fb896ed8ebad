"""Training steps in the sizes of real models, of which bytes are compared and nothing runs.

Small programs hide what counts: activations are as large as weights there, so that it is cheaper to
gather the ones than to add up gradients of the others.
"""

from collections.abc import Iterator

from tools.spmd_conformance.networks import (
    adam,
    attention,
    block,
    experts,
    language_model,
    mlp,
    residual,
    scanned_mlp,
    sequence_block,
    step,
)
from tools.spmd_conformance.program import Program

TOKENS = "16384,1024:{},-"
SEQUENCES = "8,512,1024:a,-,-"
HEADS = ("1024,16,64:-,b,-",) * 3 + ("16,64,1024:b,-,-",)
HIDDEN = ("1024,4096:-,b", "4096,1024:b,-")
SPREAD = ("1024,16,64:a,b,-",) * 3 + ("16,64,1024:b,-,a", "1024,4096:a,b", "4096,1024:b,a")
WHOLE_HEADS = ("1024,16,64:-,-,-",) * 3 + ("16,64,1024:-,-,-",)


def _layers(tokens: str, first: str, second: str) -> tuple[str, str, str]:
    """Return the arguments of two layers, each with its axes."""
    return TOKENS.format(tokens), f"1024,4096:{first}", f"4096,1024:{second}"


def programs() -> Iterator[Program]:
    """Yield the rows of this part of the table."""
    data, fsdp = _layers("a", "-,-", "-,-"), _layers("a", "a,-", "a,-")
    rows = {
        "mlp step/data": ("8", step(mlp), data),
        "mlp step/both": ("2x4", step(mlp), _layers("a", "-,b", "b,-")),
        "mlp step/fsdp": ("8", step(mlp), fsdp),
        "mlp step/fsdp2": ("2x4", step(mlp), _layers("a", "a,b", "b,a")),
        "adam/fsdp": ("8", adam, fsdp + fsdp[1:] * 2),
        "adam/zero": ("8", adam, data + fsdp[1:] * 2),
        "attention step/data": ("8", step(attention), (SEQUENCES, *WHOLE_HEADS)),
        "attention step/heads": ("2x4", step(attention), (SEQUENCES, *HEADS)),
        "block": ("2x4", block, (SEQUENCES, *HEADS, *HIDDEN)),
        "block step": ("2x4", step(block), (SEQUENCES, *HEADS, *HIDDEN)),
        "block step/fsdp2": ("2x4", step(block), (SEQUENCES, *SPREAD)),
        "sequence block step": ("2x4", step(sequence_block), (SEQUENCES, *HEADS, *HIDDEN)),
        "language model/rows": (
            "2x4", language_model, ("int32<64 8,512:a,-", "32768,1024:b,-", *HIDDEN),
        ),
        "language model/columns": (
            "2x4", language_model, ("int32<64 8,512:a,-", "32768,1024:-,b", *HIDDEN),
        ),
        "scanned mlp step": (
            "2x4", step(scanned_mlp), ("4096,1024:a,-", "6,1024,4096:-,-,b", "6,4096,1024:-,b,-"),
        ),
        "scanned mlp step/fsdp": (
            "8", step(scanned_mlp),
            ("16384,1024:a,-", "6,1024,4096:-,a,-", "6,4096,1024:-,a,-"),
        ),
        "experts step": (
            "4", step(experts),
            ("8,512,1024:a,-,-", "1024,8:-,-", "8,1024,4096:a,-,-", "8,4096,1024:a,-,-"),
        ),
        "residual step/data": (
            "8", step(residual), ("64,56,56,64:a,-,-,-", *["3,3,64,64:-,-,-,-"] * 2),
        ),
        "residual step/space": (
            "8", step(residual), ("8,224,224,64:-,a,-,-", *["3,3,64,64:-,-,-,-"] * 2),
        ),
    }  # fmt: skip
    for name, (mesh, function, arguments) in rows.items():
        yield Program(f"large/{name}", mesh, function, arguments, runs=False)
