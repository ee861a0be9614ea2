"""What packages for all systems have in common; `arrays` and `stepping` alone are a system's own.

The other modules of a package import these, and add what their system has functions of its own for.
"""
