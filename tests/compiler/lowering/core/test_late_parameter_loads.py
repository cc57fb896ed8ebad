"""Parameters that come in shortly before they are read, where memory is scarce."""

import numpy as np

from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.steps import StreamIn
from tests.support.tile_runs import same_on_tiles

LAYERS = 6


def _text(width: int) -> str:
    weights = "\n".join(f"w{n} = f32[{width},{width}] parameter({n + 1})" for n in range(LAYERS))
    lines, last = [], "x"
    for n in range(LAYERS):
        lines.append(
            f"y{n} = f32[4,{width}] dot({last}, w{n}), lhs_contracting_dims={{1}},"
            " rhs_contracting_dims={0}"
        )
        last = f"y{n}"
    lines[-1] = "ROOT " + lines[-1]
    return f"HloModule m\nENTRY e {{ x = f32[4,{width}] parameter(0)\n{weights}\n" + (
        "\n".join(lines) + "\n}"
    )


def _stream_places(width: int) -> list[int]:
    """Return the places of the steps that bring parameters in, values having been checked."""
    rng = np.random.default_rng(width)
    inputs = [rng.integers(-2, 3, (4, width)).astype(np.float32)]
    inputs += [rng.integers(-1, 2, (width, width)).astype(np.float32) for _ in range(LAYERS)]
    expected = inputs[0]
    for w in inputs[1:]:
        expected = expected @ w
    run = same_on_tiles(_text(width), load_machine("tiny"), inputs)
    np.testing.assert_array_equal(run.functional[0], expected)
    steps = run.program.body.steps
    return [place for place, step in enumerate(steps) if isinstance(step, StreamIn)]


def test_where_memory_is_plenty_all_come_first() -> None:
    places = _stream_places(16)
    # A sync before each.
    assert places == list(range(1, 2 * len(places), 2))


def test_where_memory_is_scarce_each_comes_when_it_is_read() -> None:
    places = _stream_places(80)
    assert len(places) == LAYERS + 1
    assert places[-1] - places[0] > 3 * LAYERS
