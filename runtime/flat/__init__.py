"""The program of one rank as a flat list of bound calls, with reductions that run meanwhile."""
