"""The plan of a program as one block: the exact solver within memory, by weights of resources."""
