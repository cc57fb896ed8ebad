"""Roles of a step's parameters: by what the user says, by aliases, by results that are alike."""

from pathlib import Path

import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.plan.roles import kept_between_runs, required_wrapping, wrapping_of
from hloipu_compiler.plan.wrapping import FeedBinding, Wrapping, WrappingRequest
from hloipu_runtime.errors import UsageError

SAMPLES = Path(__file__).parents[3] / "hlo_samples"


def step(parameters: list[tuple[str, str]], results: list[str], header: str = "") -> Module:
    """Return a step that takes named parameters and returns constants of these shapes."""
    lines = [
        f'p{n} = {shape} parameter({n}), metadata={{op_name="{path}"}}'
        for n, (path, shape) in enumerate(parameters)
    ]
    for n, shape in enumerate(results):
        lines += [f"z{n} = f32[] constant({n})", f"r{n} = {shape} broadcast(z{n}), dimensions={{}}"]
    made = ", ".join(f"r{n}" for n in range(len(results)))
    lines.append(f"ROOT out = ({', '.join(results)}) tuple({made})")
    body = "\n  ".join(lines)
    return parse(f"HloModule m{header}\n\nENTRY e {{\n  {body}\n}}\n")


def wrapped(module: Module, **request: object) -> Wrapping:
    found = wrapping_of(module, WrappingRequest(10, **request))  # type: ignore[arg-type]
    assert found is not None
    return found


def pairs(found: Wrapping) -> list[tuple[int, int]]:
    return [(pair.parameter, pair.result) for pair in found.state]


PLAIN = step(
    [("w['a']", "f32[3]"), ("w['b']", "f32[4]"), ("x", "f32[8,3]"), ("lr", "f32[]")],
    ["f32[3]", "f32[4]", "f32[7]"],
)


def test_nothing_asked_is_nothing_wrapped() -> None:
    assert wrapping_of(PLAIN, WrappingRequest()) is None


def test_aliases_are_state_and_names_are_paths() -> None:
    text = (SAMPLES / "mnist_train_step.hlo").read_text()
    found = wrapped(parse(text), feeds={"data": (4, 5)}, outfeeds=("loss",))
    assert pairs(found) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert found.state[0].name == "variables['params']['Dense_0']['bias']"
    assert (found.constants, found.results) == ((), ())
    assert found.outfeeds == (FeedBinding("loss", (4,)),)
    assert found.evidence == "from the aliases in the header"


@pytest.mark.parametrize(("donors", "is_clear"), [((0, 1), True), ((0, 1, 3), False)])
def test_donors_alone_must_be_what_results_are_like(
    donors: tuple[int, ...], is_clear: bool
) -> None:
    """PyTorch/XLA gives parameters away and does not say to which results."""
    said = ", ".join(f"({n}, {{}})" for n in donors)
    shapes = [("w['a']", "f32[3]"), ("w['b']", "f32[4]"), ("x", "f32[8,3]"), ("s", "f32[3]")]
    module = step(shapes, ["f32[3]", "f32[4]", "f32[7]"], f", buffer_donor={{ {said} }}")
    if is_clear:
        assert pairs(wrapped(module)) == [(0, 0), (1, 1)]
        return
    with pytest.raises(UsageError, match="3 parameters are donated") as unclear:
        wrapped(module)
    assert unclear.value.code == "E3150"


def test_an_alias_may_join_other_numbers() -> None:
    module = step(
        [("x", "f32[2]"), ("a", "f32[3]"), ("b", "f32[3]")],
        ["f32[3]", "f32[3]"],
        ", input_output_alias={ {0}: (2, {}, may-alias), {1}: (1, {}, must-alias) }",
    )
    assert pairs(wrapped(module)) == [(1, 1), (2, 0)]


def test_without_aliases_the_first_parameters_that_are_like_results_are_state() -> None:
    found = wrapped(PLAIN)
    assert pairs(found) == [(0, 0), (1, 1)]
    assert found.constants == (2, 3)
    assert (found.outfeeds, found.results) == ((), (2,))


