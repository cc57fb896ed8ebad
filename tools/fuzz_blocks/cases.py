"""Cases: from a seed to a block's text, and how it is compiled."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tools.fuzz_blocks import nodes as n
from tools.fuzz_blocks.attention import attention, merged_heads
from tools.fuzz_blocks.blocks_in_loops import looped
from tools.fuzz_blocks.dense import dense, norms, products
from tools.fuzz_blocks.draws import REAL, Draw, Scale
from tools.fuzz_blocks.experts import experts
from tools.fuzz_blocks.gradients import gradients
from tools.fuzz_blocks.images import images
from tools.fuzz_blocks.models import model
from tools.fuzz_blocks.moving import moved
from tools.fuzz_blocks.nodes import Node
from tools.fuzz_blocks.optimizers import updated
from tools.fuzz_blocks.options import cut_drawn, options_drawn
from tools.fuzz_blocks.special import special
from tools.fuzz_blocks.stacks import recurrent, stack
from tools.fuzz_blocks.tables import cached, embedding, loss
from tools.fuzz_blocks.text import module_text

FAMILIES: Mapping[str, Callable[[Draw], Node]] = {
    "dense": dense, "products": products, "attention": attention, "experts": experts,
    "norms": norms, "embedding": embedding, "loss": loss, "cached": cached, "images": images,
    "recurrent": recurrent, "moved": moved, "model": model,
    "looped": looped, "special": special, "heads": merged_heads,
}  # fmt: skip
WEIGHTED = (
    *("products",) * 5, *("dense",) * 3, *("attention",) * 4, *("stack",) * 3, *("images",) * 3,
    *("moved",) * 3, *("looped",) * 3, *("special",) * 2, *("experts",) * 2, "heads", "norms",
    "embedding", "loss", "cached", "recurrent", "model",
)  # fmt: skip
WITHOUT_GRADIENT = frozenset(("cached", "recurrent", "stack", "looped", "special"))


@dataclass(frozen=True, slots=True)
class Case:
    """A module and the options that it is compiled with."""

    seed: int
    family: str
    text: str
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Say which case it is."""
        said = " ".join(f"{k}={v}" for k, v in self.options.items() if k != "over_memory")
        return f"{self.seed} {self.family} {said}"


def case(seed: int, scale: Scale = REAL) -> Case:
    """Return the case of a seed."""
    random = Random(f"blocks {seed} {scale.most}")
    draw = Draw(random, scale)
    family = random.choice(WEIGHTED)
    if family == "stack":
        result, slopes = stack(draw)
        results = [result, *slopes]
    else:
        result = FAMILIES[family](draw)
        results = [result]
        if family not in WITHOUT_GRADIENT and draw.maybe(0.6):
            return _trained(draw, seed, family, result)
    return Case(seed, family, _text(draw, results), options_drawn(draw))


def _trained(draw: Draw, seed: int, family: str, result: Node) -> Case:
    """Return a case with gradients: as they are, or as a step that changes the weights."""
    step = draw.maybe(0.5) and bool(draw.weights)
    of_inputs = [x for x in draw.inputs if x.type[0] in "fb" and draw.maybe()]
    cost = _cost(result)
    wanted = [*draw.weights, *([] if step else of_inputs)]
    slopes = gradients(cost, n.constant(cost.type, 1), wanted)
    if not step:
        return Case(seed, family, _text(draw, [cost, *slopes]), options_drawn(draw))
    state, following = updated(draw, slopes)
    header = ", ".join(f"{{{i + 1}}}: ({i}, {{}}, may-alias)" for i in range(len(following)))
    text = _text(draw, [cost, *following], f"input_output_alias={{ {header} }}", state)
    cut = cut_drawn(draw, len(following), len(draw.inputs))
    options = {k: v for k, v in options_drawn(draw).items() if not (cut and k == "passes")} | cut
    return Case(seed, family, text, options)


def _cost(result: Node) -> Node:
    """Return a scalar of which every element has a part."""
    if not result.rank:
        return n.converted(result, "f32")
    wide = n.converted(result, "f32")
    squares = n.elementwise("multiply", wide, wide)
    total = n.reduce(squares, tuple(range(result.rank)))
    return n.elementwise("multiply", total, n.constant("f32", 1e-3))


def _text(draw: Draw, results: Sequence[Node], header: str = "", state: Sequence[Node] = ()) -> str:
    """Return a module with a case's parameters; `state`: of the optimizer."""
    parameters = (*draw.weights, *state, *draw.inputs)
    root = results[0] if len(results) == 1 else n.tuple_of(results)
    if root.opcode == "parameter":
        root = n.elementwise("copy", root)
    return module_text("block", n.Region(parameters, root), header)
