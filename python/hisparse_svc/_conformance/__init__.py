"""Parts of `hisparse_svc.testing`."""
