-- Puts ids where claims find them: `pending`, or where a priority is not 0 the sorted set `prioritized`, with
-- score = -priority * 2^40 + place; places count up from 2^39 at the tail and down from there at the head.
local BAND, MIDDLE = 1099511627776, 549755813888

-- Splits off those with a priority and places them; returns the others. `priority` is sparse and mostly empty; false
-- where none of these has one.
local function place(prioritized, priority, meta, ids, counter, sign)
  if not priority or redis.call('EXISTS', priority) == 0 then return ids end
  local plain, level = {}, redis.call('HMGET', priority, unpack(ids))
  for i, id in ipairs(ids) do
    if level[i] then
      local at = MIDDLE + sign * redis.call('HINCRBY', meta, counter, 1)
      redis.call('ZADD', prioritized, string.format('%d', at - BAND * tonumber(level[i])), id)
    else
      plain[#plain + 1] = id
    end
  end
  return plain
end

local function ready(pending, prioritized, priority, meta, ids)
  local plain = place(prioritized, priority, meta, ids, 'arrival', 1)
  if #plain > 0 then redis.call('RPUSH', pending, unpack(plain)) end
end

-- To the head, keeping the order of the batch.
local function ready_first(pending, prioritized, priority, meta, ids)
  local back = {}
  for i = #ids, 1, -1 do back[#back + 1] = ids[i] end
  local plain = place(prioritized, priority, meta, back, 'headway', -1)
  if #plain > 0 then redis.call('LPUSH', pending, unpack(plain)) end
end

local function anything_ready(pending, prioritized)
  return redis.call('LLEN', pending) > 0 or redis.call('EXISTS', prioritized) == 1
end
