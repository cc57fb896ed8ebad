"""Live bytes by hand: what is there from the start, what dies, what is computed in place."""

from hloipu_compiler.analysis.live_bytes import Running, buffers_of, extra_bytes, live_bytes
from hloipu_compiler.ir.graph import Module
from tests.support.passes import parsed

KIB = 1024

CHAIN = """ENTRY e {
  a = f32[256] parameter(0)
  b = f32[256] exponential(a)
  c = f32[512] concatenate(b, b), dimensions={0}
  d = f32[2,256] reshape(c)
  ROOT r = f32[2,256] negate(d)
}
"""


def entry_bytes(module: Module) -> list[int]:
    """Return the live bytes of the entry in the order of the text, inner computations counted."""
    extra: dict[str, int] = {}
    for name in Running(module).names:
        computation = module.computation[name]
        buffers = buffers_of(computation, module.computation, extra)
        order = range(len(computation.instructions))
        extra[name] = extra_bytes(buffers, order)
    return live_bytes(buffers, order)


def test_a_chain_by_hand() -> None:
    # a; b in the place of a; b and c; the reshape is c; r in the place of c.
    assert entry_bytes(parsed(CHAIN)) == [KIB, KIB, 3 * KIB, 2 * KIB, 2 * KIB]


def test_what_is_read_later_is_not_computed_in() -> None:
    text = """ENTRY e {
      a = f32[256] parameter(0)
      b = f32[256] exponential(a)
      ROOT c = f32[256] add(a, b)
    }
    """
    assert entry_bytes(parsed(text)) == [KIB, 2 * KIB, 2 * KIB]


def test_constants_and_broadcasts_take_nothing() -> None:
    text = """ENTRY e {
      a = f32[256] parameter(0)
      one = f32[] constant(1)
      ones = f32[256] broadcast(one), dimensions={}
      ROOT c = f32[256] add(a, ones)
    }
    """
    assert entry_bytes(parsed(text)) == [KIB] * 4


def test_an_element_taken_late_keeps_no_other() -> None:
    text = """f {
      x = f32[256] parameter(0)
      y = f32[256] negate(x)
      z = f32[] constant(1)
      ROOT t = (f32[256], f32[]) tuple(y, z)
    }

    ENTRY e {
      a = f32[256] parameter(0)
      r = (f32[256], f32[]) call(a), to_apply=f
      large = f32[256] get-tuple-element(r), index=0
      part = f32[1] slice(large), slice={[0:1]}
      other = f32[1] negate(part)
      small = f32[] get-tuple-element(r), index=1
      ROOT t = (f32[1], f32[]) tuple(other, small)
    }
    """
    *_, part, other, small, root = entry_bytes(parsed(text))
    assert (part, other, small, root) == (KIB + 8, 8, 8, 8)


LOOP = """c {
  s = (s32[], f32[256], f32[256]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT more = pred[] compare(i, n), direction=LT
}

b {
  s = (s32[], f32[256], f32[256]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[256] get-tuple-element(s), index=1
  w = f32[256] get-tuple-element(s), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  wide = f32[1024] concatenate(x, w, x, w), dimensions={0}
  y = f32[256] slice(wide), slice={[256:512]}
  ROOT t = (s32[], f32[256], f32[256]) tuple(next, y, w)
}

ENTRY e {
  x = f32[256] parameter(0)
  w = f32[256] parameter(1)
  zero = s32[] constant(0)
  t = (s32[], f32[256], f32[256]) tuple(zero, x, w)
  l = (s32[], f32[256], f32[256]) while(t), condition=c, body=b
  y = f32[256] get-tuple-element(l), index=1
  ROOT r = f32[256] add(y, w)
}
"""


def test_a_loop_takes_what_its_body_takes_and_hands_on_what_it_does_not_change() -> None:
    found = entry_bytes(parsed(LOOP))
    # Before the loop: both parameters. In it: the state (w is handed on as it is, the others are
    # its own: 1,028 bytes, in the place of x), and at the concatenation of the body 4 KiB more.
    assert found[3] == 2 * KIB
    assert found[4] == 2 * KIB + 4 + 4 * KIB
    assert found[-1] == 2 * KIB


def test_the_peak_of_a_chain() -> None:
    module = parsed(CHAIN)
    buffers = buffers_of(module.entry, {}, {})
    assert max(live_bytes(buffers, range(5))) == 3 * KIB


def test_only_what_runs_on_arrays_counts_as_running() -> None:
    text = """sum {
      a = f32[] parameter(0)
      b = f32[] parameter(1)
      ROOT c = f32[] add(a, b)
    }

    ENTRY e {
      x = f32[8] parameter(0)
      z = f32[] constant(0)
      ROOT r = f32[] reduce(x, z), dimensions={0}, to_apply=sum
    }
    """
    assert Running(parsed(text)).names == ("e",)
    assert Running(parsed(LOOP)).names[-1] == "e"
    assert set(Running(parsed(LOOP)).names) == {"c", "b", "e"}
