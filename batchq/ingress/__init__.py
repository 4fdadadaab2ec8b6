"""Receiving events over HTTP: an event is acknowledged once its job is durable. `batchq ingress` serves it."""
