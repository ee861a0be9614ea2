"""Facts about a program that passes and the search both need: cotangents, names of gradients."""
