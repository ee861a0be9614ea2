"""Lower bounds of all plans, from those of blocks."""
