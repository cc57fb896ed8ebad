"""Interpreter: values of a module, op by op, with the runtime's kernels.

    module --planner--> Plan (straight-line steps over slots) --run--> arrays

A plan is made once per computation, loops and calls included. Tuples vanish while planning: every
leaf has a slot of its own, so that a loop's arrays can be freed, and overwritten, one by one.
"""
