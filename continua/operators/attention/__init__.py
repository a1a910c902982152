"""Attention: how queries meet sources. ``operator`` is the map of fields, ``plan`` decides, ``fused`` computes."""
