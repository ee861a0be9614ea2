"""Exact search with a certificate, for problems of narrow graphs."""
