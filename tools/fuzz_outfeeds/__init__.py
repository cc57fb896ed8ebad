"""Outfeeds of every mode, in steps cut in every way, against what numpy makes of the elements.

`case` draws steps and the queues that take their results, `expected` trains the same step in numpy,
`judge` compares, `trainers` asks the same of the trainer and the command line.
"""
