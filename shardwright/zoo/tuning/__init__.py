"""Fine-tuning of decoders: what of them is trained, on what rows, and with what they begin."""
