"""Texts in Graphcore's encoding evaluated turn by turn."""

from hloipu_compiler.graphcore.encoding.plain_module import plain_module
from hloipu_compiler.hlo.printing.printer import print_module
from hloipu_compiler.interpret.evaluator import Evaluator
from hloipu_compiler.interpret.planning.site import Effects
from tests.support.poplar_small import Array, read


def evaluated(
    text: str, arguments: list[Array], data: list[object]
) -> tuple[list[Array], list[list[float]]]:
    """Return the results of a text, and what its outfeed got."""
    module = plain_module(read(text))
    read(print_module(module))
    source, sent = iter(data), []
    effects = Effects(
        infeed=lambda _: next(source),  # type: ignore[arg-type]
        outfeed=lambda _, values: sent.append([float(x) for x in values]),
    )
    made = Evaluator(module, effects)(*arguments)
    assert next(source, None) is None, "not every element was taken"
    return made, sent
