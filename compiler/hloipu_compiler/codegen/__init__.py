"""From a flat graph to a program: vertices, exchanges, streams and control.

`builder` writes steps, `placing` chooses grids, `site` is what a lowering sees, the other files
lower one family of ops each.
"""
