"""Engines that decode through this package, one module each; each needs a package that the others do not."""