def test_metrics_may_stand_before_the_state() -> None:
    module = step([("w", "f32[3]"), ("x", "f32[8,3]")], ["f32[]", "f32[3]"])
    assert pairs(wrapped(module)) == [(0, 1)]


def test_what_a_queue_feeds_is_no_state() -> None:
    module = step([("w", "f32[3]"), ("x", "f32[3]")], ["f32[3]", "f32[3]"])
    found = wrapped(module, feeds={"data": (1,)})
    assert pairs(found) == [(0, 0)]
    assert found.feeds == (FeedBinding("data", (1,), names=("x",)),)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (step([("w", "f32[3]"), ("x", "f32[3]")], ["f32[3]", "f32[3]", "f32[]"]), "none of them"),
        (step([("q", "f32[3]"), ("k", "f32[3]"), ("n", "s32[]")], ["f32[3]", "f32[]"]),
         "like other"),
        (step([("x", "f32[2]"), ("w", "f32[3]")], ["f32[3]", "f32[]"]),
         "no result is like the first"),
        (step([("w.a", "f32[3]"), ("w.b", "f32[2]")], ["f32[3]", "f32[]"]), "ends within 'w'"),
        (step([("w", "f32[3]"), ("x", "f32[2]")], ["f32[]", "f32[3]", "f32[1]", "f32[3]"]),
         "several runs of results"),
    ],
)  # fmt: skip
def test_of_what_may_train_nothing_is_guessed(module: Module, said: str) -> None:
    with pytest.raises(UsageError, match=f"{said}.*may train: result .* may be a loss") as caught:
        wrapped(module)
    assert caught.value.code == "E3150"


def test_the_user_settles_it() -> None:
    module = step([("w", "f32[3]"), ("x", "f32[3]")], ["f32[3]", "f32[3]"])
    assert pairs(wrapped(module, roles={"w": "weight", "1": "carry"})) == [(0, 0), (1, 1)]
    assert pairs(wrapped(module, roles={"x": "data"})) == [(0, 0)]
    assert wrapped(module, roles={"x": "data"}).feeds == (FeedBinding("data", (1,), names=("x",)),)
    assert wrapped(module, roles={"x": "const"}).constants == (1,)
    assert pairs(wrapped(module, roles={"w": "hyper", "x": "data"})) == []


def test_a_group_is_named_by_its_argument() -> None:
    found = wrapped(PLAIN, roles={"w": "weight"})
    assert pairs(found) == [(0, 0), (1, 1)]
    assert found.evidence == "from the roles given"


def test_one_system_of_state_alone_needs_no_help() -> None:
    for position, velocity in (("s.p", "s.v"), ("p", "v"), ("", "")):
        module = step([(position, "f32[3]"), (velocity, "f32[3]")], ["f32[3]", "f32[3]"])
        assert pairs(wrapped(module)) == [(0, 0), (1, 1)]


