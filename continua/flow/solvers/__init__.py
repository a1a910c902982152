"""One-step maps: Runge–Kutta, splitting and reversible methods, and steps on a sphere."""
