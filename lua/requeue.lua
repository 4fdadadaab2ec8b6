-- requeue: dead, or completed and kept -> pending, at the tail. Budgets start afresh by `forgiven`; the token goes on.
--
-- KEYS  1 rows         HASH    id -> packed row
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
-- ARGV  1.. id
--
-- Returns a word a job: ok | refused | unknown
--! include clock
--! include hint
--! include note
--! include ready
local rows, attempts, notes, priority, pending, prioritized = unpack(KEYS, 1, 6)
local dead, completed, results, meta, wake = unpack(KEYS, 7, 11)

local now = due_ms(clock())
local words, back = {}, {}
for n, id in ipairs(ARGV) do
  if redis.call('ZREM', dead, id) + redis.call('ZREM', completed, id) == 0 then
    words[n] = redis.call('HEXISTS', rows, id) == 1 and 'refused' or 'unknown'
  elseif redis.call('HEXISTS', rows, id) == 0 then
    -- A dead one whose row is gone (eviction, a hand at work): there is nothing to run.
    words[n] = 'unknown'
    redis.call('HDEL', notes, id)
    redis.call('HDEL', attempts, id)
  else
    words[n] = 'ok'
    back[#back + 1] = id
    local note = read_note(redis.call('HGET', notes, id))
    note.forgiven = tonumber(redis.call('HGET', attempts, id) or 0)
    note.crashes, note.lost, note.cancel, note.since, note.reason = 0, 0, 0, now, '-'
    redis.call('HDEL', results, id)
    redis.call('HSET', notes, id, write_note(note))
  end
end
if #back > 0 then
  ready(pending, prioritized, priority, meta, back)
  redis.call('HINCRBY', meta, 'requeued', #back)
  hint(wake, 8)
end
return words
