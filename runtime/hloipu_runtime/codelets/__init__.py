"""Codelets: what a vertex computes, what that costs, and how its work splits over tiles.

One file a family. A codelet is a frozen dataclass whose fields are its parameters; the compiler and
the simulator ask the same object.
"""
