-- The delayed set: score = fire_ms * 4096 + seq; seq orders the jobs due in the same millisecond by arrival, up to 4095.
-- Jobs of one call often share a millisecond: what stands there is looked up once.
local highest = {}
local function place_at(delayed, fire)
  local low, last = fire * 4096, highest[fire]
  if not last then
    local found = redis.call('ZREVRANGEBYSCORE', delayed, whole(low + 4095), whole(low), 'WITHSCORES', 'LIMIT', '0', '1')
    last = tonumber(found[2] or low - 1)
  end
  highest[fire] = math.min(last + 1, low + 4095)
  return whole(highest[fire])
end

local function delay(delayed, id, fire)
  redis.call('ZADD', delayed, place_at(delayed, fire), id)
end

-- The earliest score, as text; false where nothing is delayed.
local function earliest(delayed)
  return redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2] or false
end
