"""File formats of assignment problems."""
