"""`inline-calls` on many and deep calls, and where it ends; small modules are among the goldens."""

import pytest

from hloipu_compiler.passes import run_passes
from hloipu_compiler.passes.framework import call_forms
from hloipu_runtime.errors import LimitError
from tests.support.passes import entry, opcodes, parsed


def doubling(depth: int) -> str:
    rows = ["f0 {\n  x = f32[] parameter(0)\n  ROOT r = f32[] copy(x)\n}\n"]
    rows += [
        f"f{i} {{\n  x = f32[] parameter(0)\n  a = f32[] call(x), to_apply=f{i - 1}\n"
        f"  ROOT r = f32[] call(a), to_apply=f{i - 1}\n}}\n"
        for i in range(1, depth)
    ]
    body = f"  p = f32[] parameter(0)\n  ROOT r = f32[] call(p), to_apply=f{depth - 1}"
    return entry(body, "\n".join(rows))


def test_a_thousand_uses_are_a_thousand_copies() -> None:
    after, _ = run_passes(parsed(doubling(11)), None, "inline-calls")
    assert opcodes(after) == ["copy"] * 1024


def test_powers_of_calls_end_at_the_limit() -> None:
    with pytest.raises(LimitError, match="more than 50,000 instructions") as error:
        run_passes(parsed(doubling(90)), None, "inline-calls")
    assert (error.value.code, error.value.limit) == ("E5020", "most_instructions")
    with pytest.raises(LimitError, match="more than 100 instructions"):
        run_passes(parsed(doubling(11)), None, "inline-calls{most-instructions=100}")


def test_long_texts_may_make_more_than_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_forms, "MOST_INSTRUCTIONS", 100)
    own = "".join(f"  x{n} = f32[] copy(p)\n" for n in range(90))
    calls = "".join(f"  c{n} = f32[] call(p), to_apply=f\n" for n in range(20))
    called = f"f {{\n  p = f32[] parameter(0)\n{own}  ROOT r = f32[] copy(p)\n}}\n"
    short = parsed(entry("  p = f32[] parameter(0)\n" + calls + "  ROOT r = f32[] copy(p)", called))
    with pytest.raises(LimitError, match="more than 456 instructions"):
        call_forms.check_inlined_size(short, 100)
    long = parsed(
        entry("  p = f32[] parameter(0)\n" + own + "  ROOT r = f32[] call(p), to_apply=f", called)
    )
    call_forms.check_inlined_size(long, 100)


def test_deep_chains_need_no_recursion() -> None:
    rows = ["f0 {\n  x = f32[] parameter(0)\n  ROOT r = f32[] copy(x)\n}\n"]
    rows += [
        f"f{i} {{\n  x = f32[] parameter(0)\n  ROOT r = f32[] call(x), to_apply=f{i - 1}\n}}\n"
        for i in range(1, 3000)
    ]
    body = "  p = f32[] parameter(0)\n  ROOT r = f32[] call(p), to_apply=f2999"
    after, _ = run_passes(parsed(entry(body, "\n".join(rows))), None, "inline-calls")
    assert opcodes(after) == ["copy"]
