"""Where every variable lies in its tiles' memory, and what each tile's memory is used for.

`liveness` says when a variable is needed, `placing` gives it an address, `charges` counts code,
`plan` puts them together and `report` tells what takes how much.
"""
