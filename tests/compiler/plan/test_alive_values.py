"""Bytes alive on the IPU of each instruction, counted by hand."""

from types import MappingProxyType

from hloipu_compiler.plan.alive_values import alive_bytes
from hloipu_compiler.plan.plan import Plan
from tests.support.passes import parsed

KIB = 1024
TEXT = """ENTRY e {
  a = f32[256] parameter(0)
  w = f32[512] parameter(1)
  b = f32[256] exponential(a)
  c = f32[512] concatenate(b, b), dimensions={0}
  d = f32[512] add(c, w)
  ROOT r = f32[512] negate(d)
}
"""
NAMES = ("a", "w", "b", "c", "d", "r")


def alive(ipus: dict[str, int], held: dict[str, int], *, late: bool = False) -> list[int]:
    module = parsed(TEXT)
    plan = Plan(
        ipus=MappingProxyType({("e", name): ipu for name, ipu in ipus.items()}),
        held_ipus=MappingProxyType({("e", name, 0): ipu for name, ipu in held.items()}),
    )
    return alive_bytes(module, plan, module.entry, late=late)


def test_on_one_ipu_all_that_is_there_counts() -> None:
    # b is computed in place of a, d of c or w.
    assert alive({}, {}) == [3 * KIB, 3 * KIB, 2 * KIB, 3 * KIB, 2 * KIB, 0]


def test_on_two_ipus_each_has_its_own() -> None:
    everywhere = {"a": 0, "b": 0, "c": 1, "d": 1, "r": 1}
    found = alive({**everywhere, "w": 1}, {"a": 0, "w": 1})
    # On IPU 0: a, then b in its place. On IPU 1: w; beside c; d in place of one; r in place of d.
    assert dict(zip(NAMES, found, strict=True)) == {
        "a": KIB, "w": 2 * KIB, "b": 0, "c": 2 * KIB, "d": 2 * KIB, "r": 0,
    }  # fmt: skip


def test_what_lies_nowhere_in_particular_counts_in_parts() -> None:
    found = alive({"a": 0, "b": 0, "c": 1, "d": 1, "r": 1, "w": 1}, {"a": 0})
    # Half of w on each of two IPUs: without a place of its own.
    assert dict(zip(NAMES, found, strict=True))["b"] == KIB


def test_what_has_not_come_yet_does_not_count() -> None:
    ipus = {"a": 0, "b": 0, "c": 1, "d": 1, "r": 1, "w": 1}
    found = alive(ipus, {"a": 0, "w": 1}, late=True)
    assert dict(zip(NAMES, found, strict=True))["c"] == 0


def test_callers_count_what_stands_and_what_they_take_at_once() -> None:
    text = """ENTRY e {
      w = f32[512] parameter(0)
      x = f32[256] parameter(1)
      g = f32[256] negate(x)
      y = f32[512] concatenate(x, g), dimensions={0}
      z = f32[512] multiply(y, w)
      ROOT r = (f32[256], f32[512]) tuple(g, z)
    }
    """
    module = parsed(text)

    def at(name: str, plan: Plan, standing: frozenset[int] = frozenset()) -> int:
        found = alive_bytes(module, plan, module.entry, standing, late=False)
        return found[module.entry.position[name]]

    # x and w from the caller; g to the end, unless it is taken as soon as y has read it.
    taken = Plan(added_up=MappingProxyType({"e": frozenset({0})}))
    assert at("z", Plan()) == (2 + 2 + 1) * KIB - 2 * KIB
    assert at("z", taken) == (2 + 2) * KIB - 2 * KIB
    assert at("g", Plan()) == 3 * KIB
    assert at("g", Plan(), frozenset({0})) == KIB
