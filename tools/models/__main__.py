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
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.list or not options.model:
        for name, model in MODELS.items():
            print(f"{name:<20} {model.describes}")
        return 0
    if options.stages and options.layers == "scanned":
        parser.error("--stages: a loop over layers has one place in the text; --layers written")
    text = printed(options)
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


def text_of(arguments: str) -> str:
    """Return the HLO text of a network that command-line arguments name."""
    return printed(arguments_of(arguments))


def arguments_of(arguments: str) -> argparse.Namespace:
    """Return command-line arguments, with defaults for those that are not there."""
    return _parser().parse_args(arguments.split())


def printed(options: argparse.Namespace) -> str:
    """Return the HLO text of a network."""
    model = MODELS[options.model]
    style = Style(
        dtype=_TYPES[options.dtype],
        norm=options.norm,
        groups=options.groups,
        dropout=options.dropout,
        random=options.random,
        scan=options.layers == "scanned",
        remat=options.remat == "blocks",
        stages=tuple(int(n) for n in options.stages.split(",") if n),
        train=options.train,
    )
    sizes, length = model.sizes, model.length
    if options.tiny:
        sizes, length = model.tiny, model.tiny_length
    task = model.task(style, options.batch, options.length or length, **sizes)
    if not options.train:
        return hlo_text(inference_step(task))
    optimizer = OPTIMIZERS[options.optimizer or model.optimizer]()
    return hlo_text(training_step(task, style, optimizer))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", nargs="?", choices=MODELS)
    parser.add_argument("--list", action="store_true", help="the networks")
    parser.add_argument("--train", action="store_true", help="a training step, not inference")
    parser.add_argument("--tiny", action="store_true", help="few narrow layers, to try things")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, help="words of a sequence, rows of an image")
    parser.add_argument("--dtype", choices=_TYPES, default="f16")
    parser.add_argument("--norm", choices=("half", "flax"), default="half", help="type of norms")
    parser.add_argument("--groups", type=int, default=0, help="of group norm; 0: batch norm")
    parser.add_argument("--optimizer", choices=OPTIMIZERS)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--random", choices=("rbg", "threefry2x32"), default="rbg")
    parser.add_argument("--layers", choices=("written", "scanned"), default="written")
    parser.add_argument("--remat", choices=("none", "blocks"), default="none")
    parser.add_argument("--stages", default="", help="blocks of each stage: 3,7,7,7,0")
    parser.add_argument("-o", "--output", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
