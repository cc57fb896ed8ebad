"""Cut training steps as people write them in every way, and compare each with JAX.

    python -m tools.trainers [--only TEXT] [--way TEXT] [--json FILE]

Every recipe goes with four micro-batches to an update: on one IPU, with and without the names that
JAX gives to ops, on two replicas, and over stages. State and metrics after two updates are compared
with the mean of the micro-batches' gradients, and with whole batches where these come to the same.
"""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

from tools.trainers.corpus import recipes
from tools.trainers.ways import AGREES, FAILS, REFUSED, Verdict, judged, tells_apart, ways_of


def main() -> int:
    """Run what is asked for; return 1 if any recipe fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.trainers", description=__doc__)
    parser.add_argument("--only", default="", help="recipes whose name has this in it")
    parser.add_argument("--way", default="", help="ways whose name has this in it")
    parser.add_argument("--json", type=Path, help="write every verdict here")
    asked = parser.parse_args()
    every_recipe, missing = recipes()
    for line in missing:
        print(line)
    chosen = [x for x in every_recipe if asked.only in x.name]
    began, verdicts = time.monotonic(), list[Verdict]()
    for recipe in chosen:
        here = [judged(recipe, x) for x in ways_of(recipe) if asked.way in x.name]
        if not tells_apart(recipe):
            wrong = "whole batches come to the same" if recipe.coupled else "whole batches differ"
            here.append(Verdict(recipe.name, "JAX", FAILS, f"{wrong}: the recipe says otherwise"))
        print(_line(recipe.name, here), flush=True)
        verdicts += here
    kinds = Counter(x.kind for x in verdicts)
    seconds = time.monotonic() - began
    print(f"{len(chosen)} recipes, {len(verdicts)} cuts in {seconds:.0f} s: {dict(kinds)}")
    if asked.json:
        asked.json.write_text(json.dumps([x._asdict() for x in verdicts], indent=1) + "\n")
    return 1 if kinds[FAILS] else 0


def _line(name: str, verdicts: list[Verdict]) -> str:
    words = "  ".join(f"{x.way} {x.kind}" for x in verdicts)
    told = {AGREES: "coupled: ", REFUSED: "", FAILS: ""}
    details = dict.fromkeys(f"{told[x.kind]}{x.detail}" for x in verdicts if x.detail)
    return "\n".join([f"{name:<28}{words}", *(f"    {x[:700]}" for x in details)])


if __name__ == "__main__":
    sys.exit(main())
