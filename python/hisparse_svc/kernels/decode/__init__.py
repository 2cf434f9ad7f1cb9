"""Sparse MLA decode: a checked call (`call`), who answers it (`backends`), the public functions (`api`)."""
