"""Small programs as text that others look into: users, the host, other participants."""

TWICE = "elementwise(expression={(f32); 1 = f32 add(0, 0); return (1)}, labels=[[0]], rank=1)"

RESIDENT = f"""\
program "resident" for "tiny" ipus 1 steps 3
parameters {{
  "parameter.2": f32[4]
}}
results {{
}}
variables {{
  v0 "w": f32[4] state @0[2 x 1] (a0*2:2) from "w"
  v1 "x": f32[4] parameter @0[2 x 1] (a0*2:2) from "x"
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
      (v0 = %3 (a0*2:2)) <- {TWICE} "sum" @0[2 x 1] <- (v1 = %2 (a0*2:2))
    }}
    sync 1
    out "loss.0" <- v0 = %3
  }}
}}
"""
"""State on the device, an array that is given later, and queues that feed three steps of a run."""

MEET = """\
program "meet" for "tiny" ipus 1 replicas 2 partitions 2 places (4, 5, 7, 6) of 16 hosts 2 keys (7)
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
  v4 "key": u32[2] state @0 (*)
}
values {
  %0: f32[4]
  %1: f32[4]
  %2: f32[2]
  %3: u32[]
  %4: f32[4]
  %5: u32[2]
}
constants {
}
state {
  "far" v1: %4 %1 parameter -1 result -1
  "key" v4: %5 %5 parameter 7 result -1
}
body {
  sync 1
  in "x" -> v0 = %0
  sync 1
  collective "all-reduce" groups [[0,3],[1,2]] by "add" "s" (v0 = %1) <- (v0 = %0)
  remote v0 = %1 -> v1
  sync 1
  collective "reduce-scatter" groups [[0,1],[2,3]] with {(f32, f32); 2 = f32 maximum(0, 1); return (2)} (v2 = %2) <- (v0 = %1)
  sync 1
  collective "partition-id" (v3 = %3) <- ()
  sync 1
  out "sum" <- v0 = %1
  out "part" <- v2 = %2
  out "me" <- v3 = %3
}
"""  # noqa: E501
"""Four participants: sums, parts of maxima, who they are, a key, and state beside the IPU."""

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
  v0 "wide": f32[2,2] parameter @0[2 x 1] (a0*1:1, *) from "p"
  v1 "narrow": f32[2,1] parameter @0[2 x 1] (a0*1:1, *) from "q"
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
  sync 1
  in "parameter.0" -> v0 = %0
  in "parameter.1" -> v1 = %1
  sync 1
  out "result.0" <- v0 = %0
  out "result.1" <- v1 = %1
}
"""
"""Users see one parameter and one result."""

BLOCKS = """\
program "blocks" for "tiny" ipus 1 partitions 4
parameters {
  "parameter.0": f32[2,2]
}
results {
  "result.0": f32[2,2]
}
variables {
  v0 "block": f32[2,2] parameter @0[2 x 1] (a0*1:1, *) from "p"
}
values {
  %0: f32[2,2] "p"
}
constants {
}
blocks {
  mesh [2,2] order [0,1,3,2]
  parameter 0 of [4,3] by [1] [0]
  result 0 of [4,3] by [1] [0]
}
body {
  sync 1
  in "parameter.0" -> v0 = %0
  sync 1
  out "result.0" <- v0 = %0
}
"""
"""Four partitions have a block of one parameter, and give it back; two have padding."""
