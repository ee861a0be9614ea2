"""The outer search: over meshes and numbers of micro-batches, each an exact search of its own."""
