"""How each family of ops is evaluated."""
