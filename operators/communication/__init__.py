"""Collectives, flat buffers and messages between single ranks."""
