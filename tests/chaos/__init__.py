"""Pools under random kills. The judge is a ledger that the handlers write: it knows nothing of batchq."""
