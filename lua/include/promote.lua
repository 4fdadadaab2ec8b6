-- The sweep from delayed to pending, in score order: first-time schedules and retries alike. Reads no rows.
-- A retry is nothing but a delayed job, so nothing here tells them apart. Returns how many moved.
local function promote(delayed, pending, prioritized, priority, meta, us, limit)
  local top, moved = (due_ms(us) + 1) * 4096 - 1, 0
  while moved < limit do
    -- In slices: an unpack of more than 1000 is not safe.
    local ids = redis.call('ZRANGEBYSCORE', delayed, 0, whole(top), 'LIMIT', 0, math.min(500, limit - moved))
    if #ids == 0 then break end
    if moved == 0 then
      -- Redis keeps the writes of a script that fails half-way: what is taken out must have a place to go to.
      redis.call('LLEN', pending)
      redis.call('ZCARD', prioritized)
      redis.call('HEXISTS', meta, 'promoted')
      redis.call('HEXISTS', priority, '')
    end
    redis.call('ZREM', delayed, unpack(ids))
    ready(pending, prioritized, priority, meta, ids)
    moved = moved + #ids
  end
  if moved > 0 then redis.call('HINCRBY', meta, 'promoted', moved) end
  return moved
end
