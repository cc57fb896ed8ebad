"""Small programs as text, one for each kind of step; every one is proved on two tiles."""

from hloipu_runtime.program.program import Program
from tests.support.program_reader.parser import parse_program
from tests.support.program_texts_outside import BLOCKS, MEET, PIECES, RESIDENT, TWICE
from tests.support.program_texts_pipelined import GROUPS, PIPELINE

_BELOW = (
    'elementwise(expression={(s32); 1 = s32 constant(value="3"); 2 = pred compare(0, 1, '
    'direction="LT"); return (2)}, labels=[[]], rank=0)'
)
_NEXT = (
    'elementwise(expression={(s32); 1 = s32 constant(value="1"); 2 = s32 add(0, 1); '
    "return (2)}, labels=[[]], rank=0)"
)

DOUBLE = f"""\
program "double" for "tiny" ipus 1
parameters {{
  "parameter.0": f32[4]
}}
results {{
  "result.0": f32[4] alias 0
}}
variables {{
  v0 "x": f32[4] parameter @0[2 x 1] (a0*2:2) from "p"
  v1 "y": f32[4] @0[2 x 1] (a0*2:2) from "sum"
}}
values {{
  %0: f32[4] "p"
  %1: f32[4] "sum"
}}
constants {{
}}
body {{
  sync 1
  in "parameter.0" -> v0 = %0
  compute {{
    (v1 = %1 (a0*2:2)) <- {TWICE} "sum" @0[2 x 1] <- (v0 = %0 (a0*2:2))
  }}
  sync 1
  out "result.0" <- v1 = %1
}}
"""
"""A vector doubled on two tiles."""

MOVE = """\
program "move" for "tiny" ipus 1
parameters {
}
results {
  "result.0": bf16[2,3]
}
variables {
  v0 "c": bf16[3] constant @1 (*) from "c"
  v1 "rows": bf16[2,3] @0[2 x 1] (a0*1:1, *) from "rows"
  v2 "halo": bf16[2,3] @2[2 x 1] (*, a0*2-1:3) from "halo"
  v3 "big": f32[5,4] constant @0 (*, *)
}
values {
  %0: bf16[3] "c"
  %1: bf16[2,3] "rows"
  %2: f32[5,4]
}
constants {
  v0 = %0 values "0x1.0000000000000p+0 -inf nan:0x7fc00000"
  v3 = %2 bytes "BYTES"
}
body {
  sync 1
  exchange "rows" {
    copy v0 = %0 -> v1 view [1,3] box (0..1, 0..3)
    copy v0 = %0 -> v1 view [1,3] box (1..2, 0..3) shift (-1, 0)
    define v1 = %1 of (%0 view [1,3] box (0..1, 0..3), %0 view [1,3] box (1..2, 0..3) shift (-1, 0))
  }
  sync 1
  exchange "halo" {
    copy v1 = %1 -> v2
    define v2 = %1 of (%1)
  }
  sync 1
  out "result.0" <- v2 = %1
}
""".replace("BYTES", bytes(range(80)).hex())
"""A constant repeated in rows, then brought to overlapping parts."""

CONTROL = f"""\
program "control" for "tiny" ipus 2
parameters {{
  "parameter.0": s32[]
  "parameter.1": pred[]
}}
results {{
  "result.0": s32[]
}}
variables {{
  v0 "n": s32[] parameter @0 ()
  v1 "p": pred[] parameter @0 ()
  v2 "test": pred[] @0 ()
  v3 "other": s32[] ipu 1 @1 ()
  v4 "zero": s32[] constant ipu 1 @1 ()
}}
values {{
  %0: s32[] "n"
  %1: pred[] "p"
  %2: s32[]
  %3: pred[] "test"
  %4: s32[]
  %5: s32[]
  %6: s32[]
  %7: s32[]
  %8: s32[]
  %9: s32[]
  %10: s32[]
  %11: s32[]
  %12: s32[]
  %13: s32[]
  %14: s32[]
  %15: s32[]
  %16: s32[]
}}
constants {{
  v4 = %13 values "0"
}}
function "next" {{
  compute {{
    (v0 = %16 ()) <- {_NEXT} "next" @0 <- (v0 = %15 ())
  }}
}}
body {{
  sync 1
  in "parameter.0" -> v0 = %0
  in "parameter.1" -> v1 = %1
  while v2 = %3 "loop" (v0: %0 %2 %4 %5) {{
    condition {{
      compute {{
        (v2 = %3 ()) <- {_BELOW} @0 <- (v0 = %2 ())
      }}
    }}
    turn {{
      compute {{
        (v0 = %4 ()) <- {_NEXT} @0 <- (v0 = %2 ())
      }}
    }}
  }}
  repeat 4 "again" (v0: %5 %6 %7 %8) {{
    compute {{
      (v0 = %7 ()) <- {_NEXT} @0 <- (v0 = %6 ())
    }}
  }}
  parallel {{
    branch {{
      call "next" (v0: %8 %15) -> (v0: %16 %9)
    }}
    branch {{
      sequence {{
        sync 1
        exchange {{
          copy v4 = %13 -> v3
          define v3 = %13 of (%13)
        }}
      }}
    }}
  }}
  if v1 = %1 "choose" (v0 = %11: %10 %9) {{
    branch {{
      compute {{
        (v0 = %10 ()) <- {_NEXT} @0 <- (v0 = %9 ())
      }}
    }}
    branch {{
    }}
  }}
  switch v0 = %11 (v0 = %14: %12 %11) {{
    branch {{
      compute {{
        (v0 = %12 ()) <- {_NEXT} @0 <- (v0 = %11 ())
      }}
    }}
    branch {{
    }}
  }}
  sync 2
  out "result.0" <- v0 = %14
}}
"""
"""Every kind of loop, choice, call and branch, on two IPUs."""

TEXTS = {
    "double": DOUBLE,
    "move": MOVE,
    "control": CONTROL,
    "resident": RESIDENT,
    "pipeline": PIPELINE,
    "groups": GROUPS,
    "meet": MEET,
    "pieces": PIECES,
    "blocks": BLOCKS,
}


def small_programs() -> dict[str, Program]:
    """Return the programs by name."""
    return {name: parse_program(text, name=name) for name, text in TEXTS.items()}
