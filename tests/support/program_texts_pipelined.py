"""Small pipelines as text: side by side on two IPUs, and in groups with remote memory."""

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
  v0 "x": f32[6] parameter @0[2 x 1] (a0*3:3)
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
      sync 1
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
  v2 "x": f32[6] parameter @0[2 x 1] (a0*3:3)
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
      sync 1
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