@pytest.mark.parametrize(
    ("request_", "code", "said"),
    [
        ({"feeds": {"data": (9,)}}, "E3151", "no parameter 9"),
        ({"feeds": {"a": (2,), "b": (2,)}}, "E3151", "is fed by 'a' and 'b'"),
        ({"feeds": {"a": (2,)}, "roles": {"x": "const"}}, "E3151", "said to be const"),
        ({"roles": {"y": "data"}}, "E3151", "no parameter 'y'"),
        ({"roles": {"x": "data", "2": "const"}}, "E3151", "said to be data and const"),
        ({"outfeeds": ("loss=7",)}, "E3151", "no result 7"),
        ({"outfeeds": ("loss=one",)}, "E3151", "expected are numbers"),
        ({"outfeeds": ("loss=2,2",)}, "E3151", "named twice"),
        ({"outfeeds": ("loss=max:2",)}, "E3151", "no mode 'max'"),
        ({"outfeeds": ("loss:max",)}, "E3151", "no mode 'max'"),
        ({"outfeeds": ("loss:every=0",)}, "E3151", "no mode 'every=0'"),
        ({"outfeeds": ("loss:last=first:2",)}, "E3151", "two modes"),
        ({"outfeeds": ("loss:last:2",)}, "E3151", "expected is NAME"),
        ({"outfeeds": ("loss=",)}, "E3151", "expected are numbers"),
        ({"outfeeds": ("m=a=2,1",)}, "E3151", "a name of its own, or none"),
        ({"outfeeds": ("m=a=1,a=2",)}, "E3151", "a name of its own, or none"),
        ({"outfeeds": ("m==2",)}, "E3151", "a name of its own, or none"),
        ({"outfeeds": ("a", "b")}, "E3151", "several outfeeds do"),
        ({"outfeeds": ("a=2", "b")}, "E3151", "there are none"),
        ({"outfeeds": ("a=2", "a=1")}, "E3152", "two queues are named 'a'"),
        ({"feeds": {"a": (2,)}, "outfeeds": ("a=2",)}, "E3152", "two queues are named 'a'"),
        ({"roles": {"x": "weight"}}, "E3150", "no results are like"),
    ],
)
def test_refusals(request_: dict[str, object], code: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        wrapped(PLAIN, **request_)
    assert caught.value.code == code


def test_state_may_be_handed_over_as_well() -> None:
    found = wrapped(PLAIN, outfeeds=("norm=0", "rest"))
    assert pairs(found) == [(0, 0), (1, 1)]
    assert found.outfeeds == (FeedBinding("norm", (0,)), FeedBinding("rest", (2,)))


@pytest.mark.parametrize(
    ("text", "binding"),
    [
        ("n=0", FeedBinding("n", (0,))),
        ("n:last=0", FeedBinding("n", (0,), "", "last")),
        ("n=first:0", FeedBinding("n", (0,), "", "first")),
        ("n:every=10=0", FeedBinding("n", (0,), "", "every-10")),
        ("n:every-10", FeedBinding("n", (2,), "", "every-10")),
        ("n:mean", FeedBinding("n", (2,), "mean")),
        ("n:sum=0,2", FeedBinding("n", (0, 2), "sum")),
        ("n=sum:2", FeedBinding("n", (2,), "sum")),
    ],
)
def test_modes_of_outfeeds(text: str, binding: FeedBinding) -> None:
    assert wrapped(PLAIN, outfeeds=(text,)).outfeeds[0] == binding


def test_without_a_loop_results_need_no_queue() -> None:
    found = wrapping_of(PLAIN, WrappingRequest(None, {"w": "weight"}))
    assert found is not None
    assert (found.outfeeds, found.results) == ((), (2,))


def test_what_was_decided_is_told() -> None:
    found = wrapped(PLAIN, feeds={"data": (2,)})
    assert found.lines() == [
        "10 steps a run; 2 arrays stay on the device "
        "(from the results that are like the first parameters)",
        "  state: parameters 0-1 become results 0-1",
        "  feed data: parameters 2",
        "  taken for state: w['a'] f32[3], w['b'] f32[4]; to say otherwise: --feed NAME=N,… or "
        "--role PARAMETER=data, const",
        "  loaded once: parameters 3",
        "  at the end of a run: results 2",
    ]


MAY = "{{{}}}: ({}, {{}}, may-alias)"


def donated(*pairs_: tuple[int, int]) -> str:
    """Return a header that gives result b the memory of parameter a, for each (a, b)."""
    return f", input_output_alias={{ {', '.join(MAY.format(b, a) for a, b in pairs_)} }}"


def test_memory_that_is_given_to_a_loss_makes_it_no_state() -> None:
    """JAX gives the loss, the first result of its shape, the memory of the donated rate."""
    module = step(
        [("s.rate", "f32[]"), ("s.w", "f32[3]"), ("x", "f32[8]")],
        ["f32[]", "f32[]", "f32[3]"],
        donated((0, 0), (1, 2)),
    )
    found = wrapped(module)
    assert pairs(found) == [(0, 1), (1, 2)]
    assert found.evidence.startswith("from the aliases in the header, each group")


def test_groups_may_be_apart_or_in_another_order() -> None:
    parameters = [("w.a", "f32[3]"), ("w.b", "f32[4]"), ("o.n", "f32[]"), ("o.m", "f32[3]")]
    module = step(
        parameters, ["f32[3]", "f32[4]", "f32[]", "f32[]", "f32[3]"],
        donated((0, 0), (1, 1), (2, 2), (3, 4)),
    )  # fmt: skip
    assert pairs(wrapped(module)) == [(0, 0), (1, 1), (2, 3), (3, 4)]
    module = step(
        parameters, ["f32[]", "f32[3]", "f32[3]", "f32[4]"],
        donated((0, 1), (1, 3), (2, 0), (3, 2)),
    )  # fmt: skip
    assert pairs(wrapped(module)) == [(0, 2), (1, 3), (2, 0), (3, 1)]


def test_what_must_be_aliased_is_taken_at_its_word() -> None:
    header = ", input_output_alias={ {1}: (0, {}, must-alias) }"
    module = step([("w", "f32[3]"), ("x", "f32[8]")], ["f32[3]", "f32[3]"], header)
    assert pairs(wrapped(module)) == [(0, 1)]


def test_aliases_that_are_not_merely_the_first_that_fits_are_meant() -> None:
    module = step(
        [("w", "f32[3]"), ("v", "f32[3]"), ("x", "f32[8]")],
        ["f32[3]", "f32[3]"],
        donated((1, 0), (0, 1)),
    )
    assert pairs(wrapped(module)) == [(0, 1), (1, 0)]


def test_several_places_for_donated_state_are_not_guessed() -> None:
    module = step([("t", "f32[]"), ("x", "f32[8]")], ["f32[]", "f32[]"], donated((0, 0)))
    with pytest.raises(UsageError, match="no unique runs") as caught:
        wrapped(module)
    assert caught.value.code == "E3150"
    assert pairs(wrapped(module, roles={"t": "carry"})) == [(0, 0)]  # as the error's hint says


def test_the_longest_run_counts_not_the_first() -> None:
    module = step(
        [("s.rate", "f32[]"), ("s.w", "f32[3]"), ("x", "f32[8]")], ["f32[]", "f32[]", "f32[3]"]
    )
    assert pairs(wrapped(module)) == [(0, 1), (1, 2)]


def test_donated_data_takes_no_part() -> None:
    """The fed parameter has the memory of the first result; which the others have follows."""
    module = step(
        [("x", "f32[3]"), ("s.w", "f32[3]"), ("s.n", "s32[]")],
        ["f32[3]", "f32[3]", "s32[]"],
        donated((0, 0), (1, 1), (2, 2)),
    )
    assert pairs(wrapped(module, feeds={"data": (0,)})) == [(1, 1), (2, 2)]


DONATED = "input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }"


@pytest.mark.parametrize(
    ("module", "roles", "parameters", "results"),
    [
        # Equal types and shapes alone are no evidence.
        (parse((SAMPLES / "newton_while.hlo").read_text(encoding="utf-8")), {}, [], []),
        (PLAIN, {"w": "weight"}, [0, 1], [0, 1]),
        (step([("w", "f32[3]"), ("m", "f32[4]"), ("x", "f32[5]")], ["f32[3]", "f32[4]"],
              f", {DONATED}"), {}, [0, 1], [0, 1]),
        (step([("w['a']", "f32[3]"), ("w['b']", "f32[4]"), ("x", "f32[8]")], ["f32[7]"]),
         {}, [0, 1], []),
        (step([("q", "f32[3]"), ("k", "f32[3]")], ["f32[7]"]), {}, [], []),
        (step([("x", "f32[3]"), ("table", "f32[4]")], ["f32[7]"]), {"table": "const"}, [1], []),
    ],
)  # fmt: skip
def test_what_a_plain_step_would_keep_between_runs(
    module: Module, roles: dict[str, str], parameters: list[int], results: list[int]
) -> None:
    found = kept_between_runs(module, WrappingRequest(roles=roles))
    assert (found.get("parameters", []), found.get("results", [])) == (parameters, results)
    assert bool(found) == bool(parameters)


ADAPTED = """HloModule m, input_output_alias={ {0}: (0, {}, may-alias) }
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}
ENTRY e {
  w = f32[4,2] parameter(0), metadata={op_name="lora"}
  base = f32[3,4] parameter(1), metadata={op_name="base['kernel']"}
  shift = f32[4] parameter(2), metadata={op_name="base['bias']"}
  x = f32[8,3] parameter(3), metadata={op_name="batch['x']"}
  y = f32[8,2] parameter(4), metadata={op_name="batch['y']"}
  noise = f32[4] parameter(5), metadata={op_name="batch['noise']"}
  s = f32[4] add(shift, noise)
  ss = f32[8,4] broadcast(s), dimensions={1}
  d = f32[8,4] dot(x, base), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  h = f32[8,4] add(d, ss)
  p = f32[8,2] dot(h, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  e = f32[8,2] subtract(p, y)
  q = f32[8,2] multiply(e, e)
  z = f32[] constant(0)
  loss = f32[] reduce(q, z), dimensions={0,1}, to_apply=sum
  g = f32[4,2] dot(h, e), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  new = f32[4,2] subtract(w, g)
  ROOT out = (f32[4,2], f32[]) tuple(new, loss)
}
"""


def test_frozen_weights_are_loaded_once_and_not_fed() -> None:
    """Arguments of several arrays without the batch; one array with it makes the argument data."""
    cut = required_wrapping(parse(ADAPTED), WrappingRequest(10), feeds_rest=True)
    assert pairs(cut) == [(0, 0)]
    assert (cut.constants, [feed.places for feed in cut.feeds]) == ((1, 2), [(3, 4, 5)])
    assert any("taken for constants: base['kernel']" in line for line in cut.lines())
    said = WrappingRequest(10, feeds={"data": (1, 2, 3, 4, 5)})
    assert required_wrapping(parse(ADAPTED), said, feeds_rest=True).constants == ()


@pytest.mark.parametrize("swapped", [False, True])
def test_donors_alone_become_the_results_that_are_made_of_them(swapped: bool) -> None:
    """As JAX prints steps with shardings; PyTorch/XLA may return them in another order."""
    made = "(c, b, a)" if swapped else "(c, a, b)"
    module = parse(f"""HloModule m, buffer_donor={{ (1, {{}}), (2, {{}}) }}
    ENTRY e {{
      x = f32[3] parameter(0)
      w = f32[3] parameter(1)
      v = f32[3] parameter(2)
      a = f32[3] subtract(w, x)
      b = f32[3] subtract(v, x)
      c = f32[7] constant({{1,2,3,4,5,6,7}})
      ROOT out = (f32[7], f32[3], f32[3]) tuple{made}
    }}""")
    if not swapped:
        assert pairs(wrapped(module)) == [(1, 1), (2, 2)]
        return
    with pytest.raises(UsageError, match="donated"):
        wrapped(module)


@pytest.mark.parametrize(
    ("results", "fine"), [("a, b", True), ("a, a", True), ("b, a", False), ("b, b", True)]
)
def test_first_donors_do_not_trade_places(results: str, fine: bool) -> None:
    """What is computed from other state may replace a copy of it, as a target network's weights."""
    module = parse(f"""HloModule m, buffer_donor={{ (0, {{}}), (1, {{}}) }}
    ENTRY e {{
      w = f32[3] parameter(0)
      v = f32[3] parameter(1)
      x = f32[3] parameter(2)
      a = f32[3] subtract(w, x)
      b = f32[3] subtract(v, x)
      ROOT out = (f32[3], f32[3]) tuple({results})
    }}""")
    if fine:
        assert pairs(wrapped(module)) == [(0, 0), (1, 1)]
        return
    with pytest.raises(UsageError, match="the result in the place of w"):
        wrapped(module)
