"""One command for all benchmarks: `python -m tools.bench NAME [OPTIONS]`.

    compile   compile time against XLA:CPU's, and its growth
    run       run time of both modes against XLA:CPU's; --cold: from a process's start
    codegen   cycles of kernels over the machine's limits, and of plans over the best ones
    parse     reading text, against XLA's C++ parser; start-up
    ops       kernels and whole modules, against XLA:CPU on one thread
    passes    each pass's effect on cycles and memory
    feeds     training steps with feeds and without, against XLA:CPU
    scale     time and memory of estimates of long steps on up to 64 IPUs

`--help` after a name lists its options.
"""

import runpy
import sys

NAMES = "compile run codegen parse ops passes feeds scale".split()


def main() -> None:
    """Run the benchmark that the first word names, with the rest as its arguments."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in NAMES:
        sys.exit((__doc__ or "").strip())
    del sys.argv[1]
    runpy.run_module(f"tools.bench.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
