"""The indexer: scores every token of a request for a query and picks the best, for `resolve`; `docs/indexer.md`."""
