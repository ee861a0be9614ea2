"""The plans of blocks: the problem of a stretch of blocks, and its best plans."""
