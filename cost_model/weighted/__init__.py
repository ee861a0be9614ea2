"""The loads of the resources of a rank, weighted interval by interval of a step."""
