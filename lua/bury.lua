-- bury: active -> dead. For errors that no retry can mend.
--
-- KEYS  1 active       SET     ids that this worker holds
--       2 attempts     HASH    id -> claims so far: the token
--       3 rows         HASH    id -> packed row, its note before it
--       4 notes        HASH    id -> what attempts left behind
--       5 priority     HASH    id -> priority, where it is not 0
--       6 given        ZSET    ids given by callers -> their end
--       7 dead         ZSET    ids -> time of death, ms
--       8 meta         HASH    totals
--       9 pending      LIST    ids, first come first served
--      10 wake         LIST    hints
--      11 batched      HASH    id -> the batch it is in, where it is in one
--      12 batches      HASH    id -> counts, name and callbacks of a batch
--      13 batch_ends   ZSET    batch -> its end, ms; 2^53-1: not yet
--      14 traces       HASH    ref -> the end of an error that jobs share
-- ARGV  1 again        1 when this call is sent a second time
--       2.. id, token, reason, error
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
  dead = KEYS[7], meta = KEYS[8], pending = KEYS[9], wake = KEYS[10], batched = KEYS[11], batches = KEYS[12],
  batch_ends = KEYS[13], traces = KEYS[14],
}

--! check rows notes dead traces
local words, current, taken = fence(k.active, k.attempts, k.meta, ARGV[1], 2, 4)
local us = clock()
local places, notes = uncancelled(k, words, current, taken, us)
local died = {}
for i, n in ipairs(places) do
  local at, note = n * 4 - 2, notes[i]
  add_error(note, ARGV[at + 3])
  to_dead(k, ARGV[at], note, ARGV[at + 2], us)
  died[#died + 1] = ARGV[at]
end
all_dead(k, died, us)
return words
