-- purge: removes those of the ids that stand in that state, and counts them.
--
-- KEYS  1 rows         HASH    id -> packed row, its note before it
--       2 attempts     HASH    id -> claims so far: the token
--       3 notes        HASH    id -> what attempts left behind
--       4 priority     HASH    id -> priority, where it is not 0
--       5 given        ZSET    ids given by callers -> their end
--       6 results      HASH    id -> what the handler returned
--       7 pending      LIST    ids, first come first served
--       8 prioritized  ZSET    ids with a priority
--       9 delayed      ZSET    fire-time and sequence
--      10 dead         ZSET    ids -> time of death, ms
--      11 completed    ZSET    kept jobs -> end of their retention, ms
--      12 meta         HASH    totals
--      13 wake         LIST    hints
--      14 batched      HASH    id -> the batch it is in, where it is in one
--      15 batches      HASH    id -> counts, name and callbacks of a batch
--      16 batch_ends   ZSET    batch -> its end, ms; 2^53-1: not yet
--      17 passes       HASH    id -> the gates that a job has passed, or where it waits
--      18 waiters      ZSET    who waits where, in order
-- ARGV  1 state        pending | delayed | dead | completed
--       2.. id
--
-- Returns how many were removed
--! include clock
--! include whole
--! include hint
--! include ends
--! include batch
--! include pass
local rows, attempts, notes, priority, given, results = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local pending, prioritized, meta = KEYS[7], KEYS[8], KEYS[12]
local sets = {delayed = KEYS[9], dead = KEYS[10], completed = KEYS[11]}
local state = ARGV[1]

--! check rows attempts notes priority given results pending prioritized delayed dead completed passes waiters
redis.call('HDEL', meta, '') -- a first write that is allowed at maxmemory
local gone = {}
for n = 2, #ARGV do
  local id, removed = ARGV[n], 0
  if state ~= 'pending' then
    removed = redis.call('ZREM', sets[state], id)
  elseif redis.call('HEXISTS', priority, id) == 1 then
    removed = redis.call('ZREM', prioritized, id)
  else
    removed = redis.call('LREM', pending, 1, id)
  end
  if removed == 1 then gone[#gone + 1] = id end
end
if #gone == 0 then return 0 end
redis.call('HDEL', results, unpack(gone))
local us, unfinished = clock(), state == 'pending' or state == 'delayed'
forget(rows, attempts, notes, priority, given, gone, us)
drop_passes({passes = KEYS[17], waiters = KEYS[18]}, gone)
if unfinished then redis.call('HINCRBY', meta, 'purged', #gone) end
if any_batched(meta) then
  local k = {
    rows = rows, pending = pending, meta = meta, wake = KEYS[13], batched = KEYS[14], batches = KEYS[15], batch_ends = KEYS[16],
  }
  -- What had ended is counted already.
  in_batches(k, gone, false, unfinished and 'cancelled', true, us)
end
return #gone
