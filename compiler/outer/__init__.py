"""What bounds, prices and plans a configuration: a mesh, micro-batches and pipeline stages."""
