"""The compiler: drives search and passes, and writes plans, costs and reasons."""
