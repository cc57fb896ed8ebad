"""`python -m hloipu`: the same as the command `hloipu`."""

from hloipu.cli import main

main()
