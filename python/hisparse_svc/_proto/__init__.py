"""Messages of `hisparse.v1`, made from `proto/` by `make proto`. Private: use `hisparse_svc.Client`."""
