"""What is saved for backward: what a plan computes again instead, and what it moves."""
