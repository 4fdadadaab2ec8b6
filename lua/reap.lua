-- reap: the claims of a sealed worker of which nobody knows if they ran: delayed, no attempt spent. The last step
-- of reaping: it removes the lease entry when the worker holds nothing any more.
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
--      11 leases       ZSET    worker -> end of its lease, ms; 0: sealed
--      12 pending      LIST    ids, first come first served
--      13 prioritized  ZSET    ids with a priority
--      14 wake         LIST    hints
--      15 batched      HASH    id -> the batch it is in, where it is in one
--      16 batches      HASH    id -> counts, name and callbacks of a batch
--      17 batch_ends   ZSET    batch -> its end, ms; 2^53-1: not yet
--      18 traces       HASH    ref -> the end of an error that jobs share
-- ARGV  1 worker
--       2.. id, token, delay ms, max_lost, error
--
-- Returns how many claims are left; -1: the worker is not sealed, nothing was done
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
  delayed = KEYS[7], dead = KEYS[8], meta = KEYS[9], pending = KEYS[12], wake = KEYS[14], batched = KEYS[15],
  batches = KEYS[16], batch_ends = KEYS[17], traces = KEYS[18],
}
local timer, leases, prioritized = KEYS[10], KEYS[11], KEYS[13]

local stands = redis.call('ZSCORE', leases, ARGV[1])
if not stands or tonumber(stands) ~= 0 then return -1 end
--! check rows notes delayed dead traces
redis.call('HDEL', k.meta, '') -- a first write that is allowed at maxmemory

if #ARGV > 1 then
  local words, current, taken = fence(k.active, k.attempts, k.meta, '1', 2, 5)
  local us = clock()
  local places, notes = uncancelled(k, words, current, taken, us)
  local before, died, later = earliest(k.delayed), {}, {ids = {}, notes = {}, scores = {}}
  for i, n in ipairs(places) do
    local at, note = n * 5 - 3, notes[i]
    note.lost = note.lost + 1
    note.forgiven = note.forgiven + 1
    add_error(note, ARGV[at + 4])
    if note.lost >= tonumber(ARGV[at + 3]) then
      to_dead(k, ARGV[at], note, 'poison', us)
      died[#died + 1] = ARGV[at]
    else
      to_delayed(k, later, ARGV[at], note, tonumber(ARGV[at + 2]), us)
    end
  end
  all_dead(k, died, us)
  all_delayed(k, later)
  if #places > 0 then redis.call('HINCRBY', k.meta, 'lost', #places) end
  if earliest(k.delayed) ~= before then hint(timer, 1) end
end
local left = redis.call('SCARD', k.active)
if left == 0 then redis.call('ZREM', leases, ARGV[1]) end
if anything_ready(k.pending, prioritized) then hint(k.wake, 8) end
return left
