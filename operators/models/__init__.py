"""Operators of whole model layers: attention, normalization, losses, updates."""
