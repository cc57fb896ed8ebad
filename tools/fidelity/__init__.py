"""What the model predicts against what was measured on hardware and published."""
