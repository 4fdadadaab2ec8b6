-- claim: pending -> active. HINCRBY mints the token.
--
-- KEYS  1 pending      LIST    ids, first come first served
--       2 prioritized  ZSET    ids with a priority: scores < 0 before pending, > 0 after it
--       3 delayed      ZSET    fire-time and sequence
--       4 rows         HASH    id -> packed row, its note before it
--       5 attempts     HASH    id -> claims so far: the token
--       6 notes        HASH    id -> what attempts left behind
--       7 priority     HASH    id -> priority, where it is not 0
--       8 active       SET     ids that this worker holds
--       9 leases       ZSET    worker -> end of its lease, ms; 0: sealed
--      10 meta         HASH    totals, paused
--      11 wake         LIST    hints
--      12 batched      HASH    id -> the batch it is in, where it is in one
--      13 batches      HASH    id -> counts, name and callbacks of a batch
--      14 batch_ends   ZSET    batch -> its end, ms; 2^53-1: not yet
--      15 given        ZSET    ids given by callers -> their end
--      16 passes       HASH    id -> the gates that a job has passed, or where it waits
--      17 waiters      ZSET    who waits where, in order
-- ARGV  1 worker
--       2 want         how many at most
--       3 held         how many claims the worker believes it has
--       4 fresh        of a claim that stands: the least that is left of the lease of a worker that is awake, ms
--
-- Returns unknown | sealed | asleep | paused | held, id, token, ... | ok, id, token, row, note, ...
--! include clock
--! include whole
--! include hint
--! include ready
--! include promote
--! include wide
--! include batch
--! include ends
--! include pass
local pending, prioritized, delayed, rows, attempts, notes, priority, active, leases, meta, wake = unpack(KEYS, 1, 11)
local worker, want, held = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

-- check
local function refuse(word)
  -- A claim that stands has taken a hint: another worker may have a use for it.
  if ARGV[4] and anything_ready(pending, prioritized) then
    redis.call('HDEL', meta, '') -- a first write that is allowed at maxmemory
    hint(wake, 8)
  end
  return {word}
end
local lease = redis.call('ZSCORE', leases, worker)
if not lease then return refuse('unknown') end
if tonumber(lease) == 0 then return refuse('sealed') end
-- Nobody has renewed it for a while: the pool may be frozen, and would keep from others what it can't begin.
if ARGV[4] and tonumber(lease) - due_ms(clock()) < tonumber(ARGV[4]) then return refuse('asleep') end
if redis.call('SCARD', active) ~= held then
  local answer = {'held'}
  for _, id in ipairs(redis.call('SMEMBERS', active)) do
    answer[#answer + 1] = id
    answer[#answer + 1] = redis.call('HGET', attempts, id) or '0'
  end
  return answer
end
if redis.call('HEXISTS', meta, 'paused') == 1 then return {'paused'} end
--! check rows attempts notes pending

-- apply
promote(delayed, pending, prioritized, priority, meta, clock(), 100)
local ids = {}
local function take(low, high)
  if #ids >= want or redis.call('EXISTS', prioritized) == 0 then return end
  local got = redis.call('ZRANGEBYSCORE', prioritized, low, high, 'LIMIT', 0, want - #ids)
  if #got == 0 then return end
  redis.call('ZREM', prioritized, unpack(got))
  for _, id in ipairs(got) do ids[#ids + 1] = id end
end
take('-inf', '(0')
if #ids < want then
  local got = redis.call('LPOP', pending, want - #ids)
  if got then
    if #ids == 0 then
      ids = got
    else
      for _, id in ipairs(got) do ids[#ids + 1] = id end
    end
  end
end
take('(0', '+inf')
if #ids == 0 then return {'ok'} end

-- An answer carries so many bytes, or one larger job: the server does nothing else meanwhile. How large they are is
-- known once a few are read.
local MOST_BYTES, FEW = 1048576, 4
local row, bytes, read, most = {}, 0, 0, #ids
while read < most do
  local till = math.min(most, read == 0 and FEW or 8 * read, math.ceil(read * MOST_BYTES / math.max(1, bytes)) + FEW)
  for i, one in ipairs(redis.call('HMGET', rows, unpack(ids, read + 1, till))) do
    row[read + i] = one
    bytes = bytes + (one and #one or 0)
    if bytes > MOST_BYTES and most >= read + i then most = math.max(1, read + i - 1) end
  end
  read = till
end
if most < #ids then
  local back = {}
  for i = most + 1, #ids do
    back[#back + 1] = ids[i]
    ids[i] = nil
  end
  ready_first(pending, prioritized, priority, meta, back)
end
local note = false
if redis.call('EXISTS', notes) == 1 then note = redis.call('HMGET', notes, unpack(ids)) end
local answer, mine, gone = {'ok'}, {}, {}
if #ids > MANY then
  redis.call('HSET', attempts, WIDE, '')
  mine[1] = WIDE
end
for i, id in ipairs(ids) do
  if row[i] then
    mine[#mine + 1] = id
    local at = #answer
    answer[at + 1] = id
    answer[at + 2] = redis.call('HINCRBY', attempts, id, '1')
    answer[at + 3] = row[i]
    answer[at + 4] = note and note[i] or ''
  else
    -- A claim never invents a job: HINCRBY would make an empty one.
    gone[#gone + 1] = id
  end
end
if #mine > 0 then redis.call('SADD', active, unpack(mine)) end
if #ids > MANY then
  redis.call('HDEL', attempts, WIDE)
  redis.call('SREM', active, WIDE)
end
if #gone > 0 then
  redis.call('HDEL', attempts, unpack(gone))
  redis.call('HDEL', notes, unpack(gone))
  redis.call('HDEL', priority, unpack(gone))
  remember_end(KEYS[15], gone, clock())
  drop_passes({passes = KEYS[16], waiters = KEYS[17]}, gone)
  redis.call('HINCRBY', meta, 'dropped', #gone)
  if any_batched(meta) then
    local k = {
      rows = rows, pending = pending, meta = meta, wake = wake, batched = KEYS[12], batches = KEYS[13], batch_ends = KEYS[14],
    }
    in_batches(k, gone, false, 'cancelled', true, clock())
  end
end
-- Wake-ups chain: one hint wakes one worker, and what it leaves wakes the next.
if anything_ready(pending, prioritized) then hint(wake, 8) end
return answer
