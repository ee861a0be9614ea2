"""Verification of plans: numbers compared with one device, and the verdict with the proof."""
