-- The delayed set: score = fire_ms * 4096 + seq; seq orders the jobs due in the same millisecond by arrival, up to 4095.
local function delay(delayed, id, fire)
  local low = fire * 4096
  local last = redis.call('ZREVRANGEBYSCORE', delayed, whole(low + 4095), whole(low), 'WITHSCORES', 'LIMIT', 0, 1)
  local score = last[2] and math.min(tonumber(last[2]) + 1, low + 4095) or low
  redis.call('ZADD', delayed, whole(score), id)
end

-- The earliest score, as text; false where nothing is delayed.
local function earliest(delayed)
  return redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2] or false
end
