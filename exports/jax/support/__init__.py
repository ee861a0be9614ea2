"""The modules that every exported package has: copied into it as they are.

They need `jax` alone, and know nothing of the compiler.
"""
