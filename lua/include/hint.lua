-- Pushes a hint for those that wait on this list; bounded, a hint too many costs one empty look. `there`: how many stand
-- on it, where that is known.
local function hint(list, most, there)
  if (there or redis.call('LLEN', list)) < most then redis.call('RPUSH', list, '1') end
end
