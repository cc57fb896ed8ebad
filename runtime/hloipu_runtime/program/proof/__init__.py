"""The proof: every rule that a compiled or loaded program must keep."""
