"""What the answers about plans have in common: their first lines, days and money."""
