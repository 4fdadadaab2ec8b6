-- pause: no claims from this queue; enqueues go on.
--
-- KEYS  1 meta         HASH    totals, paused; `turn`: how often a hand was at the queue: pause, resume, trip, mend
-- ARGV  1 turn         as it was when the caller looked: a late copy of an older call changes nothing
--
-- Returns ok | late
local meta = KEYS[1]
if (redis.call('HGET', meta, 'turn') or '0') ~= ARGV[1] then return {'late'} end
redis.call('HDEL', meta, '') -- a first write that is allowed at maxmemory
redis.call('HINCRBY', meta, 'turn', 1)
redis.call('HSET', meta, 'paused', '1')
return {'ok'}
