"""The page: what is known about a compilation, as one HTML file that needs no network."""
