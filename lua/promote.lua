-- promote: delayed -> pending, what is due. The master's sweep.
--
-- KEYS  1 delayed      ZSET    fire-time and sequence
--       2 pending      LIST    ids, first come first served
--       3 prioritized  ZSET    ids with a priority
--       4 priority     HASH    id -> priority, where it is not 0
--       5 given        ZSET    ids given by callers -> their end
--       6 meta         HASH    totals
--       7 wake         LIST    hints
--       8 batches      HASH    id -> counts, name and callbacks of a batch
--       9 batch_ends   ZSET    batch -> its end, ms; 2^53-1: not yet
--      10 gates        HASH    gate -> its state
--      11 passes       HASH    id -> the gates that a job has passed, or where it waits
--      12 waiters      ZSET    who waits where, in order
--      13 passed       ZSET    who has passed when, of gates with a rate
--      14 visits       ZSET    gate -> when it is looked after, ms
--      15 attempts     HASH    id -> claims so far: the token
--      16 timer        LIST    hints
--      17 traces       HASH    ref -> the end of an error that jobs share
--      18 traced       ZSET    ref -> when it was last referred to, ms
--      19 completed    ZSET    kept jobs -> end of their retention, ms
-- ARGV  1 limit        how many at most
--       2 remember     ms that a given id is known after the job's end
--       3 batch_keep   ms that a batch is known after its end
--
-- Returns ok, how many moved, the next fire-time in ms or '', the server's now in us
--! include clock
--! include whole
--! include hint
--! include ready
--! include delay
--! include promote
--! include pass
--! include gate
--! include trace
local delayed, pending, prioritized, priority, given, meta, wake, batches, batch_ends = unpack(KEYS, 1, 9)

local us = clock()
-- Some at a time: it may be the first sweep for days.
local till = whole(due_ms(us) - tonumber(ARGV[2]))
local more = redis.call('ZRANGEBYSCORE', given, '-inf', till, 'WITHSCORES', 'LIMIT', 10000, 1)
redis.call('ZREMRANGEBYSCORE', given, '-inf', more[2] or till)
local over = redis.call('ZRANGEBYSCORE', batch_ends, '-inf', whole(due_ms(us) - tonumber(ARGV[3])), 'LIMIT', 0, 100)
if #over > 0 then
  redis.call('ZREM', batch_ends, unpack(over))
  redis.call('HDEL', batches, unpack(over))
end
drop_traces(KEYS[17], KEYS[18], KEYS[19], meta, us)
look_after({
  delayed = delayed, pending = pending, prioritized = prioritized, priority = priority, meta = meta, wake = wake,
  gates = KEYS[10], passes = KEYS[11], waiters = KEYS[12], passed = KEYS[13], visits = KEYS[14], attempts = KEYS[15],
  timer = KEYS[16],
}, us, 500)
local moved = promote(delayed, pending, prioritized, priority, meta, us, tonumber(ARGV[1]))
-- Also mends a hint that was lost with the worker that took it.
if anything_ready(pending, prioritized) then hint(wake, 1) end
local first = earliest(delayed)
return {'ok', moved, first and whole(math.floor(tonumber(first) / 4096)) or '', whole(us)}
