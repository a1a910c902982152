"""Attention kernels: plain ones, exact ones that look at few pairs, and approximations."""
