"""Data-flow facts that passes, search and cost model share: cotangents, liveness."""
