"""The assignment problem of a program: variables, costs, memory."""
