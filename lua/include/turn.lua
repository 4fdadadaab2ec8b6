-- What a person switches takes a turn of the queue. False for a late copy of an older call, which carries the turn of
-- then: it must not undo what was done since.
local function take_turn(meta, turn)
  if (redis.call('HGET', meta, 'turn') or '0') ~= turn then return false end
  redis.call('HDEL', meta, '') -- a first write that is allowed at maxmemory
  redis.call('HINCRBY', meta, 'turn', 1)
  return true
end
