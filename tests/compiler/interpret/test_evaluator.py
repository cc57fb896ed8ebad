"""The face of the evaluator: arguments, limits, seeds, watching."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import EvaluationLimits, Evaluator, evaluate, peak_bytes
from hloipu_compiler.interpret.planning.site import Effects
from hloipu_runtime.errors import LimitError, UsageError
from tests.support.arrays import f32

PAIR = """HloModule pair
ENTRY e {
  a = f32[4] parameter(0)
  b = (s32[], (bf16[2], pred[])) parameter(1)
  ROOT r = (f32[4], (s32[], (bf16[2], pred[]))) tuple(a, b)
}
"""
ONE = np.ones(4, np.float32)
REST = (np.int32(5), (np.array([1, 2], ml_dtypes.bfloat16), np.True_))


def test_leaves_come_back_flat_in_order_in_user_dtypes() -> None:
    results = evaluate(parse(PAIR), ONE, REST)
    assert [x.dtype for x in results] == [np.float32, np.int32, ml_dtypes.bfloat16, np.bool_]
    assert [x.shape for x in results] == [(4,), (), (2,), ()]


def test_tuples_may_be_given_as_lists_or_flat() -> None:
    module = parse(PAIR)
    flat = [np.asarray(5, np.int32), np.array([1, 2], ml_dtypes.bfloat16), np.asarray(True)]
    nested = [flat[0], [flat[1], flat[2]]]
    for given in (flat, nested, tuple(flat)):
        assert [x.tolist() for x in evaluate(module, ONE, given)[1:]] == [5, [1, 2], True]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), "E3101", "'pair' takes 2 arguments, 0 were given"),
        ((ONE,), "E3101", "takes 2 arguments, 1 were given"),
        ((ONE, REST, ONE), "E3101", "takes 2 arguments, 3 were given"),
        ((ONE, ONE), "E3101", "parameter 1 of 'pair' takes 3 arrays, 1 were given"),
        ((np.ones(5, np.float32), REST), "E3102", r"parameter 0 is f32\[4\].*shape \[5\]"),
        ((np.ones((4, 1), np.float32), REST), "E3102", r"shape \[4, 1\]"),
        ((np.float32(1), REST), "E3102", r"shape \[\]"),
        ((np.ones(4), REST), "E3103", r"f32\[4\], an array of float64 was given"),
        ((np.ones(4, np.int32), REST), "E3103", "int32"),
        ((np.ones(4, ml_dtypes.bfloat16), REST), "E3103", "bfloat16"),
        (([[1], [2, 3]], REST), "E3102", "not an array"),
        (([ONE], REST), "E3102", r"shape \[1, 4\]"),
        (("four", REST), "E3102", r"shape \[\]"),
        ((None, REST), "E3102", r"shape \[\]"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(arguments: tuple[Any, ...], code: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        evaluate(parse(PAIR), *arguments)
    assert caught.value.code == code


SCALARS: dict[str, tuple[list[Any], list[Any]]] = {
    "f32": ([1, 1.5, True, np.int64(3), np.float64(2)], [1j, "1", None]),
    "s32": ([1, True, np.uint8(3)], [1.5, np.float64(1), 1j, None, "1"]),
    "pred": ([True, np.False_], [1, 0.0, None]),
    "c64": ([1, 1.5, 2j], ["1", None]),
    "bf16": ([1, 1.5], [1j, None]),
    "s4": ([1, -8], [1.5]),
}


@pytest.mark.parametrize("element_type", SCALARS)
def test_scalars_may_be_python_numbers_that_lose_nothing_but_digits(element_type: str) -> None:
    module = parse(f"HloModule m\nENTRY e {{\n  ROOT a = {element_type}[] parameter(0)\n}}\n")
    good, bad = SCALARS[element_type]
    for value in good:
        assert complex(evaluate(module, value)[0]) == complex(value)
    for value in bad:
        with pytest.raises(UsageError, match="parameter 0"):
            evaluate(module, value)


def test_a_tuple_of_scalars_may_be_python_numbers() -> None:
    module = parse("""HloModule m
