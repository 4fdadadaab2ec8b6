-- Wraps a move out of active (see scripts.py) for jobs that may hold places at gates: what failed at a gate that is not
-- closed any more is forgiven and waits there again, the others go through the move; then all of them leave.
local function gated(k, argv, first, step, move, verdict_of)
  local us = clock()
  local rest, back, words, whose = {}, {}, {}, {}
  for i = 1, first - 1 do rest[i] = argv[i] end
  redis.call('HDEL', k.meta, '') -- a first write that is allowed at maxmemory
  for i = first, #argv, step do
    local n, id, token = (i - first) / step + 1, argv[i], argv[i + 1]
    local known, shut = pass_of(k, id), nil
    local mine = redis.call('SISMEMBER', k.active, id) == 1 and redis.call('HGET', k.attempts, id) == token
    local bad = mine and known and known.flag == 'a' and known.token == token and verdict_of(argv, i) == 'bad'
    -- One that ends because it was cancelled says nothing about the other side.
    if bad and read_note(redis.call('HGET', k.notes, id)).cancel == 0 then
      for _, name in ipairs(known.names) do
        local door = door_of(k, name)
        if door.phase ~= 'closed' then
          if door.phase == 'probing' then open_door(door, us) end
          shut = shut or door
        elseif door.threshold > 0 then
          door.failures = door.failures + 1
          if door.failures >= door.threshold then open_door(door, us) end
        end
        put_door(k, door, us)
      end
    end
    if shut then
      words[n] = 'ok'
      leave_doors(k, known.names, 'none', us)
      back[#back + 1] = {n, id, wait_at(k, door_of(k, shut.name), id, token, nil, shut.ends_ms, us), shut.name}
    else
      whose[#whose + 1] = n
      for j = i, i + step - 1 do rest[#rest + 1] = argv[j] end
    end
  end
  local ids, places = {}, {}
  for i, one in ipairs(back) do ids[i], places[i] = one[2], i end
  if #ids > 0 then
    redis.call('SREM', k.active, unpack(ids))
    local ends = {}
    local left, notes = uncancelled(k, ends, places, ids, us)
    local gone = {}
    for i in pairs(ends) do
      words[back[i][1]] = ends[i]
      gone[#gone + 1] = ids[i]
    end
    drop_passes(k, gone)
    local later = {ids = {}, notes = {}, scores = {}}
    for i, at in ipairs(left) do
      notes[i].forgiven = notes[i].forgiven + 1
      to_delayed(k, later, ids[at], notes[i], math.max(1, back[at][3] - math.ceil(us / 1000)), us)
    end
    all_delayed(k, later)
    for _, one in ipairs(back) do tend(k, one[4], us) end
  end
  if #whose > 0 or #back == 0 then
    local answer = move(KEYS, rest)
    if type(answer) == 'table' then
      for i, word in ipairs(answer) do words[whose[i]] = word end
    else
      words = answer -- reap says how many are left
    end
    for i = first, #rest, step do
      -- Who has moved the claim leaves for it; a late copy finds nothing to do.
      local known, moved = pass_of(k, rest[i]), redis.call('SISMEMBER', k.active, rest[i]) == 0 and answer ~= -1
      if type(answer) == 'table' then
        local word = answer[(i - first) / step + 1]
        moved = word ~= 'stale' and word ~= 'settled'
      end
      if moved and known and known.flag == 'a' and known.token == rest[i + 1] then
        redis.call('HDEL', k.passes, rest[i])
        leave_doors(k, known.names, verdict_of(rest, i), us)
      elseif moved and known and redis.call('HEXISTS', k.rows, rest[i]) == 0 then
        drop_passes(k, {rest[i]})
      end
    end
  end
  return words
end
