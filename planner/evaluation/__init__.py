"""What a plan is worth: its program, and that of a model with few of its equal layers."""
