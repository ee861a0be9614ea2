"""The planner: whole plans from plans of blocks, and what is asked of the search for them."""
