-- pause: no claims from this queue; enqueues go on.
--
-- KEYS  1 meta         HASH    totals, paused
--
-- Returns ok
redis.call('HDEL', KEYS[1], '') -- a first write that is allowed at maxmemory
redis.call('HSET', KEYS[1], 'paused', '1')
return {'ok'}
