"""Which steps are taken: a fixed number of them, or as many as a tolerance asks for."""
