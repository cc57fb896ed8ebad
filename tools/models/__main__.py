"""Print a network as HLO text.

python -m tools.models --list
python -m tools.models resnet50 --train --batch 16 --dtype f16 -o resnet50.hlo
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax.numpy as jnp

from tools.models.layers import Style
from tools.models.steps import OPTIMIZERS, hlo_text, inference_step, training_step
from tools.models.zoo import MODELS

_TYPES = {"f16": jnp.float16, "bf16": jnp.bfloat16, "f32": jnp.float32}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one network, or list them all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", nargs="?", choices=MODELS)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int)
    parser.add_argument("--dtype", choices=_TYPES, default="f16")
    parser.add_argument("--norm", choices=("half", "flax", "group"), default="half")
    parser.add_argument("--optimizer", choices=OPTIMIZERS)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--layers", choices=("written", "scanned"), default="written")
    parser.add_argument("--remat", choices=("none", "blocks"), default="none")
    parser.add_argument("--stages", default="", help="layers of each stage: 3,7,7,7")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args(arguments)
    if options.list or not options.model:
        for name, model in MODELS.items():
            print(f"{name:<16} {model.describes}")
        return 0
    model = MODELS[options.model]
    style = Style(
        _TYPES[options.dtype],
        options.norm,
        options.dropout,
        options.layers == "scanned",
        options.remat == "blocks",
        tuple(int(n) for n in options.stages.split(",") if n),
        options.train,
    )
    task = model.task(style, options.batch, options.length or model.length)
    if options.train:
        optimizer = OPTIMIZERS[options.optimizer or model.optimizer]()
        text = hlo_text(training_step(task, style, optimizer))
    else:
        text = hlo_text(inference_step(task))
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
