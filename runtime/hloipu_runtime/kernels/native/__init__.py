"""Kernels compiled to machine code by LLVM, for who has `hloipu[fast]`."""
