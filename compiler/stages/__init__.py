"""The search of one pipeline: its cuts, and the plan of every stage, with a bound."""
