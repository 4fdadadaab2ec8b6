-- cancel: a waiting job ends, without a row; an active one is marked: every later move but complete ends in cancelled.
--
-- KEYS  1 rows         HASH    id -> packed row, its note before it
--       2 attempts     HASH    id -> claims so far: the token
--       3 notes        HASH    id -> what attempts left behind
--       4 priority     HASH    id -> priority, where it is not 0
--       5 given        ZSET    ids given by callers -> their end
--       6 pending      LIST    ids, first come first served
--       7 prioritized  ZSET    ids with a priority
--       8 delayed      ZSET    fire-time and sequence
--       9 dead         ZSET    ids -> time of death, ms
--      10 completed    ZSET    kept jobs -> end of their retention, ms
--      11 meta         HASH    totals; `marks`: how many active jobs carry a mark
--      12 wake         LIST    hints
--      13 batched      HASH    id -> the batch it is in, where it is in one
--      14 batches      HASH    id -> counts, name and callbacks of a batch
--      15 batch_ends   ZSET    batch -> its end, ms; 2^53-1: not yet
--      16 passes       HASH    id -> the gates that a job has passed, or where it waits
--      17 waiters      ZSET    who waits where, in order
-- ARGV  1.. id
--
-- Returns a word a job: cancelled | marked | finished | unknown
--! include clock
--! include whole
--! include hint
--! include note
--! include ends
--! include batch
--! include pass
local rows, attempts, notes, priority, given = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local pending, prioritized, delayed, dead, completed, meta = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]

local function waiting(id)
  if redis.call('ZREM', delayed, id) == 1 then return true end
  if redis.call('HEXISTS', priority, id) == 1 then return redis.call('ZREM', prioritized, id) == 1 end
  return redis.call('LREM', pending, 1, id) == 1
end

--! check all
redis.call('HDEL', meta, '') -- a first write that is allowed at maxmemory
local words, gone, stored = {}, {}, {rows = rows, notes = notes}
for n, id in ipairs(ARGV) do
  if redis.call('HEXISTS', rows, id) == 0 then
    words[n] = 'unknown'
  elseif redis.call('ZSCORE', dead, id) or redis.call('ZSCORE', completed, id) then
    words[n] = 'finished'
  elseif waiting(id) then
    words[n] = 'cancelled'
    forget(rows, attempts, notes, priority, given, {id}, clock())
    gone[#gone + 1] = id
  else
    words[n] = 'marked'
    local found = notes_of(stored, {id})
    if found[1].cancel == 0 then
      found[1].cancel = 1
      put_notes(stored, {id}, found)
      redis.call('HINCRBY', meta, 'marks', 1)
    end
  end
end
if #gone > 0 then
  redis.call('HINCRBY', meta, 'cancelled', #gone)
  drop_passes({passes = KEYS[16], waiters = KEYS[17]}, gone)
  if any_batched(meta) then
    local k = {
      rows = rows, pending = pending, meta = meta, wake = KEYS[12], batched = KEYS[13], batches = KEYS[14], batch_ends = KEYS[15],
    }
    in_batches(k, gone, false, 'cancelled', true, clock())
  end
end
return words
