-- resume: claims go on.
--
-- KEYS  1 meta         HASH    totals, paused; `turn`: how often a hand was at the queue: pause, resume, trip, mend
--       2 pending      LIST    ids, first come first served
--       3 prioritized  ZSET    ids with a priority
--       4 wake         LIST    hints
-- ARGV  1 turn         as it was when the caller looked: a late copy of an older call changes nothing
--
-- Returns ok | late
--! include hint
--! include ready
local meta = KEYS[1]
if (redis.call('HGET', meta, 'turn') or '0') ~= ARGV[1] then return {'late'} end
redis.call('HDEL', meta, 'paused')
redis.call('HINCRBY', meta, 'turn', 1)
if anything_ready(KEYS[2], KEYS[3]) then hint(KEYS[4], 8) end
return {'ok'}
