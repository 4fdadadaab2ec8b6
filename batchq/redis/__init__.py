"""The Redis store, from its moves down to the sockets. Nothing else in batchq speaks to a Redis server."""
