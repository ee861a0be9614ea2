"""Recurrences along one dimension: layers of recurrent networks, and linear recurrences."""
