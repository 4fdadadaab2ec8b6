-- What is noted of jobs at gates. `k` holds by name: passes, waiters.
--   passes   id -> <flag> <token> <place> <gates, a line each>; flag: a has passed, w waits, c is called
--   waiters  <gate>\0<place>\0<token>\0<id>, all of one score: in order of gate and place
local function pass_of(k, id)
  local text = redis.call('HGET', k.passes, id)
  if not text then return nil end
  local flag, token, place, rest = string.match(text, '^(%a) (%d+) (%d+)\n(.*)$')
  local names = {}
  for name in string.gmatch(rest, '[^\n]+') do names[#names + 1] = name end
  return {flag = flag, token = token, place = tonumber(place), names = names}
end

-- `names`: of a pass that waits, the gate where it does.
local function give_pass(k, id, flag, token, place, names)
  redis.call('HSET', k.passes, id, flag .. ' ' .. token .. ' ' .. whole(place) .. '\n' .. table.concat(names, '\n'))
end

local function waiter(name, place, token, id)
  return string.format('%s\0%016.0f\0%s\0%s', name, place, token, id)
end

-- The rows of these jobs are gone: nobody waits for them. One that has passed is left to whoever settles it.
local function drop_passes(k, ids)
  if #ids == 0 or redis.call('EXISTS', k.passes) == 0 then return end
  for _, id in ipairs(ids) do
    local known = pass_of(k, id)
    if known and known.flag ~= 'a' then
      if known.flag == 'w' then redis.call('ZREM', k.waiters, waiter(known.names[1], known.place, known.token, id)) end
      redis.call('HDEL', k.passes, id)
    end
  end
end