ENTRY e {
  ROOT a = (f32[], (s32[], f32[])) parameter(0)
}
""")
    for given in ((1.5, 2, 3), (1.5, (2, 3)), [1.5, [2, 3]]):
        assert [float(x) for x in evaluate(module, given)] == [1.5, 2, 3]


def test_limits_name_what_is_too_large() -> None:
    module = parse("""HloModule big
ENTRY e {
  a = f32[] parameter(0)
  b = f32[1000,1000] broadcast(a), dimensions={}
  huge.1 = f32[1000,1000] negate(b)
  ROOT r = f32[1000,1000] add(huge.1, huge.1)
}
""")
    with pytest.raises(
        LimitError, match=r"'huge\.1' makes f32\[1000,1000\]: 1,000,000 elements"
    ) as e:
        Evaluator(module, limits=EvaluationLimits(value_elements=999_999))
    assert (e.value.limit, e.value.allowed, e.value.found) == ("value_elements", 999_999, 10**6)
    with pytest.raises(LimitError) as e:
        Evaluator(module, limits=EvaluationLimits(live_bytes=7_999_999))
    assert (e.value.code, e.value.limit, e.value.found) == ("E5011", "live_bytes", 8_000_004)
    assert e.value.exit_code == 8
    Evaluator(module, limits=EvaluationLimits(live_bytes=8_000_004, value_elements=10**6))


def test_peak_counts_what_lives_at_one_time() -> None:
    """A chain needs two values at a time, however long it is."""
    lines = "".join(f"  x{i} = f32[100] negate(x{i - 1})\n" for i in range(1, 50))
    lines = f"  x0 = f32[100] parameter(0)\n{lines}  ROOT r = f32[100] tanh(x49)\n"
    module = parse(f"HloModule m\nENTRY e {{\n{lines}}}\n")
    assert peak_bytes(module)[0] == 3 * 400  # the argument, one operand, one result


def test_a_huge_view_costs_nothing() -> None:
    text = """HloModule m
ENTRY e {
  a = f32[] parameter(0)
  b = f32[100000,100000] broadcast(a), dimensions={}
  c = f32[1,3] slice(b), slice={[5:6], [0:3]}
  ROOT r = f32[1,3] negate(c)
}
"""
    assert evaluate(parse(text), 2.0)[0].tolist() == [[-2, -2, -2]]


@pytest.mark.parametrize("caller", ["call", "reduce"])
def test_calls_nested_too_deeply_are_a_limit(caller: str) -> None:
    def text(depth: int) -> str:
        parts = ["HloModule m\nc0 {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
                 "  n = f32[] negate(b)\n  ROOT r = f32[] subtract(a, n)\n}\n"]  # fmt: skip
        parts += [
            f"c{i} {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
            f"  ROOT r = f32[] call(a, b), to_apply=c{i - 1}\n}}\n"
            for i in range(1, depth)
        ]
        root = f"call(z, z), to_apply=c{depth - 1}"
        if caller == "reduce":
            root = f"reduce(x, z), dimensions={{0}}, to_apply=c{depth - 1}"
        return (
            "".join(parts) + "ENTRY e {\n  x = f32[3] parameter(0)\n"
            f"  z = f32[] constant(1)\n  ROOT r = f32[] {root}\n}}\n"
        )

    (got,) = evaluate(parse(text(100)), f32([1, 2, 3]))
    assert got == (2 if caller == "call" else 7)
    with pytest.raises(LimitError, match="nested 2000 deep") as caught:
        evaluate(parse(text(2000)), f32([1, 2, 3]))
    assert caught.value.code == "E5013"


RNG = """HloModule m
ENTRY e {
  l = f32[] constant(0)
  h = f32[] constant(1)
  a = f32[4] rng(l, h), distribution=rng_uniform
  b = f32[4] rng(l, h), distribution=rng_uniform
  ROOT r = (f32[4], f32[4]) tuple(a, b)
}
"""


def test_stateful_random_numbers_depend_on_the_seed_alone() -> None:
    evaluator = Evaluator(parse(RNG), Effects(seed=1))
    first, second = evaluator(), evaluator()
    assert [x.tolist() for x in first] == [x.tolist() for x in second]
    assert first[0].tolist() != first[1].tolist()
    other = evaluate(parse(RNG), effects=Effects(seed=2))
    assert other[0].tolist() != first[0].tolist()
    assert all(((x >= 0) & (x < 1)).all() for x in (*first, *other))


def test_a_watcher_sees_every_step_in_order_with_its_values() -> None:
    text = """HloModule m
