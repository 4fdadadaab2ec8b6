-- snooze: active -> delayed. Not a failure: the attempt is forgiven.
--
-- KEYS  1 active       SET     ids that this worker holds
--       2 attempts     HASH    id -> claims so far: the token
--       3 rows         HASH    id -> packed row, its note before it
--       4 notes        HASH    id -> what attempts left behind
--       5 priority     HASH    id -> priority, where it is not 0
--       6 given        ZSET    ids given by callers -> their end
--       7 delayed      ZSET    fire-time and sequence
--       8 meta         HASH    totals
--       9 timer        LIST    hints
--      10 pending      LIST    ids, first come first served
--      11 wake         LIST    hints
--      12 batched      HASH    id -> the batch it is in, where it is in one
--      13 batches      HASH    id -> counts, name and callbacks of a batch
--      14 batch_ends   ZSET    batch -> its end, ms; 2^53-1: not yet
-- ARGV  1 again        1 when this call is sent a second time
--       2.. id, token, delay ms
--
-- Returns a word a job: ok | cancelled | stale | settled
--! include clock
--! include whole
--! include hint
--! include note
--! include fence
--! include delay
--! include ends
--! include batch
--! include failed
local k = {
  active = KEYS[1], attempts = KEYS[2], rows = KEYS[3], notes = KEYS[4], priority = KEYS[5], given = KEYS[6],
  delayed = KEYS[7], meta = KEYS[8], pending = KEYS[10], wake = KEYS[11], batched = KEYS[12], batches = KEYS[13],
  batch_ends = KEYS[14],
}
local timer = KEYS[9]

--! check rows notes delayed
local words, current, taken = fence(k.active, k.attempts, k.meta, ARGV[1], 2, 3)
local us = clock()
local places, notes = uncancelled(k, words, current, taken, us)
if #places == 0 then return words end
local before, later = earliest(k.delayed), {ids = {}, notes = {}, scores = {}}
for i, n in ipairs(places) do
  local at, note = n * 3 - 1, notes[i]
  note.forgiven = note.forgiven + 1
  to_delayed(k, later, ARGV[at], note, math.max(100, tonumber(ARGV[at + 2])), us)
end
all_delayed(k, later)
redis.call('HINCRBY', k.meta, 'snoozed', #places)
if earliest(k.delayed) ~= before then hint(timer, 1) end
return words
