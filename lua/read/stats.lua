-- stats: the counts and totals of one instant. A read: it writes nothing.
--
-- KEYS  1 pending      LIST    ids, first come first served
--       2 prioritized  ZSET    ids with a priority
--       3 delayed      ZSET    fire-time and sequence
--       4 dead         ZSET    ids -> time of death, ms
--       5 completed    ZSET    kept jobs -> end of their retention, ms
--       6 leases       ZSET    worker -> end of its lease, ms; 0: sealed
--       7 rows         HASH    id -> packed row, its note before it
--       8 notes        HASH    id -> what attempts left behind
--       9 meta         HASH    totals, paused
--      10.. active     SET     of each worker, in the order of ARGV
-- ARGV  1.. worker     all that have a lease, as read before
--
-- Returns changed (the workers are others now: read them again) |
--   ok, pending, delayed, active, completed, dead, now ms, number of heads, of each its row and note, then the fields of meta:
--   totals and others. A head is the next pending job of a priority
--! include clock
--! include whole
--! include ready
local pending, prioritized, delayed, dead, completed, leases, rows, notes, meta = unpack(KEYS, 1, 9)

if redis.call('ZCARD', leases) ~= #ARGV then return {'changed'} end
local active = 0
for i, worker in ipairs(ARGV) do
  if not redis.call('ZSCORE', leases, worker) then return {'changed'} end
  active = active + redis.call('SCARD', KEYS[9 + i])
end
local heads, low = {redis.call('LINDEX', pending, 0) or nil}, '-inf'
while true do
  local first = redis.call('ZRANGEBYSCORE', prioritized, low, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if not first[1] then break end
  heads[#heads + 1] = first[1]
  -- All of a priority stand below the next multiple of a band.
  low = string.format('%.0f', (math.floor(tonumber(first[2]) / BAND) + 1) * BAND)
end
local answer = {
  'ok', redis.call('LLEN', pending) + redis.call('ZCARD', prioritized), redis.call('ZCARD', delayed), active,
  redis.call('ZCARD', completed), redis.call('ZCARD', dead), whole(due_ms(clock())), #heads,
}
for _, head in ipairs(heads) do
  answer[#answer + 1] = redis.call('HGET', rows, head) or ''
  answer[#answer + 1] = redis.call('HGET', notes, head) or ''
end
for _, field in ipairs(redis.call('HGETALL', meta)) do answer[#answer + 1] = field end
return answer
