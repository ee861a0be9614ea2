"""MindSpore's own cost model, and its algorithms."""
