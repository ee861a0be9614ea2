"""Search over orbits of layouts under permutations of equal mesh axes."""
