"""Which formula an acceptance rate was printed by, inferred from the rate, its length, the settings and the date."""
