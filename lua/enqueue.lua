-- enqueue: - -> pending or delayed. The one script that may be refused when Redis is out of memory, before it writes.
--
-- KEYS  1 rows         HASH    id -> packed row
--       2 pending      LIST    ids, first come first served
--       3 prioritized  ZSET    ids with a priority
--       4 delayed      ZSET    fire-time and sequence
--       5 priority     HASH    id -> priority, where it is not 0
--       6 given        ZSET    ids given by callers -> their end
--       7 mark         STRING  last call done on this lane
--       8 meta         HASH    totals
--       9 wake         LIST    hints
--      10 timer        LIST    hints
--      11 batched      HASH    id -> the batch it is in, where it is in one
--      12 batches      HASH    id -> counts, name and callbacks of a batch
--      13 batch_ends   ZSET    batch -> its end, ms; 2^53-1: not yet
-- ARGV  1 call         number of this call on its lane
--       2 mark_ttl     ms that the mark is known
--       3 remember     ms that a given id is known after the job's end
--       4 counted      '' or forwarded: a total that grows beside `enqueued`
--       5 most         0, or how many may be pending for this call to be taken
--       6.. id, row without its first brace, options: '' or '<priority> <when> <given 0|1>[ <batch>]'
--           when: 0 now, +<delay ms>, @<fire ms>
--
-- Returns again | late, place of a job whose fire-time is past the latest | full, how many are pending |
--   over, a batch that has ended or is not known | ok, places of the jobs whose id is known (1 is the first)
--! include clock
--! include whole
--! include hint
--! include ready
--! include delay
--! include batch
local rows, pending, prioritized, delayed, priority, given, mark, meta, wake, timer = unpack(KEYS, 1, 10)
local batched, batches, batch_ends = KEYS[11], KEYS[12], KEYS[13]

-- check
local done = redis.call('GET', mark)
if done and tonumber(done) >= tonumber(ARGV[1]) then return {'again'} end
local us, remember = clock(), tonumber(ARGV[3])
local now = due_ms(us)
local ids = {}
for i = 6, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
local known = redis.call('HMGET', rows, unpack(ids))
local answer, fields, plain, later, named, seen = {'ok'}, {}, {}, {}, {}, {}
local stamp = '{"t":' .. whole(now) .. ','
local joins = false
for n, id in ipairs(ids) do
  local at = 3 + n * 3
  local row, options = ARGV[at + 1], ARGV[at + 2]
  local is_known, fire = known[n] or seen[id], 0
  -- Most have none: no pattern and no table for them.
  local level, when, from_caller, batch
  if options ~= '' then
    level, when, from_caller, batch = string.match(options, '^(%S+) (%S+) (%S+) ?(%S*)$')
    if not is_known and from_caller == '1' then
      local ended = redis.call('ZSCORE', given, id)
      is_known = ended and now - tonumber(ended) < remember
    end
  end
  if is_known then
    answer[#answer + 1] = n
  else
    seen[id] = true
    if when then
      local kind = string.sub(when, 1, 1)
      if kind == '+' then
        fire = fire_ms(us, tonumber(string.sub(when, 2)))
      elseif kind == '@' then
        fire = tonumber(string.sub(when, 2))
        if fire <= now then fire = 0 end
      end
      if fire > LATEST_MS then return {'late', n} end
      named[#named + 1] = {id, level, from_caller}
      if batch ~= '' then
        joins = joins or {}
        joins[batch] = joins[batch] or {}
        table.insert(joins[batch], id)
      end
    end
    local last = #fields
    if fire > 0 then
      fields[last + 1], fields[last + 2] = id, stamp .. '"at":' .. whole(fire) .. ',' .. row
      later[#later + 1] = {id, fire}
    else
      fields[last + 1], fields[last + 2] = id, stamp .. row
      plain[#plain + 1] = id
    end
  end
end
local fresh = #fields / 2

local most = tonumber(ARGV[5])
if most > 0 and #plain > 0 then
  local stand = redis.call('LLEN', pending) + redis.call('ZCARD', prioritized)
  -- A call that is larger than the limit must find the queue empty.
  if stand > 0 and stand + #plain > most then return {'full', stand} end
end
local joined = {}
for batch in pairs(joins or {}) do
  local text = redis.call('HGET', batches, batch)
  local b = text and read_batch(text)
  if not b or (b.closed == 1 and b.ended ~= UNENDED) then return {'over', batch} end
  joined[batch] = b
end

-- apply
--! check pending
local hints = redis.call('LLEN', wake)
if #named + #later > 0 then
  --! check prioritized priority given delayed timer
end
if joins then
  --! check batched batch_ends
end
if fresh > 0 then
  -- The first write: it fails by itself where its key is of another type.
  redis.call('HINCRBY', meta, 'enqueued', fresh)
  -- Before the mark: where a right is missing the call is not taken for done when it is made again.
  redis.call('HSET', rows, unpack(fields))
end
redis.call('SET', mark, ARGV[1], 'PX', ARGV[2])
if fresh == 0 then return answer end
for _, job in ipairs(named) do
  if job[2] ~= '0' then redis.call('HSET', priority, job[1], job[2]) end
  -- The end of time: as long as the job lives, its row makes it known.
  if job[3] == '1' then redis.call('ZADD', given, '9007199254740991', job[1]) end
end
for batch, b in pairs(joined) do
  local k, pairs_of = {batches = batches, batch_ends = batch_ends}, {}
  for _, id in ipairs(joins[batch]) do
    pairs_of[#pairs_of + 1] = id
    pairs_of[#pairs_of + 1] = batch
  end
  redis.call('HSET', batched, unpack(pairs_of))
  redis.call('HINCRBY', meta, 'batched', #joins[batch])
  b.total = b.total + #joins[batch]
  save_batch(k, batch, b, us)
end
if #plain > 0 then
  ready(pending, prioritized, #named > 0 and priority, meta, plain)
  hint(wake, 8, hints)
end
if #later > 0 then
  local before = earliest(delayed)
  for _, job in ipairs(later) do delay(delayed, job[1], job[2]) end
  if earliest(delayed) ~= before then hint(timer, 1) end
end
if ARGV[4] ~= '' then redis.call('HINCRBY', meta, ARGV[4], fresh) end
return answer
