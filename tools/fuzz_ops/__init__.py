"""Every opcode with each dimension zero in turn, in every element type, through every way to run.

`forms` writes the modules, `judge` compares what compiling, running and evaluating make of them.
"""
