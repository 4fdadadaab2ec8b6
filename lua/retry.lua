-- retry: active -> delayed at now + delay; -> dead when the budget is spent. A failed attempt.
--
-- KEYS  1 active       SET     ids that this worker holds
--       2 attempts     HASH    id -> claims so far: the token
--       3 rows         HASH    id -> packed row, its note before it
--       4 notes        HASH    id -> what attempts left behind
--       5 priority     HASH    id -> priority, where it is not 0
--       6 given        ZSET    ids given by callers -> their end
--       7 delayed      ZSET    fire-time and sequence
--       8 dead         ZSET    ids -> time of death, ms
--       9 meta         HASH    totals
--      10 timer        LIST    hints
--      11 pending      LIST    ids, first come first served
--      12 prioritized  ZSET    ids with a priority
--      13 wake         LIST    hints
--      14 batched      HASH    id -> the batch it is in, where it is in one
--      15 batches      HASH    id -> counts, name and callbacks of a batch
--      16 batch_ends   ZSET    batch -> its end, ms; 2^53-1: not yet
--      17 traces       HASH    ref -> the end of an error that jobs share
--      18 traced       ZSET    ref -> when it was last referred to, ms
-- ARGV  1 again        1 when this call is sent a second time
--       2.. id, token, delay ms, max_attempts, cause (failed | crashed | timed_out), max_crashes, error (see trace)
--
-- Returns a word a job: ok | dead | cancelled | stale | settled
--! include clock
--! include whole
--! include count
--! include hint
--! include note
--! include trace
--! include fence
--! include ready
--! include delay
--! include promote
--! include ends
--! include batch
--! include failed
local k = {
  active = KEYS[1], attempts = KEYS[2], rows = KEYS[3], notes = KEYS[4], priority = KEYS[5], given = KEYS[6],
  delayed = KEYS[7], dead = KEYS[8], meta = KEYS[9], timer = KEYS[10], pending = KEYS[11],
  wake = KEYS[13], batched = KEYS[14], batches = KEYS[15], batch_ends = KEYS[16], traces = KEYS[17], traced = KEYS[18],
}
local prioritized = KEYS[12]

--! check rows notes delayed dead traces traced
local words, current, taken = fence(k.active, k.attempts, k.meta, ARGV[1], 2, 7)
local us = clock()
local places, notes = uncancelled(k, words, current, taken, us)
local totals = {retried = 0, crashed = 0, timed_out = 0}
local before, died, later = earliest(k.delayed), {}, {ids = {}, notes = {}, scores = {}}
for i, n in ipairs(places) do
  local at, note = n * 7 - 5, notes[i]
  local id, token, ms, most = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local cause, max_crashes = ARGV[at + 4], tonumber(ARGV[at + 5])
  if cause ~= 'failed' then totals[cause] = totals[cause] + 1 end
  if cause == 'crashed' then note.crashes = note.crashes + 1 end
  local reason = false
  if token - note.forgiven >= most then
    reason = cause == 'failed' and 'max_attempts' or cause
  elseif cause == 'crashed' and note.crashes >= max_crashes then
    reason = 'poison'
  end
  add_error(note, entry_of(k, ARGV[at + 6], reason or ms > LEAST_TRACES_MS / 2, us))
  if reason then
    words[n] = 'dead'
    to_dead(k, id, note, reason, us)
    died[#died + 1] = id
  else
    totals.retried = totals.retried + 1
    to_delayed(k, later, id, note, ms, us)
  end
end
all_dead(k, died, us)
all_delayed(k, later)
count(k.meta, totals)
if earliest(k.delayed) ~= before then hint(k.timer, 1) end
-- A busy queue promotes itself.
if promote(k.delayed, k.pending, prioritized, k.priority, k.meta, us, 100) > 0 then hint(k.wake, 8) end
return words
