"""An auto-parallel graph compiler: from a model and a cluster to verified per-rank programs."""
