-- pause: no claims from this queue; enqueues go on.
--
-- KEYS  1 meta         HASH    totals, paused; `turn`: how often a hand was at the queue: pause, resume, trip, mend
-- ARGV  1 turn         as it was when the caller looked: a late copy of an older call changes nothing
--
-- Returns ok | late
--! include turn
local meta = KEYS[1]
if not take_turn(meta, ARGV[1]) then return {'late'} end
redis.call('HSET', meta, 'paused', '1')
return {'ok'}
