-- admit: active -> active, past the job's gates; or -> delayed, where it waits for its turn at one. Forgiven then.
--
-- KEYS  1 active       SET     ids that this worker holds
--       2 attempts     HASH    id -> claims so far: the token
--       3 rows         HASH    id -> packed row, its note before it
--       4 notes        HASH    id -> what attempts left behind
--       5 priority     HASH    id -> priority, where it is not 0
--       6 given        ZSET    ids given by callers -> their end
--       7 delayed      ZSET    fire-time and sequence
--       8 pending      LIST    ids, first come first served
--       9 prioritized  ZSET    ids with a priority
--      10 meta         HASH    totals; `turns`: places given out at gates
--      11 timer        LIST    hints
--      12 wake         LIST    hints
--      13 batched      HASH    id -> the batch it is in, where it is in one
--      14 batches      HASH    id -> counts, name and callbacks of a batch
--      15 batch_ends   ZSET    batch -> its end, ms; 2^53-1: not yet
--      16 gates        HASH    gate -> its state
--      17 passes       HASH    id -> the gates that a job has passed, or where it waits
--      18 waiters      ZSET    who waits where, in order
--      19 passed       ZSET    who has passed when, of gates with a rate
--      20 visits       ZSET    gate -> when it is looked after, ms
-- ARGV  1 again        1 when this call is sent a second time
--       2.. id, token, gates: a line each, <name>\t<limit> <count> <period ms> <threshold> <reset ms>
--
-- Returns a word a job: ok | parked | cancelled | stale | settled
--! include clock
--! include whole
--! include hint
--! include note
--! include fence
--! include ready
--! include delay
--! include ends
--! include batch
--! include failed
--! include pass
--! include gate
local k = {
  active = KEYS[1], attempts = KEYS[2], rows = KEYS[3], notes = KEYS[4], priority = KEYS[5], given = KEYS[6],
  delayed = KEYS[7], pending = KEYS[8], prioritized = KEYS[9], meta = KEYS[10], timer = KEYS[11], wake = KEYS[12],
  batched = KEYS[13], batches = KEYS[14], batch_ends = KEYS[15], gates = KEYS[16], passes = KEYS[17],
  waiters = KEYS[18], passed = KEYS[19], visits = KEYS[20],
}
local us, touched = clock(), {}

local function doors_of(text)
  local doors = {}
  for line in string.gmatch(text, '[^\n]+') do
    local name, limit, count, period, threshold, reset =
      string.match(line, '^(.*)\t(%d+) (%d+) (%d+) (%d+) (%d+)$')
    local door = door_of(k, name)
    door.limit, door.count, door.period_ms = tonumber(limit), tonumber(count), tonumber(period)
    door.threshold, door.reset_ms = tonumber(threshold), tonumber(reset)
    doors[#doors + 1] = door
  end
  return doors
end

-- nil where it passes; else the fire-time of its wait.
local function admit(id, token, text)
  local known, place = pass_of(k, id), nil
  if known and known.flag == 'a' then
    if known.token == token then return nil end
    -- The claim before was given back by somebody who did not know of its places.
    leave_doors(k, known.names, 'none', us)
  elseif known then
    place = known.place
    if known.flag == 'c' then
      local door = door_of(k, known.names[1])
      door.called = math.max(0, door.called - 1)
      put_door(k, door, us)
    else
      redis.call('ZREM', k.waiters, waiter(known.names[1], place, known.token, id))
    end
  end
  local doors, names = doors_of(text), {}
  if #doors == 0 then
    -- Whoever asks knows of no gate any more: where the job has waited for its turn nobody minds.
    redis.call('HDEL', k.passes, id)
    if known and known.flag ~= 'a' then
      throw_open(k, known.names[1], us)
      touched[known.names[1]] = true
    end
    return nil
  end
  for _, door in ipairs(doors) do
    local again_ms = refusal(k, door, place, us)
    if again_ms then return wait_at(k, door, id, token, place, again_ms, us) end
  end
  for i, door in ipairs(doors) do
    names[i] = door.name
    door.busy = door.busy + 1
    if door.phase == 'open' then door.phase = 'probing' end
    if door.count > 0 then
      redis.call('ZADD', k.passed, 0, string.format('%s\0%016.0f\0%s\0%s', door.name, us, id, token))
    end
    put_door(k, door, us)
  end
  give_pass(k, id, 'a', token, 0, names)
  return nil
end

--! check all
redis.call('HDEL', k.meta, '') -- a first write that is allowed at maxmemory
local words, seen, fires, parked = {}, {}, {}, {}
local refused = ARGV[1] == '1' and 'settled' or 'stale'
for i = 2, #ARGV, 3 do
  local id, token, n = ARGV[i], ARGV[i + 1], (i + 1) / 3
  if redis.call('SISMEMBER', k.active, id) == 0 or redis.call('HGET', k.attempts, id) ~= token then
    words[n] = refused
  else
    words[n] = 'ok'
    local fire = admit(id, token, ARGV[i + 2])
    if fire then
      words[n] = 'parked'
      parked[#parked + 1], fires[n], seen[#seen + 1] = id, fire, n
      redis.call('SREM', k.active, id)
    end
    for line in string.gmatch(ARGV[i + 2], '([^\n\t]+)\t') do touched[line] = true end
  end
end
local before, later = earliest(k.delayed), {ids = {}, notes = {}, scores = {}}
local places, notes = uncancelled(k, words, seen, parked, us)
for i, n in ipairs(places) do
  local note = notes[i]
  note.forgiven = note.forgiven + 1
  to_delayed(k, later, ARGV[n * 3 - 1], note, math.max(1, fires[n] - math.ceil(us / 1000)), us)
end
all_delayed(k, later)
local gone = {}
for i, n in ipairs(seen) do
  if words[n] == 'cancelled' then gone[#gone + 1] = parked[i] end
end
drop_passes(k, gone)
if earliest(k.delayed) ~= before then hint(k.timer, 1) end
local names = {}
for name in pairs(touched) do names[#names + 1] = name end
table.sort(names) -- the same order on every replica
for _, name in ipairs(names) do tend(k, name, us) end
-- New gates come as fast as jobs: old ones go as fast.
look_after(k, us, 10 + 2 * #words)
return words
