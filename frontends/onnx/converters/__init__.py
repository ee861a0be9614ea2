"""Converters of ONNX operators, a module per family."""
