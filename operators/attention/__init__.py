"""Attention, over the ranks that share its queries or keys, and rotary positions."""
