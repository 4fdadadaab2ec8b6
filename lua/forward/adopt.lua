-- adopt: a job that stood in the ledger of a spool comes to Redis with what it has behind it. No move of its own: it is
-- an enqueue that carries attempts, notes and the time of the first one.
--
-- KEYS  1 rows         HASH    id -> packed row, its note before it
--       2 attempts     HASH    id -> claims so far: the token
--       3 notes        HASH    id -> what attempts left behind
--       4 pending      LIST    ids, first come first served
--       5 prioritized  ZSET    ids with a priority
--       6 delayed      ZSET    fire-time and sequence
--       7 priority     HASH    id -> priority, where it is not 0
--       8 given        ZSET    ids given by callers -> their end
--       9 mark         STRING  last call done on this lane
--      10 meta         HASH    totals
--      11 wake         LIST    hints
--      12 timer        LIST    hints
-- ARGV  1 mark_ttl     ms that the mark is known
--       2 remember     ms that a given id is known after the job's end
--       3 id
--       4 row          with the times of its first enqueue in front
--       5 priority
--       6 delay        ms; '' for none
--       7 given        0|1
--       8 attempts
--       9 note         '' for none
--
-- Returns again | known | ok
--! include clock
--! include whole
--! include hint
--! include note
--! include ready
--! include delay
local rows, attempts, notes, pending, prioritized, delayed, priority, given = unpack(KEYS, 1, 8)
local mark, meta, wake, timer = unpack(KEYS, 9, 12)
local id = ARGV[3]

-- check
if redis.call('EXISTS', mark) == 1 then return {'again'} end
local us = clock()
local known = redis.call('HEXISTS', rows, id) == 1
if not known and ARGV[7] == '1' then
  local ended = redis.call('ZSCORE', given, id)
  known = ended and due_ms(us) - tonumber(ended) < tonumber(ARGV[2])
end
if known then
  redis.call('SET', mark, '1', 'PX', ARGV[1])
  return {'known'}
end

-- apply
--! check all
local both = near(ARGV[9], ARGV[4])
redis.call('HSET', rows, id, both or ARGV[4])
redis.call('SET', mark, '1', 'PX', ARGV[1])
if ARGV[8] ~= '0' then redis.call('HSET', attempts, id, ARGV[8]) end
if ARGV[9] ~= '' and not both then redis.call('HSET', notes, id, ARGV[9]) end
if ARGV[5] ~= '0' then redis.call('HSET', priority, id, ARGV[5]) end
if ARGV[7] == '1' then redis.call('ZADD', given, '9007199254740991', id) end
if ARGV[6] == '' then
  ready(pending, prioritized, priority, meta, {id})
  hint(wake, 8)
else
  local before = earliest(delayed)
  delay(delayed, id, math.min(fire_ms(us, tonumber(ARGV[6])), LATEST_MS))
  if earliest(delayed) ~= before then hint(timer, 1) end
end
redis.call('HINCRBY', meta, 'enqueued', 1)
redis.call('HINCRBY', meta, 'forwarded', 1)
return {'ok'}
