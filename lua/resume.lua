-- resume: claims go on.
--
-- KEYS  1 meta         HASH    totals, paused
--       2 pending      LIST    ids, first come first served
--       3 prioritized  ZSET    ids with a priority
--       4 wake         LIST    hints
--
-- Returns ok
--! include hint
--! include ready
redis.call('HDEL', KEYS[1], 'paused')
if anything_ready(KEYS[2], KEYS[3]) then hint(KEYS[4], 8) end
return {'ok'}
