"""The proof of a program: every rule that a compiled or loaded program must keep."""
