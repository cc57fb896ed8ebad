"""Large modules to measure with: unrolled Adam train steps of transformers, printed by JAX.

Each is made once and kept in a folder; the count of instructions is a target, met within a few
per cent.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
TARGETS = (1_000, 10_000, 100_000)
LAYERS = 2


def generated(folder: Path, targets: tuple[int, ...] = TARGETS) -> Iterator[tuple[str, Path]]:
    """Yield (name, file) of each generated text, short and full form."""
    folder.mkdir(parents=True, exist_ok=True)
    for target in targets:
        files = {form: folder / f"{target // 1000}k.{form}.hlo" for form in ("short", "full")}
        if not all(file.exists() for file in files.values()):
            short, full = _print(target)
            files["short"].write_text(short, encoding="utf-8")
            files["full"].write_text(full, encoding="utf-8")
        yield from ((file.stem, file) for file in files.values())


def _print(target: int) -> tuple[str, str]:
    import jax  # a second to import, and nothing to do where the files exist

    from tools.corpus.models import train_pieces

    step, variables, state, inputs, labels = train_pieces(LAYERS)

    def steps(count: int) -> Callable[..., Any]:
        def run(variables: Any, state: Any, inputs: Any, labels: Any) -> Any:
            losses = []
            for _ in range(count):
                variables, state, loss = step(variables, state, inputs, labels)
                losses.append(loss)
            return variables, state, losses

        return run

    def lower(count: int) -> Any:
        lowered = jax.jit(steps(count), donate_argnums=(0, 1)).lower(
            variables, state, inputs, labels
        )
        return lowered.compiler_ir("hlo")

    once, twice = (lower(n).as_hlo_text().count(" = ") for n in (1, 2))
    computation = lower(max(1, round(1 + (target - once) / (twice - once))))
    return computation.as_hlo_text(), computation.as_hlo_module().to_string()
