-- complete: active -> completed. The last move of jobs that went well; a cancel mark does not hinder it.
--
-- KEYS  1 active       SET     ids that this worker holds
--       2 attempts     HASH    id -> claims so far: the token
--       3 rows         HASH    id -> packed row, its note before it
--       4 notes        HASH    id -> what attempts left behind
--       5 priority     HASH    id -> priority, where it is not 0
--       6 given        ZSET    ids given by callers -> their end
--       7 completed    ZSET    kept jobs -> end of their retention, ms
--       8 results      HASH    id -> what the handler returned
--       9 meta         HASH    totals
--      10 pending      LIST    ids, first come first served
--      11 wake         LIST    hints
--      12 batched      HASH    id -> the batch it is in, where it is in one
--      13 batches      HASH    id -> counts, name and callbacks of a batch
--      14 batch_ends   ZSET    batch -> its end, ms; 2^53-1: not yet
-- ARGV  1 again        1 when this call is sent a second time
--       2.. id, token, kept: '' or '<retention ms> <result>'
--
-- Returns a word a job: ok | stale | settled
--! include clock
--! include whole
--! include hint
--! include note
--! include fence
--! include ends
--! include batch
local active, attempts, rows, notes, priority, given, completed, results, meta = unpack(KEYS, 1, 9)

local marks, batched = unpack(redis.call('HMGET', meta, 'marks', 'batched'))
local keeps = false
for at = 4, #ARGV, 3 do keeps = keeps or ARGV[at] ~= '' end
--! check rows notes priority given
if keeps then
  --! check completed results
end
local words, current, taken = fence(active, attempts, meta, ARGV[1], 2, 3)
if #taken == 0 then return words end

if tonumber(marks or 0) > 0 then
  for i, text in ipairs(redis.call('HMGET', notes, unpack(taken))) do
    local note = read_note(text)
    if note.cancel == 1 then
      note.cancel = 0
      redis.call('HSET', notes, taken[i], write_note(note))
      redis.call('HINCRBY', meta, 'marks', -1)
    end
  end
end
local gone, kept_ids, us = {}, {}, 0
for _, n in ipairs(current) do
  local id, kept = ARGV[n * 3 - 1], ARGV[n * 3 + 1]
  if kept == '' then
    gone[#gone + 1] = id
  else
    if us == 0 then us = clock() end
    kept_ids[#kept_ids + 1] = id
    local keep, result = string.match(kept, '^(%d+) (.*)$')
    redis.call('ZADD', completed, whole(fire_ms(us, tonumber(keep))), id)
    if result ~= '' then redis.call('HSET', results, id, result) end
  end
end
if us == 0 then us = clock() end
if #gone > 0 then forget(rows, attempts, notes, priority, given, gone, us) end
redis.call('HINCRBY', meta, 'completed', #taken)
if tonumber(batched or 0) > 0 then
  local k = {
    rows = rows, meta = meta, pending = KEYS[10], wake = KEYS[11], batched = KEYS[12], batches = KEYS[13], batch_ends = KEYS[14],
  }
  in_batches(k, gone, false, 'completed', true, us)
  in_batches(k, kept_ids, false, 'completed', false, us)
end
return words
