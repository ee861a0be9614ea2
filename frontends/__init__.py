"""Models of other systems, imported into the IR."""
