"""Predicted against measured steps of published training runs."""
