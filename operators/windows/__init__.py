"""Operators over windows: convolution, pooling, resizing; and halos between slices."""
