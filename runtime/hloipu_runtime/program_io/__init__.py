"""Programs in files and as text: one folder for each form, and the records beneath them."""
