"""Cases made from a seed, what may come of them, and campaigns of many."""
