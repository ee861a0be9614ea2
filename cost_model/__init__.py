"""What a program costs in time and memory on a cluster."""
