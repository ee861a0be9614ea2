"""Operators of whole model layers: normalization, losses, routing, updates."""
