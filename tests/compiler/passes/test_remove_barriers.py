"""`remove-barriers`: what only keeps passes away goes, and what it kept in order stays so."""

from hloipu_compiler.passes import run_passes
from tests.support.passes import entry, opcodes, parsed, passed


def test_an_opt_barrier_is_its_operand() -> None:
    text = entry(
        "  p = f32[2] parameter(0)\n  a = f32[2] sine(p)\n  b = f32[2] opt-barrier(a)\n"
        "  ROOT r = f32[2] negate(b)"
    )
    assert opcodes(passed(text, "remove-barriers")) == ["sine", "negate"]


def test_recomputation_behind_a_barrier_is_kept() -> None:
    """`jax.checkpoint` recomputes behind a barrier, which merging must not undo."""
    text = entry(
        "  p = f32[2] parameter(0)\n  a = f32[2] sine(p)\n  b = f32[2] opt-barrier(p)\n"
        "  c = f32[2] sine(b)\n  ROOT r = f32[2] add(a, c)"
    )
    assert opcodes(passed(text, "front", settled=False)) == ["sine", "sine", "add"]


def test_effects_keep_their_order() -> None:
    text = entry(
        "  p = f32[2] parameter(0)\n  t = token[] after-all()\n"
        "  o = token[] outfeed(p, t), outfeed_shape=f32[2]\n"
        "  q = f32[2] add-dependency(p, o)\n"
        "  ROOT n = token[] outfeed(q, t), outfeed_shape=f32[2]"
    )
    after, _ = run_passes(parsed(text), None, "front")
    assert opcodes(after) == ["after-all", "outfeed", "outfeed"]
    assert [x.name for x in after.entry.instructions if x.opcode == "outfeed"] == ["o", "n"]
