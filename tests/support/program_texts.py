"""Small programs as text, one for each kind of step; every one is proved on two tiles."""

from hloipu_runtime.program.program import Program
from hloipu_runtime.program_text.parser import parse_program

_ADD = "elementwise(expression={(f32); 1 = f32 add(0, 0); return (1)}, labels=[[0]], rank=1)"
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
    (v1 = %1 (a0*2:2)) <- {_ADD} "sum" @0[2 x 1] <- (v0 = %0 (a0*2:2))
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
  exchange "halo" {
    copy v1 = %1 -> v2
    define v2 = %1 of (%1)
  }
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
  v3 "other": s32[] state ipu 1 @1 ()
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
}}
constants {{
  v4 = %13 values "0"
}}
function "next" {{
  compute {{
    (v0 = %9 ()) <- {_NEXT} "next" @0 <- (v0 = %8 ())
  }}
}}
body {{
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
      call "next"
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

RESIDENT = f"""\
program "resident" for "tiny" ipus 1 steps 3
parameters {{
  "parameter.2": f32[4]
}}
results {{
}}
variables {{
  v0 "w": f32[4] state @0[2 x 1] (a0*2:2) from "w"
  v1 "x": f32[4] @0[2 x 1] (a0*2:2) from "x"
  v2 "k": f32[4] constant @0[2 x 1] (a0*2:2) from "k"
}}
values {{
  %0: f32[4] "w"
  %1: f32[4] "w"
  %2: f32[4] "x"
  %3: f32[4] "sum"
  %4: f32[4] "w"
  %5: f32[4] "k"
}}
constants {{
  v2 = %5 given
}}
loaded {{
  %5
}}
state {{
  "w" v0: %0 %4 parameter 0 result 0
}}
queues {{
  in "batch" ("batch.0": f32[4]) for 1
  out "loss" ("loss.0": f32[4]) keep "every-2"
}}
elided {{
  "constant.7"
}}
body {{
  repeat 3 "steps" (v0: %0 %1 %3 %4) {{
    sync 1
    in "batch.0" -> v1 = %2
    compute {{
      (v0 = %3 (a0*2:2)) <- {_ADD} "sum" @0[2 x 1] <- (v1 = %2 (a0*2:2))
    }}
    sync 1
    out "loss.0" <- v0 = %3
  }}
}}
"""
"""State on the device, an array that is given later, and queues that feed three steps of a run."""

SUM = (
    "elementwise(expression={(f32, f32); 2 = f32 add(0, 1); return (2)}, labels=[[0],[0]], rank=1)"
)
PIPELINE = """program "pipeline" for "tiny" ipus 2
parameters {
  "x": f32[6]
}
results {
}
variables {
  v0 "x": f32[6] @0[2 x 1] (a0*3:3)
  v1 "y": f32[6] @0[2 x 1] (a0*3:3) from "y"
  v2 "y there": f32[6] ipu 1 @0[2 x 1] (a0*3:3)
  v3 "total": f32[6] state ipu 1 @0[2 x 1] (a0*3:3)
  v4 "first": f32[6] @0[2 x 1] (a0*3:3)
  v5 "second": f32[6] @0[2 x 1] (a0*3:3)
  v6 "y stashed": f32[6] @0[2 x 1] (a0*3:3)
  v7 "gradient": f32[6] state @0[2 x 1] (a0*3:3)
}
values {
  %0: f32[6]
  %1: f32[6]
  %2: f32[6]
  %3: f32[6]
  %4: f32[6]
  %5: f32[6]
  %6: f32[6]
  %7: f32[6]
  %8: f32[6]
  %9: f32[6]
}
constants {
}
state {
  "total" v3: %2 %5 parameter -1 result -1
  "gradient" v7: %6 %9 parameter -1 result -1
}
body {
  pipeline 4 every 1 "step" (v3: %2 %3 %4 %5, v7: %6 %7 %8 %9) {
    stage "F0" ipu 0 {
      in "x" -> v0 = %0
      compute {
        (v1 = %1 (a0*3:3)) <- copy() @0[2 x 1] <- (v0 = %0 (a0*3:3))
      }
    }
    stage "F1" ipu 1 {
      compute {
        (v3 = %4 (a0*3:3)) <- SUM @0[2 x 1] <- (v3 = %3 (a0*3:3), v2 = %1 (a0*3:3))
      }
    }
    stage "B0" ipu 0 {
      compute {
        (v7 = %8 (a0*3:3)) <- SUM @0[2 x 1] <- (v7 = %7 (a0*3:3), v6 = %1 (a0*3:3))
      }
    }
    channel 0 to 1 v1 = %1 by (v2) -> v2
    channel 0 to 2 v1 = %1 by (v4, v5) -> v6
  }
}
""".replace("SUM", SUM)
"""Two stages on two IPUs, what the first makes sent to the second and stashed for later."""

GROUPS = """program "groups" for "tiny" ipus 1
parameters {
  "x": f32[6]
}
results {
}
variables {
  v0 "weight": f32[6] remote @0 (*)
  v1 "weight here": f32[6] @0[2 x 1] (a0*3:3)
  v2 "x": f32[6] @0[2 x 1] (a0*3:3)
  v3 "y": f32[6] @0[2 x 1] (a0*3:3)
  v4 "y again": f32[6] @0[2 x 1] (a0*3:3)
  v5 "first": f32[6] remote @0 (*)
  v6 "second": f32[6] remote @0 (*)
  v7 "total": f32[6] remote @0 (*)
  v8 "total here": f32[6] @0[2 x 1] (a0*3:3)
}
values {
  %0: f32[6]
  %1: f32[6]
  %2: f32[6]
  %3: f32[6]
  %4: f32[6]
  %5: f32[6]
  %6: f32[6]
}
constants {
  v0 = %0 values "0x1.0000000000000p+0 0x1.0000000000000p+1 0x1.8000000000000p+1 0x0.0p+0 0x1.0000000000000p+0 0x1.0000000000000p+0"
}
state {
  "total" v7: %3 %6 parameter -1 result -1
}
body {
  pipeline 5 every 2 in groups of 2 "step" (v7: %3 %4 %5 %6) {
    stage "F0" ipu 0 {
      in "x" -> v2 = %1
      compute {
        (v3 = %2 (a0*3:3)) <- SUM @0[2 x 1] <- (v2 = %1 (a0*3:3), v1 = %0 (a0*3:3))
      }
    }
    first {
      remote v0 = %0 -> v1
    }
    stage "B0" ipu 0 {
      remote v7 = %4 -> v8
      compute {
        (v8 = %5 (a0*3:3)) <- SUM @0[2 x 1] <- (v8 = %4 (a0*3:3), v4 = %2 (a0*3:3))
      }
      remote v8 = %5 -> v7
    }
    channel 0 to 1 v3 = %2 by (v5, v6) -> v4
  }
}
""".replace("SUM", SUM)  # noqa: E501
"""Two micro-batches forward, then both back; all that can lies beside the IPU."""

MEET = """\
program "meet" for "tiny" ipus 1 replicas 2 partitions 2 places (4, 5, 7, 6) of 16
parameters {
  "x": f32[4]
}
results {
  "sum": f32[4]
  "part": f32[2]
  "me": u32[]
}
variables {
  v0 "x": f32[4] parameter @0[2 x 1] (a0*2:2)
  v1 "far": f32[4] remote @0 (*)
  v2 "part": f32[2] @0 (*)
  v3 "me": u32[] @1 ()
}
values {
  %0: f32[4]
  %1: f32[4]
  %2: f32[2]
  %3: u32[]
  %4: f32[4]
}
constants {
}
state {
  "far" v1: %4 %1 parameter -1 result -1
}
body {
  in "x" -> v0 = %0
  collective "all-reduce" groups [[0,3],[1,2]] by "add" "s" (v0 = %1) <- (v0 = %0)
  remote v0 = %1 -> v1
  collective "reduce-scatter" groups [[0,1],[2,3]] with {(f32, f32); 2 = f32 maximum(0, 1); return (2)} (v2 = %2) <- (v0 = %1)
  collective "partition-id" (v3 = %3) <- ()
  sync 1
  out "sum" <- v0 = %1
  out "part" <- v2 = %2
  out "me" <- v3 = %3
}
"""  # noqa: E501
"""Four participants: sums, parts of maxima, who they are, and state beside the IPU."""

PIECES = """\
program "pieces" for "tiny" ipus 1
parameters {
  "parameter.0": f32[2,2]
  "parameter.1": f32[2,1]
}
results {
  "result.0": f32[2,2]
  "result.1": f32[2,1]
}
variables {
  v0 "wide": f32[2,2] @0[2 x 1] (a0*1:1, *) from "p"
  v1 "narrow": f32[2,1] @0[2 x 1] (a0*1:1, *) from "q"
}
values {
  %0: f32[2,2] "p"
  %1: f32[2,1] "q"
}
constants {
}
stacks {
  "x" parameter 0 axis 1 by [2,1] of [2,3]
  "y" result 0 axis 1 by [2,1] of [2,3]
}
body {
  in "parameter.0" -> v0 = %0
  in "parameter.1" -> v1 = %1
  out "result.0" <- v0 = %0
  out "result.1" <- v1 = %1
}
"""
"""Users see one parameter and one result."""

TEXTS = {
    "double": DOUBLE,
    "move": MOVE,
    "control": CONTROL,
    "resident": RESIDENT,
    "pipeline": PIPELINE,
    "groups": GROUPS,
    "meet": MEET,
    "pieces": PIECES,
}


def small_programs() -> dict[str, Program]:
    """Return the programs by name."""
    return {name: parse_program(text, name=name) for name, text in TEXTS.items()}
