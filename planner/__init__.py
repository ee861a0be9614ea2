"""The planner: what a plan is made of, and what is asked of the search for it."""
