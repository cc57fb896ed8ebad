"""Costs of a program: cycles of every step, and how often steps run.

`traffic` counts what tiles send and receive, `step_costs` prices every step of the tree, `counting`
tells what a run spent, `estimate` what one would spend. Costs along the way of the slowest branch
add up to the total: compute + exchange + sync + host + idle.
"""
