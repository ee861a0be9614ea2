"""What is saved for backward, and what is made a second time instead."""
