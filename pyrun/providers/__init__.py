"""Models that others serve, or that another server here does: where they are, and asking them."""
