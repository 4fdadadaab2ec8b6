-- Gates: limits and circuit breakers that jobs pass between claim and run. The rule is that of batchq/gates.py, function
-- by function. `k` holds by name: gates, visits, passed, attempts, delayed, pending, prioritized, priority, meta, and
-- what pass.lua needs.
--   gates    <name> -> the state of a gate
--   visits   <name> -> when it is looked after, ms
--   passed   <gate>\0<us>\0<id>\0<token>, all of one score: who has passed when, of gates with a rate
local HEAD_MS, FALLBACK_MS, CALLED_MS, FORGET_MS, BEHIND_MS, CALLS, MOST_CALLS, SLACK_MS =
  5000, 300000, 5000, 86400000, 1000, 100, 1000, 100

local FIELDS = {
  'busy', 'called', 'since_ms', 'failures', 'ends_ms', 'limit', 'count', 'period_ms', 'threshold', 'reset_ms',
}

local TERMS = {'limit', 'count', 'period_ms', 'threshold', 'reset_ms'}

local function door_of(k, name)
  local text, door = redis.call('HGET', k.gates, name), {name = name, phase = 'closed'}
  if not text then
    for _, field in ipairs(FIELDS) do door[field] = 0 end
    return door
  end
  local n = 0
  for word in string.gmatch(text, '%S+') do
    if n == 0 then door.phase = word else door[FIELDS[n]] = tonumber(word) end
    n = n + 1
  end
  return door
end

