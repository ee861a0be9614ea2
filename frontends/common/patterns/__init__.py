"""Patterns of ONNX operators that are one operator of our IR."""
