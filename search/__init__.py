"""The strategy search: from a program and a cost profile to decisions; knows no pass."""
