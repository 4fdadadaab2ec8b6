-- stats: the counts and totals of one instant. A read: it writes nothing.
--
-- KEYS  1 pending      LIST    ids, first come first served
--       2 prioritized  ZSET    ids with a priority
--       3 delayed      ZSET    fire-time and sequence
--       4 dead         ZSET    ids -> time of death, ms
--       5 completed    ZSET    kept jobs -> end of their retention, ms
--       6 leases       ZSET    worker -> end of its lease, ms; 0: sealed
--       7 rows         HASH    id -> packed row
--       8 notes        HASH    id -> what attempts left behind
--       9 meta         HASH    totals, paused
--      10.. active     SET     of each worker, in the order of ARGV
-- ARGV  1.. worker     all that have a lease, as read before
--
-- Returns changed (the workers are others now: read them again) |
--   ok, pending, delayed, active, completed, dead, now ms, row of the head, note of the head, totals and other fields of meta
--! include clock
--! include whole
local pending, prioritized, delayed, dead, completed, leases, rows, notes, meta = unpack(KEYS, 1, 9)

if redis.call('ZCARD', leases) ~= #ARGV then return {'changed'} end
local active = 0
for i, worker in ipairs(ARGV) do
  if not redis.call('ZSCORE', leases, worker) then return {'changed'} end
  active = active + redis.call('SCARD', KEYS[9 + i])
end
local head = redis.call('ZRANGEBYSCORE', prioritized, '-inf', '(0', 'LIMIT', 0, 1)[1]
  or redis.call('LINDEX', pending, 0) or redis.call('ZRANGE', prioritized, 0, 0)[1]
local answer = {
  'ok', redis.call('LLEN', pending) + redis.call('ZCARD', prioritized), redis.call('ZCARD', delayed), active,
  redis.call('ZCARD', completed), redis.call('ZCARD', dead), whole(due_ms(clock())),
  head and redis.call('HGET', rows, head) or '', head and redis.call('HGET', notes, head) or '',
}
for _, field in ipairs(redis.call('HGETALL', meta)) do answer[#answer + 1] = field end
return answer
