-- The clock is the server's, in microseconds: a double is exact to 2^53.
local function clock()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

-- The latest fire-time that is due: rounded down, so that nothing runs early.
local function due_ms(us)
  return math.floor(us / 1000)
end

-- A score is fire_ms * 4096 + seq, and a double is exact to 2^53: the latest fire-time is 2^41 - 1, in September 2039.
local LATEST_MS = 2199023255551

-- The fire-time of a delay that begins now: rounded up, so that nothing runs early.
local function fire_ms(us, delay)
  return math.ceil(us / 1000) + delay
end
