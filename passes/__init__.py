"""The compiler pipeline, a module per pass."""
