"""What fits a model on a cluster: plans of Megatron's family, estimated by prices of its layers."""
