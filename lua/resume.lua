-- resume: claims go on.
--
-- KEYS  1 meta         HASH    totals, paused; `turn`: how often a hand was at the queue: pause, resume, trip, mend
--       2 pending      LIST    ids, first come first served
--       3 prioritized  ZSET    ids with a priority
--       4 wake         LIST    hints
-- ARGV  1 turn         as it was when the caller looked: a late copy of an older call changes nothing
--
-- Returns ok | late
--! include turn
--! include hint
--! include ready
local meta = KEYS[1]
if not take_turn(meta, ARGV[1]) then return {'late'} end
redis.call('HDEL', meta, 'paused')
if anything_ready(KEYS[2], KEYS[3]) then hint(KEYS[4], 8) end
return {'ok'}
