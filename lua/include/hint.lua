-- Pushes a hint for those that wait on this list; bounded, a hint too many costs one empty look.
local function hint(list, most)
  if redis.call('LLEN', list) < most then redis.call('RPUSH', list, '1') end
end
