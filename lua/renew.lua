-- renew: the master prolongs its workers' leases and learns which of their jobs carry a cancel mark.
--
-- KEYS  1 leases       ZSET    worker -> end of its lease, ms; 0: sealed
--       2 meta         HASH    totals; `lease`: the longest lease in use; `marks`: how many active jobs carry a mark
--       3 notes        HASH    id -> what attempts left behind
--       4 attempts     HASH    id -> claims so far: the token
--       5.. active     SET     of each worker, in the order of ARGV
-- ARGV  1 lease        ms
--       2.. worker, ...
--
-- Returns the list of words (ok | sealed | unknown, one a worker), worker, id, token, ... of the marked ones
--! include clock
--! include whole
--! include note
local leases, meta, notes, attempts = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lease = tonumber(ARGV[1])
local now = clock()
local till = whole(fire_ms(now, lease))

redis.call('HDEL', meta, '') -- a first write that is allowed at maxmemory
local words, answer = {}, {}
answer[1] = words
for i = 2, #ARGV do
  local stands = redis.call('ZSCORE', leases, ARGV[i])
  if not stands then
    words[i - 1] = 'unknown'
  elseif tonumber(stands) == 0 then
    words[i - 1] = 'sealed'
  else
    words[i - 1] = 'ok'
    redis.call('ZADD', leases, till, ARGV[i])
  end
end

-- A lease that ends further away than the longest one lasts was written before the clock went back.
local most = whole(fire_ms(now, math.max(lease, tonumber(redis.call('HGET', meta, 'lease') or 0))))
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', leases, '(' .. most, '+inf', 'LIMIT', 0, 256)) do
  redis.call('ZADD', leases, 'XX', most, worker)
end

if tonumber(redis.call('HGET', meta, 'marks') or 0) > 0 then
  for i = 2, #ARGV do
    for _, id in ipairs(redis.call('SMEMBERS', KEYS[i + 3])) do
      local note = redis.call('HGET', notes, id)
      if note and read_note(note).cancel == 1 then
        answer[#answer + 1] = ARGV[i]
        answer[#answer + 1] = id
        answer[#answer + 1] = redis.call('HGET', attempts, id)
      end
    end
  end
end
return answer
