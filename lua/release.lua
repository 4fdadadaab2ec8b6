-- release: active -> pending, at the head of its priority, the batch in its order. Not the job's fault: forgiven.
--
-- KEYS  1 active       SET     ids that this worker holds
--       2 attempts     HASH    id -> claims so far: the token
--       3 rows         HASH    id -> packed row, its note before it
--       4 notes        HASH    id -> what attempts left behind
--       5 priority     HASH    id -> priority, where it is not 0
--       6 given        ZSET    ids given by callers -> their end
--       7 pending      LIST    ids, first come first served
--       8 prioritized  ZSET    ids with a priority
--       9 meta         HASH    totals
--      10 wake         LIST    hints
--      11 batched      HASH    id -> the batch it is in, where it is in one
--      12 batches      HASH    id -> counts, name and callbacks of a batch
--      13 batch_ends   ZSET    batch -> its end, ms; 2^53-1: not yet
-- ARGV  1 again        1 when this call is sent a second time
--       2.. id, token, error of an interrupted run or ''
--
-- Returns a word a job: ok | cancelled | stale | settled
--! include clock
--! include whole
--! include hint
--! include note
--! include fence
--! include ready
--! include delay
--! include ends
--! include batch
--! include failed
local k = {
  active = KEYS[1], attempts = KEYS[2], rows = KEYS[3], notes = KEYS[4], priority = KEYS[5], given = KEYS[6],
  pending = KEYS[7], meta = KEYS[9], wake = KEYS[10], batched = KEYS[11], batches = KEYS[12], batch_ends = KEYS[13],
}
local prioritized = KEYS[8]

--! check rows notes priority pending prioritized
local words, current, taken = fence(k.active, k.attempts, k.meta, ARGV[1], 2, 3)
local us = clock()
local places, notes = uncancelled(k, words, current, taken, us)
if #places == 0 then return words end
local ids = {}
for i, n in ipairs(places) do
  local at, note = n * 3 - 1, notes[i]
  note.forgiven = note.forgiven + 1
  add_error(note, ARGV[at + 2])
  ids[i] = ARGV[at]
end
put_notes(k, ids, notes)
ready_first(k.pending, prioritized, k.priority, k.meta, ids)
redis.call('HINCRBY', k.meta, 'released', #places)
hint(k.wake, 8)
return words
