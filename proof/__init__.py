"""Proofs that a program computes its model: terms, erasure, and an independent training step."""

from shardwright.proof.proof import TRUSTED, Proof, Provable, prove, prove_program
from shardwright.proof.step import UpdateRule, scale_of, training_step

__all__ = [
    "TRUSTED",
    "Proof",
    "Provable",
    "UpdateRule",
    "prove",
    "prove_program",
    "scale_of",
    "training_step",
]
