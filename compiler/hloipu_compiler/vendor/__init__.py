"""Custom calls of vendors' libraries as HLO ops."""
