"""``continua simulate``: tokens as particles, their mean field, and phase diagrams."""
