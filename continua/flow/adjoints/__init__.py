"""How gradients of a solve are computed: recorded, recomputed, by undoing the steps, or by a backward equation."""
