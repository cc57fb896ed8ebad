"""Ways to divide a module's arrays over IPUs: tried by price, the best of them found."""
