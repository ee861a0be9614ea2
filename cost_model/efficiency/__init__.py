"""Achievable rates: figures of devices, links and training software, and the time they give."""
