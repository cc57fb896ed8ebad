"""Memory plan: addresses of variables, and the use of each tile's bytes.

`liveness` says when a variable is needed, `placing` gives it an address, `charges` counts code,
`plan` puts them together and `report` tells what takes how much.
"""
