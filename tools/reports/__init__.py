"""What several commands tell of a plan: tables, documents for scripts, and named plans."""
