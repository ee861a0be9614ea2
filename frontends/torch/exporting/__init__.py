"""How a module is exported: its assertions, elements that it reads, and whether it is the same."""