half {
  x = f32[2] parameter(0)
  k = f32[2] constant({2, 2})
  ROOT h = f32[2] divide(x, k)
}
ENTRY e {
  a = f32[2] parameter(0)
  b = f32[2] negate(a)
  c = f32[2] call(b), to_apply=half
  ROOT r = f32[2] abs(c)
}
"""
    seen: dict[str, list[float]] = {}
    evaluate(
        parse(text), f32([1, 2]), watch=lambda x, leaves: seen.update({x.name: leaves[0].tolist()})
    )
    assert {name: seen[name] for name in "bcr"} == {"b": [-1, -2], "c": [-0.5, -1], "r": [0.5, 1]}
    assert [name for name in seen if name in "bcr"] == ["b", "c", "r"]


_CALLING = {
    "call": "{to} = f32[] call({of}), to_apply={f}",
    "fusion": "{to} = f32[] fusion({of}), kind=kLoop, calls={f}",
    "conditional": "{to} = f32[] conditional(i, {of}, {of}), branch_computations={{{f}, {f}}}",
    "while": "{to} = f32[] while({of}), condition=never, body={f}",
    "map": "{to} = f32[] map({of}), dimensions={{}}, to_apply={f}",
    "custom-call": (
        '{to} = f32[] custom-call({of}), custom_call_target="t", called_computations={{{f}}}'
    ),
}


@pytest.mark.parametrize("opcode", _CALLING)
def test_powers_of_calls_are_refused_before_anything_runs(opcode: str) -> None:
    def body(callee: str) -> str:
        calls = [
            "  " + _CALLING[opcode].format(to=to, of=of, f=callee) + "\n"
            for of, to in (("x", "a"), ("a", "b"), ("b", "c"))
        ]
        counter = "  i = s32[] constant(0)\n"
        return (
            f"{{\n  x = f32[] parameter(0)\n{counter}{''.join(calls)}  ROOT r = f32[] copy(c)\n}}\n"
        )

    never = "never {\n  x = f32[] parameter(0)\n  ROOT n = pred[] constant(false)\n}\n"
    first = "f0 {\n  x = f32[] parameter(0)\n  ROOT n = f32[] negate(x)\n}\n"
    levels = "".join(f"f{n} {body(f'f{n - 1}')}" for n in range(1, 60))
    module = parse(f"HloModule powers\n{never}{first}{levels}ENTRY e {body('f59')}")
    with pytest.raises(LimitError, match=r"executes more than 10\^15 instructions") as caught:
        Evaluator(module)
    assert (caught.value.code, caught.value.limit) == ("E5018", "executed_instructions")


def test_branches_count_as_the_longest_and_loops_as_one_turn() -> None:
    text = """HloModule m
one { ROOT x = f32[] parameter(0) }
two { x = f32[] parameter(0)
  ROOT n = f32[] negate(x) }
never { x = f32[] parameter(0)
  ROOT n = pred[] constant(false) }
ENTRY e {
  x = f32[] parameter(0)
  i = s32[] constant(0)
  c = f32[] conditional(i, x, x), branch_computations={one, two}
  ROOT w = f32[] while(c), condition=never, body=two
}
"""
    Evaluator(parse(text), limits=EvaluationLimits(executed_instructions=10))
    with pytest.raises(LimitError, match="executes 10 instructions"):
        Evaluator(parse(text), limits=EvaluationLimits(executed_instructions=9))
