"""What a program costs: cycles of every step, known before it runs, and how often steps run.

`traffic` counts what tiles send and receive, `step_costs` prices every step of the tree, `counting`
tells what a run spent, `estimate` what one would spend. Costs along the way of the slowest branch
add up to the total: compute + exchange + sync + host + idle.
"""
