"""The cheapest collectives from one layout of a tensor to another."""
