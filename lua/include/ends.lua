-- The ends of a job. An id that its caller gave stays known for a while after its row is gone: as long as the row of a
-- dead or kept job stands, that makes it known.
local function remember_end(given, ids, us)
  if redis.call('EXISTS', given) == 0 then return end
  local now, args = whole(due_ms(us)), {}
  for _, id in ipairs(ids) do
    args[#args + 1] = now
    args[#args + 1] = id
  end
  redis.call('ZADD', given, 'XX', unpack(args))
end

-- No trace is left but the memory of the id.
local function forget(rows, attempts, notes, priority, given, ids, us)
  if #ids == 0 then return end
  redis.call('HDEL', rows, unpack(ids))
  redis.call('HDEL', attempts, unpack(ids))
  redis.call('HDEL', notes, unpack(ids))
  redis.call('HDEL', priority, unpack(ids))
  remember_end(given, ids, us)
end
