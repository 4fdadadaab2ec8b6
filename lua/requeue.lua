-- requeue: dead, or completed and kept -> pending, at the tail. Budgets start afresh by `forgiven`; the token goes on.
--
-- KEYS  1 rows         HASH    id -> packed row, its note before it
--       2 attempts     HASH    id -> claims so far: the token
--       3 notes        HASH    id -> what attempts left behind
--       4 priority     HASH    id -> priority, where it is not 0
--       5 pending      LIST    ids, first come first served
--       6 prioritized  ZSET    ids with a priority
--       7 dead         ZSET    ids -> time of death, ms
--       8 completed    ZSET    kept jobs -> end of their retention, ms
--       9 results      HASH    id -> what the handler returned
--      10 meta         HASH    totals
--      11 wake         LIST    hints
--      12 batched      HASH    id -> the batch it is in, where it is in one
--      13 batches      HASH    id -> counts, name and callbacks of a batch
--      14 batch_ends   ZSET    batch -> its end, ms; 2^53-1: not yet
--      15 given        ZSET    ids given by callers -> their end
-- ARGV  1.. id
--
-- Returns a word a job: ok | refused | unknown
--! include clock
--! include whole
--! include hint
--! include note
--! include ready
--! include ends
--! include batch
local rows, attempts, notes, priority, pending, prioritized = unpack(KEYS, 1, 6)
local dead, completed, results, meta, wake = unpack(KEYS, 7, 11)

--! check all
local us = clock()
local now = due_ms(us)
local words, back, died, done, lost = {}, {}, {}, {}, {}
local stored = {rows = rows, notes = notes}
for n, id in ipairs(ARGV) do
  local was_dead = redis.call('ZREM', dead, id) == 1
  if not was_dead and redis.call('ZREM', completed, id) == 0 then
    words[n] = redis.call('HEXISTS', rows, id) == 1 and 'refused' or 'unknown'
  elseif redis.call('HEXISTS', rows, id) == 0 then
    -- A dead one whose row is gone (eviction, a hand at work): there is nothing to run.
    words[n] = 'unknown'
    redis.call('HDEL', results, id)
    forget(rows, attempts, notes, priority, KEYS[15], {id}, us)
    lost[#lost + 1] = id
  else
    words[n] = 'ok'
    back[#back + 1] = id
    local ended = was_dead and died or done
    ended[#ended + 1] = id
    local found = notes_of(stored, {id})
    local note = found[1]
    note.forgiven = tonumber(redis.call('HGET', attempts, id) or 0)
    note.crashes, note.lost, note.cancel, note.since, note.reason = 0, 0, 0, now, '-'
    redis.call('HDEL', results, id)
    put_notes(stored, {id}, found)
  end
end
if any_batched(meta) then
  local k = {
    rows = rows, pending = pending, meta = meta, wake = wake, batched = KEYS[12], batches = KEYS[13], batch_ends = KEYS[14],
  }
  in_batches(k, died, 'dead', false, false, us)
  in_batches(k, done, 'completed', false, false, us)
  in_batches(k, lost, false, false, true, us)
end
if #back > 0 then
  ready(pending, prioritized, priority, meta, back)
  redis.call('HINCRBY', meta, 'requeued', #back)
  hint(wake, 8)
end
return words
