"""Compositions of ONNX operators that are one operator here."""
