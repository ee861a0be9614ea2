"""Plans as values: the blocks of a model, and what is decided in each."""