-- The first that waits: its place and id. Forgets those that were claimed, cancelled or purged meanwhile.
local function first_waiter(k, name)
  while true do
    local member = redis.call('ZRANGEBYLEX', k.waiters, '[' .. name .. '\0', '(' .. name .. '\1', 'LIMIT', 0, 1)[1]
    if not member then return nil end
    local place, token, id = string.match(string.sub(member, #name + 2), '^(%d+)%z(%d+)%z(.*)$')
    if redis.call('HGET', k.attempts, id) == token then return {place = tonumber(place), id = id, member = member} end
    redis.call('ZREM', k.waiters, member)
  end
end

local function window_ms(door)
  return door.period_ms + math.min(SLACK_MS, math.floor(door.period_ms / 10))
end

-- When it has to be looked after though nobody may come any more; nil: never.
local function visit_ms(door)
  if door.called > 0 then return door.since_ms + CALLED_MS + 1 end
  if door.busy > 0 then return nil end
  if door.phase ~= 'closed' or door.failures > 0 then return math.max(door.since_ms, door.ends_ms) + FORGET_MS end
  return door.count > 0 and door.since_ms + window_ms(door) + 1 or nil
end

local function visit(k, name, at)
  redis.call('ZADD', k.visits, whole(at), name)
end

local function put_door(k, door, us)
  if door.busy + door.called == 0 then door.since_ms = due_ms(us) end
  local at = visit_ms(door)
  if at then visit(k, door.name, at) end
  local idle = door.phase == 'closed' and door.busy + door.called + door.failures == 0
  if idle and not first_waiter(k, door.name) then
    redis.call('HDEL', k.gates, door.name)
    return
  end
  local words = {door.phase}
  for _, field in ipairs(FIELDS) do words[#words + 1] = whole(door[field]) end
  redis.call('HSET', k.gates, door.name, table.concat(words, ' '))
end

-- How many may pass now by the rate, and when the next may (0: now).
local function room(k, door, us)
  if door.count == 0 then return CALLS, 0 end
  local window = window_ms(door) * 1000
  local low, high = '[' .. door.name .. '\0', '(' .. door.name .. '\1'
  redis.call('ZREMRANGEBYLEX', k.passed, low, string.format('(%s\0%016.0f', door.name, us - window))
  local used = redis.call('ZLEXCOUNT', k.passed, low, high)
  local left = door.count - used
  if left > 0 then return left, 0 end
  local member = redis.call('ZRANGEBYLEX', k.passed, low, high, 'LIMIT', 0 - left, 1)[1] -- not -left: Redis reads no -0
  local at = tonumber(string.sub(member, #door.name + 2, #door.name + 17))
  return left, math.ceil((at + window) / 1000)
end

-- false: it may pass. Else when it may look again; 0: nobody knows.
local function refusal(k, door, place, us)
  if door.phase == 'open' and due_ms(us) < door.ends_ms then return door.ends_ms end
  if door.phase == 'probing' then return 0 end
  local first = first_waiter(k, door.name)
  if first and (not place or first.place < place) then return 0 end
  if door.limit > 0 and door.busy >= door.limit then return 0 end
  local left, next_ms = room(k, door, us)
  if left > 0 then return false end
  return next_ms
end

-- Waits there; returns its fire-time.
local function wait_at(k, door, id, token, place, again_ms, us)
  local first = first_waiter(k, door.name)
  if not place then place = redis.call('HINCRBY', k.meta, 'turns', 1) end
  redis.call('ZADD', k.waiters, 0, waiter(door.name, place, token, id))
  give_pass(k, id, 'w', token, place, {door.name})
  put_door(k, door, us)
  if first and first.place < place then return due_ms(us) + FALLBACK_MS end
  if again_ms > 0 then return again_ms end
  return due_ms(us) + HEAD_MS
end

-- Returns how many were called.
local function tend(k, name, us)
  local door, now, free, wait_ms = door_of(k, name), due_ms(us), CALLS, 0
  if door.called > 0 and now - door.since_ms > CALLED_MS then door.called = 0 end
  if door.phase == 'open' then
    if now >= door.ends_ms then free = 1 - door.called else free, wait_ms = 0, door.ends_ms end
  elseif door.phase == 'probing' then
    free = 0
  else
    free = free - door.called
  end
  if door.limit > 0 then free = math.min(free, door.limit - door.busy - door.called) end
  if free > 0 then
    local left, next_ms = room(k, door, us)
    if door.count > 0 then free = math.min(free, left - door.called) end
    if wait_ms == 0 then wait_ms = next_ms end
  end
  local called = {}
  while #called < free do
    local first = first_waiter(k, name)
    if not first then break end
    redis.call('ZREM', k.waiters, first.member)
    called[#called + 1] = first.id
    local known = pass_of(k, first.id)
    if known then give_pass(k, first.id, 'c', known.token, known.place, known.names) end
  end
  if #called > 0 then
    door.called, door.since_ms = door.called + #called, now
    local came = {}
    for _, id in ipairs(called) do
      if redis.call('ZREM', k.delayed, id) == 1 then came[#came + 1] = id end
    end
    if #came > 0 then
      ready_first(k.pending, k.prioritized, k.priority, k.meta, came)
      redis.call('HINCRBY', k.meta, 'promoted', #came)
      hint(k.wake, 8)
    end
  end
  put_door(k, door, us)
  if wait_ms > 0 then
    local first = first_waiter(k, name)
    if first and redis.call('ZREM', k.delayed, first.id) == 1 then
      local before = earliest(k.delayed)
      delay(k.delayed, first.id, wait_ms)
      if earliest(k.delayed) ~= before then hint(k.timer, 1) end
    end
    -- Should that one be cancelled, or late, the others are not forgotten.
    if first and door.called == 0 then visit(k, name, wait_ms + BEHIND_MS) end
  end
  return #called
end

local function open_door(door, us)
  door.phase, door.ends_ms, door.failures = 'open', due_ms(us) + door.reset_ms, 0
end

local function leave_doors(k, names, verdict, us)
  for _, name in ipairs(names) do
    local door = door_of(k, name)
    door.busy = math.max(0, door.busy - 1)
    if verdict == 'good' then
      door.failures = 0
      if door.phase == 'probing' then door.phase, door.ends_ms = 'closed', 0 end
    elseif door.phase == 'probing' and door.busy == 0 then
      door.phase, door.ends_ms = 'open', due_ms(us) -- the probe was cut off: the next may go at once
    end
    put_door(k, door, us)
    tend(k, name, us)
  end
end

-- Looks after some gates whose time has come, and forgets what is of no use any more. Called by sweeps.
local function look_after(k, us, limit)
  local names = redis.call('ZRANGEBYSCORE', k.visits, '-inf', whole(due_ms(us)), 'LIMIT', 0, limit)
  table.sort(names)
  local calls = 0
  for _, name in ipairs(names) do
    if calls >= MOST_CALLS then return end -- the next sweep goes on
    redis.call('ZREM', k.visits, name)
    if redis.call('HEXISTS', k.gates, name) == 0 then
      redis.call('ZREMRANGEBYLEX', k.passed, '[' .. name .. '\0', '(' .. name .. '\1')
    else
      local door = door_of(k, name)
      if door.busy + door.called == 0 and not first_waiter(k, name) and (visit_ms(door) or math.huge) <= due_ms(us) then
        door.phase, door.ends_ms, door.failures = 'closed', 0, 0
        put_door(k, door, us)
      end
      calls = calls + tend(k, name, us)
    end
  end
end

-- Until somebody comes who has terms for it.
local function throw_open(k, name, us)
  local door = door_of(k, name)
  for _, field in ipairs(TERMS) do door[field] = 0 end
  door.phase, door.ends_ms, door.failures = 'closed', 0, 0
  put_door(k, door, us)
end

-- By hand.
local function switch(k, name, phase, ends_ms, us)
  local door = door_of(k, name)
  door.phase, door.ends_ms, door.failures = phase, ends_ms, 0
  put_door(k, door, us)
  tend(k, name, us)
end
